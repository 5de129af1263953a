//! What shells and `man` want to know of the command line, made from it.

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `forerun completions`.
#[derive(clap::Args)]
pub(crate) struct CompletionArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `forerun man`.
#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// Write a page for every verb into this folder; without it the first page is printed
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "forerun", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

pub(crate) fn man(args: &ManArgs, command: Command) -> Result<()> {
    match &args.folder {
        Some(folder) => {
            let about = || folder.display().to_string();
            std::fs::create_dir_all(folder).with_context(about)?;
            clap_mangen::generate_to(command, folder).with_context(about)
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            Ok(std::io::stdout().write_all(&page)?)
        }
    }
}
