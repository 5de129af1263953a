//! What is told of a long prompt, whoever asks: whether all of it was read, and if not what was.

use super::Shortened;
use serde::Serialize;

/// How a long prompt was read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PrefillReport {
    /// Whether the answer is to less than was asked.
    pub lossy: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that the target read, or knew from before.
    pub kept_tokens: usize,
    /// What was to be kept of that which may be dropped.
    pub keep: f32,
    /// Tokens that an earlier turn had decided about.
    pub settled_tokens: usize,
    /// Tokens that the scorer read.
    pub scored_tokens: usize,
    /// Seconds that it took.
    pub scoring_s: f64,
    /// The model that scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scorer: Option<String>,
    /// Why the prompt was read whole, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<String>,
}

impl PrefillReport {
    /// Of a prompt of so many tokens that was read whole, and why.
    pub fn whole(tokens: usize, keep: f32, why: impl Into<String>) -> Self {
        let (prompt_tokens, kept_tokens) = (tokens, tokens);
        Self { prompt_tokens, kept_tokens, keep, whole: Some(why.into()), ..Self::default() }
    }

    /// Of a prompt of so many tokens that was shortened.
    pub fn shortened(
        tokens: usize,
        keep: f32,
        shortened: &Shortened,
        scorer: &str,
        scoring_s: f64,
    ) -> Self {
        let kept_tokens = shortened.kept.iter().map(|part| part.len()).sum();
        Self {
            lossy: kept_tokens < tokens,
            prompt_tokens: tokens,
            kept_tokens,
            keep,
            settled_tokens: shortened.settled,
            scored_tokens: shortened.scored,
            scoring_s,
            scorer: Some(scorer.to_owned()),
            whole: (kept_tokens == tokens).then(|| "nothing of it may be dropped".to_owned()),
        }
    }

    /// Adds how another long prompt of the same request was read.
    pub fn merge(&mut self, other: Self) {
        self.lossy |= other.lossy;
        self.prompt_tokens += other.prompt_tokens;
        self.kept_tokens += other.kept_tokens;
        self.settled_tokens += other.settled_tokens;
        self.scored_tokens += other.scored_tokens;
        self.scoring_s += other.scoring_s;
        self.scorer = self.scorer.take().or(other.scorer);
        self.whole = self.whole.take().or(other.whole).filter(|_| !self.lossy);
    }
}

impl std::fmt::Display for PrefillReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.whole {
            Some(why) => write!(f, "the prompt was read whole: {why}"),
            None => write!(
                f,
                "not exact: {} of the prompt's {} tokens were read, as {} chose them in {:.1} s",
                self.kept_tokens,
                self.prompt_tokens,
                self.scorer.as_deref().unwrap_or("nobody"),
                self.scoring_s
            ),
        }
    }
}
