//! A drafter against its target: what must agree, and what merely looks wrong.

use super::claims::Claims;
use super::{DrafterConfig, Overrides};
use crate::report::Report;
use crate::{Error, TargetConfig};

pub(super) fn check(
    config: &DrafterConfig,
    claims: &Claims,
    overrides: &Overrides,
    target: Option<&TargetConfig>,
    report: &mut Report,
) -> Result<(), Error> {
    let trained_for = claims.target_layers.as_ref();
    if let Some(layers) = target.map(|t| t.layers.len()).or(trained_for.map(|c| c.value)) {
        let known_from = if target.is_some() { "the target" } else { "`num_target_layers`" };
        if let Some(&tap) = config.taps.iter().find(|&&tap| tap >= layers) {
            let taps = format!("{:?}", config.taps);
            return Err(Error::Invalid {
                what: "a tap",
                value: format!("{tap} of {taps}"),
                from: overrides.taps.as_ref().map_or("the drafter", |_| "`--draft-taps`").into(),
                expected: format!(
                    "0 to {}, for the {layers} layers of {known_from},",
                    layers.saturating_sub(1)
                ),
            });
        }
        if overrides.taps.is_none() {
            warn_convention(&config.taps, layers, report);
            warn_shallow(&config.taps, layers, report);
        }
    }
    let Some(target) = target else { return Ok(()) };
    if config.hidden != target.hidden {
        return Err(Error::disagree(
            "hidden size",
            config.hidden,
            "the drafter",
            target.hidden,
            "the target",
        ));
    }
    if config.mask_token as usize >= target.vocab {
        return Err(Error::Invalid {
            what: "mask token",
            value: config.mask_token.to_string(),
            from: overrides.mask_token.map_or("the drafter", |_| "`--draft-mask-token`").into(),
            expected: format!("a row of the target's embedding, below {},", target.vocab),
        });
    }
    let extras = &config.extras;
    let codebook = extras.selector.map(|s| ("selector", s.vocab));
    let codebook = codebook.or(extras.markov.map(|m| ("Markov head", m.vocab)));
    if let Some((part, rows)) = codebook.filter(|(_, rows)| *rows != target.vocab) {
        let first = format!("rows of the drafter's {part}");
        return Err(Error::disagree("vocabulary", rows, first, target.vocab, "the target"));
    }
    if let Some(claim) = trained_for.filter(|c| c.value != target.layers.len()) {
        let what = "the target's layer count";
        return Err(Error::disagree(
            what,
            claim.value,
            claim.from.clone(),
            target.layers.len(),
            "the target",
        ));
    }
    let expected = target.attention.rope.theta;
    if config.rope.theta != expected && overrides.rope_theta.is_none() {
        let from = claims.theta.as_ref().map(|c| c.from.clone()).unwrap_or_default();
        let expected_from = "the target".to_owned();
        return Err(Error::Theta { theta: config.rope.theta, from, expected, expected_from });
    }
    if let Some(vocab) = claims.vocab.as_ref().filter(|c| c.value != target.vocab) {
        report.warn(format!(
            "the drafter was made for a vocabulary of {} ({}), the target's embedding has {} rows",
            vocab.value, vocab.from, target.vocab
        ));
    }
    Ok(())
}

/// The reference reads layers 1 to `layers - 3`; a list shifted by one in either direction is
/// likely a list of the other counting, read as if it were this one.
fn warn_convention(taps: &[usize], layers: usize, report: &mut Report) {
    let (Some(&first), Some(&last)) = (taps.first(), taps.last()) else { return };
    let shifted = match (first, layers.checked_sub(last)) {
        (2, Some(2)) => "one more than usual: a list counted from 1 (llama.cpp's `target_layers`)",
        (0, Some(4)) if taps.len() > 1 => {
            "one less than usual: a list counted from 0 stored where one counted from 1"
        }
        _ => return,
    };
    let likely = super::resolve::default_taps(layers, taps.len());
    report.warn(format!(
        "taps {taps:?} start at {first} and end at {last} in a target of {layers} layers, \
         {shifted} seems to have been meant; if acceptance is low, compare `--draft-taps {}`",
        likely.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    ));
}

/// Drafters read nearly to the last layer; one that stops long before it was likely trained for a
/// model of fewer layers, which a GGUF does not say and a hidden size need not tell.
fn warn_shallow(taps: &[usize], layers: usize, report: &mut Report) {
    let Some(&last) = taps.last().filter(|_| taps.len() > 1) else { return };
    if 4 * (last + 1) < 3 * layers {
        report.warn(format!(
            "taps {taps:?} end at {last} in a target of {layers} layers, where drafters read \
             nearly to the last: it seems to have been trained for another target, of which few \
             drafts would be accepted"
        ));
    }
}
