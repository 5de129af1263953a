//! `forerun tokenizer`: what a gateway needs of a GGUF, as the files that it knows how to read.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `forerun tokenizer`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A name that `forerun models` lists, one of the Hub, `ollama:NAME` or a GGUF file; without it
    /// the embedded model
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Folder to write into
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let model = args.model.as_deref().map(launch::locate).transpose()?;
    let files = launch::tokenizer_files(model.as_deref())?;
    std::fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let (mut out, mut written) = (std::io::stdout().lock(), Vec::new());
    for (name, text) in files {
        let path = args.out.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        written.push(path);
    }
    // Whoever reads the list may leave; the files are there by then.
    written.iter().try_for_each(|path| writeln!(out, "{}", path.display()))?;
    Ok(())
}
