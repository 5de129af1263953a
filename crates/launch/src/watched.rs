//! Weights whose reading is shown: a bar on standard error while a large model is loaded.

use engine::{Random, Tensor, WeightSource};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Bytes from which on a load is worth a bar.
const LARGE: u64 = 256 << 20;

/// A source that tells how much of it was read.
pub(crate) struct Watched<'a> {
    source: &'a dyn WeightSource,
    bar: ProgressBar,
}

/// A bar for so many bytes.
pub(crate) fn bar(bytes: u64) -> ProgressBar {
    let is_shown = bytes >= LARGE && std::io::stderr().is_terminal();
    let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template(
        "loading {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec}",
    );
    let bar = ProgressBar::with_draw_target(Some(bytes), target);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

impl<'a> Watched<'a> {
    pub(crate) fn new(source: &'a dyn WeightSource, bar: &ProgressBar) -> Self {
        Self { source, bar: bar.clone() }
    }
}

impl WeightSource for Watched<'_> {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let tensor = self.source.tensor(name)?;
        self.bar.inc(tensor.bytes.len() as u64);
        Some(tensor)
    }

    fn random(&self, name: &str) -> Option<Random> {
        self.source.random(name)
    }
}
