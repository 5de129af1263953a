//! Proposals of the target's own next-token block: a chain, one pass a token.

use super::rank::rank;
use super::{Draft, Node};
use crate::model::{Model, MtpRow};
use crate::{Error, Row, Sequence};
use compute::Backend;

/// Tokens the block was found to predict usefully in a row.
pub(crate) const MAX_DEPTH: usize = 7;

/// Takes the waiting rows into the block's cache, computed from the target's true hidden states. Afterwards, where there
/// were any, `mtp_logits(0)` and the returned row's `mtp_hidden` belong to the newest.
pub(crate) fn absorb(
    model: &mut Model,
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
) -> Result<Option<usize>, Error> {
    let Some(feed) = sequence.feed.as_mut() else { return Ok(None) };
    let hidden = std::mem::take(&mut feed.hidden);
    let tokens = std::mem::take(&mut feed.tokens);
    let width = model.config().hidden;
    let chunk = model.options().max_rows;
    let mut last = None;
    for (tokens, hidden) in tokens.chunks(chunk).zip(hidden.chunks(chunk * width)) {
        let rows: Vec<MtpRow<'_>> = tokens
            .iter()
            .zip(hidden.chunks_exact(width))
            .zip(0u32..)
            .map(|((&token, hidden), i)| MtpRow {
                hidden,
                row: Row { token, sequence: 0, parent: i.checked_sub(1) },
            })
            .collect();
        let newest = rows.len() as u32 - 1;
        model.forward_mtp(backend, &rows, &[newest], &[sequence])?;
        model.commit_mtp(backend, 0, sequence, &(0..=newest).collect::<Vec<_>>())?;
        last = Some(newest as usize);
    }
    Ok(last)
}

/// Up to `depth` tokens after `anchor`; `enough` ends the chain early. Nothing where a logit is not a number.
pub(crate) fn propose(
    model: &mut Model,
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
    anchor: u32,
    depth: usize,
    enough: impl Fn(&Draft) -> bool,
) -> Result<Option<Draft>, Error> {
    sequence.feed.as_mut().ok_or(Error::NoMtp)?.follow(anchor);
    let newest = absorb(model, backend, sequence)?.ok_or(Error::NoMtp)?;
    let mut hidden: Vec<Vec<f32>> = vec![model.mtp_hidden(newest).unwrap_or_default().to_vec()];
    let mut draft = Draft::default();
    loop {
        let Some(ranked) = model.mtp_logits(0).and_then(|logits| rank(logits, 1)) else { return Ok(None) };
        let parent = (draft.nodes.len() as u32).checked_sub(1);
        let (token, log) = ranked[0];
        let node_depth = draft.nodes.len() as u32 + 1;
        draft.nodes.push(Node { token, parent, depth: node_depth, probability: log.exp() });
        if draft.nodes.len() == depth || enough(&draft) {
            return Ok(Some(draft));
        }
        // Drafted rows are never committed: a pass takes all of them again, which costs little more than the last.
        let rows: Vec<MtpRow<'_>> = draft
            .nodes
            .iter()
            .zip(&hidden)
            .map(|(n, hidden)| MtpRow { hidden, row: Row { token: n.token, sequence: 0, parent: n.parent } })
            .collect();
        let last = rows.len() - 1;
        model.forward_mtp(backend, &rows, &[last as u32], &[sequence])?;
        hidden.push(model.mtp_hidden(last).unwrap_or_default().to_vec());
    }
}
