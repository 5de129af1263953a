//! The file of a state: which tokens led to it, how it is put together, and the pieces it is made
//! of. A line with a checksum, then JSON. Whatever it says is checked before it is used.

use crate::folder::Found;
use crate::name::{Identity, Name, Prefixes};
use engine::Outline;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What files of this form begin with.
const MAGIC: &str = "forerun-state 1 ";

/// Bytes of a file at most: 128 MiB are a state of some five million tokens.
pub(crate) const MAX_BYTES: u64 = 128 << 20;

/// Tokens and pieces of a state at most.
const MAX_TOKENS: usize = 1 << 23;
const MAX_PIECES: usize = 1 << 20;

/// Bytes of a piece at most.
const MAX_PIECE: u64 = 1 << 34;

/// Why a file is no state.
#[derive(Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ManifestError {
    #[error("the file does not begin as a state does")]
    Magic,
    #[error("the file's bytes are not those that were written")]
    Checksum,
    #[error("the file is not what a state is: {0}")]
    Json(String),
    #[error("the file names {count} {what}, where {most} are possible")]
    Count { what: &'static str, count: usize, most: usize },
    #[error("a piece of {0} bytes is too large")]
    Piece(u64),
    #[error("the file is that of another state")]
    Name,
}

/// What the file of a state says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The tokens that led to it.
    pub tokens: Vec<u32>,
    /// How it is put together.
    pub outline: Outline,
    /// Its blocks, in the outline's order.
    pub pieces: Vec<Piece>,
}

/// A block of a state, in a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(String, u64)", into = "(String, u64)")]
pub struct Piece {
    /// The hash of its bytes, which is what its file is called.
    pub name: Name,
    /// How many they are.
    pub bytes: u64,
}

impl TryFrom<(String, u64)> for Piece {
    type Error = &'static str;

    fn try_from((digits, bytes): (String, u64)) -> Result<Self, Self::Error> {
        let name = Name::parse(&digits).ok_or("a piece's name is no hash")?;
        Ok(Self { name, bytes })
    }
}

impl From<Piece> for (String, u64) {
    fn from(piece: Piece) -> Self {
        (piece.name.to_string(), piece.bytes)
    }
}

impl Manifest {
    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("plain numbers and names are JSON");
        format!("{MAGIC}{}\n{json}", Name::of(json.as_bytes())).into_bytes()
    }

    /// Reads a file's bytes. Nothing of them is believed: what comes back is within its bounds,
    /// and that its pieces are those of its outline is for [`Outline::blocks`] to say.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let rest = bytes.strip_prefix(MAGIC.as_bytes()).ok_or(ManifestError::Magic)?;
        let (digits, json) = rest.split_at_checked(64).ok_or(ManifestError::Magic)?;
        let json = json.strip_prefix(b"\n").ok_or(ManifestError::Magic)?;
        let sum = std::str::from_utf8(digits).ok().and_then(Name::parse);
        if sum.ok_or(ManifestError::Magic)? != Name::of(json) {
            return Err(ManifestError::Checksum);
        }
        let manifest: Self =
            serde_json::from_slice(json).map_err(|error| ManifestError::Json(error.to_string()))?;
        let counts = [
            ("tokens", manifest.tokens.len(), MAX_TOKENS),
            ("pieces", manifest.pieces.len(), MAX_PIECES),
        ];
        for (what, count, most) in counts {
            if count == 0 || count > most {
                return Err(ManifestError::Count { what, count, most });
            }
        }
        match manifest.pieces.iter().find(|piece| piece.bytes > MAX_PIECE) {
            Some(piece) => Err(ManifestError::Piece(piece.bytes)),
            None => Ok(manifest),
        }
    }

    /// That it is the state of that name.
    pub(crate) fn check_name(&self, identity: Identity, found: Found) -> Result<(), ManifestError> {
        let len = self.tokens.len();
        let name = Prefixes::new(identity, &self.tokens).name(len);
        let is_it = found == Found { len, name };
        if is_it { Ok(()) } else { Err(ManifestError::Name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Vec<u8> {
        let outline = r#"{"committed":3,"kv":{"first":0,"count":1},"drafts":[null]}"#;
        let outline = serde_json::from_str(outline).expect("an outline");
        let piece = Piece { name: Name::of(b"page"), bytes: 4 };
        Manifest { tokens: vec![1, 2, 3], outline, pieces: vec![piece] }.to_bytes()
    }

    fn sealed(json: &str) -> Vec<u8> {
        format!("{MAGIC}{}\n{json}", Name::of(json.as_bytes())).into_bytes()
    }

    #[test]
    fn what_is_written_is_read() {
        let manifest = Manifest::parse(&sound()).expect("it is sound");
        assert_eq!(manifest.tokens, [1, 2, 3]);
        assert_eq!(manifest.pieces, [Piece { name: Name::of(b"page"), bytes: 4 }]);
        assert_eq!(manifest.to_bytes(), sound());
    }

    #[test]
    fn every_byte_counts() {
        let sound = sound();
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            assert!(Manifest::parse(&damaged).is_err(), "byte {at}");
            assert!(Manifest::parse(&sound[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(
            Manifest::parse(&[&sound[..], b" "].concat()).err(),
            Some(ManifestError::Checksum)
        );
    }

    #[test]
    fn a_sound_checksum_is_not_enough() {
        let json = String::from_utf8(sound()).expect("text");
        let json = json.split_once('\n').expect("two parts").1.to_owned();
        assert!(Manifest::parse(&sealed(&json)).is_ok());
        let wrong = [
            (r#""tokens":[1,2,3]"#, r#""tokens":[]"#),
            (r#""tokens":[1,2,3]"#, r#""tokens":[1,-2]"#),
            (r#","pieces""#, r#","more":1,"pieces""#),
            (r#""committed":3"#, r#""committed":-3"#),
            (",4]]", ",99999999999]]"),
            (",4]]", "]]"),
            ("[[\"", "[[\"0"),
        ];
        for (was, is) in wrong {
            assert!(json.contains(was), "{was}");
            assert!(Manifest::parse(&sealed(&json.replace(was, is))).is_err(), "{is}");
        }
        assert!(Manifest::parse(&sealed(&"[".repeat(100_000))).is_err());
    }
}
