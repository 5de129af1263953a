//! `--draft-*`: what the command line can say about a drafter, on every verb that opens one.

use checkpoint::{Causality, Overrides, Yarn};

/// Overrides of a drafter's metadata.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Drafter overrides")]
pub struct DraftFlags {
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
    /// Whether rows of a block are blind to later rows: true or false for all layers, or `sliding`:
    /// in those that slide
    #[arg(long, value_name = "BOOL", value_parser = causality)]
    draft_causal: Option<Causality>,
    /// YaRN as `FACTOR,LENGTH`: by how much the context was stretched, and from how many tokens;
    /// `none` for none
    #[arg(long, value_name = "YARN", value_parser = yarn)]
    draft_yarn: Option<YarnFlag>,
    /// Rows of a block, the newest token included. More than it was trained with may pay; `auto`
    /// finds out
    #[arg(long, value_name = "ROWS")]
    draft_block: Option<usize>,
    /// Whether the drafter's selector chooses among the best tokens of each position; false leaves
    /// it out
    #[arg(long, value_name = "BOOL")]
    draft_selector: Option<bool>,
}

/// What `--draft-yarn` says: nothing inside for plain rotary.
#[derive(Clone, Copy, Debug)]
struct YarnFlag(Option<Yarn>);

impl DraftFlags {
    /// The first flag that was given.
    pub fn first(&self) -> Option<&'static str> {
        let given = [
            ("--draft-rope-theta", self.draft_rope_theta.is_some()),
            ("--draft-mask-token", self.draft_mask_token.is_some()),
            ("--draft-taps", self.draft_taps.is_some()),
            ("--draft-window", self.draft_window.is_some()),
            ("--draft-causal", self.draft_causal.is_some()),
            ("--draft-yarn", self.draft_yarn.is_some()),
            ("--draft-block", self.draft_block.is_some()),
            ("--draft-selector", self.draft_selector.is_some()),
        ];
        given.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }

    /// What was given, as a checkpoint takes it.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            rope_theta: self.draft_rope_theta,
            mask_token: self.draft_mask_token,
            taps: self.draft_taps.clone(),
            window: self.draft_window,
            causal: self.draft_causal,
            yarn: self.draft_yarn.map(|y| y.0),
            block: self.draft_block,
            selector: self.draft_selector,
        }
    }
}

fn causality(text: &str) -> Result<Causality, String> {
    match text {
        "true" => Ok(Causality::Everywhere),
        "false" => Ok(Causality::Nowhere),
        "sliding" => Ok(Causality::Sliding),
        _ => Err("true, false or sliding expected".to_owned()),
    }
}

fn yarn(text: &str) -> Result<YarnFlag, String> {
    if text == "none" {
        return Ok(YarnFlag(None));
    }
    let parsed = text.split_once(',').and_then(|(factor, length)| {
        let (factor, original_context) = (factor.parse().ok()?, length.parse().ok()?);
        Some(Yarn { factor, beta_fast: 32.0, beta_slow: 1.0, original_context })
    });
    parsed
        .map(|yarn| YarnFlag(Some(yarn)))
        .ok_or_else(|| "FACTOR,LENGTH such as 64,4096 expected, or none".to_owned())
}

fn theta(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(theta) if theta.is_finite() && theta > 1.0 => Ok(theta),
        _ => Err("a number above 1 expected".to_owned()),
    }
}
