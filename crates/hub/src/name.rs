//! What a word of the command line means: a file, a model of the catalogue, one of the Hub, one of
//! Ollama's.

use crate::catalogue::{self, Entry};
use anyhow::{Result, bail};
use std::fmt;
use std::path::{Path, PathBuf};

/// What a word means.
#[derive(Clone, Debug, PartialEq)]
pub enum Name {
    /// A file or a folder.
    Path(PathBuf),
    /// A model of the catalogue, in the quantisation asked for or its usual one.
    Catalogue {
        /// The model.
        entry: &'static Entry,
        /// The files that it is.
        hub: HubName,
    },
    /// A repository of the Hub.
    Hub(HubName),
    /// A model of Ollama's, under the path of its manifest: `library/qwen3.6/latest`.
    Ollama(String),
}

/// Files of a repository: `owner/name[:QUANT][@revision]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// `owner/name`.
    pub repository: String,
    /// Which of several files; in the words of their names.
    pub quant: Option<String>,
    /// A branch, a tag or a commit; `main` unless said.
    pub revision: Option<String>,
    /// One file by its path, in place of `quant`.
    pub file: Option<String>,
}

impl HubName {
    /// What is meant unless more is said.
    pub fn of(repository: &str) -> Self {
        Self { repository: repository.to_owned(), quant: None, revision: None, file: None }
    }

    /// The branch, tag or commit.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "hf:{}/{file}", self.repository)?,
            None => f.write_str(&self.repository)?,
        }
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
    }
}

impl Name {
    /// What a word means. What is there is a path, whatever it looks like.
    pub fn parse(word: &Path) -> Result<Self> {
        let Some(text) = word.to_str() else { return Ok(Self::Path(word.to_owned())) };
        if text.is_empty() {
            bail!("an empty name: give a file, a folder, or a model that `forerun models` lists");
        }
        if word.exists() {
            return Ok(Self::Path(word.to_owned()));
        }
        if let Some(named) = text.strip_prefix("ollama:") {
            return manifest(named).map(Self::Ollama);
        }
        if let Some(named) = text.strip_prefix("hf:") {
            return hub(named, true).map(Self::Hub);
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            return address(scheme, rest).map(Self::Hub);
        }
        // As llama.cpp's and Ollama's users write it.
        if text.split_once('/').is_some_and(|(host, _)| is_hub(host)) {
            return address("https", text).map(Self::Hub);
        }
        let (base, quant) = match text.split_once(':') {
            Some((base, quant)) => (base, Some(quant)),
            None => (text, None),
        };
        if let Some(entry) = catalogue::entry(base) {
            let quant = Some(quant.unwrap_or(entry.builds[0].quant).to_owned());
            let hub = HubName { quant, ..HubName::of(entry.repository) };
            return Ok(Self::Catalogue { entry, hub });
        }
        match looks_like_a_repository(text) {
            true => hub(text, false).map(Self::Hub),
            false => Ok(Self::Path(word.to_owned())),
        }
    }
}

/// `owner/name`, perhaps with more behind it, and nothing that says "file".
fn looks_like_a_repository(text: &str) -> bool {
    let base = text.split([':', '@']).next().unwrap_or_default();
    let parts: Vec<&str> = base.split('/').collect();
    let is_file = [".gguf", ".safetensors", ".json", ".bin", ".zip", ".html"];
    let is_file = is_file.iter().any(|end| base.to_ascii_lowercase().ends_with(end));
    parts.len() == 2 && parts.iter().all(|part| is_part(part)) && !is_file
}

/// What owners, names, quantisations and revisions are made of; never a step up or down a folder.
fn is_part(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !part.is_empty() && part.chars().all(allowed) && !part.starts_with('.') && !part.contains("..")
}

/// `owner/name[/file][:QUANT][@revision]`.
fn hub(text: &str, file_allowed: bool) -> Result<HubName> {
    let wrong = || {
        anyhow::anyhow!(
            "`{text}` is no name of a repository: `owner/name`, `owner/name:QUANT` or \
             `owner/name@revision` was expected"
        )
    };
    let (rest, revision) = match text.split_once('@') {
        Some((rest, revision)) => (rest, Some(revision)),
        None => (text, None),
    };
    let (base, quant) = match rest.split_once(':') {
        Some((base, quant)) => (base, Some(quant)),
        None => (rest, None),
    };
    let parts: Vec<&str> = base.split('/').collect();
    let revision_parts = revision.iter().flat_map(|revision| revision.split('/'));
    let mut all = parts.iter().copied().chain(quant).chain(revision_parts);
    if parts.len() < 2 || !all.all(is_part) || (parts.len() > 2 && !file_allowed) {
        return Err(wrong());
    }
    let file = (parts.len() > 2).then(|| parts[2..].join("/"));
    if file.is_some() && quant.is_some() {
        return Err(wrong());
    }
    Ok(HubName {
        repository: parts[..2].join("/"),
        quant: quant.map(str::to_owned),
        revision: revision.map(str::to_owned),
        file,
    })
}

fn is_hub(host: &str) -> bool {
    matches!(host, "huggingface.co" | "www.huggingface.co" | "hf.co")
}

/// A page of the Hub as a browser shows its address: `huggingface.co/owner/name[/blob/main/file]`.
fn address(scheme: &str, rest: &str) -> Result<HubName> {
    let path = rest.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let (host, path) = path.split_once('/').unwrap_or((path, ""));
    if !is_hub(host) || !matches!(scheme, "https" | "http") {
        bail!(
            "`{scheme}://{rest}` is an address: download it first, or give a repository of the \
             Hub as `owner/name`"
        );
    }
    let parts: Vec<&str> = path.split('/').collect();
    let named = match parts.as_slice() {
        [owner, name] => format!("{owner}/{name}"),
        [owner, name, "tree", revision] => format!("{owner}/{name}@{revision}"),
        [owner, name, "blob" | "resolve", revision, file @ ..] if !file.is_empty() => {
            format!("{owner}/{name}/{}@{revision}", file.join("/"))
        }
        _ => bail!("`{scheme}://{rest}` is no page of a model: `owner/name` was expected"),
    };
    hub(&named, true)
}

/// The path of Ollama's manifest: `qwen3.6` is `library/qwen3.6/latest` of its own registry.
fn manifest(named: &str) -> Result<String> {
    let (base, tag) = named.rsplit_once(':').unwrap_or((named, "latest"));
    let parts: Vec<&str> = base.split('/').collect();
    if parts.len() > 3 || !parts.iter().copied().chain([tag]).all(is_part) {
        bail!("`ollama:{named}` is no name of Ollama's: `ollama:model` or `ollama:model:tag`");
    }
    Ok(match parts.as_slice() {
        [model] => format!("registry.ollama.ai/library/{model}/{tag}"),
        [owner, model] => format!("registry.ollama.ai/{owner}/{model}/{tag}"),
        _ => format!("{base}/{tag}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        match Name::parse(Path::new(text)) {
            Ok(Name::Path(path)) => format!("path {}", path.display()),
            Ok(Name::Catalogue { entry, hub }) => format!("{} = {hub}", entry.name),
            Ok(Name::Hub(hub)) => format!("hub {hub}"),
            Ok(Name::Ollama(manifest)) => format!("ollama {manifest}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn words_and_what_they_mean() {
        let url = "https://huggingface.co/a/b";
        let cases: &[(&str, &str)] = &[
            ("model.gguf", "path model.gguf"),
            ("./a/b", "path ./a/b"),
            ("/a/b", "path /a/b"),
            ("../a", "path ../a"),
            ("a/b/c", "path a/b/c"),
            ("a/b.gguf", "path a/b.gguf"),
            ("src", "path src"),
            ("qwen3.6-27b", "qwen3.6-27b = unsloth/Qwen3.6-27B-GGUF:UD-Q4_K_XL"),
            ("Qwen3.6-27B:q8_0", "qwen3.6-27b = unsloth/Qwen3.6-27B-GGUF:q8_0"),
            ("a/b", "hub a/b"),
            ("a/b:Q4_K_M@v1.0", "hub a/b:Q4_K_M@v1.0"),
            ("a/b@refs/pr/3", "hub a/b@refs/pr/3"),
            ("hf:a/b/c/d.gguf", "hub hf:a/b/c/d.gguf"),
            (url, "hub a/b"),
            (&format!("{url}/tree/main"), "hub a/b@main"),
            (&format!("{url}/blob/main/MTP/c.gguf?download=true"), "hub hf:a/b/MTP/c.gguf@main"),
            ("hf.co/a/b:Q4_K_M", "hub a/b:Q4_K_M"),
            ("huggingface.co/a/b", "hub a/b"),
            ("ollama:qwen3.6", "ollama registry.ollama.ai/library/qwen3.6/latest"),
            ("ollama:me/q:27b", "ollama registry.ollama.ai/me/q/27b"),
            ("ollama:hf.co/a/b:Q4", "ollama hf.co/a/b/Q4"),
        ];
        for (word, meaning) in cases {
            assert_eq!(parsed(word), *meaning, "{word}");
        }
    }

    #[test]
    fn what_would_leave_its_folder_is_no_name() {
        for word in ["hf:../b", "hf:a/..", "a/b@../x", "ollama:../x", "hf:a/b/../../c.gguf"] {
            assert!(parsed(word).contains(" is no name of "), "{word}: {}", parsed(word));
        }
        assert!(parsed("https://example.com/a/b").ends_with("of the Hub as `owner/name`"));
        assert!(parsed("").starts_with("an empty name"));
    }
}
