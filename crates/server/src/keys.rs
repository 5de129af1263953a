//! API keys: read from a file, compared in constant time.

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// Why a file has no usable keys.
#[derive(Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum KeyError {
    /// Nothing but blank lines and comments.
    #[error("there is no key in it")]
    Empty,
    /// A key that no header can carry.
    #[error("the key in line {line} has characters other than visible ASCII")]
    Characters { line: usize },
}

/// The keys that open the server.
pub struct Keys(Vec<Vec<u8>>);

impl Keys {
    /// One key a line; blank lines and lines that begin with `#` are skipped.
    ///
    /// ```
    /// let keys = server::Keys::parse("# for the editor\nabc123\n").unwrap();
    /// assert!(keys.know(b"abc123") && !keys.know(b"abc12"));
    /// ```
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for (key, line) in text.lines().map(str::trim).zip(1..) {
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            if !key.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(KeyError::Characters { line });
            }
            keys.push(key.as_bytes().to_vec());
        }
        if keys.is_empty() { Err(KeyError::Empty) } else { Ok(Self(keys)) }
    }

    /// Whether `key` is one of them. The time taken tells nothing but lengths.
    pub fn know(&self, key: &[u8]) -> bool {
        let found = self.0.iter().fold(0, |found, known| found | known.ct_eq(key).unwrap_u8());
        found == 1
    }

    /// Whether a request carries one: `Authorization: Bearer KEY`, or `x-api-key: KEY` as
    /// Anthropic's clients send it.
    pub(crate) fn open(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let bearer = bearer.and_then(|value| {
            let (scheme, key) = value.split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
        });
        let plain = headers.get("x-api-key").map(|value| value.as_bytes());
        bearer.into_iter().chain(plain).any(|key| self.know(key.trim_ascii()))
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_line_by_line() {
        let keys = Keys::parse("\n# two keys\n one \ntwo\r\n").unwrap();
        assert!(keys.know(b"one") && keys.know(b"two"));
        assert!(
            !keys.know(b"")
                && !keys.know(b"on")
                && !keys.know(b"ones")
                && !keys.know(b"# two keys")
        );
        assert_eq!(Keys::parse("# none\n").unwrap_err(), KeyError::Empty);
        assert_eq!(Keys::parse("a\nb c\n").unwrap_err(), KeyError::Characters { line: 2 });
        assert_eq!(format!("{keys:?}"), "2 keys");
    }

    #[test]
    fn keys_come_in_either_header() {
        let keys = Keys::parse("secret").unwrap();
        let open = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            keys.open(&headers)
        };
        assert!(open("authorization", "Bearer secret") && open("authorization", "bearer secret"));
        assert!(open("x-api-key", "secret"));
        assert!(!open("authorization", "secret") && !open("authorization", "Basic secret"));
        assert!(!open("authorization", "Bearer") && !open("x-api-key", "Secret"));
        assert!(!keys.open(&HeaderMap::new()));
    }
}
