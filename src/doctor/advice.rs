//! From what was seen to one sentence.

use super::examine::{Examination, Fault};

/// Acceptance lengths this far apart are worth a word.
const APART: f64 = 1.5;
/// A loss of log-likelihood by quantisation that is worth a word.
const LOSS: f64 = 0.05;

pub(crate) fn advise(seen: &Examination) -> String {
    let length = seen.mended.accept_length;
    if seen.mended.first_log_likelihood < seen.by_counting {
        return format!(
            "This drafter was trained for another target, or its weights are damaged: with the \
             best settings found it gives the target's next token a log-likelihood of {:.2}, and \
             counting the tokens before gives it {:.2}; use the drafter made for this target.",
            seen.mended.first_log_likelihood, seen.by_counting
        );
    }
    if !seen.faults.is_empty() {
        let join = |part: &dyn Fn(&Fault) -> String| {
            seen.faults.iter().map(part).collect::<Vec<_>>().join(" and ")
        };
        return format!(
            "Set {}: {}, and a round emits {:.2} tokens where it could emit {length:.2}.",
            join(&|f| format!("`{}`", f.flag)),
            join(&|f| f.what.to_owned()),
            seen.acceptance.accept_length
        );
    }
    if let Some(gain) = seen.source.filter(|g| g.is_real() && g.mean > LOSS) {
        return format!(
            "Use a finer type for the drafter: its quantisation takes {:.2} off the log-likelihood \
             of the target's tokens.",
            gain.mean
        );
    }
    if let (Some(with), Some(without)) = (&seen.thinking, &seen.not_thinking) {
        let (with, without) = (with.accept_length, without.accept_length);
        if without > APART * with {
            return format!(
                "Leave the settings as they are, and give `--no-think` where you can: a round \
                 emits {without:.2} tokens without thinking and {with:.2} with it."
            );
        }
        if with > APART * without {
            return format!(
                "Leave the settings as they are, and let the model think where you can: a round \
                 emits {with:.2} tokens with thinking and {without:.2} without it."
            );
        }
    }
    format!(
        "Leave everything as it is: no other setting fits better, and a round emits {length:.2} \
         tokens."
    )
}
