//! Names that say what they name: hashes of bytes, and of tokens under an identity.

use std::fmt;
use std::sync::OnceLock;

/// A hash, written as 64 small hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub [u8; 32]);

impl Name {
    /// That of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Reads digits; none where they are not exactly those of a name.
    pub fn parse(digits: &str) -> Option<Self> {
        let digits = digits.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut name = [0; 32];
        for (byte, pair) in name.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(Self(name))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a state belongs to: the model, its drafter, the types of its caches and everything else its
/// bits depend on. States of another identity are never looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(pub Name);

/// Puts an identity together, part by part.
#[derive(Default)]
pub struct Identifier(blake3::Hasher);

impl Identifier {
    /// A part, with what it is. Lengths go in too, so that no two lists of parts read alike.
    pub fn add(&mut self, what: &str, bytes: &[u8]) {
        for part in [what.as_bytes(), bytes] {
            self.0.update(&(part.len() as u64).to_le_bytes());
            // Weights are gigabytes; all processors hash them.
            self.0.update_rayon(part);
        }
    }

    /// The program that runs: whatever is compiled into it, kernels included, may change numbers,
    /// and any change of it is another program.
    pub fn add_program(&mut self) -> std::io::Result<()> {
        // Once: its file may be replaced while it runs.
        static PROGRAM: OnceLock<[u8; 32]> = OnceLock::new();
        let program = match PROGRAM.get() {
            Some(program) => program,
            None => {
                let mut program = blake3::Hasher::new();
                program.update_reader(std::fs::File::open(std::env::current_exe()?)?)?;
                PROGRAM.get_or_init(|| *program.finalize().as_bytes())
            }
        };
        self.add("program", program);
        Ok(())
    }

    /// The identity.
    pub fn finish(&self) -> Identity {
        Identity(Name(*self.0.finalize().as_bytes()))
    }
}

/// Names the beginnings of a row of tokens, from short to long, in one pass over it.
pub(crate) struct Prefixes<'t> {
    tokens: &'t [u32],
    read: usize,
    hasher: blake3::Hasher,
}

impl<'t> Prefixes<'t> {
    pub(crate) fn new(identity: Identity, tokens: &'t [u32]) -> Self {
        Self { tokens, read: 0, hasher: blake3::Hasher::new_keyed(&identity.0.0) }
    }

    /// The name of the first `len` tokens, which are no fewer than were asked for before.
    pub(crate) fn name(&mut self, len: usize) -> Name {
        let mut bytes = [0; 256];
        for tokens in self.tokens[self.read..len].chunks(64) {
            for (token, place) in tokens.iter().zip(bytes.chunks_exact_mut(4)) {
                place.copy_from_slice(&token.to_le_bytes());
            }
            self.hasher.update(&bytes[..4 * tokens.len()]);
        }
        self.read = len;
        Name(*self.hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_nothing_else_is() {
        let name = Name::of(b"some bytes");
        assert_eq!(Name::parse(&name.to_string()), Some(name));
        let digits = name.to_string();
        for wrong in [&digits[1..], &digits.to_uppercase(), "", &format!("{digits}0")] {
            assert_eq!(Name::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Name::parse(&"é".repeat(32)), None);
    }

    #[test]
    fn beginnings_have_the_name_they_have_alone() {
        let identity = Identity(Name::of(b"a model"));
        let tokens: Vec<u32> = (0..1000).collect();
        let mut prefixes = Prefixes::new(identity, &tokens);
        for len in [0, 1, 63, 64, 65, 500, 1000] {
            let alone = Prefixes::new(identity, &tokens[..len]).name(len);
            assert_eq!(prefixes.name(len), alone, "{len}");
        }
        let other = Identity(Name::of(b"another"));
        assert_ne!(
            Prefixes::new(other, &tokens).name(64),
            Prefixes::new(identity, &tokens).name(64)
        );
    }

    #[test]
    fn parts_of_an_identity_do_not_run_together() {
        let of = |parts: &[(&str, &str)]| {
            let mut identifier = Identifier::default();
            parts.iter().for_each(|(what, bytes)| identifier.add(what, bytes.as_bytes()));
            identifier.finish()
        };
        assert_ne!(of(&[("a", "bc")]), of(&[("ab", "c")]));
        assert_ne!(of(&[("a", "b"), ("c", "d")]), of(&[("a", "bcd")]));
        assert_eq!(of(&[("a", "b")]), of(&[("a", "b")]));
    }
}
