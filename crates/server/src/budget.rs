//! A budget for thinking: when so many tokens have been thought, the next one ends it.

use crate::error::ApiError;
use crate::fields::Fields;
use text::Tokenizer;

/// The fields that ask for one, as vLLM and Qwen's own servers call it.
const NAMES: [&str; 2] = ["thinking_token_budget", "thinking_budget"];

/// How long an answer that begins with thinking may think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Tokens at most.
    most: usize,
    /// `</think>`.
    end: u32,
}

impl Budget {
    /// Reads what a request allows; -1 is no limit. `thinking` says whether the prompt has left
    /// `<think>` open.
    pub(crate) fn read(
        fields: &Fields<'_>,
        thinking: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, ApiError> {
        let mut budget = None;
        for name in NAMES {
            let Some(most) = fields.integer(name, -1..=i64::MAX)? else { continue };
            let Some(end) = tokenizer.special("</think>") else {
                let message = format!("`{name}`: this model has no token that ends thinking");
                return Err(ApiError::field(name, message));
            };
            budget = usize::try_from(most).ok().map(|most| Self { most, end }).or(budget);
        }
        Ok(budget.filter(|_| thinking))
    }

    /// Leaves nothing but the end where the budget is spent and thinking goes on.
    pub(crate) fn mask(&self, written: &[u32], logits: &mut [f32]) {
        if written.len() < self.most || written.contains(&self.end) {
            return;
        }
        for (token, logit) in (0..).zip(logits) {
            *logit = if token == self.end { 0.0 } else { f32::NEG_INFINITY };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_ends_when_its_budget_is_spent() {
        let budget = Budget { most: 2, end: 3 };
        let masked = |written: &[u32]| {
            let mut logits = [1.0; 5];
            budget.mask(written, &mut logits);
            logits
        };
        let none = f32::NEG_INFINITY;
        assert_eq!(masked(&[0]), [1.0; 5]);
        assert_eq!(masked(&[0, 1]), [none, none, none, 0.0, none]);
        assert_eq!(masked(&[0, 3]), [1.0; 5]);
        assert_eq!(masked(&[0, 1, 3, 2]), [1.0; 5]);
    }
}
