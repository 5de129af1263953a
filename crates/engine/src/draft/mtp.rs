//! Proposals of the target's own next-token block: a chain, one pass a token.

use super::{Draft, Node};
use crate::model::Model;
use crate::state::{KeptRows, MtpFeed};
use crate::{Error, Row, Sequence};
use compute::Backend;

/// Tokens the block was found to predict usefully in a row.
pub(crate) const MAX_DEPTH: usize = 7;

/// Takes the waiting rows into the block's cache, computed from the target's true hidden states. Afterwards, where there
/// were any, `rank_mtp` and the returned row's `keep_mtp_hidden` belong to the newest.
pub(crate) fn absorb(
    model: &mut Model,
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
) -> Result<Option<usize>, Error> {
    let Some(mut feed) = sequence.feed.take() else { return Ok(None) };
    let absorbed = absorb_feed(model, backend, sequence, &mut feed);
    sequence.feed = Some(feed);
    absorbed
}

fn absorb_feed(
    model: &mut Model,
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
    feed: &mut MtpFeed,
) -> Result<Option<usize>, Error> {
    let mut last = None;
    while !feed.tokens.is_empty() {
        let count = feed.tokens.len().min(model.options().max_rows);
        let rows: Vec<Row> = crate::model::chain(&feed.tokens[..count], 0).collect();
        let newest = count as u32 - 1;
        model.forward_mtp(backend, &rows, (&feed.hidden, 0), &[newest], &[sequence])?;
        model.commit_mtp(backend, 0, sequence, &(0..=newest).collect::<Vec<_>>())?;
        feed.take(count);
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
    let mut hidden = KeptRows::new(model.config().hidden);
    model.keep_mtp_hidden(backend, newest, &mut hidden)?;
    let mut draft = Draft::default();
    loop {
        let Some(ranked) = model.rank_mtp(backend)? else { return Ok(None) };
        let parent = (draft.nodes.len() as u32).checked_sub(1);
        let (token, log) = ranked[0];
        let node_depth = draft.nodes.len() as u32 + 1;
        draft.nodes.push(Node { token, parent, depth: node_depth, probability: log.exp() });
        if draft.nodes.len() == depth || enough(&draft) {
            return Ok(Some(draft));
        }
        // Drafted rows are never committed: a pass takes all of them again, which costs little more than the last.
        let rows: Vec<Row> =
            draft.nodes.iter().map(|n| Row { token: n.token, sequence: 0, parent: n.parent }).collect();
        let last = rows.len() - 1;
        model.forward_mtp(backend, &rows, (&hidden, 0), &[last as u32], &[sequence])?;
        model.keep_mtp_hidden(backend, last, &mut hidden)?;
    }
}
