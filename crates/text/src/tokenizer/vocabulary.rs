//! What a tokenizer is built from, however it was stored, and what can be wrong with it.

use super::MAX_TOKENS;
use super::json;
use super::split::{self, Split};
use std::path::PathBuf;

/// The tokenizer as a GGUF file states it; a caller fills the fields from the keys named here.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`; `gpt2` (byte-level BPE) is known.
    pub model: String,
    /// `tokenizer.ggml.pre`; `qwen35` and `qwen2` are known.
    pub pre: String,
    /// `tokenizer.ggml.tokens`; the index is the id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 normal, 3 control, 4 user defined, 5 unused.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: `left right`, the first of lowest rank.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: bool,
    /// Further ids that end a generation: `tokenizer.ggml.eot_token_id`, `eos_token_id` of
    /// `generation_config.json`.
    pub ends: Vec<u32>,
}

impl Vocabulary {
    /// The `tokenizer.json` that describes the same tokenizer. Which tokens begin and end texts is
    /// not part of it.
    pub fn to_json(&self) -> Result<serde_json::Value, TokenizerError> {
        json::of_vocabulary(self)
    }

    /// Checks what can be told without looking at single tokens; returns how text is split.
    pub(super) fn check(&self) -> Result<Split, TokenizerError> {
        use TokenizerError as Error;
        if self.model != "gpt2" {
            let found = self.model.clone();
            return Err(Error::Unsupported { part: "model", found, known: "gpt2" });
        }
        let Some(split) = Split::named(&self.pre) else {
            let (found, known) = (self.pre.clone(), split::KNOWN_NAMES);
            return Err(Error::Unsupported { part: "split", found, known });
        };
        let tokens = self.tokens.len();
        if tokens != self.token_types.len() {
            return Err(Error::TypeCount { tokens, types: self.token_types.len() });
        }
        if tokens > MAX_TOKENS {
            return Err(Error::TooManyTokens { tokens, limit: MAX_TOKENS });
        }
        let named = [("bos", self.bos), ("eos", self.eos), ("padding", self.pad)].into_iter();
        let named = named.filter_map(|(what, id)| Some((what, id?)));
        for (what, id) in named.chain(self.ends.iter().map(|id| ("end of generation", *id))) {
            if id as usize >= tokens {
                return Err(Error::OutOfRange { what, id, tokens });
            }
        }
        Ok(split)
    }
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A piece of text.
    Normal,
    /// Structure that is not shown, such as `<|im_end|>`.
    Control,
    /// Structure that is text as well, such as `<think>`.
    UserDefined,
    /// A row of the model without a token.
    Unused,
}

/// Why a tokenizer was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file could not be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is not a `tokenizer.json`.
    #[error("`tokenizer.json` does not parse")]
    Json(#[from] serde_json::Error),
    /// A part of the tokenizer works in a way that is not known here.
    #[error("tokenizer {part} `{found}` is not known (known: {known})")]
    Unsupported {
        /// The part, such as `split pattern`.
        part: &'static str,
        /// What the file has.
        found: String,
        /// What could stand there.
        known: &'static str,
    },
    /// There must be a type for each token.
    #[error("{tokens} tokens but {types} token types")]
    TypeCount {
        /// Number of tokens.
        tokens: usize,
        /// Number of types.
        types: usize,
    },
    /// A token of a type that byte-level BPE does not have.
    #[error(
        "token {id} `{token}` has type {found}, not 1 (normal), 3 (control), 4 (user defined) or 5 \
         (unused)"
    )]
    Type {
        /// Its id.
        id: u32,
        /// Its text.
        token: String,
        /// Its type.
        found: i32,
    },
    /// The same text stands for two ids.
    #[error("token `{token}` has the ids {first} and {second}")]
    DuplicateToken {
        /// The text.
        token: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// Two texts stand for the same id.
    #[error("id {id} is both `{first}` and `{second}`")]
    DuplicateId {
        /// The id.
        id: u32,
        /// A text.
        first: String,
        /// Another.
        second: String,
    },
    /// An added token with no text, or matched in a way that is not known here.
    #[error("added token {id} `{token}` is {problem}")]
    AddedToken {
        /// Its id.
        id: u32,
        /// Its text.
        token: String,
        /// What is not supported.
        problem: &'static str,
    },
    /// A byte that no text could be encoded without.
    #[error("no token for byte {0:#04x}")]
    MissingByte(u8),
    /// A merge rule that is not two tokens with a space between.
    #[error("merge {index} `{merge}` {problem}")]
    Merge {
        /// Its rank.
        index: usize,
        /// The rule.
        merge: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An id beyond the vocabulary.
    #[error("{what} is {id}, but there are {tokens} tokens")]
    OutOfRange {
        /// What the id was given as, such as `eos`.
        what: &'static str,
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        tokens: usize,
    },
    /// More tokens than any model of this family has, by far.
    #[error("{tokens} tokens, more than {limit}")]
    TooManyTokens {
        /// What the file has.
        tokens: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The search for added tokens does not compile.
    #[error("added tokens cannot be searched for")]
    AddedTokens(#[from] regex::Error),
}
