//! Files and folders that people name and that are no model: called what they are, with what to do.

use crate::Error;
use formats::gguf::{self, Gguf};
use formats::{Tensors, safetensors};
use std::path::{Path, PathBuf};

/// Bytes of a file that are looked at.
pub(crate) const START: u64 = 512;

/// Beyond this a size is no size but a broken header.
const LARGEST: u128 = 1 << 44;

/// How files of other kinds start, what they are, and what to do with them.
const STARTS: [(&[u8], &str, &str); 9] = [
    (b"\x1f\x8b", "a gzip archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
    (b"\xfd7zXZ\x00", "an xz archive", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"Rar!", "a RAR archive", UNPACK),
    (b"lmgg", "a GGML file from before GGUF", "get the model as GGUF"),
    (b"tjgg", "a GGML file from before GGUF", "get the model as GGUF"),
    (b"\x80\x02", "a Python pickle", PICKLE),
    (b"\x89HDF", "an HDF5 file", "get the model as safetensors or GGUF"),
];
/// What the Hub sends where there is no file, or none for whoever asked.
const MESSAGES: [&[u8]; 5] =
    [b"Entry not found", b"Invalid username", b"Access to model", b"Not Found", b"{\"error\":"];
const UNPACK: &str = "unpack it and name what is inside";
const PICKLE: &str = "pickles can run code and are not read; get the model as safetensors or GGUF";

fn stranger(what: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::Stranger { what: what.into(), remedy: remedy.into() }
}

/// What a file is, by how it starts, where it is something that is known and not read.
pub(crate) fn recognise(path: &Path, start: &[u8]) -> Option<Error> {
    // A length may look like anything.
    if is_safetensors(start) {
        return None;
    }
    if start.is_empty() {
        return Some(stranger("an empty file", "its download never began; get it again"));
    }
    if start.starts_with(b"version https://git-lfs") {
        let text = String::from_utf8_lossy(start);
        let size = text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok());
        let size = size.map_or(String::new(), |bytes| format!(" of {}", sized(bytes)));
        let what = format!("a Git LFS pointer to a file{size}, not the file");
        return Some(stranger(what, "fetch it with `git lfs pull`"));
    }
    let lower = start.trim_ascii_start().to_ascii_lowercase();
    if lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html") {
        let remedy = "its address was that of a page about the file; on the Hub the file itself is \
                      at `/resolve/` instead of `/blob/`";
        return Some(stranger("a web page", remedy));
    }
    if MESSAGES.iter().any(|message| start.starts_with(message)) {
        let remedy = "its address was wrong, or not open to all; `forerun pull` fetches from the \
                      Hub with your token";
        return Some(stranger("a server's error message in place of a file", remedy));
    }
    if start.starts_with(b"FROM ") {
        let remedy = "name what stands behind FROM, or the model by `ollama:NAME`";
        return Some(stranger("a Modelfile of Ollama's", remedy));
    }
    if start.starts_with(b"PK\x03\x04") {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        return Some(match end {
            "bin" | "pt" | "pth" | "ckpt" => stranger("a PyTorch checkpoint", PICKLE),
            _ => stranger("a zip archive", UNPACK),
        });
    }
    if let Some((_, what, remedy)) = STARTS.iter().find(|(begin, ..)| start.starts_with(begin)) {
        return Some(stranger(*what, *remedy));
    }
    let is_index = path.to_string_lossy().ends_with(".index.json");
    if start.trim_ascii_start().starts_with(b"{") && !is_index {
        return Some(stranger("a JSON file", "name the folder that it lies in"));
    }
    None
}

/// Whether a file without a telling name is safetensors: a short length, then a JSON object.
pub(crate) fn is_safetensors(start: &[u8]) -> bool {
    let length = start.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    length.is_some_and(|n| n > 0 && n <= safetensors::caps::HEADER) && start.get(8) == Some(&b'{')
}

/// GGUFs that are parts of something else. Drafters and targets are told apart later.
pub(crate) fn check_gguf(gguf: &Gguf) -> Result<(), Error> {
    let arch = gguf.string("general.architecture")?.unwrap_or_default();
    let kind = gguf.string("general.type")?.unwrap_or_default();
    if arch == "clip" || kind == "mmproj" {
        let what = "the vision part of a model (mmproj)";
        return Err(stranger(what, "Forerun reads text; name the model's own file"));
    }
    if kind == "adapter" || gguf.get("adapter.type").is_some() {
        return Err(stranger("a LoRA adapter", MERGE));
    }
    if kind == "imatrix" || arch == "imatrix" {
        return Err(stranger(
            "an importance matrix",
            "it helps to quantise a model; name the model",
        ));
    }
    if gguf.tensors().is_empty() {
        return Err(stranger(
            "a GGUF without weights",
            "it has a vocabulary or keys alone; get the model's own file",
        ));
    }
    Ok(())
}

const MERGE: &str = "merge it into its model first (PEFT's `merge_and_unload`, or llama.cpp's \
                     `llama-export-lora`), and name the result";

/// An adapter's tensors come in pairs that no model has.
pub(crate) fn check_tensors(tensors: &Tensors) -> Result<(), Error> {
    let is_pair = |name: &str| name.contains(".lora_A.") || name.contains(".lora_B.");
    match tensors.iter().any(|tensor| is_pair(&tensor.name)) {
        true => Err(stranger("a LoRA adapter", MERGE)),
        false => Ok(()),
    }
}

/// A header that promises more than the file has is what a broken download leaves.
pub(crate) fn cut_short(error: gguf::Error) -> Error {
    match error {
        gguf::Error::OutsideFile { end, len, .. } if end <= LARGEST => {
            Error::CutShort { there: of(len, end as u64) }
        }
        gguf::Error::Truncated { len, .. } => Error::CutInHeader { there: sized(len) },
        gguf::Error::Part { name, cause } if matches!(*cause, gguf::Error::OutsideFile { .. }) => {
            Error::InFile { path: name.into(), sentence: cut_short(*cause).to_string() }
        }
        other => other.into(),
    }
}

/// The same for a safetensors file.
pub(crate) fn cut_short_safetensors(path: &Path, error: safetensors::Error) -> Error {
    shortened(path).unwrap_or_else(|| error.into())
}

fn shortened(path: &Path) -> Option<Error> {
    let have = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let whole = promised(path).filter(|whole| *whole > have)?;
    Some(Error::CutShort { there: of(have, whole) })
}

/// The length that a safetensors header promises, where it can be read at all.
fn promised(path: &Path) -> Option<u64> {
    use std::io::Read;
    let mut file = std::fs::File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > safetensors::caps::HEADER {
        return None;
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).ok()?;
    let header: serde_json::Value = serde_json::from_slice(&header).ok()?;
    let ends = header.as_object()?.values().filter_map(|t| t["data_offsets"][1].as_u64());
    (8 + length).checked_add(ends.max()?)
}

/// Why the weights of a folder could not be opened, where one of its files is a stranger.
pub(crate) fn among_shards(inside: &Path, error: safetensors::Error) -> Error {
    use std::io::Read;
    let folder = inside.parent().unwrap_or(Path::new(""));
    for (name, _) in files(folder, ".safetensors") {
        let (path, mut start) = (folder.join(&name), Vec::new());
        let read = std::fs::File::open(&path).map(|f| f.take(START).read_to_end(&mut start));
        let found = match read {
            Ok(Ok(_)) => recognise(&path, &start),
            _ => None,
        };
        if let Some(found) = found.or_else(|| shortened(&path)) {
            return Error::InFile { path, sentence: found.to_string() };
        }
    }
    error.into()
}

/// A folder without a configuration.
pub(crate) fn no_config(folder: &Path) -> Error {
    if folder.join("adapter_config.json").is_file() {
        return stranger("a LoRA adapter", MERGE);
    }
    match files(folder, ".bin").first() {
        Some((name, _)) if name.starts_with("pytorch_model") => {
            stranger("a folder of PyTorch checkpoints", PICKLE)
        }
        _ => Error::NoConfig(folder.to_owned()),
    }
}

/// The one GGUF of a folder; none where it has none, and a list to choose from where it has
/// several. What belongs to a model but is none (a vision part, an MTP block, parts after the
/// first) does not count.
pub(crate) fn only_gguf(folder: &Path) -> Result<Option<PathBuf>, Error> {
    let mut models: Vec<(String, u64)> = Vec::new();
    for (name, size) in files(folder, ".gguf") {
        let lower = name.to_lowercase();
        if lower.starts_with("mmproj") || lower.contains("mmproj-") || lower.starts_with("mtp-") {
            continue;
        }
        match part_of(&name) {
            // Parts come in order, so the first is in the list already.
            Some((stem, number)) if number > 1 => {
                let first =
                    models.iter_mut().find(|(n, _)| part_of(n).is_some_and(|p| p.0 == stem));
                first.into_iter().for_each(|(_, sum)| *sum += size);
            }
            _ => models.push((name, size)),
        }
    }
    match models.len() {
        0 => Ok(None),
        1 => Ok(Some(folder.join(&models[0].0))),
        _ => Err(Error::SeveralFiles(models)),
    }
}

/// `NAME` and 2 of `NAME-00002-of-00003.gguf`.
fn part_of(name: &str) -> Option<(&str, usize)> {
    let (rest, _) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    Some((stem, number.parse().ok()?))
}

/// Names and sizes of the files that end so, in order.
fn files(folder: &Path, end: &str) -> Vec<(String, u64)> {
    // A bare name has the parent "", which is the working folder.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<(String, u64)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let metadata = std::fs::metadata(entry.path()).ok()?;
            (metadata.is_file() && name.to_lowercase().ends_with(end))
                .then_some((name, metadata.len()))
        })
        .collect();
    found.sort();
    found
}

/// Files to choose from, and the one that most people want: four bits, or else the smallest.
pub(crate) fn listed(files: &[(String, u64)]) -> String {
    let likely = ["UD-Q4_K_XL", "Q4_K_M", "Q4_K_S", "IQ4_XS", "Q4_0", "Q8_0"];
    let by_name = likely
        .iter()
        .find_map(|part| files.iter().find(|(name, _)| name.to_uppercase().contains(part)));
    let chosen = by_name.or_else(|| files.iter().min_by_key(|(_, size)| *size));
    let chosen = chosen.map_or("", |(name, _)| name.as_str());
    let mut list: Vec<String> =
        files.iter().take(12).map(|(name, size)| format!("{name} ({})", sized(*size))).collect();
    if files.len() > list.len() {
        list.push(format!("and {} more", files.len() - list.len()));
    }
    let count = files.len();
    format!("{count} models lie here; name one of them, such as `{chosen}`: {}", list.join(", "))
}

/// `12.3 of 16.5 GB`.
pub(crate) fn of(have: u64, whole: u64) -> String {
    let (unit, name) = unit_of(whole);
    format!("{:.1} of {:.1} {name}", have as f64 / unit, whole as f64 / unit)
}

/// `16.5 GB`, as download pages count.
pub(crate) fn sized(bytes: u64) -> String {
    let (unit, name) = unit_of(bytes);
    format!("{:.1} {name}", bytes as f64 / unit)
}

fn unit_of(bytes: u64) -> (f64, &'static str) {
    match bytes {
        1_000_000_000.. => (1e9, "GB"),
        1_000_000.. => (1e6, "MB"),
        _ => (1e3, "kB"),
    }
}
