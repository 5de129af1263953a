//! Proposals of the target's own next-token block: chains, one pass a token for all texts that ask.

use super::{Draft, MAX_NODES, Node};
use crate::model::{Accepted, Model, append, chain};
use crate::state::{KeptRows, MtpFeed};
use crate::{Error, Row, Sequence};
use compute::{Backend, Ranked};
use std::time::{Duration, Instant};

/// Tokens the block was found to predict usefully in a row.
pub(crate) const MAX_DEPTH: usize = 7;

/// Texts that fit a pass, each with what a round left waiting or drafted.
const TEXTS: usize = (MAX_NODES + 1) / (MAX_DEPTH + 1);

/// Takes the waiting rows into the block's cache, computed from the target's true hidden states.
pub(crate) fn absorb(
    model: &mut Model,
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
) -> Result<(), Error> {
    let Some(mut feed) = sequence.feed.take() else { return Ok(()) };
    let absorbed = absorb_feed(model, backend, sequence, &mut feed);
    sequence.feed = Some(feed);
    absorbed
}

fn absorb_feed(
    model: &mut Model,
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
    feed: &mut MtpFeed,
) -> Result<(), Error> {
    while !feed.tokens.is_empty() {
        let count = feed.tokens.len().min(model.options().max_rows);
        let rows: Vec<Row> = chain(&feed.tokens[..count], 0).collect();
        let newest = count as u32 - 1;
        model.forward_mtp(backend, &rows, &[(&feed.hidden, 0, count)], &[newest], &[sequence])?;
        model.commit_mtp(backend, 0, sequence, &(0..=newest).collect::<Vec<_>>())?;
        feed.take(count);
    }
    Ok(())
}

/// A text that asks for a chain.
pub(crate) struct Asking<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) anchor: u32,
    /// Tokens at most.
    pub(crate) depth: usize,
}

/// A chain after each text's anchor, none where a logit is not a number, and what their first
/// tokens took; `enough`, given a text's number and its chain so far, ends it early.
pub(crate) fn propose(
    model: &mut Model,
    backend: &mut dyn Backend,
    texts: &mut [Asking<'_>],
    enough: impl Fn(usize, &Draft) -> bool,
) -> Result<(Vec<Option<Draft>>, Duration), Error> {
    let (mut drafts, mut first) = (Vec::with_capacity(texts.len()), Duration::ZERO);
    for group in texts.chunks_mut(TEXTS) {
        let start = Instant::now();
        let newest = take_in(model, backend, group)?;
        let ranked = model.rank_mtp(backend, group.len())?;
        first += start.elapsed();
        let before = drafts.len();
        let enough = |i: usize, draft: &Draft| enough(before + i, draft);
        drafts.extend(go_on(model, backend, group, newest, ranked, enough)?);
    }
    Ok((drafts, first))
}

/// Chains from their first tokens on, which were ranked at the rows `newest`.
fn go_on(
    model: &mut Model,
    backend: &mut dyn Backend,
    texts: &[Asking<'_>],
    mut newest: Vec<u32>,
    mut ranked: Vec<Option<Ranked>>,
    enough: impl Fn(usize, &Draft) -> bool,
) -> Result<Vec<Option<Draft>>, Error> {
    let mut drafts = vec![Some(Draft::default()); texts.len()];
    let mut hidden: Vec<KeptRows> =
        texts.iter().map(|_| KeptRows::new(model.config().hidden)).collect();
    let mut going: Vec<usize> = (0..texts.len()).collect();
    loop {
        let (mut on, mut kept_rows) = (Vec::with_capacity(going.len()), Vec::new());
        for ((&i, ranked), row) in going.iter().zip(ranked).zip(newest) {
            let (Some(draft), Some(ranked)) = (&mut drafts[i], ranked) else {
                drafts[i] = None;
                continue;
            };
            let (token, log) = ranked[0];
            let depth = draft.nodes.len() as u32 + 1;
            draft.nodes.push(Node {
                token,
                parent: depth.checked_sub(2),
                depth,
                probability: log.exp(),
            });
            if draft.nodes.len() < texts[i].depth && !enough(i, draft) {
                kept_rows.push(row);
                on.push(i);
            }
        }
        going = on;
        if going.is_empty() {
            return Ok(drafts);
        }
        let goes_on = |(i, _): &(usize, &mut KeptRows)| going.contains(i);
        let kept = hidden.iter_mut().enumerate().filter(goes_on).map(|(_, kept)| kept);
        let kept = kept.zip(kept_rows.chunks(1)).collect();
        model.keep_mtp_hidden(backend, kept).into_iter().collect::<Result<(), _>>()?;
        // Drafted rows are never committed: a pass takes all of them again, which costs little more
        // than the last.
        let mut rows: Vec<Row> = Vec::new();
        let mut chosen: Vec<u32> = Vec::with_capacity(going.len());
        for (&i, sequence) in going.iter().zip(0..) {
            let nodes = &drafts[i].as_ref().expect("it goes on").nodes;
            append(
                &mut rows,
                nodes.iter().map(|n| Row { token: n.token, sequence, parent: n.parent }),
            );
            chosen.push(rows.len() as u32 - 1);
        }
        let kept: Vec<_> = going.iter().map(|&i| (&hidden[i], 0, hidden[i].len())).collect();
        let sequences: Vec<&Sequence> = going.iter().map(|&i| &*texts[i].sequence).collect();
        model.forward_mtp(backend, &rows, &kept, &chosen, &sequences)?;
        ranked = model.rank_mtp(backend, chosen.len())?;
        newest = chosen;
    }
}

/// Takes what waits of all texts into the block's cache in one pass; the row of each that has its
/// anchor.
fn take_in(
    model: &mut Model,
    backend: &mut dyn Backend,
    texts: &mut [Asking<'_>],
) -> Result<Vec<u32>, Error> {
    let (mut rows, mut newest): (Vec<Row>, Vec<u32>) = (Vec::new(), Vec::new());
    for (text, number) in texts.iter_mut().zip(0..) {
        if text.sequence.feed.as_ref().is_some_and(|feed| feed.tokens.len() > MAX_DEPTH) {
            absorb(model, backend, text.sequence)?;
        }
        let feed = text.sequence.feed.as_mut().ok_or(Error::NoMtp)?;
        feed.follow(text.anchor);
        let last = (feed.tokens.len() as u32).checked_sub(1).ok_or(Error::NoMtp)?;
        newest.push(append(&mut rows, chain(&feed.tokens, number)) + last);
    }
    let sequences: Vec<&Sequence> = texts.iter().map(|text| &*text.sequence).collect();
    let feeds = sequences.iter().filter_map(|sequence| sequence.feed.as_ref());
    let hidden: Vec<_> = feeds.map(|feed| (&feed.hidden, 0, feed.tokens.len())).collect();
    model.forward_mtp(backend, &rows, &hidden, &newest, &sequences)?;
    let begins = std::iter::once(0).chain(newest.iter().map(|row| row + 1));
    let paths: Vec<Vec<u32>> =
        begins.zip(&newest).map(|(first, last)| (first..=*last).collect()).collect();
    let accepted = texts.iter_mut().zip(&paths).enumerate();
    let accepted = accepted.map(|(index, (text, path))| Accepted {
        index,
        sequence: &mut *text.sequence,
        path,
    });
    let committed = model.commit_mtp_all(backend, accepted.collect());
    for ((text, path), committed) in texts.iter_mut().zip(&paths).zip(committed) {
        committed?;
        text.sequence.feed.as_mut().ok_or(Error::NoMtp)?.take(path.len());
    }
    Ok(newest)
}
