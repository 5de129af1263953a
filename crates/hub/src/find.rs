//! Finding a model on this machine by its name. Nothing here asks the network.

use crate::cache::{Cached, files_below};
use crate::catalogue::{self, Entry};
use crate::choose::{Listed, choose};
use crate::{HubName, Name, Settings, gigabytes, ollama};
use anyhow::{Context, Result, anyhow, bail};
use std::path::{Path, PathBuf};

/// Where a model lies.
#[derive(Debug, PartialEq)]
pub struct Found {
    /// Its file or folder.
    pub path: PathBuf,
    /// What it was called, where that was a name and not a path.
    pub name: Option<String>,
    /// Its place in the catalogue, where it has one.
    pub entry: Option<&'static Entry>,
}

/// Which drafter a model runs with.
#[derive(Debug, PartialEq)]
pub enum Draft {
    /// The one at that path.
    At(PathBuf),
    /// The one that was trained for the model, under that name on the Hub.
    Belonging {
        /// Its file or folder.
        path: PathBuf,
        /// Its name.
        name: &'static str,
    },
    /// What the model itself has; the embedded model has a drafter of its own.
    Own,
    /// The same, since the one that belongs to the model cannot be had.
    Absent {
        /// Why.
        reason: String,
    },
    /// None, as was asked for.
    Nothing,
}

/// The file or folder that a word means.
pub fn find(word: &Path, settings: &Settings) -> Result<Found> {
    let text = || Some(word.display().to_string());
    match Name::parse(word)? {
        Name::Path(path) => {
            let is_word = !path.exists() && path.components().count() == 1;
            let named = path.to_str().filter(|name| is_word && !name.contains(".gguf"));
            if let Some(name) = named {
                let near = catalogue::nearest(name);
                let near = near.map_or(String::new(), |near| format!("the nearest is `{near}`, "));
                bail!(
                    "`{name}` is no file and no model of the catalogue: {near}`forerun models` \
                     lists all"
                );
            }
            Ok(Found { path, name: None, entry: None })
        }
        Name::Ollama(manifest) => {
            let path = ollama::find(&settings.ollama, &manifest)?;
            Ok(Found { path, name: text(), entry: None })
        }
        Name::Catalogue { entry, hub } => {
            let Some(path) = find_hub(&hub, settings)? else {
                let quant = hub.quant.as_deref().unwrap_or_default();
                let build = entry.builds.iter().find(|b| b.quant.eq_ignore_ascii_case(quant));
                let size = build.map_or(String::new(), |b| format!(" ({})", gigabytes(b.bytes)));
                let word = word.display();
                bail!("`{word}` is not on this machine: `forerun pull {word}` fetches it{size}");
            };
            Ok(Found { path, name: text(), entry: Some(entry) })
        }
        Name::Hub(hub) => {
            let Some(path) = find_hub(&hub, settings)? else {
                bail!(
                    "there is no file or folder `{}`, and the Hub's model of that name is not on \
                     this machine: `forerun pull {hub}` fetches it from {}",
                    word.display(),
                    settings.endpoint
                );
            };
            Ok(Found { path, name: text(), entry: catalogue::entry_of(&hub.repository) })
        }
    }
}

/// The file or folder of a drafter, for verbs that look at one.
pub fn find_draft(word: &Path, settings: &Settings) -> Result<PathBuf> {
    Ok(find(word, settings)?.path)
}

/// The model that a word means, and the drafter that a second one does: a name, a path, `auto` for
/// the one that belongs to the model, `none`. Without a second word models of the catalogue take
/// the one that belongs to them, where it is here.
pub fn find_pair(
    model: Option<&Path>,
    draft: Option<&Path>,
    settings: &Settings,
) -> Result<(Option<Found>, Draft)> {
    let found = model.map(|word| find(word, settings)).transpose()?;
    let draft = match draft.map(|word| (word, word.to_str())) {
        Some((_, Some("none"))) => Draft::Nothing,
        Some((_, Some("auto"))) => belonging(found.as_ref(), settings)?,
        Some((word, _)) => Draft::At(find_draft(word, settings)?),
        None => {
            let is_catalogued = found.as_ref().is_some_and(|found| {
                let named = found.name.as_deref().and_then(|name| name.split(':').next());
                named.and_then(catalogue::entry).is_some()
            });
            match is_catalogued.then(|| belonging(found.as_ref(), settings)) {
                None => Draft::Own,
                Some(Ok(draft)) => draft,
                // A model without its drafter is slower and says the same.
                Some(Err(reason)) => Draft::Absent { reason: format!("{reason:#}") },
            }
        }
    };
    Ok((found, draft))
}

/// The drafter that the catalogue has for a model.
fn belonging(found: Option<&Found>, settings: &Settings) -> Result<Draft> {
    let Some(found) = found else { return Ok(Draft::Own) };
    let Some(entry) = found.entry else {
        bail!(
            "`--draft auto` knows the drafters of the models that `forerun models` lists, and \
             `{}` is none of them: give `--draft FILE`, or `--draft none`",
            found.name.clone().unwrap_or_else(|| found.path.display().to_string())
        );
    };
    let Some(first) = entry.drafter() else {
        bail!("no drafter is known for `{}`", entry.name);
    };
    for drafter in entry.drafters {
        let Name::Hub(hub) = Name::parse(Path::new(drafter.hub))? else { continue };
        if let Some(path) = find_hub(&hub, settings)? {
            return Ok(Draft::Belonging { path, name: drafter.hub });
        }
    }
    bail!(
        "the drafter of `{}` is not on this machine: `forerun pull {}` fetches it",
        entry.name,
        first.hub
    )
}

/// The path of a Hub's model, in the cache of Hugging Face's programs or in LM Studio's folder.
pub(crate) fn find_hub(hub: &HubName, settings: &Settings) -> Result<Option<PathBuf>> {
    let cached = Cached::new(&settings.cache, &hub.repository);
    let snapshot = cached.snapshot_of(hub.revision());
    let studio = settings.lm_studio.iter().map(|folder| folder.join(&hub.repository));
    let studio = studio.filter(|folder| hub.revision.is_none() && folder.is_dir());
    let mut reason = None;
    for folder in snapshot.into_iter().chain(studio) {
        let files = files_below(&folder);
        match choose(hub, &files) {
            Ok(_) if cached.is_half(hub.revision(), &folder) => {
                reason = Some(anyhow!(
                    "`{hub}` is not whole: its pull was interrupted, `forerun pull {hub}` goes on"
                ));
            }
            Ok(choice) => {
                let open = choice.open.map(|file| folder.join(file.path()));
                let path = open.unwrap_or_else(|| folder.clone());
                missing_shard(hub, &path)?;
                return Ok(Some(path));
            }
            Err(error) => reason = Some(error),
        }
    }
    // A folder with other files of the repository is as good as none, but half a model is not.
    match reason {
        Some(error) if error.to_string().contains("is not whole") => Err(error),
        _ => Ok(None),
    }
}

/// Refuses a folder whose index names files that have not come.
fn missing_shard(hub: &HubName, folder: &Path) -> Result<()> {
    let index = folder.join("model.safetensors.index.json");
    let Ok(text) = std::fs::read(&index) else { return Ok(()) };
    let index: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| index.display().to_string())?;
    let files = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
    let mut files: Vec<&str> = files.filter_map(|file| file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    let here = files.iter().filter(|file| folder.join(file).is_file()).count();
    if here < files.len() {
        bail!(
            "`{hub}` is not whole: {here} of {} files of weights are here, `forerun pull {hub}` \
             fetches the rest",
            files.len()
        );
    }
    Ok(())
}
