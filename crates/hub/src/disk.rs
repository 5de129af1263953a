//! Whether a download fits, before its first byte.

use crate::gigabytes;
use anyhow::{Result, bail};
use std::path::Path;

/// Bytes that stay free for everybody else.
const SPARE: u64 = 256 << 20;

/// Refuses what does not fit the disk that `folder` lies on.
pub(crate) fn check(folder: &Path, wanted: u64) -> Result<()> {
    let existing = folder.ancestors().find(|ancestor| ancestor.exists());
    let Some(free) = existing.and_then(free) else { return Ok(()) };
    if free < wanted.saturating_add(SPARE) {
        bail!(
            "{} are still to come and {} has {} free: make room, or name a folder on another disk \
             by `HF_HUB_CACHE`",
            gigabytes(wanted),
            folder.display(),
            gigabytes(free)
        );
    }
    Ok(())
}

/// Bytes that are free where a folder lies; nothing where the system does not say.
#[cfg(unix)]
pub fn free(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Nothing here.
#[cfg(not(unix))]
pub fn free(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn what_does_not_fit_is_refused_with_both_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("not/yet/there");
        assert!(check(&below, 1).is_ok());
        let said = check(&below, 1 << 60).unwrap_err().to_string();
        assert!(said.starts_with("1152921504.6 GB are still to come and "), "{said}");
        assert!(said.contains(" free: make room, or name a folder"), "{said}");
    }
}
