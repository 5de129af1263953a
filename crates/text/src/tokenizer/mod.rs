//! The tokenizer: text to ids and ids to bytes. One type, built from a `tokenizer.json` or from the
//! vocabulary in a GGUF file; the same vocabulary gives the same tokenizer either way.

mod beginnings;
mod bpe;
mod json;
mod split;
mod vocabulary;

use std::collections::HashMap;
use std::path::Path;

use regex::Regex;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

pub use beginnings::Beginnings;
use beginnings::Encoded;
use bpe::{Bpe, Scratch};
use split::Split;
pub use vocabulary::{Kind, TokenizerError, Vocabulary};

/// Tokens a vocabulary may have; Qwen3.5 has 248 320.
const MAX_TOKENS: usize = 1 << 20;

/// What ends a generation in every Qwen3.5/3.6/3.8.
const ENDS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// Pieces longer than this are not looked up among the pieces already encoded.
const MEMO_BYTES: usize = 64;

/// What happens to the names of control and user-defined tokens inside a text that is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// They become those tokens: for rendered templates.
    Parse,
    /// They are text like any other and give no control token: for text from outside.
    Literal,
}

/// Whether control tokens appear in decoded text. User-defined tokens, such as `<think>`, always
/// do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controls {
    /// Leave them out.
    Hide,
    /// Write their names.
    Show,
}

/// Byte-level BPE over NFC text.
pub struct Tokenizer {
    split: Split,
    bpe: Bpe,
    /// Control and user-defined tokens by name, and the search that finds the longest of them.
    added: HashMap<String, u32>,
    added_search: Option<Regex>,
    /// Bytes of the longest of their names.
    longest_name: usize,
    /// The search for control tokens alone.
    control_search: Option<Regex>,
    kinds: Vec<Kind>,
    /// The bytes of token `i` are `bytes[starts[i]..starts[i + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<usize>,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    ends: Vec<u32>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn from_json(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path);
        let bytes =
            bytes.map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        Self::from_json_bytes(&bytes)
    }

    /// Reads a `tokenizer.json` that is in memory.
    pub fn from_json_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Self::from_vocabulary(json::vocabulary(bytes)?)
    }

    /// Builds the tokenizer that a GGUF file's metadata describes.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        use TokenizerError as Error;
        let split = vocabulary.check()?;
        let Vocabulary { tokens, token_types, merges, bos, eos, pad, add_bos, mut ends, .. } =
            vocabulary;
        let bytes_of_chars: HashMap<char, u8> =
            (0..=255).map(|byte| (bpe::byte_char(byte), byte)).collect();
        let mut ids: HashMap<&str, u32> = HashMap::with_capacity(tokens.len());
        let mut added = HashMap::new();
        let mut kinds = Vec::with_capacity(tokens.len());
        let (mut bytes, mut starts) = (Vec::new(), vec![0]);
        for ((token, found), id) in tokens.iter().zip(token_types).zip(0..) {
            let kind = match found {
                1 => Kind::Normal,
                3 => Kind::Control,
                4 => Kind::UserDefined,
                5 => Kind::Unused,
                _ => return Err(Error::Type { id, token: token.clone(), found }),
            };
            match kind {
                Kind::Unused => {}
                Kind::Normal => bytes.extend(bpe::spelt_bytes(token, &bytes_of_chars)),
                Kind::Control | Kind::UserDefined => {
                    if token.is_empty() {
                        return Err(Error::AddedToken {
                            id,
                            token: String::new(),
                            problem: "empty",
                        });
                    }
                    bytes.extend_from_slice(token.as_bytes());
                    added.insert(token.clone(), id);
                }
            }
            if kind != Kind::Unused
                && let Some(first) = ids.insert(token, id)
            {
                return Err(Error::DuplicateToken { token: token.clone(), first, second: id });
            }
            kinds.push(kind);
            starts.push(bytes.len());
        }

        // BPE never makes a control token, whatever the merges say: `Specials::Literal` rests on
        // it.
        let text_id =
            |token: &str| ids.get(token).copied().filter(|id| kinds[*id as usize] != Kind::Control);
        let bpe = Bpe::new(&merges, text_id)?;

        ends.extend(eos);
        ends.extend(ENDS.iter().filter_map(|name| added.get(*name)));
        ends.sort_unstable();
        ends.dedup();
        let added_search = longest_of(added.keys())?;
        let control = |(_, id): &(&String, &u32)| kinds[**id as usize] == Kind::Control;
        let control_search = longest_of(added.iter().filter(control).map(|(name, _)| name))?;
        let longest_name = added.keys().map(String::len).max().unwrap_or(0);
        let bos = bos.filter(|_| add_bos);
        Ok(Self {
            split,
            bpe,
            added,
            added_search,
            longest_name,
            control_search,
            kinds,
            bytes,
            starts,
            bos,
            eos,
            pad,
            ends,
        })
    }

    /// `text` with `mark` inside each name of a control token, if it has any. A template may put it
    /// among its own control tokens: [`Self::encode_marked`] takes the marks out again and does not
    /// mistake it for them.
    pub fn mark_controls(&self, text: &str, mark: char) -> Option<String> {
        let search = self.control_search.as_ref().filter(|search| search.is_match(text))?;
        let mut marked = text.to_owned();
        // A mark inside one name may leave another whole that overlaps it.
        while search.is_match(&marked) {
            let mut next = String::with_capacity(marked.len() + marked.len() / 4);
            let mut start = 0;
            for name in search.find_iter(&marked) {
                let first = name.as_str().chars().next().map_or(0, char::len_utf8);
                next.push_str(&marked[start..name.start() + first]);
                next.push(mark);
                start = name.start() + first;
            }
            next.push_str(&marked[start..]);
            marked = next;
        }
        Some(marked)
    }

    /// The tokens of a rendered template in which texts from outside were marked.
    pub fn encode_marked(&self, text: &str, mark: char) -> Vec<u32> {
        let mut encoded = Encoded::default();
        self.encode_on(text, Some(mark), &mut encoded);
        encoded.ids
    }

    /// The tokens of `text`, after NFC.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        let mut encoded = Encoded::default();
        match specials {
            Specials::Parse => self.encode_on(text, None, &mut encoded),
            Specials::Literal => self.encode_text(text, &mut encoded.ids),
        }
        encoded.ids
    }

    /// Appends the tokens of `text` from the last cut on.
    fn encode_on(&self, text: &str, mark: Option<char>, encoded: &mut Encoded) {
        let Encoded { ids, cuts, .. } = encoded;
        let mut start = cuts.last().map_or(0, |(end, _)| *end);
        ids.reserve((text.len() - start) / 3);
        let plain = |text: &str, ids: &mut Vec<u32>| match mark.filter(|m| text.contains(*m)) {
            Some(mark) => self.encode_text(&text.replace(mark, ""), ids),
            None => self.encode_text(text, ids),
        };
        let rest = start;
        for name in self.added_search.iter().flat_map(|search| search.find_iter(&text[rest..])) {
            plain(&text[start..rest + name.start()], ids);
            ids.push(self.added[name.as_str()]);
            start = rest + name.end();
            cuts.push((start, ids.len()));
        }
        plain(&text[start..], ids);
    }

    /// Appends the tokens of `text`, none of which is an added one.
    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) {
        let normalized;
        let text = match is_nfc_quick(text.chars()) {
            IsNormalized::Yes => text,
            _ => {
                normalized = text.nfc().collect::<String>();
                &normalized
            }
        };
        // Text repeats itself: a piece seen before is copied from where its tokens already stand.
        let mut seen: HashMap<&str, (usize, usize)> = HashMap::new();
        let mut scratch = Scratch::default();
        for piece in self.split.pieces(text) {
            if let Some((from, to)) = seen.get(piece) {
                ids.extend_from_within(*from..*to);
                continue;
            }
            let from = ids.len();
            self.bpe.encode(piece.as_bytes(), &mut scratch, ids);
            if piece.len() <= MEMO_BYTES {
                seen.insert(piece, (from, ids.len()));
            }
        }
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], controls: Controls) -> String {
        let bytes: Vec<u8> =
            ids.iter().flat_map(|id| self.visible_bytes(*id, controls)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of a token; none for an unused or unknown one.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        if at < self.len() { &self.bytes[self.starts[at]..self.starts[at + 1]] } else { &[] }
    }

    pub(crate) fn visible_bytes(&self, id: u32, controls: Controls) -> &[u8] {
        if controls == Controls::Hide && self.kind(id) == Kind::Control {
            &[]
        } else {
            self.bytes(id)
        }
    }

    /// What a token is for; an id beyond the vocabulary is unused.
    pub fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    /// The id of a control or user-defined token, by its name.
    pub fn special(&self, name: &str) -> Option<u32> {
        self.added.get(name).copied()
    }

    /// Number of ids, unused ones included; a model may have more rows.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Never: a vocabulary has at least the 256 bytes.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The token to put before every prompt, if the file asks for one. `encode` does not add it.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end token that the file names.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The padding token that the file names.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// The tokens that end a generation, ascending: `<|im_end|>`, `<|endoftext|>`, and what the
    /// files name.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Whether a token ends a generation.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Adds tokens that end a generation, as `generation_config.json` lists them.
    pub fn with_ends(mut self, ids: &[u32]) -> Result<Self, TokenizerError> {
        if let Some(id) = ids.iter().copied().find(|id| *id as usize >= self.len()) {
            return Err(TokenizerError::OutOfRange {
                what: "end of generation",
                id,
                tokens: self.len(),
            });
        }
        self.ends.extend(ids);
        self.ends.sort_unstable();
        self.ends.dedup();
        Ok(self)
    }
}

/// A search for the leftmost name, and of those that start there the longest.
fn longest_of<'a>(names: impl Iterator<Item = &'a String>) -> Result<Option<Regex>, regex::Error> {
    let mut names: Vec<&String> = names.collect();
    names.sort_unstable_by_key(|name| (std::cmp::Reverse(name.len()), *name));
    let escaped: Vec<String> = names.iter().map(|name| regex::escape(name)).collect();
    if escaped.is_empty() { Ok(None) } else { Regex::new(&escaped.join("|")).map(Some) }
}
