//! `usage` and the `forerun` object of a response, over all of its answers.

use crate::job::{Outcome, Report};
use serde_json::{Value, json};

/// Sums over answers.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// Answers to one prompt; the tokens of a prompt count once.
    choices: usize,
    prompt: usize,
    completion: usize,
    cached: usize,
    report: Option<Report>,
}

impl Totals {
    pub(crate) fn new(choices: usize) -> Self {
        Self { choices, prompt: 0, completion: 0, cached: 0, report: None }
    }

    pub(crate) fn add(&mut self, choice: usize, outcome: Outcome) {
        let Outcome { prompt_tokens, completion_tokens, cached_tokens, report, .. } = outcome;
        if choice.is_multiple_of(self.choices) {
            self.prompt += prompt_tokens;
            self.cached += cached_tokens;
        }
        self.completion += completion_tokens;
        match &mut self.report {
            None => self.report = Some(report),
            Some(all) => all.merge(report),
        }
    }

    pub(crate) fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        })
    }

    /// The `forerun` object: of the answer where there is one, summed where there are several.
    pub(crate) fn forerun(&self) -> Value {
        let mut report = self.report.clone();
        if let Some(report) = &mut report {
            report.cached_tokens = self.cached;
            let timing = &mut report.timing;
            timing.tokens_per_s = self.completion as f64 / timing.decode_s.max(1e-9);
        }
        json!(report)
    }
}
