//! What a repository has: the commit that a revision is at, and its files with their sizes and
//! checksums.

use crate::HubName;
use crate::choose::Listed;
use crate::client::{Client, Failure};
use crate::digest::Digest;
use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;

/// A listing is larger than this for no model.
const LARGEST: u64 = 64 << 20;

/// A repository at a commit.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<Remote>,
}

/// A file of a repository.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) digest: Digest,
}

impl Listed for Remote {
    fn path(&self) -> &str {
        &self.path
    }

    fn size(&self) -> u64 {
        self.size
    }
}

/// As the Hub says it.
#[derive(Deserialize)]
struct Said {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Asks what a repository has.
pub(crate) fn list(client: &Client<'_>, name: &HubName) -> Result<Listing> {
    let (endpoint, repository) = (&client.settings.endpoint, &name.repository);
    let revision = name.revision().replace('/', "%2F");
    let url = format!("{endpoint}/api/models/{repository}/revision/{revision}?blobs=true");
    let text = client.patiently(|| {
        let mut response = client.get(&url, None)?;
        if !response.status().is_success() {
            return Err(client.refusal(&url, &response));
        }
        let body = response.body_mut().with_config().limit(LARGEST);
        body.read_to_vec().map_err(|error| Failure::again(error.into(), false))
    })?;
    let said: Said = serde_json::from_slice(&text)
        .with_context(|| format!("{endpoint} does not answer like a Hub ({url})"))?;
    checked(said).with_context(|| url.clone())
}

/// The same, with nothing in it that would lead out of a folder or could not be checked.
fn checked(said: Said) -> Result<Listing> {
    if !is_hex(&said.sha, 40) {
        bail!("`{}` is no commit", said.sha);
    }
    let file = |sibling: Sibling| -> Result<Remote> {
        let path = sibling.rfilename;
        let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
        if path.contains(['\\', ':', '\0']) || !path.split('/').all(is_part) {
            bail!("`{path}` is no path of a file");
        }
        let unknown = || anyhow!("size and checksum of `{path}` are not said");
        let (size, digest) = match (sibling.lfs, sibling.blob_id) {
            (Some(lfs), _) => (lfs.size, Digest::Sha256(lfs.sha256)),
            (None, Some(blob)) => (sibling.size.ok_or_else(unknown)?, Digest::Git(blob)),
            (None, None) => return Err(unknown()),
        };
        if !is_hex(digest.etag(), digest.digits()) {
            bail!("`{}` is no checksum of `{path}`", digest.etag());
        }
        Ok(Remote { path, size, digest })
    };
    let files = said.siblings.into_iter().map(file).collect::<Result<_>>()?;
    Ok(Listing { commit: said.sha, files })
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_listing_that_could_do_harm_is_refused() {
        let sha = "a".repeat(40);
        let check = |file: serde_json::Value| {
            let said = serde_json::from_value(json!({"sha": sha, "siblings": [file]})).unwrap();
            checked(said).map(|_| ()).map_err(|error| error.to_string())
        };
        let named = |path: &str| json!({"rfilename": path, "size": 1, "blobId": sha});
        assert_eq!(check(named("a/b.gguf")), Ok(()));
        for path in ["../x", "/etc/x", "a//b", "a/./b", "a\\b", "c:x", ""] {
            assert_eq!(check(named(path)), Err(format!("`{path}` is no path of a file")));
        }
        let unsized_file = json!({"rfilename": "a"});
        assert_eq!(check(unsized_file).unwrap_err(), "size and checksum of `a` are not said");
        let wrong = json!({"rfilename": "a", "lfs": {"sha256": "../../x", "size": 1}});
        assert_eq!(check(wrong).unwrap_err(), "`../../x` is no checksum of `a`");
        let said = Said { sha: "main".into(), siblings: Vec::new() };
        assert_eq!(checked(said).unwrap_err().to_string(), "`main` is no commit");
    }
}
