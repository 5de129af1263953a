//! `--draft-*`: what the command line can say about a drafter, on every verb that loads one.

use checkpoint::Overrides;

/// Overrides of a drafter's metadata.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Drafter overrides")]
pub(crate) struct DraftFlags {
    /// Rope base of the drafter (1e7 for Qwen3.5 and later)
    #[arg(long, value_name = "THETA", value_parser = theta)]
    draft_rope_theta: Option<f32>,
    /// Token that stands for a position to be filled in
    #[arg(long, value_name = "ID")]
    draft_mask_token: Option<u32>,
    /// Target layers the drafter reads, counted from 0: `1,16,31,46,61`
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    draft_taps: Option<Vec<usize>>,
    /// Window of the drafter's sliding layers; 0 makes every layer full
    #[arg(long, value_name = "TOKENS")]
    draft_window: Option<usize>,
    /// Whether rows of a block are blind to later rows, for all layers
    #[arg(long, value_name = "BOOL")]
    draft_causal: Option<bool>,
    /// Rows of a block, the anchor included
    #[arg(long, value_name = "ROWS")]
    draft_block: Option<usize>,
}

impl DraftFlags {
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            rope_theta: self.draft_rope_theta,
            mask_token: self.draft_mask_token,
            taps: self.draft_taps.clone(),
            window: self.draft_window,
            causal: self.draft_causal,
            block: self.draft_block,
        }
    }
}

fn theta(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(theta) if theta.is_finite() && theta > 1.0 => Ok(theta),
        _ => Err("a number above 1 expected".to_owned()),
    }
}
