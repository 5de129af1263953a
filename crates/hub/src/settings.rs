//! Where models lie on this machine and whom to ask for more: what the environment says, in the
//! words of Hugging Face, Ollama and LM Studio.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The Hub that is asked unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";

/// Everything that the environment decides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder of the shared cache: `HF_HUB_CACHE`, else `HF_HOME/hub`.
    pub cache: PathBuf,
    /// The Hub's address, without a slash at its end: `HF_ENDPOINT`.
    pub endpoint: String,
    /// Who asks: `HF_TOKEN`, else the file that `hf auth login` writes.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`: nothing is downloaded.
    pub offline: bool,
    /// Folders of models that LM Studio has downloaded.
    pub lm_studio: Vec<PathBuf>,
    /// Folders of models that Ollama has downloaded: `OLLAMA_MODELS`.
    pub ollama: Vec<PathBuf>,
    /// A file of certificates to trust in place of the built-in ones: `SSL_CERT_FILE`.
    pub certificates: Option<PathBuf>,
    /// How long to wait before a first failure is tried again; later ones wait longer.
    pub patience: Duration,
    /// Bytes of a file that are asked for at once; each is fetched by itself and kept when it is
    /// there.
    pub piece: u64,
    /// Pieces that are fetched at the same time.
    pub connections: usize,
}

impl Settings {
    /// What the environment of this process says.
    pub fn from_env() -> Self {
        Self::from(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// What an environment says.
    pub fn from(get: impl Fn(&str) -> Option<String>) -> Self {
        let folder = |name: &str| get(name).map(PathBuf::from);
        let user = folder("HOME").or_else(|| folder("USERPROFILE")).unwrap_or_default();
        let caches = folder("XDG_CACHE_HOME").unwrap_or_else(|| user.join(".cache"));
        let home = folder("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
        let home = expanded(&home, &user);
        let cache = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
        let token_file = folder("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let token = get("HF_TOKEN").or_else(|| std::fs::read_to_string(token_file).ok());
        let yes = |value: String| {
            matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
        };
        let ollama = match folder("OLLAMA_MODELS") {
            Some(folder) => vec![folder],
            None => vec![
                user.join(".ollama/models"),
                PathBuf::from("/usr/share/ollama/.ollama/models"),
                PathBuf::from("/var/lib/ollama/models"),
            ],
        };
        Self {
            cache: cache.map_or_else(|| home.join("hub"), |folder| expanded(&folder, &user)),
            endpoint: get("HF_ENDPOINT")
                .unwrap_or_else(|| ENDPOINT.to_owned())
                .trim_end_matches('/')
                .to_owned(),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            offline: get("HF_HUB_OFFLINE").is_some_and(yes),
            lm_studio: vec![user.join(".lmstudio/models"), caches.join("lm-studio/models")],
            ollama,
            certificates: folder("SSL_CERT_FILE"),
            patience: Duration::from_millis(500),
            piece: 32 << 20,
            connections: 8,
        }
    }
}

/// `~` at the beginning is the user's folder, as in Python.
fn expanded(path: &Path, user: &Path) -> PathBuf {
    path.strip_prefix("~").map_or_else(|_| path.to_owned(), |rest| user.join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| *v);
        Settings::from(|name| value(name).map(str::to_owned))
    }

    #[test]
    fn folders_are_those_of_hugging_face() {
        let cache = |pairs: &[(&str, &str)]| settings(pairs).cache;
        let home = ("HOME", "/home/u");
        assert_eq!(cache(&[home]), Path::new("/home/u/.cache/huggingface/hub"));
        let xdg = ("XDG_CACHE_HOME", "/x");
        assert_eq!(cache(&[home, xdg]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[home, xdg, ("HF_HOME", "~/hf")]), Path::new("/home/u/hf/hub"));
        let both = [home, ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")];
        assert_eq!(cache(&both), Path::new("/c"));
    }

    #[test]
    fn a_token_comes_from_the_environment_or_from_the_file_of_a_login() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        assert_eq!(settings(&[("HF_HOME", home)]).token, None);
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(settings(&[("HF_HOME", home)]).token.as_deref(), Some("hf_file"));
        let said = [("HF_HOME", home), ("HF_TOKEN", "hf_said")];
        assert_eq!(settings(&said).token.as_deref(), Some("hf_said"));
    }

    #[test]
    fn other_words_of_the_environment() {
        let said = settings(&[("HF_ENDPOINT", "http://mirror/"), ("HF_HUB_OFFLINE", "true")]);
        assert_eq!((said.endpoint.as_str(), said.offline), ("http://mirror", true));
        assert!(!settings(&[("HF_HUB_OFFLINE", "0")]).offline);
        assert_eq!(settings(&[("OLLAMA_MODELS", "/o")]).ollama, [Path::new("/o")]);
    }
}
