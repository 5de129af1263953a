//! Models that Ollama has downloaded: a manifest names the blob of the weights by its checksum.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// What a manifest says of the weights.
const WEIGHTS: &str = "application/vnd.ollama.image.model";

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

/// The weights of the model whose manifest is called `manifest`.
pub(crate) fn find(folders: &[PathBuf], manifest: &str) -> Result<PathBuf> {
    let at = |folder: &PathBuf| folder.join("manifests").join(manifest);
    let Some(folder) = folders.iter().find(|folder| at(folder).is_file()) else {
        let name = manifest.trim_start_matches("registry.ollama.ai/");
        let name = name.trim_start_matches("library/");
        let name = name.rsplit_once('/').map_or(name.to_owned(), |(m, tag)| format!("{m}:{tag}"));
        let known = all(folders);
        let known = match known.is_empty() {
            true => String::new(),
            false => format!("; there are {}", known.join(", ")),
        };
        bail!("Ollama has no `{name}` on this machine: `ollama pull {name}` fetches it{known}");
    };
    let path = at(folder);
    let read = || -> Result<PathBuf> {
        let manifest: Manifest = serde_json::from_slice(&std::fs::read(&path)?)?;
        let weights = manifest.layers.iter().find(|layer| layer.media_type == WEIGHTS);
        let digest = weights.context("the manifest names no weights")?.digest.as_str();
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        if hex.len() != 64 || !hex.chars().all(|c| c.is_ascii_hexdigit()) {
            bail!("`{digest}` is no checksum");
        }
        let blob = folder.join("blobs").join(format!("sha256-{hex}"));
        if !blob.is_file() {
            bail!("its weights are not there ({})", blob.display());
        }
        Ok(blob)
    };
    read().with_context(|| path.display().to_string())
}

/// The names of Ollama's own registry that are here.
fn all(folders: &[PathBuf]) -> Vec<String> {
    let mut names = Vec::new();
    let inside = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    for folder in folders {
        let library = folder.join("manifests/registry.ollama.ai/library");
        for model in inside(&library) {
            let tags = inside(&library.join(&model));
            names.extend(tags.iter().map(|tag| format!("ollama:{model}:{tag}")));
        }
    }
    names.sort();
    names
}
