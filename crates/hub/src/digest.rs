//! The checksums that the Hub knows its files by. They are also the files' names in the cache.

use crate::client::Stopped;
use anyhow::{Context, Result};
use ring::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A checksum, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Digest {
    /// Of a large file's bytes.
    Sha256(String),
    /// Of a small file, as Git makes it: its length goes before its bytes.
    Git(String),
}

impl Digest {
    /// As the Hub's `ETag` and the cache have it.
    pub(crate) fn etag(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    /// How many digits it has.
    pub(crate) fn digits(&self) -> usize {
        match self {
            Self::Sha256(_) => 64,
            Self::Git(_) => 40,
        }
    }

    /// Whether a file has it. `read` is told how many bytes were read.
    pub(crate) fn is_of(&self, path: &Path, read: impl Fn(u64) -> bool) -> Result<bool> {
        let about = || path.display().to_string();
        let mut file = File::open(path).with_context(about)?;
        let size = file.metadata().with_context(about)?.len();
        let mut context = match self {
            Self::Sha256(_) => digest::Context::new(&SHA256),
            Self::Git(_) => {
                let mut context = digest::Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                context
            }
        };
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = file.read(&mut buffer).with_context(about)?;
            if count == 0 {
                break;
            }
            context.update(&buffer[..count]);
            if !read(count as u64) {
                return Err(Stopped.into());
            }
        }
        let digest = context.finish();
        let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Ok(digits == self.etag())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `sha256sum` and `git hash-object` say of the same bytes.
    #[test]
    fn digests_are_those_of_the_tools() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hello");
        std::fs::write(&path, "hello\n").unwrap();
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let is = |digest: Digest| digest.is_of(&path, |_| true).unwrap();
        assert!(is(Digest::Sha256(sha.to_owned())));
        assert!(is(Digest::Git("ce013625030ba8dba906f756967f9e9ca394464a".to_owned())));
        assert!(!is(Digest::Sha256("0".repeat(64))));
    }
}
