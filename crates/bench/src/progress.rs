//! A bar on standard error while something is measured; nothing where that is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// The bar; it goes when it is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of so many steps, the first of which has begun.
    pub fn new(steps: usize, first: &str) -> Self {
        let style = ProgressStyle::with_template(
            "{bar:40} {pos}/{len} {elapsed} of about {duration}  {msg}",
        );
        let bar =
            ProgressBar::new(steps as u64).with_style(style.expect("the template is a constant"));
        bar.set_message(first.to_owned());
        Self(bar)
    }

    /// So many steps more.
    pub fn lengthen(&self, steps: usize) {
        self.0.inc_length(steps as u64);
    }

    /// A step is done; the next one is `next`.
    pub fn step(&self, next: &str) {
        self.0.inc(1);
        self.0.set_message(next.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
