//! The decode round: propose, verify, judge, commit, emit.

use crate::engine::Engine;
use crate::generation::Generation;
use crate::judge::{RowSeen, Verdict};
use crate::model::{Accepted, append};
use crate::propose::Proposal;
use crate::round::{Laps, Round};
use crate::sampling::Likelihood;
use crate::size::NEW;
use crate::{Error, Row, Sequence};
use compute::{ANCHOR_TOKENS, Draw, Drawn};

/// Texts of a round, with how many more tokens each has room for.
type Texts<'a, 'b> = &'a mut [(&'b mut Generation, usize)];

/// A pass over the drafts of all texts.
struct Verified {
    rows: Vec<Row>,
    /// The row of each text's newest token, by text.
    firsts: Vec<u32>,
    /// By row, where all that a draw depends on was known before the pass.
    drawn: Vec<Option<Drawn>>,
    seconds: f64,
}

/// What the target says of one text's draft.
struct Judged {
    verdict: Verdict,
    /// Tokens that are emitted.
    kept: usize,
    /// As many rows of the pass, which become part of the text.
    path: Vec<u32>,
    likelihoods: Vec<Likelihood>,
    seconds: f64,
}

impl Engine {
    /// One round of one text. At most `room` tokens are emitted, and none after an end.
    pub fn step(&mut self, text: &mut Generation, room: usize) -> Result<Round, Error> {
        let mut rounds = self.step_all(&mut [(text, room)])?;
        rounds.pop().expect("one text, one round")
    }

    /// One round of several texts, verified in one pass. A text that fails has to be given up and
    /// costs the others nothing. Where there is no room for what may be written, or the pass itself
    /// fails, there is no round at all and the texts are as they were: the same round can be tried
    /// again.
    pub fn step_all(&mut self, texts: Texts<'_, '_>) -> Result<Vec<Result<Round, Error>>, Error> {
        let proposals = self.propose(texts)?;
        let pass = self.verify(texts, &proposals)?;
        // All are judged before any is committed.
        let mut judged = self.judge_all(texts, &proposals, &pass);
        let commit_s = self.commit_judged(texts, &pass, &mut judged);
        Ok(self.emit(texts, &proposals, &pass, judged, commit_s))
    }

    /// Runs the target over the newest token and the draft of every text.
    fn verify(&mut self, texts: Texts<'_, '_>, proposals: &[Proposal]) -> Result<Verified, Error> {
        let (mut rows, mut firsts) = (Vec::new(), Vec::with_capacity(texts.len()));
        for (((text, _), proposal), i) in texts.iter_mut().zip(proposals).zip(0..) {
            self.reserve(&mut text.sequence, proposal.draft.nodes.len() + 1)?;
            firsts.push(append(&mut rows, proposal.draft.rows(text.tip, i)));
        }
        let mut laps = Laps::start();
        let all: Vec<u32> = (0..rows.len() as u32).collect();
        let sequences: Vec<&Sequence> = texts.iter().map(|(text, _)| &text.sequence).collect();
        self.model.forward(&mut *self.backends.target, &rows, &all, &sequences)?;
        let drawn = self.draw_rows(texts, &rows)?;
        let seconds = self.seconds(laps.lap(), |prices| prices.verify(rows.len()));
        Ok(Verified { rows, firsts, drawn, seconds })
    }

    /// Draws at every row of a verify at once, for texts whose draws depend on nothing but the
    /// logits; nothing at the rows of others, which are drawn from as the judge comes to them.
    pub(crate) fn draw_rows(
        &mut self,
        texts: &[(&mut Generation, usize)],
        rows: &[Row],
    ) -> Result<Vec<Option<Drawn>>, Error> {
        let mut depths: Vec<usize> = Vec::with_capacity(rows.len());
        for row in rows {
            depths.push(row.parent.map_or(1, |p| depths[p as usize] + 1));
        }
        let draw = |(row, depth): (&Row, &usize)| texts[row.sequence as usize].0.plain_draw(*depth);
        let draws: Vec<Option<Draw>> = rows.iter().zip(&depths).map(draw).collect();
        let Some(any) = draws.iter().flatten().next().copied() else {
            return Ok(vec![None; rows.len()]);
        };
        let asked: Vec<Draw> = draws.iter().map(|draw| draw.unwrap_or(any)).collect();
        let drawn = self.draw(&asked)?;
        let kept =
            |(i, draw): (usize, &Option<Draw>)| draw.and(drawn.as_ref().map(|drawn| drawn[i]));
        Ok(draws.iter().enumerate().map(kept).collect())
    }

    /// Walks every text's draft with its own draws.
    fn judge_all(
        &self,
        texts: Texts<'_, '_>,
        proposals: &[Proposal],
        pass: &Verified,
    ) -> Vec<Result<Judged, Error>> {
        let mut laps = Laps::start();
        let mut judge = |text: &mut Generation, room: usize, proposal: &Proposal, first: u32| {
            let row = |row: usize| match pass.drawn[first as usize + row] {
                Some(drawn) => Ok(RowSeen::Drawn(drawn)),
                None => Ok(RowSeen::Logits(self.logits(first as usize + row)?)),
            };
            let (verdict, kept) = text.judge(&proposal.draft, room, row)?;
            let path: Vec<u32> = verdict.path[..kept].iter().map(|row| row + first).collect();
            let likelihoods = match text.likelihoods {
                Some(top) => self.tell(&path, &verdict, top)?,
                None => Vec::new(),
            };
            let seconds = self.seconds(laps.lap(), |_| 0.0);
            Ok(Judged { verdict, kept, path, likelihoods, seconds })
        };
        let texts = texts.iter_mut().zip(proposals).zip(&pass.firsts);
        texts
            .map(|(((text, room), proposal), first)| judge(text, *room, proposal, *first))
            .collect()
    }

    /// How likely the tokens of a verdict were, whose rows are `path`.
    fn tell(&self, path: &[u32], verdict: &Verdict, top: usize) -> Result<Vec<Likelihood>, Error> {
        let drawn = path.iter().zip(&verdict.tokens);
        drawn
            .map(|(row, token)| Ok(Likelihood::of(&self.logits(*row as usize)?, *token, top)))
            .collect()
    }

    /// Makes what was accepted part of the texts, all in one go; the seconds of each one's part.
    fn commit_judged(
        &mut self,
        texts: Texts<'_, '_>,
        pass: &Verified,
        judged: &mut [Result<Judged, Error>],
    ) -> f64 {
        let mut laps = Laps::start();
        let (mut accepted, mut tokens, mut folds) = (Vec::with_capacity(texts.len()), 0, false);
        for (index, ((text, _), judged)) in texts.iter_mut().zip(&*judged).enumerate() {
            let Ok(Judged { path, .. }) = judged else { continue };
            let sequence = &mut text.sequence;
            let before = sequence.committed();
            folds |= before / ANCHOR_TOKENS != (before + path.len()) / ANCHOR_TOKENS;
            tokens += path.len();
            accepted.push(Accepted { index, sequence, path });
        }
        let committed = self.commit_all(&pass.rows, accepted);
        let still = judged.iter_mut().filter(|judged| judged.is_ok());
        for (judged, committed) in still.zip(committed) {
            if let Err(error) = committed {
                *judged = Err(error);
            }
        }
        let seconds = self.seconds(laps.lap(), |prices| prices.commit);
        // Every 32nd token of a text folds a state, which says nothing of whose round it fell in.
        if !folds {
            self.commit_costs.add(tokens, seconds / self.costs.drift, NEW);
        }
        seconds / texts.len().max(1) as f64
    }

    /// Learns from the round what it cost whom, and tells what came of it.
    fn emit(
        &mut self,
        texts: Texts<'_, '_>,
        proposals: &[Proposal],
        pass: &Verified,
        judged: Vec<Result<Judged, Error>>,
        commit_s: f64,
    ) -> Vec<Result<Round, Error>> {
        let company = texts.len();
        let share = pass.seconds / company.max(1) as f64;
        self.costs.add(pass.rows.len(), texts.len(), pass.seconds);
        let drift = self.costs.drift;
        let kept = judged.iter().flatten().map(|judged| judged.kept).sum();
        let commit = self.commit_costs.get(kept).unwrap_or(0.0) / texts.len().max(1) as f64;
        let mut emit = |i: usize, judged: Judged| {
            let Proposal { who, draft, seconds: draft_s, caught_up, .. } = &proposals[i];
            let Judged { verdict, kept, likelihoods, seconds: judge_s, .. } = judged;
            let seconds = (draft_s - caught_up + share + judge_s) / drift + commit;
            let text = &mut texts[i].0;
            for learned in [&mut text.learned, &mut self.learned] {
                learned.add(&proposals[i], &verdict.path, seconds, company);
            }
            let emitted = verdict.tokens[..kept].to_vec();
            text.tip = emitted.last().copied().unwrap_or(text.tip);
            Round {
                emitted,
                likelihoods,
                drafted: draft.nodes.len(),
                accepted: verdict.path.len() - 1,
                drafter: self.name_of(*who),
                draft_s: *draft_s,
                verify_s: pass.seconds,
                judge_s,
                commit_s,
            }
        };
        let judged = judged.into_iter().enumerate();
        judged.map(|(i, judged)| judged.map(|judged| emit(i, judged))).collect()
    }
}
