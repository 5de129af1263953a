//! What an answer is held to, as a constraint of the engine, which knows no text: a grammar, tokens
//! that may not come, and ends that may not come yet.

use crate::budget::Budget;
use crate::error::ApiError;
use engine::sampling::Constraint;
use std::sync::Arc;
use text::Grammar;

/// Holds an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// The field that asks for the grammar; errors name it.
    pub(crate) field: String,
    pub(crate) grammar: Option<Grammar>,
    /// Tokens that end the answer, and how many must be written before one of them may come.
    pub(crate) ends: Arc<[u32]>,
    pub(crate) least: usize,
    /// The only tokens there are, where not all are; ascending.
    pub(crate) allowed: Option<Arc<[u32]>>,
    /// Rows of tokens that are never completed.
    pub(crate) banned: Arc<[Vec<u32>]>,
    /// How long it may think.
    pub(crate) budget: Option<Budget>,
    /// Tokens so far.
    pub(crate) written: Vec<u32>,
}

impl Held {
    /// Whether anything may be written.
    pub(crate) fn is_free(&self) -> bool {
        let unasked = self.grammar.is_none() && self.budget.is_none() && self.allowed.is_none();
        unasked && self.least == 0 && self.banned.is_empty()
    }

    /// What a client is told where the answer cannot go on.
    pub(crate) fn error(&self, reason: &str) -> ApiError {
        let after = "the answer cannot go on";
        match self.field.as_str() {
            "" => ApiError::field("allowed_token_ids", format!("{after}: {reason}")),
            field => ApiError::field(field, format!("`{field}`: {after}: {reason}")),
        }
    }
}

fn forbid(logits: &mut [f32], token: u32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

impl Constraint for Held {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if let Some(grammar) = &mut self.grammar {
            grammar.mask(logits)?;
        }
        if let Some(allowed) = &self.allowed {
            for (token, logit) in (0..).zip(logits.iter_mut()) {
                if allowed.binary_search(&token).is_err() {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        for row in self.banned.iter() {
            if let Some((last, before)) = row.split_last()
                && self.written.ends_with(before)
            {
                forbid(logits, *last);
            }
        }
        if self.written.len() < self.least {
            let kept: Vec<f32> =
                self.ends.iter().filter_map(|t| logits.get(*t as usize).copied()).collect();
            self.ends.iter().for_each(|end| forbid(logits, *end));
            // Where a grammar has come to its end there is nothing else to write.
            if self.grammar.is_some() && logits.iter().all(|logit| *logit == f32::NEG_INFINITY) {
                let vocab = logits.len();
                let places = self.ends.iter().filter(|end| (**end as usize) < vocab);
                places.zip(kept).for_each(|(end, logit)| logits[*end as usize] = logit);
            }
        }
        if let Some(budget) = &self.budget {
            budget.mask(&self.written, logits);
        }
        Ok(())
    }

    fn push(&mut self, token: u32) -> bool {
        let fits = self.grammar.as_mut().is_none_or(|grammar| grammar.push(token));
        if fits {
            self.written.push(token);
        }
        fits
    }

    fn pop(&mut self, count: usize) {
        self.written.truncate(self.written.len().saturating_sub(count));
        if let Some(grammar) = &mut self.grammar {
            grammar.pop(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(held: &mut Held) -> Vec<u32> {
        let mut logits = [0.0; 6];
        held.mask(&mut logits).unwrap();
        (0..6).filter(|token| logits[*token as usize] == 0.0).collect()
    }

    #[test]
    fn ends_wait_and_bans_follow_the_path() {
        let mut held = Held {
            ends: [5].into(),
            least: 2,
            allowed: Some([1, 2, 3, 5].into()),
            banned: [vec![3], vec![1, 2]].into(),
            ..Held::default()
        };
        assert!(!held.is_free() && Held::default().is_free());
        assert_eq!(allowed(&mut held), [1, 2]);
        assert!(held.push(1));
        assert_eq!(allowed(&mut held), [1]);
        assert!(held.push(1));
        assert_eq!(allowed(&mut held), [1, 5]);
        held.pop(2);
        assert_eq!(allowed(&mut held), [1, 2]);
        let only_ends = Held { allowed: Some([5].into()), banned: [].into(), ..held };
        assert_eq!(allowed(&mut only_ends.clone()), [0; 0]);
        assert!(only_ends.error("why").to_string().contains("why"));
    }
}
