//! Why a checkpoint was refused. Messages name the thing, both values, and what its owner can do. A
//! message holds its whole sentence, so what it wraps is called `cause`: as a `source` it would be
//! printed twice.

use std::path::PathBuf;
use thiserror::Error;

/// Why a checkpoint was refused.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{}: {cause}", .path.display())]
    Io { path: PathBuf, cause: std::io::Error },
    #[error(transparent)]
    Gguf(#[from] formats::gguf::Error),
    #[error(transparent)]
    Safetensors(#[from] formats::safetensors::Error),
    #[error("{}: not the JSON it should be ({cause}): get it again", .path.display())]
    Json { path: PathBuf, cause: serde_json::Error },
    #[error("{} is {len} bytes, the cap is {cap}", .path.display())]
    ConfigTooLong { path: PathBuf, len: u64, cap: u64 },
    #[error("configuration is not a JSON object")]
    ConfigNotObject,
    #[error(
        "neither GGUF nor safetensors: the file starts with `{}`; name a GGUF file or a Hugging \
         Face folder", .0.escape_ascii()
    )]
    Container(Vec<u8>),
    #[error("this is {what}: {remedy}")]
    Stranger { what: String, remedy: String },
    #[error(
        "only {there} of the file are there: its download was cut short; resume it, or get it again"
    )]
    CutShort { there: String },
    #[error("{}: {sentence}", .path.display())]
    InFile { path: PathBuf, sentence: String },
    #[error("{}", crate::strangers::listed(.0))]
    SeveralFiles(Vec<(String, u64)>),
    #[error(
        "only {there} of the file are there, and they end within its header: its download was cut \
         short; resume it, or get it again"
    )]
    CutInHeader { there: String },
    #[error("no model lies in {}: it has neither a GGUF nor a `config.json`", .0.display())]
    NoConfig(PathBuf),
    #[error("a target's weights without a configuration: name the folder with its `config.json`")]
    NoConfigBeside,

    #[error("`{0}` is not a model Forerun runs: Qwen3.5/3.6/3.8 targets and DFlash drafters are")]
    Architecture(String),
    #[error("nothing says what model this is: no `architectures`, and no tensor of a drafter")]
    NoArchitecture,
    #[error("this is {found}, {wanted} was expected")]
    Kind { wanted: &'static str, found: &'static str },
    #[error("the target has an MTP block already, and drafts with that one alone")]
    SecondMtp,
    #[error("an MTP block without a configuration is read against its target: name that too")]
    MtpAlone,
    #[error(
        "{variant} drafters are not run ({sign}): DFlash, DFlash 2, DSpark and JetSpec drafters \
         are, and a target's own MTP block drafts without any"
    )]
    Variant { variant: &'static str, sign: String },
    #[error("{from} is there without `{other}`: a drafter with {what} has both")]
    HalfPair { what: &'static str, from: String, other: &'static str },
    #[error(
        "{from} says that the drafter has {what}, but tensor `{tensor}` is missing: it was lost \
         when the file was made; get another, or convert it anew from its Hugging Face folder"
    )]
    LostPart { what: &'static str, from: String, tensor: String },
    #[error(
        "tensor `{tensor}` is of {what}, but no key says so: {keys} are missing from the \
         configuration"
    )]
    UnsaidPart { what: &'static str, tensor: String, keys: String },
    #[error("{what} is not supported ({from})")]
    Unsupported { what: String, from: String },

    #[error("`{0}` is missing from the configuration")]
    MissingKey(String),
    #[error("`{key}` is {found}, {wanted} expected")]
    KeyType { key: String, wanted: &'static str, found: String },
    #[error("{what} is {value} by {from}; {expected} expected")]
    Invalid { what: &'static str, value: String, from: String, expected: String },
    #[error("{what} is {first} by {first_from}, but {second} by {second_from}")]
    Disagree {
        what: String,
        first: String,
        first_from: String,
        second: String,
        second_from: String,
    },
    #[error("{}", needs(.0))]
    NeedsFlags(Vec<Need>),
    #[error(
        "rope theta is {theta} by {from}, but {expected} by {expected_from}: old converters wrote \
         1e6 by mistake; give `--draft-rope-theta {expected}` (or `{theta}`) to say which is right"
    )]
    Theta { theta: f32, from: String, expected: f32, expected_from: String },

    #[error("tensor `{0}` is missing")]
    MissingTensor(String),
    #[error("tensor `{tensor}` has shape {found:?}, {expected:?} expected")]
    Shape { tensor: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor `{tensor}` has type {dtype}; F32, F16 and BF16 are read")]
    Dtype { tensor: String, dtype: String },
    #[error("tensor `{tensor}` has shape {found:?}, a matrix expected")]
    NotMatrix { tensor: String, found: Vec<usize> },
    #[error(
        "tensors that must be of one type are not: `{first}` is {first_type}, `{second}` is \
         {second_type}"
    )]
    MixedTypes { first: String, first_type: String, second: String, second_type: String },
    #[error("{count} tensors are not part of the model: {}", list(.names))]
    UnknownTensors { count: usize, names: Vec<String> },
    #[error("tensor `{tensor}` cannot be written as {ty}: {cause}")]
    Encode { tensor: String, ty: formats::BlockType, cause: formats::quantize::EncodeError },
    #[error("stopped; nothing was written")]
    Stopped,
}

/// Something no metadata says and no shape can tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Need {
    /// What it is.
    pub what: &'static str,
    /// The flag that says it.
    pub flag: &'static str,
    /// The value that is likely right.
    pub suggestion: Option<String>,
}

impl Need {
    pub(crate) fn new(what: &'static str, flag: &'static str, suggestion: Option<String>) -> Self {
        Self { what, flag, suggestion }
    }
}

fn needs(needs: &[Need]) -> String {
    let sentence = |need: &Need| {
        let suggestion = need.suggestion.as_ref().map_or(String::new(), |s| format!(" ({s})"));
        format!("nothing in the file says {}: give `{}`{suggestion}", need.what, need.flag)
    };
    needs.iter().map(sentence).collect::<Vec<_>>().join("; ")
}

fn list(names: &[String]) -> String {
    names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// Names at most eight of the tensors nobody asked for.
    pub(crate) fn unknown_tensors(mut names: Vec<String>) -> Self {
        let count = names.len();
        names.truncate(8);
        Self::UnknownTensors { count, names }
    }

    pub(crate) fn disagree(
        what: impl Into<String>,
        first: impl ToString,
        first_from: impl Into<String>,
        second: impl ToString,
        second_from: impl Into<String>,
    ) -> Self {
        Self::Disagree {
            what: what.into(),
            first: first.to_string(),
            first_from: first_from.into(),
            second: second.to_string(),
            second_from: second_from.into(),
        }
    }
}
