//! `forerun pull`: a model and its drafter from the Hugging Face Hub, into the cache that programs
//! of Hugging Face share.

use anyhow::{Result, bail};
use hub::{HubName, Name, Settings, Watcher, gigabytes};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What `--help` says last.
pub(crate) const ENVIRONMENT: &str = "Environment: HF_HOME and HF_HUB_CACHE say where the cache \
    is, HF_TOKEN (or `hf auth login`) who asks, HF_ENDPOINT which Hub, HF_HUB_OFFLINE=1 that \
    nothing is fetched; HTTPS_PROXY and SSL_CERT_FILE are respected.";

/// Arguments of `forerun pull`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Names that `forerun models` lists, or of the Hub: `owner/name`, `owner/name:QUANT`,
    /// `owner/name@revision`, `hf:owner/name/file.gguf`
    #[arg(required = true, value_name = "NAME")]
    names: Vec<PathBuf>,
    /// Of a catalogue's model fetch the model alone, without the drafter that belongs to it
    #[arg(long)]
    no_draft: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let settings = Settings::from_env();
    let stop = Arc::new(AtomicBool::new(false));
    let handler = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        // Who presses it twice does not want to wait for a connection to say something.
        if handler.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?;
    for word in &args.names {
        for hub in meant(word, args.no_draft)? {
            fetch(&hub, &settings, &stop)?;
        }
    }
    if let [word] = args.names.as_slice()
        && std::io::stderr().is_terminal()
    {
        eprintln!("next: forerun chat --model {}", word.display());
    }
    Ok(())
}

/// Everything to fetch for a word.
fn meant(word: &Path, no_draft: bool) -> Result<Vec<HubName>> {
    match Name::parse(word)? {
        Name::Hub(hub) => Ok(vec![hub]),
        Name::Catalogue { entry, hub } => {
            let drafter = entry.drafter().filter(|_| !no_draft);
            let drafter = drafter.map(|drafter| Name::parse(Path::new(drafter.hub)));
            let drafter = match drafter.transpose()? {
                Some(Name::Hub(hub)) => Some(hub),
                _ => None,
            };
            Ok([Some(hub), drafter].into_iter().flatten().collect())
        }
        Name::Ollama(_) => {
            let name = word.display().to_string().replacen("ollama:", "", 1);
            bail!("Ollama fetches its own models: `ollama pull {name}`")
        }
        Name::Path(path) if path.exists() => {
            bail!("`{}` is a file on this machine: there is nothing to fetch", path.display())
        }
        Name::Path(path) => {
            let near = path.to_str().and_then(hub::catalogue::nearest);
            let near = near.map(|near| format!("; the nearest is `{near}`")).unwrap_or_default();
            bail!(
                "`{}` is neither a model that `forerun models` lists nor `owner/name` on the \
                 Hub{near}",
                path.display()
            )
        }
    }
}

fn fetch(hub: &HubName, settings: &Settings, stop: &AtomicBool) -> Result<()> {
    let watcher = match std::io::stderr().is_terminal() {
        true => Watcher::on_terminal(),
        false => Watcher::silent(),
    };
    let pulled = hub::pull(hub, settings, &watcher, stop)?;
    match pulled.fetched {
        0 => eprintln!("{hub}: all of it was here"),
        bytes => eprintln!("{hub}: {} of {} came", gigabytes(bytes), gigabytes(pulled.bytes)),
    }
    Ok(writeln!(std::io::stdout(), "{}", pulled.path.display())?)
}
