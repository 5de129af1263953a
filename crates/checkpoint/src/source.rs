//! What a path leads to: a GGUF file or a folder with one, a Hugging Face folder, or a bare
//! safetensors file with or without a `config.json` beside it.

use crate::report::Report;
use crate::{Error, Json, quantised, strangers};
use formats::gguf::Gguf;
use formats::{Tensors, safetensors};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The key under which a configuration has what modelopt says in a file of its own.
pub(crate) const BESIDE: &str = "hf_quant_config";

/// An open checkpoint whose meaning has not been read yet.
#[derive(Debug)]
pub enum Source {
    /// GGUF carries its configuration. `beside` is a `config.json` in the same folder, which some
    /// dialects need.
    Gguf {
        /// The open file.
        gguf: Box<Gguf>,
        /// A `config.json` in the same folder.
        beside: Option<Json>,
    },
    /// safetensors with the configuration that lies beside it.
    Safetensors {
        /// Nothing where there is no `config.json`.
        config: Option<Json>,
        /// The weights.
        tensors: Tensors,
    },
}

impl Source {
    /// Opens a file or a folder. Only headers and configurations are read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |cause| Error::Io { path: path.to_owned(), cause };
        let metadata = std::fs::metadata(path).map_err(io)?;
        if metadata.is_dir() {
            return Self::open_folder(path);
        }
        let mut start = Vec::new();
        std::fs::File::open(path)
            .and_then(|f| f.take(strangers::START).read_to_end(&mut start))
            .map_err(io)?;
        if start.starts_with(b"GGUF") {
            // Consulted by one dialect only, so a file that is no configuration is not an error
            // here.
            let beside = sibling(path, "config.json").and_then(|p| Json::open(&p).ok());
            let gguf = Box::new(Gguf::open(path).map_err(strangers::cut_short)?);
            strangers::check_gguf(&gguf)?;
            return Ok(Self::Gguf { gguf, beside });
        }
        if let Some(stranger) = strangers::recognise(path, &start) {
            return Err(stranger);
        }
        let is = |end: &str| path.to_string_lossy().ends_with(end);
        let tensors = if is(".index.json") {
            safetensors::open_index(path).map_err(|e| strangers::among_shards(path, e))?
        } else if is(".safetensors") || strangers::is_safetensors(&start) {
            safetensors::open(path).map_err(|e| strangers::cut_short_safetensors(path, e))?
        } else {
            start.truncate(8);
            return Err(Error::Container(start));
        };
        strangers::check_tensors(&tensors)?;
        let config = sibling(path, "config.json").map(|p| Json::open(&p)).transpose()?;
        Ok(Self::Safetensors { config, tensors })
    }

    /// A Hugging Face folder, or one with a single GGUF in it.
    fn open_folder(path: &Path) -> Result<Self, Error> {
        let inside = path.join(safetensors::FILE);
        let has_weights = inside.exists() || path.join(safetensors::INDEX).exists();
        if !has_weights && let Some(file) = strangers::only_gguf(path)? {
            return Self::open(&file);
        }
        let config = sibling(&inside, "config.json");
        let config = config.ok_or_else(|| strangers::no_config(path))?;
        let tensors =
            safetensors::open_folder(path).map_err(|e| strangers::among_shards(&inside, e))?;
        let mut config = Json::open(&config)?;
        if let Some(said) = sibling(&inside, "hf_quant_config.json") {
            config.add_modelopt(&Json::open(&said)?);
        }
        Ok(Self::Safetensors { config: Some(config), tensors })
    }

    /// A checkpoint in memory: a GGUF, or a `config.json` and a safetensors file joined by a NUL
    /// byte. For fuzzing, so anything else is simply nothing.
    #[doc(hidden)]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"GGUF") {
            let gguf = Box::new(Gguf::parse(bytes.to_vec()).ok()?);
            return Some(Self::Gguf { gguf, beside: None });
        }
        let nul = bytes.iter().position(|&b| b == 0)?;
        let config =
            serde_json::from_slice(&bytes[..nul]).ok().and_then(|v| Json::from_value(v).ok());
        let tensors = safetensors::parse(bytes[nul + 1..].to_vec()).ok()?;
        Some(Self::Safetensors { config, tensors })
    }

    /// The tensors, those of a quantised folder put together. For tests: a module by itself is no
    /// model.
    #[doc(hidden)]
    pub fn assembled(self) -> Result<Tensors, Error> {
        match self {
            Self::Safetensors { config: Some(config), tensors } => {
                quantised::read(&config, tensors, &mut Report::default())
            }
            Self::Safetensors { tensors, .. } => Ok(tensors),
            Self::Gguf { gguf, .. } => Ok(gguf.into_tensors()),
        }
    }

    /// The tensor table.
    pub fn tensors(&self) -> &Tensors {
        match self {
            Self::Gguf { gguf, .. } => gguf.tensors(),
            Self::Safetensors { tensors, .. } => tensors,
        }
    }

    /// The container, for people: `GGUF v3`, `safetensors`.
    pub fn container(&self) -> String {
        match self {
            Self::Gguf { gguf, .. } => format!("GGUF v{}", gguf.version()),
            Self::Safetensors { .. } => "safetensors".to_owned(),
        }
    }
}

/// A file of that name in the same folder, where there is one.
pub(crate) fn sibling(path: &Path, name: &str) -> Option<PathBuf> {
    // A bare file name has the parent "", and `with_file_name` keeps it relative to the working
    // folder.
    Some(path.with_file_name(name)).filter(|p| p.is_file())
}
