//! `forerun convert`: a drafter of any dialect to a GGUF in the upstream dialect.

use crate::inspect::human;
use anyhow::{Result, bail};
use checkpoint::convert::{self, Mix, Progress};
use checkpoint::{Drafter, Target};
use formats::gguf::Overwrite;
use indicatif::{ProgressBar, ProgressStyle};
use launch::DraftFlags;
use launch::{about, locate};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Arguments of `forerun convert`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The drafter: a Hugging Face folder, a safetensors file, a GGUF of any dialect, or a name of
    /// the Hub
    drafter: PathBuf,
    /// The GGUF to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// f16, bf16, q8_0 or q4_k_m
    #[arg(long = "type", value_name = "TYPE")]
    mix: Mix,
    /// Check against this target and copy its tokenizer, which llama.cpp needs
    #[arg(long, value_name = "NAME|FILE")]
    target: Option<PathBuf>,
    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    draft: DraftFlags,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let shown = |path: &Path| path.display().to_string();
    if args.out.symlink_metadata().is_ok() && !args.force {
        bail!("{} exists; give `--force` to replace it", shown(&args.out));
    }
    let target_path = args.target.as_deref().map(locate).transpose()?;
    let target = target_path.as_deref().map(|p| Target::open(p).map_err(about(p))).transpose()?;
    let tokenizer = match (&target_path, &target) {
        (Some(path), Some(target)) => {
            Some(convert::tokenizer_of(path, &target.config).map_err(about(path))?)
        }
        _ => None,
    };
    let config = target.as_ref().map(|t| &t.config);
    let path = &locate(&args.drafter)?;
    let drafter = Drafter::open(path, &args.draft.overrides(), config).map_err(about(path))?;
    for warning in &drafter.report.warnings {
        eprintln!("warning: {warning}");
    }

    let progress = Arc::new(Progress::default());
    let stop = Arc::clone(&progress);
    ctrlc::set_handler(move || stop.stop.store(true, Ordering::Relaxed))?;
    let overwrite = if args.force { Overwrite::Replace } else { Overwrite::Refuse };
    let name = model_name(&args.drafter);
    let summary = with_bar(convert::source_bytes(&drafter), &progress, || {
        convert::convert(
            &drafter,
            &name,
            args.mix,
            tokenizer.as_ref(),
            &args.out,
            overwrite,
            &progress,
        )
    })?;

    let written = std::fs::metadata(&args.out).map_or(0, |m| m.len() as usize);
    let (from, to) = (human(summary.source_bytes as usize), human(written));
    if summary.requantised > 0 {
        eprintln!(
            "warning: {} tensors were quantised already and lost precision twice; convert from the \
             original",
            summary.requantised
        );
    }
    if tokenizer.is_none() && matches!(drafter.dialect, checkpoint::drafter::Dialect::HuggingFace) {
        eprintln!(
            "note: no tokenizer written; Forerun needs none, llama.cpp does: give `--target`"
        );
    }
    let (out, tensors) = (shown(&args.out), summary.tensors);
    writeln!(std::io::stdout(), "{out}: {tensors} tensors, {from} to {to}, {}", args.mix)?;
    Ok(())
}

/// Runs `work` while a bar (on a terminal only) shows how many bytes are done.
fn with_bar<T>(total: u64, progress: &Progress, work: impl FnOnce() -> T) -> T {
    let bar = ProgressBar::new(total);
    let style =
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    bar.set_style(style.expect("the template is a constant"));
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let shower = scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                bar.set_position(progress.done.load(Ordering::Relaxed));
                std::thread::park_timeout(Duration::from_millis(100));
            }
            bar.finish_and_clear();
        });
        let _end = End(&finished, shower.thread());
        work()
    })
}

/// Ends the bar when the work does, however it does.
struct End<'a>(&'a AtomicBool, &'a std::thread::Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.unpark();
    }
}

/// A name for people from a path: `Qwen3.6-27B-DFlash` becomes `Qwen3.6 27B DFlash`, `draft-hf`
/// becomes `Draft`.
fn model_name(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // What is not there is a name of the Hub, whose points end nothing.
    let stem = if path.is_file() { path.file_stem() } else { path.file_name() };
    let stem = stem.map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let words =
        stem.strip_suffix("-hf").unwrap_or(&stem).split(['-', '_']).filter(|w| !w.is_empty());
    let title = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map(|c| c.to_uppercase().chain(letters).collect::<String>())
            .unwrap_or_default()
    };
    words.map(title).collect::<Vec<_>>().join(" ")
}
