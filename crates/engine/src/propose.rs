//! Who proposes, and how much: a draft as `--spec` asks for it, and what rounds teach about costs and honesty.

use crate::draft::{self, Draft, MAX_NODES, best_first, chain, ranks_needed};
use crate::size::{Arm, Calibration, Choice, best_size, is_worth_another};
use crate::step::{Engine, Generation};
use crate::{Error, Row, Sequence};
use std::cell::Cell;
use std::time::Instant;

/// Why a drafter is no longer asked.
fn not_numbers(arm: Arm) -> &'static str {
    match arm {
        Arm::Mtp => "the MTP block's logits are not numbers",
        Arm::Dflash | Arm::Off => "the drafter's logits are not numbers",
    }
}

/// How tokens are proposed. A budget counts drafted nodes, 1 to 63; a block counts rows, the anchor included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Spec {
    /// Not at all.
    Off,
    /// The best token of each position of a DFlash block.
    Chain { block: usize, budget: usize },
    /// The likeliest paths through a DFlash block.
    Tree { block: usize, budget: usize },
    /// The target's next-token block, so many tokens deep.
    Mtp { depth: usize },
    /// Whatever is fastest, from round to round, with what is there.
    Auto { block: usize, budget: usize },
}

/// How honest the drafters are, and which of them pays.
#[derive(Clone)]
pub(crate) struct Learned {
    dflash: Calibration,
    mtp: Calibration,
    choice: Choice,
}

impl Learned {
    pub(crate) fn new(arms: &[Arm]) -> Self {
        Self { dflash: Calibration::new(), mtp: Calibration::new(), choice: Choice::new(arms) }
    }

    /// What a new text starts from.
    pub(crate) fn for_new_text(&self) -> Self {
        Self { choice: self.choice.for_new_text(), ..self.clone() }
    }

    pub(crate) fn choice_without(&mut self, arm: Arm) {
        self.choice.drop_arm(arm);
    }

    pub(crate) fn add(&mut self, arm: Arm, draft: &Draft, path: &[u32], seconds: f64, caught_up: f64) {
        match arm {
            Arm::Dflash => self.dflash.add(draft, path),
            Arm::Mtp => self.mtp.add(draft, path),
            Arm::Off => {}
        }
        self.choice.add(arm, path.len(), seconds, caught_up);
    }
}

impl Engine {
    /// A draft as `spec` asks for, who made it, and the seconds that catching up took, for a text that has room for so many more
    /// tokens. Only `auto` looks at the room: a pinned mode proposes the same wherever a text is.
    pub(crate) fn propose(&mut self, text: &mut Generation, room: usize) -> Result<(Arm, Draft, f64), Error> {
        let arm = match self.spec {
            Spec::Off => Arm::Off,
            Spec::Chain { .. } | Spec::Tree { .. } => Arm::Dflash,
            Spec::Mtp { .. } => Arm::Mtp,
            Spec::Auto { .. } => text.learned.choice.next(|arm| self.bound(arm, room)),
        };
        let caught_up = self.catch_up(arm, &mut text.sequence)?;
        let draft = match arm {
            Arm::Off => Some(Draft::default()),
            failed if text.failed.contains(&failed) => Some(Draft::default()),
            Arm::Dflash => self.ask_dflash(text, room)?,
            Arm::Mtp => self.ask_mtp(text, room)?,
        };
        match draft {
            Some(draft) if draft.nodes.is_empty() => Ok((Arm::Off, draft, caught_up)),
            Some(draft) => Ok((arm, draft, caught_up)),
            None => {
                text.fail(arm);
                Ok((Arm::Off, Draft::default(), caught_up))
            }
        }
    }

    /// Takes in what a drafter has missed while another one or nobody drafted; the seconds it took.
    fn catch_up(&mut self, arm: Arm, sequence: &mut Sequence) -> Result<f64, Error> {
        let Spec::Auto { block, .. } = self.spec else { return Ok(0.0) };
        let start = Instant::now();
        match arm {
            Arm::Dflash if sequence.draft.as_ref().is_some_and(|c| c.pending.len() > block) => {
                if let (Some(dflash), Some(context)) = (&mut self.dflash, &mut sequence.draft) {
                    dflash.absorb(&mut *self.backend, context)?;
                }
            }
            Arm::Mtp if sequence.feed.as_ref().is_some_and(|f| f.tokens.len() > draft::mtp::MAX_DEPTH) => {
                draft::mtp::absorb(&mut self.model, &mut *self.backend, sequence)?;
            }
            _ => return Ok(0.0),
        }
        self.backend.finish()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn ask_dflash(&mut self, text: &mut Generation, room: usize) -> Result<Option<Draft>, Error> {
        let (Some(dflash), Some(context)) = (self.dflash.as_mut(), text.sequence.draft.as_mut()) else {
            return Ok(None);
        };
        let start = Instant::now();
        dflash.absorb(&mut *self.backend, context)?;
        let (block, budget, tree) = match self.spec {
            Spec::Chain { block, budget } => (block, budget, false),
            Spec::Tree { block, budget } | Spec::Auto { block, budget } => (block, budget, true),
            Spec::Off | Spec::Mtp { .. } => return Ok(None),
        };
        let ranks = if tree { ranks_needed(block - 1, budget) } else { 1 };
        let positions = dflash.propose(&mut *self.backend, context, text.anchor, block, ranks)?;
        let Some(positions) = positions else { return Ok(None) };
        let mut draft = if tree { best_first(&positions, budget) } else { chain(&positions, budget) };
        if let Some(constraint) = &mut text.constraint {
            draft.prune(&mut **constraint);
        }
        self.dflash_cost.add(start.elapsed().as_secs_f64() / self.costs.drift());
        if matches!(self.spec, Spec::Auto { .. }) {
            draft.cut(room, &text.ends);
            let fixed = self.dflash_cost.get().unwrap_or(0.0);
            // One node at least: a draft that is thrown away teaches nothing.
            let size = best_size(&text.learned.dflash.paths(&draft), &self.costs, fixed).max(1);
            draft.nodes.truncate(size);
        }
        Ok(Some(draft))
    }

    fn ask_mtp(&mut self, text: &mut Generation, room: usize) -> Result<Option<Draft>, Error> {
        let (costs, calibration, ends) = (&self.costs, &text.learned.mtp, &text.ends);
        let most = if let Spec::Auto { budget, .. } = self.spec { budget } else { MAX_NODES };
        let most = draft::mtp::MAX_DEPTH.min(most).min(room.saturating_sub(1).max(1));
        let mtp_cost = &self.mtp_cost;
        let start = Instant::now();
        let first = Cell::new(None);
        // Another token is worth asking for while it could be emitted and some longer draft raises the expected rate.
        let enough = |draft: &Draft| {
            first.set(first.get().or(Some(start.elapsed())));
            draft.nodes.last().is_some_and(|n| ends.contains(&n.token))
                || !is_worth_another(&calibration.paths(draft), most, |count| {
                    mtp_cost.seconds(count) + costs.verify(count + 1)
                })
        };
        let (model, backend) = (&mut self.model, &mut *self.backend);
        let mut draft = match self.spec {
            Spec::Mtp { depth } => {
                draft::mtp::propose(model, backend, &mut text.sequence, text.anchor, depth, |_| false)?
            }
            _ => draft::mtp::propose(model, backend, &mut text.sequence, text.anchor, most, enough)?,
        };
        let all = start.elapsed();
        if let (Some(draft), Spec::Auto { .. }) = (&draft, self.spec) {
            let first = first.get().unwrap_or(all);
            let [first, rest] = [first, all - first].map(|d| d.as_secs_f64() / self.costs.drift());
            self.mtp_cost.add(first, rest, draft.nodes.len());
        }
        if let (Some(draft), Some(constraint)) = (&mut draft, &mut text.constraint) {
            draft.prune(&mut **constraint);
        }
        if let (Some(draft), Spec::Auto { .. }) = (&mut draft, self.spec) {
            let fixed = all.as_secs_f64() / self.costs.drift();
            let size = best_size(&text.learned.mtp.paths(draft), &self.costs, fixed).max(1);
            draft.nodes.truncate(size);
        }
        Ok(draft)
    }

    /// The most tokens per second an arm could give: every token it can propose stands, as far as there is room.
    fn bound(&self, arm: Arm, room: usize) -> f64 {
        match (arm, self.spec) {
            (Arm::Dflash, Spec::Auto { block, .. }) => {
                let fixed = self.dflash_cost.get().unwrap_or(0.0);
                (2..=block.min(room))
                    .map(|rows| rows as f64 / (fixed + self.costs.verify(rows)))
                    .fold(0.0, f64::max)
            }
            (Arm::Mtp, Spec::Auto { budget, .. }) => {
                let rate = |n: usize| (n + 1) as f64 / (self.mtp_cost.seconds(n) + self.costs.verify(n + 1));
                (1..=draft::mtp::MAX_DEPTH.min(budget).min(room.saturating_sub(1)))
                    .map(rate)
                    .fold(0.0, f64::max)
            }
            _ => 1.0 / self.costs.verify(1),
        }
    }

    /// Seconds of a pass.
    fn time_pass(&mut self, rows: &[Row], chosen: &[u32], sequence: &Sequence) -> Result<f64, Error> {
        let start = Instant::now();
        self.model.forward(&mut *self.backend, rows, chosen, &[sequence])?;
        self.backend.finish()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// First costs: verifies of a few sizes and a proposal of each drafter. Where passes are slow, one row and a block
    /// have to do.
    pub(crate) fn measure(&mut self) -> Result<(), Error> {
        let mut sequence = self.sequence();
        let tokens = vec![0; MAX_NODES + 1];
        let rows: Vec<Row> = crate::model::chain(&tokens, 0).collect();
        let all: Vec<u32> = (0..rows.len() as u32).collect();
        let block = if let Spec::Auto { block, .. } = self.spec { block } else { 1 };
        let mut found: Vec<(usize, f64)> = Vec::new();
        for n in [1, block, 2, 4, 8, 16, 32, MAX_NODES + 1] {
            let slow = found.iter().any(|(_, seconds)| *seconds > SLOW_PASS);
            if (slow && n != block) || found.iter().any(|(known, _)| *known == n) {
                continue;
            }
            // The first pass of a size may have to load kernels.
            let first = self.time_pass(&rows[..n], &all[..n], &sequence)?;
            let again = first < LONG_PASS;
            let second = if again { self.time_pass(&rows[..n], &all[..n], &sequence)? } else { first };
            found.push((n, first.min(second)));
        }
        // Sizes take turns, because whatever else the machine does stalls several passes in a row.
        for _ in 0..TURNS {
            for (n, seconds) in found.iter_mut().filter(|(_, seconds)| *seconds < QUICK_PASS) {
                *seconds = seconds.min(self.time_pass(&rows[..*n], &all[..*n], &sequence)?);
            }
        }
        found.iter().for_each(|(n, seconds)| self.costs.set(*n, *seconds));
        self.learned.choice.add(Arm::Off, 1, self.costs.verify(1), 0.0);
        self.model.forward(&mut *self.backend, &rows[..1], &all[..1], &[&sequence])?;
        self.commit(0, &mut sequence, &rows, &all[..1])?;
        if let (Some(dflash), Some(context), Spec::Auto { block, .. }) =
            (&mut self.dflash, &mut sequence.draft, self.spec)
        {
            dflash.absorb(&mut *self.backend, context)?;
            let mut sound = true;
            let seconds = quickest(&mut || {
                sound &= dflash.propose(&mut *self.backend, context, 0, block, 8)?.is_some();
                Ok(())
            })?;
            self.dflash_cost.add(seconds);
            if !sound {
                self.faulty = vec![Arm::Dflash];
            }
        }
        if sequence.feed.is_some() {
            let (model, backend) = (&mut self.model, &mut *self.backend);
            let mut seconds = |depth: usize| {
                quickest(&mut || {
                    let mut scratch = sequence.clone();
                    draft::mtp::propose(model, backend, &mut scratch, 0, depth, |_| false).map(drop)
                })
            };
            let (first, two) = (seconds(1)?, seconds(2)?);
            self.mtp_cost.add(first, (two - first).max(0.0), 2);
        }
        Ok(())
    }
}

/// A pass of more seconds is measured only once; where there is one of more than the second, no more sizes are measured.
const LONG_PASS: f64 = 2.0;
const SLOW_PASS: f64 = 0.05;
/// Passes of fewer seconds are measured so many times more.
const QUICK_PASS: f64 = 0.02;
const TURNS: usize = 3;

/// Seconds of the quickest of a few runs; of one, where it is slow.
fn quickest(run: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
        if best > 0.02 {
            break;
        }
    }
    Ok(best)
}

impl Generation {
    /// This drafter is not asked again.
    pub(crate) fn fail(&mut self, arm: Arm) {
        self.failed.push(arm);
        self.learned.choice.drop_arm(arm);
        self.fallback.get_or_insert(not_numbers(arm));
    }
}

impl Arm {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dflash => "dflash",
            Self::Mtp => "mtp",
            Self::Off => "off",
        }
    }
}
