//! From a path, or from the pair in the binary, to a model that can read and write text.

use crate::{about, embedded};
use anyhow::{Context, Result, anyhow, bail};
use checkpoint::{Drafter, Json, MtpBlock, Overrides, Source, Target};
use engine::sampling::Sampling;
use formats::gguf::Gguf;
use hub::Draft;
use std::collections::BTreeMap;
use std::path::Path;
use text::{ChatTemplate, Kind, Tokenizer, Vocabulary};

/// A target with its drafter and its text side.
pub struct Loaded {
    /// For people: the file's name, or `embedded`.
    pub name: String,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// The target, its weights not yet taken in.
    pub target: Target,
    /// The drafter, where there is one.
    pub drafter: Option<Drafter>,
    /// Rows of the longest blocks that the drafter is known to have learned, where there are some
    /// beyond what its file says.
    pub longest_block: Option<usize>,
    /// Its text side.
    pub text: TextSide,
}

/// What the weights of a target are, for those who ask what runs.
#[derive(Default)]
pub struct WeightSummary {
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// How many numbers there are.
    pub parameters: u64,
    /// Bytes by the type they are stored in.
    pub bytes_of: BTreeMap<String, u64>,
}

impl Loaded {
    /// Takes in what `--draft` names: a drafter, or an MTP block that becomes the target's own.
    fn draft_with(&mut self, path: &Path, overrides: &Overrides) -> Result<()> {
        let config = &self.target.config;
        let source = Source::open(path).map_err(about(path))?;
        if MtpBlock::is_in(&source) {
            let block = MtpBlock::read(source, Some(config)).map_err(about(path))?;
            return self.target.join(block).map_err(about(path));
        }
        let drafter = Drafter::of(source, overrides, Some(config)).map_err(about(path))?;
        self.drafter = Some(drafter);
        Ok(())
    }

    /// Takes in the MTP block that lies beside a target without one. One that does not fit is no
    /// reason not to run the target.
    fn join_mtp_beside(&mut self, target: &Path) {
        let Some(path) = MtpBlock::beside(target) else { return };
        let config = &self.target.config;
        let joined = MtpBlock::open(&path, Some(config)).and_then(|block| self.target.join(block));
        match joined {
            Ok(()) => eprintln!("found the target's MTP block beside it: {}", path.display()),
            Err(error) => eprintln!(
                "warning: {} lies beside the target and is not used: {error}",
                path.display()
            ),
        }
    }

    /// Bytes of all weights.
    pub fn bytes(&self) -> u64 {
        let weights = [Some(&self.target.weights), self.drafter.as_ref().map(|d| &d.weights)];
        weights
            .into_iter()
            .flatten()
            .flat_map(|w| w.iter())
            .map(|w| w.ty.bytes_for(w.elements()).unwrap_or(0) as u64)
            .sum()
    }

    /// What the target's weights are.
    pub fn weights(&self) -> WeightSummary {
        let mut bytes_of = BTreeMap::new();
        for weight in self.target.weights.iter() {
            let bytes = weight.ty.bytes_for(weight.elements()).unwrap_or(0) as u64;
            *bytes_of.entry(weight.ty.to_string()).or_insert(0) += bytes;
        }
        let parameters = self.target.weights.iter().map(|weight| weight.elements() as u64).sum();
        WeightSummary { format: self.format, parameters, bytes_of }
    }
}

/// What turns text into tokens and back.
pub struct TextSide {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// The chat template, or why there is none; then only plain text can be continued.
    pub template: Result<ChatTemplate, String>,
    /// How tokens are drawn, as the file recommends.
    pub sampling: Sampling,
}

/// Opens the target at `model` and the drafter that `draft` says, or the embedded pair where there
/// is no `model`.
pub(crate) fn load(model: Option<&Path>, draft: &Draft, overrides: &Overrides) -> Result<Loaded> {
    let mut loaded = match model {
        Some(path) => target_at(path)?,
        None => embedded_target()?,
    };
    match (model, draft) {
        (_, Draft::At(path) | Draft::Belonging { path, .. }) => {
            loaded.draft_with(path, overrides)?;
        }
        (None, Draft::Own | Draft::Absent { .. }) => {
            let (_, bytes) = embedded::PAIR.context(NO_PAIR)?;
            let gguf = Box::new(Gguf::parse(bytes).context("the embedded drafter")?);
            let (source, config) = (Source::Gguf { gguf, beside: None }, &loaded.target.config);
            let drafter = Drafter::read(source, overrides, Some(config));
            loaded.drafter = Some(drafter.context("the embedded drafter")?);
            let as_filed = overrides.block.is_none();
            loaded.longest_block = as_filed.then_some(embedded::LONGEST_BLOCK);
        }
        (Some(_), _) | (None, Draft::Nothing) => {}
    }
    if let Some(path) = model.filter(|_| loaded.target.config.mtp.is_none()) {
        loaded.join_mtp_beside(path);
    }
    if let Some(drafter) = &mut loaded.drafter {
        drafter.config.extras.real_vocab = Some(real_tokens(&loaded.text.tokenizer));
    }
    if loaded.target.report.skipped.iter().any(|name| is_of_vision(name)) {
        eprintln!("note: the model's vision part is left out: images are not read");
    }
    let warnings = loaded.drafter.iter().flat_map(|d| &d.report.warnings);
    for warning in loaded.target.report.warnings.iter().chain(warnings) {
        eprintln!("warning: {warning}");
    }
    Ok(loaded)
}

fn is_of_vision(name: &str) -> bool {
    name.starts_with("v.") || name.starts_with("mm.") || name.contains("visual.")
}

/// Ids below this are tokens; what follows are rows of the model that no token has.
fn real_tokens(tokenizer: &Tokenizer) -> usize {
    let is_token = |id: &usize| tokenizer.kind(*id as u32) != Kind::Unused;
    (0..tokenizer.len()).rev().find(is_token).map_or(tokenizer.len(), |last| last + 1)
}

pub(crate) const NO_PAIR: &str = "this build has no embedded model: give `--model FILE`";

fn embedded_target() -> Result<Loaded> {
    let (bytes, _) = embedded::PAIR.context(NO_PAIR)?;
    let gguf = Box::new(Gguf::parse(bytes).context("the embedded model")?);
    let text = text_of_gguf(&gguf).context("the embedded model")?;
    let target = Target::read(Source::Gguf { gguf, beside: None }).context("the embedded model")?;
    let (name, format) = ("embedded".to_owned(), "gguf");
    Ok(Loaded { name, format, target, drafter: None, longest_block: None, text })
}

fn target_at(path: &Path) -> Result<Loaded> {
    let shown = path.display().to_string();
    let source = Source::open(path).map_err(about(path))?;
    if checkpoint::drafter::is_drafter(&source).map_err(about(path))? {
        bail!("{shown}: this is a drafter, a target was expected");
    }
    let format = match &source {
        Source::Gguf { .. } => "gguf",
        Source::Safetensors { .. } => "safetensors",
    };
    let text = match &source {
        Source::Gguf { gguf, .. } => text_of_gguf(gguf),
        Source::Safetensors { .. } if path.is_dir() => text_of_folder(path),
        Source::Safetensors { .. } => text_of_folder(path.parent().unwrap_or(Path::new(""))),
    };
    let target = Target::read(source).map_err(about(path))?;
    let name = path.file_name().map_or_else(|| shown.clone(), |n| n.to_string_lossy().into_owned());
    let text = text.context(shown)?;
    Ok(Loaded { name, format, target, drafter: None, longest_block: None, text })
}

/// `tokenizer.ggml.*` of a GGUF.
pub(crate) fn vocabulary_of(gguf: &Gguf) -> Result<Vocabulary> {
    let strings = |key: &str| -> Result<Vec<String>> {
        let strings =
            gguf.strings(key)?.ok_or_else(|| anyhow!("the file has no tokenizer (`{key}`)"))?;
        Ok(strings.into_iter().map(str::to_owned).collect())
    };
    let named =
        |key: &str| Ok::<_, anyhow::Error>(gguf.string(key)?.unwrap_or_default().to_owned());
    let id = |key: &str| gguf.integer(key)?.map(|id| token_id(key, id)).transpose();
    let kind = |kind: i64| i32::try_from(kind).map_err(|_| anyhow!("{kind} is no token type"));
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(id(key)?);
    }
    let types = gguf.integers("tokenizer.ggml.token_type")?.unwrap_or_default();
    Ok(Vocabulary {
        model: named("tokenizer.ggml.model")?,
        pre: named("tokenizer.ggml.pre")?,
        tokens: strings("tokenizer.ggml.tokens")?,
        token_types: types.into_iter().map(kind).collect::<Result<_>>()?,
        merges: strings("tokenizer.ggml.merges")?,
        bos: id("tokenizer.ggml.bos_token_id")?,
        eos: id("tokenizer.ggml.eos_token_id")?,
        pad: id("tokenizer.ggml.padding_token_id")?,
        add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(false),
        ends,
    })
}

/// `tokenizer.*` and `general.sampling.*` of a GGUF.
pub(crate) fn text_of_gguf(gguf: &Gguf) -> Result<TextSide> {
    let vocabulary = vocabulary_of(gguf)?;
    let defaults = Sampling::default();
    let float =
        |key: &str, default: f32| Ok::<_, anyhow::Error>(gguf.float(key)?.unwrap_or(default));
    Ok(TextSide {
        tokenizer: Tokenizer::from_vocabulary(vocabulary)?,
        template: template_of(gguf.string("tokenizer.chat_template")?),
        sampling: Sampling {
            temperature: float("general.sampling.temp", defaults.temperature)?,
            top_k: gguf.integer("general.sampling.top_k")?.unwrap_or(defaults.top_k),
            top_p: float("general.sampling.top_p", defaults.top_p)?,
            min_p: float("general.sampling.min_p", defaults.min_p)?,
            repetition_penalty: float(
                "general.sampling.penalty_repeat",
                defaults.repetition_penalty,
            )?,
            ..defaults
        }
        .checked()?,
    })
}

/// A model can be run without its template, so one that cannot be read is no reason not to load it.
fn template_of(source: Option<&str>) -> Result<ChatTemplate, String> {
    match source.map(ChatTemplate::new) {
        Some(Ok(template)) => Ok(template),
        Some(Err(error)) => {
            eprintln!(
                "warning: {error}; there is no chat until `--chat-template FILE` gives another"
            );
            Err(error.to_string())
        }
        None => Err("the model has no chat template".to_owned()),
    }
}

/// The template of `--chat-template`; one that was asked for must be there.
pub(crate) fn template_at(path: &Path) -> Result<ChatTemplate> {
    let source = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    ChatTemplate::new(&source).with_context(|| path.display().to_string())
}

/// `chat_template` of `tokenizer_config.json`: a template, or several with names, of which
/// `default` is meant.
fn named_template(settings: &Json) -> Result<Option<String>> {
    if let Some(several) = settings.get("chat_template").and_then(|value| value.as_array()) {
        let default = several.iter().find(|one| one["name"] == "default").or(several.first());
        return Ok(default.and_then(|one| one["template"].as_str()).map(str::to_owned));
    }
    Ok(settings.string("chat_template")?.map(str::to_owned))
}

fn token_id(key: &str, id: usize) -> Result<u32> {
    u32::try_from(id).map_err(|_| anyhow!("`{key}` is {id}, which is no token id"))
}

/// `tokenizer.json`, the template and `generation_config.json` of a folder.
fn text_of_folder(folder: &Path) -> Result<TextSide> {
    let tokenizer = Tokenizer::from_json(folder.join("tokenizer.json"))?;
    let optional = |name: &str| -> Result<Json> {
        let path = folder.join(name);
        if path.is_file() { Ok(Json::open(&path)?) } else { Ok(Json::default()) }
    };
    let settings = optional("tokenizer_config.json")?;
    let file = folder.join("chat_template.jinja");
    let source = match file.is_file() {
        true => Some(std::fs::read_to_string(&file).with_context(|| file.display().to_string())?),
        false => named_template(&settings)?,
    };
    let generation = optional("generation_config.json")?;
    // One id, or a list of them.
    let ends: Vec<usize> = match generation.integer("eos_token_id") {
        Ok(one) => one.into_iter().collect(),
        Err(_) => {
            let list = generation.integers("eos_token_id")?.unwrap_or_default();
            list.into_iter().map(|id| usize::try_from(id).unwrap_or(usize::MAX)).collect()
        }
    };
    let ends =
        ends.into_iter().map(|id| token_id("eos_token_id", id)).collect::<Result<Vec<u32>>>()?;
    let defaults = Sampling::default();
    let float =
        |key: &str, default: f32| Ok::<_, anyhow::Error>(generation.float(key)?.unwrap_or(default));
    // A configuration that samples without saying how hot means 1, as in Transformers.
    let sampled = generation.bool("do_sample")?;
    let hot = if sampled == Some(true) { 1.0 } else { defaults.temperature };
    Ok(TextSide {
        tokenizer: tokenizer.with_ends(&ends)?,
        template: template_of(source.as_deref()),
        sampling: Sampling {
            temperature: if sampled == Some(false) { 0.0 } else { float("temperature", hot)? },
            top_k: generation.integer("top_k")?.unwrap_or(defaults.top_k),
            top_p: float("top_p", defaults.top_p)?,
            min_p: float("min_p", defaults.min_p)?,
            repetition_penalty: float("repetition_penalty", defaults.repetition_penalty)?,
            ..defaults
        }
        .checked()?,
    })
}
