//! `usage` and the `forerun` object of a response, over all of its answers.

use crate::job::{Delta, Outcome, Report};
use serde_json::{Value, json};

/// Sums over answers.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// Answers to one prompt; the tokens of a prompt count once.
    choices: usize,
    prompt: usize,
    completion: usize,
    reasoning: usize,
    cached: usize,
    /// Tokens of all prompts, and of each answer so far, where every chunk tells them.
    so_far: Option<(usize, Vec<usize>)>,
    report: Option<Report>,
}

impl Totals {
    pub(crate) fn new(choices: usize) -> Self {
        Self {
            choices,
            prompt: 0,
            completion: 0,
            reasoning: 0,
            cached: 0,
            so_far: None,
            report: None,
        }
    }

    /// Begins to count at prompts of these lengths, where that is wanted.
    pub(crate) fn for_prompts(
        self,
        prompts: impl IntoIterator<Item = usize>,
        continuous: bool,
    ) -> Self {
        Self { so_far: continuous.then(|| (prompts.into_iter().sum(), Vec::new())), ..self }
    }

    /// Counts what was told of an answer.
    pub(crate) fn count(&mut self, choice: usize, delta: &Delta) {
        if let Some(written) = self.written(choice) {
            *written += delta.tokens;
        }
    }

    fn written(&mut self, choice: usize) -> Option<&mut usize> {
        let (_, written) = self.so_far.as_mut()?;
        written.resize(written.len().max(choice + 1), 0);
        written.get_mut(choice)
    }

    /// Writes the usage so far into a chunk, or that it comes `later`.
    pub(crate) fn tell(&self, chunk: &mut Value, later: bool) {
        match &self.so_far {
            Some((prompt, written)) => {
                let written: usize = written.iter().sum();
                chunk["usage"] = json!({"prompt_tokens": prompt, "completion_tokens": written,
                    "total_tokens": prompt + written});
            }
            None if later => chunk["usage"] = Value::Null,
            None => {}
        }
    }

    pub(crate) fn add(&mut self, choice: usize, outcome: Outcome) {
        let Outcome {
            prompt_tokens,
            completion_tokens,
            reasoning_tokens,
            cached_tokens,
            mut report,
            ..
        } = outcome;
        if let Some(written) = self.written(choice) {
            *written = completion_tokens;
        }
        if choice.is_multiple_of(self.choices) {
            self.prompt += prompt_tokens;
            self.cached += cached_tokens;
        } else {
            report.prefill = None;
        }
        self.completion += completion_tokens;
        self.reasoning += reasoning_tokens;
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
            // Nothing is predicted for the server by its clients.
            "completion_tokens_details": {"reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
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
