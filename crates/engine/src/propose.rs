//! Who proposes, and how much: a draft as `--spec` asks for it, and what rounds teach about costs
//! and honesty.

use crate::choose::{Arm, Choice};
use crate::draft::mtp::MAX_DEPTH;
use crate::draft::{self, Draft, MAX_NODES, best_first, chain, ranks_needed};
use crate::size::{Calibration, best_sizes, is_worth_another};
use crate::step::{Engine, Generation};
use crate::{Error, Row, Sequence};
use std::time::Instant;

/// Why a drafter is no longer asked.
#[derive(Clone, Copy)]
pub(crate) enum Failure {
    /// Its logits are not numbers.
    NotNumbers,
    /// Its pass could not be run.
    NoPass,
}

impl Failure {
    fn of(self, arm: Arm) -> &'static str {
        match (self, arm) {
            (Self::NotNumbers, Arm::Mtp) => "the MTP block's logits are not numbers",
            (Self::NotNumbers, _) => "the drafter's logits are not numbers",
            (Self::NoPass, Arm::Mtp) => "a pass of the MTP block failed",
            (Self::NoPass, _) => "a pass of the drafter failed",
        }
    }
}

/// How tokens are proposed. A budget counts drafted nodes, 1 to 63; a block counts rows, the anchor
/// included.
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

    /// For each node of a draft, the probability that its whole path stands.
    fn paths(&self, arm: Arm, draft: &Draft) -> Vec<f64> {
        match arm {
            Arm::Dflash => self.dflash.paths(draft),
            Arm::Mtp => self.mtp.paths(draft),
            Arm::Off => Vec::new(),
        }
    }

    pub(crate) fn choice_without(&mut self, arm: Arm) {
        self.choice.drop_arm(arm);
    }

    pub(crate) fn add(
        &mut self,
        arm: Arm,
        draft: &Draft,
        path: &[u32],
        seconds: f64,
        caught_up: f64,
    ) {
        match arm {
            Arm::Dflash => self.dflash.add(draft, path),
            Arm::Mtp => self.mtp.add(draft, path),
            Arm::Off => {}
        }
        self.choice.add(arm, path.len(), seconds, caught_up);
    }
}

/// What a text brings to a round.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// Who was asked.
    pub(crate) arm: Arm,
    pub(crate) draft: Draft,
    /// Its part of what drafting took, and of them the seconds of catching up with what others or
    /// nobody had drafted.
    pub(crate) seconds: f64,
    pub(crate) caught_up: f64,
}

/// Texts of a round, with how many more tokens each has room for.
type Texts<'a, 'b> = &'a mut [(&'b mut Generation, usize)];

impl Engine {
    /// Drafts as `spec` asks for, those of one drafter made together. Only `auto` looks at the
    /// room, and cuts the drafts to what is worth judging in one pass; a pinned mode proposes the
    /// same wherever a text is, as far as a pass has room for everybody.
    pub(crate) fn propose(&mut self, texts: Texts<'_, '_>) -> Result<Vec<Proposal>, Error> {
        let (company, start) = (texts.len(), Instant::now());
        let mut proposals = Vec::with_capacity(company);
        for (text, room) in texts.iter_mut() {
            let arm = match self.spec {
                Spec::Off => Arm::Off,
                Spec::Chain { .. } | Spec::Tree { .. } => Arm::Dflash,
                Spec::Mtp { .. } => Arm::Mtp,
                Spec::Auto { .. } => {
                    text.learned.choice.next(|arm| self.bound(arm, *room, company))
                }
            };
            let arm = if text.failed.contains(&arm) || !text.feeds(arm) { Arm::Off } else { arm };
            let caught_up = self.catch_up(arm, &mut text.sequence)?;
            proposals.push(Proposal {
                arm,
                draft: Draft::default(),
                seconds: caught_up,
                caught_up,
            });
        }
        self.asked =
            [Arm::Dflash, Arm::Mtp].map(|arm| proposals.iter().filter(|p| p.arm == arm).count());
        let drafted = self.ask_dflash(texts, &mut proposals);
        go_on_without(Arm::Dflash, drafted, texts, &mut proposals)?;
        let drafted = self.ask_mtp(texts, &mut proposals);
        go_on_without(Arm::Mtp, drafted, texts, &mut proposals)?;
        self.fit(texts, &mut proposals);
        let counted: f64 = proposals.iter().map(|proposal| proposal.seconds).sum();
        let rest = (start.elapsed().as_secs_f64() - counted).max(0.0) / company.max(1) as f64;
        proposals.iter_mut().for_each(|proposal| proposal.seconds += rest);
        Ok(proposals)
    }

    /// Takes in what a drafter has missed while another one or nobody drafted; the seconds it took.
    fn catch_up(&mut self, arm: Arm, sequence: &mut Sequence) -> Result<f64, Error> {
        let Spec::Auto { block, .. } = self.spec else { return Ok(0.0) };
        let start = Instant::now();
        match arm {
            Arm::Dflash => match (&mut self.dflash, &mut sequence.draft) {
                (Some(dflash), Some(context)) if context.pending.len() > block => {
                    dflash.absorb(&mut *self.backend, &mut [context])?;
                }
                _ => return Ok(0.0),
            },
            Arm::Mtp if sequence.feed.as_ref().is_some_and(|f| f.tokens.len() > MAX_DEPTH) => {
                draft::mtp::absorb(&mut self.model, &mut *self.backend, sequence)?;
            }
            _ => return Ok(0.0),
        }
        self.backend.finish()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn ask_dflash(
        &mut self,
        texts: Texts<'_, '_>,
        proposals: &mut [Proposal],
    ) -> Result<(), Error> {
        let (block, budget, tree) = match self.spec {
            Spec::Chain { block, budget } => (block, budget, false),
            Spec::Tree { block, budget } | Spec::Auto { block, budget } => (block, budget, true),
            Spec::Off | Spec::Mtp { .. } => return Ok(()),
        };
        let mut asked: Vec<_> = who_asks(Arm::Dflash, texts, proposals).collect();
        let Some(dflash) = self.dflash.as_mut().filter(|_| !asked.is_empty()) else {
            return Ok(());
        };
        let start = Instant::now();
        // Whoever asks has a context.
        let mut contexts: Vec<_> =
            asked.iter_mut().filter_map(|(text, _, _)| text.sequence.draft.as_mut()).collect();
        dflash.absorb(&mut *self.backend, &mut contexts)?;
        let blocks: Vec<_> = asked
            .iter()
            .filter_map(|(text, _, _)| {
                text.sequence.draft.as_ref().map(|context| (context, text.anchor))
            })
            .collect();
        let ranks = if tree { ranks_needed(block - 1, budget) } else { 1 };
        let found = dflash.propose(&mut *self.backend, &blocks, block, ranks)?;
        let all = start.elapsed().as_secs_f64();
        let each = all / asked.len() as f64;
        self.dflash_cost.add(asked.len(), all / self.costs.drift());
        for ((text, _, proposal), positions) in asked.into_iter().zip(found) {
            proposal.seconds += each;
            match positions {
                Some(positions) if tree => proposal.draft = best_first(&positions, budget),
                Some(positions) => proposal.draft = chain(&positions, budget),
                None => {
                    text.fail(Arm::Dflash, Failure::NotNumbers);
                    proposal.arm = Arm::Off;
                }
            }
        }
        Ok(())
    }

    fn ask_mtp(&mut self, texts: Texts<'_, '_>, proposals: &mut [Proposal]) -> Result<(), Error> {
        let company = texts.len();
        let fair = fair_nodes(company).max(1);
        let (depth, is_pinned) = match self.spec {
            Spec::Mtp { depth } => (depth.min(MAX_DEPTH).min(fair), true),
            Spec::Auto { budget, .. } => (budget.min(MAX_DEPTH).min(fair), false),
            _ => return Ok(()),
        };
        let mut asked: Vec<_> = who_asks(Arm::Mtp, texts, proposals).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let (mut asking, mut known) = (Vec::new(), Vec::new());
        for (text, room, _) in &mut asked {
            let Generation { sequence, anchor, learned, ends, .. } = &mut **text;
            let depth = if is_pinned { depth } else { depth.min(room.saturating_sub(1).max(1)) };
            known.push((&learned.mtp, &*ends, depth));
            asking.push(draft::mtp::Asking { sequence, anchor: *anchor, depth });
        }
        let (costs, mtp_cost, askers) = (&self.costs, &self.mtp_cost, asking.len());
        let start = Instant::now();
        // Another token is worth asking for while it could be emitted and some longer draft raises
        // the expected rate.
        let enough = |i: usize, draft: &Draft| {
            let (calibration, ends, most) = known[i];
            let ended = draft.nodes.last().is_some_and(|n| ends.contains(&n.token));
            let seconds =
                |count| mtp_cost.each(askers, count) + costs.verify_each(count + 1, company);
            !is_pinned && (ended || !is_worth_another(&calibration.paths(draft), most, seconds))
        };
        let (found, first) =
            draft::mtp::propose(&mut self.model, &mut *self.backend, &mut asking, enough)?;
        let all = start.elapsed();
        if !is_pinned {
            let longest = found.iter().flatten().map(|d| d.nodes.len()).max().unwrap_or(1);
            let [first, rest] = [first, all - first].map(|d| d.as_secs_f64() / self.costs.drift());
            self.mtp_cost.add(askers, first, rest, longest);
        }
        let each = all.as_secs_f64() / askers as f64;
        for ((text, _, proposal), draft) in asked.into_iter().zip(found) {
            proposal.seconds += each;
            match draft {
                Some(draft) => proposal.draft = draft,
                None => {
                    text.fail(Arm::Mtp, Failure::NotNumbers);
                    proposal.arm = Arm::Off;
                }
            }
        }
        Ok(())
    }

    /// Cuts drafts to what could be written and is worth judging.
    fn fit(&self, texts: Texts<'_, '_>, proposals: &mut [Proposal]) {
        let is_auto = matches!(self.spec, Spec::Auto { .. });
        let [by_dflash, by_mtp] = self.asked;
        let mut paths = Vec::with_capacity(texts.len());
        let mut fixed = 0.0;
        for ((text, room), proposal) in texts.iter_mut().zip(&mut *proposals) {
            let draft = &mut proposal.draft;
            if let Some(constraint) = &mut text.constraint {
                draft.prune(&mut **constraint);
            }
            if is_auto {
                draft.cut(*room, &text.ends);
                fixed += match proposal.arm {
                    Arm::Dflash => self.dflash_each(by_dflash),
                    Arm::Mtp => self.mtp_cost.each(by_mtp, draft.nodes.len()),
                    Arm::Off => 0.0,
                };
                paths.push(text.learned.paths(proposal.arm, draft));
            }
        }
        let sizes = match is_auto {
            true => best_sizes(&paths, &self.costs, fixed),
            false => vec![fair_nodes(texts.len()); texts.len()],
        };
        proposals
            .iter_mut()
            .zip(sizes)
            .for_each(|(proposal, size)| proposal.draft.nodes.truncate(size));
    }

    /// Seconds of DFlash for each of so many texts that ask it together.
    fn dflash_each(&self, texts: usize) -> f64 {
        self.dflash_cost.get(texts).unwrap_or(0.0) / texts.max(1) as f64
    }

    /// The most tokens per second an arm could give a text among `company`: every token it can
    /// propose stands, as far as there is room. Drafting it shares with those who asked last time.
    fn bound(&self, arm: Arm, room: usize, company: usize) -> f64 {
        let rate = |drafting: f64, rows: usize| {
            rows as f64 / (drafting + self.costs.verify_each(rows, company))
        };
        let most_rows = room.min(fair_nodes(company) + 1);
        match (arm, self.spec) {
            (Arm::Dflash, Spec::Auto { block, .. }) => {
                let fixed = self.dflash_each((self.asked[0] + 1).min(company));
                (2..=block.min(most_rows)).map(|rows| rate(fixed, rows)).fold(0.0, f64::max)
            }
            (Arm::Mtp, Spec::Auto { budget, .. }) => {
                let texts = (self.asked[1] + 1).min(company);
                let drafting = |rows: usize| self.mtp_cost.each(texts, rows - 1);
                let most_rows = (MAX_DEPTH.min(budget) + 1).min(most_rows);
                (2..=most_rows).map(|rows| rate(drafting(rows), rows)).fold(0.0, f64::max)
            }
            _ => rate(0.0, 1),
        }
    }

    /// Seconds of a pass.
    fn time_pass(
        &mut self,
        rows: &[Row],
        chosen: &[u32],
        sequence: &Sequence,
    ) -> Result<f64, Error> {
        let start = Instant::now();
        self.model.forward(&mut *self.backend, rows, chosen, &[sequence])?;
        self.backend.finish()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// First costs: verifies of a few sizes and a proposal of each drafter. Where passes are slow,
    /// one row and a block have to do.
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
            // The first pass of a size may have to load kernels, and the second to capture them.
            let mut best = self.time_pass(&rows[..n], &all[..n], &sequence)?;
            for _ in 0..2 {
                if best < LONG_PASS {
                    best = best.min(self.time_pass(&rows[..n], &all[..n], &sequence)?);
                }
            }
            found.push((n, best));
        }
        // Sizes take turns, because whatever else the machine does stalls several passes in a row.
        for _ in 0..TURNS {
            for (n, seconds) in found.iter_mut().filter(|(_, seconds)| *seconds < QUICK_PASS) {
                *seconds = seconds.min(self.time_pass(&rows[..*n], &all[..*n], &sequence)?);
            }
        }
        found.iter().for_each(|(n, seconds)| self.costs.set(*n, *seconds));
        self.learned.choice.add(Arm::Off, 1, self.costs.verify(1, 1), 0.0);
        self.model.forward(&mut *self.backend, &rows[..1], &all[..1], &[&sequence])?;
        self.commit(0, &mut sequence, &rows, &all[..1])?;
        if let (Some(dflash), Some(context), Spec::Auto { block, .. }) =
            (&mut self.dflash, &mut sequence.draft, self.spec)
        {
            dflash.absorb(&mut *self.backend, &mut [context])?;
            let mut sound = true;
            let seconds = quickest(&mut || {
                sound &=
                    !dflash.propose(&mut *self.backend, &[(context, 0)], block, 8)?.contains(&None);
                Ok(())
            })?;
            self.dflash_cost.add(1, seconds);
            if !sound {
                self.faulty = vec![Arm::Dflash];
            }
        }
        if sequence.feed.is_some() {
            let (model, backend) = (&mut self.model, &mut *self.backend);
            let mut seconds = |depth: usize| {
                quickest(&mut || {
                    let mut scratch = sequence.clone();
                    let asking = draft::mtp::Asking { sequence: &mut scratch, anchor: 0, depth };
                    draft::mtp::propose(model, backend, &mut [asking], |_, _| false).map(drop)
                })
            };
            let (first, two) = (seconds(1)?, seconds(2)?);
            self.mtp_cost.add(1, first, (two - first).max(0.0), 2);
        }
        Ok(())
    }
}

/// A pass of more seconds is measured only once; where there is one of more than the second, no
/// more sizes are measured.
const LONG_PASS: f64 = 2.0;
const SLOW_PASS: f64 = 0.05;
/// Passes of fewer seconds are measured so many times more.
const QUICK_PASS: f64 = 0.02;
const TURNS: usize = 3;

/// Nodes for each of so many texts, where a pass has room for everybody.
fn fair_nodes(texts: usize) -> usize {
    ((MAX_NODES + 1) / texts.max(1)).saturating_sub(1)
}

/// The texts that ask a drafter, with their room.
fn who_asks<'a>(
    arm: Arm,
    texts: &'a mut [(&mut Generation, usize)],
    proposals: &'a mut [Proposal],
) -> impl Iterator<Item = (&'a mut Generation, usize, &'a mut Proposal)> {
    let all = texts
        .iter_mut()
        .zip(proposals)
        .map(|((text, room), proposal)| (&mut **text, *room, proposal));
    all.filter(move |(.., proposal)| proposal.arm == arm)
}

/// Texts whose drafter failed go on without it: a drafter can only change the speed. Room that is
/// missing and a device that is lost concern the texts themselves.
fn go_on_without(
    arm: Arm,
    drafted: Result<(), Error>,
    texts: Texts<'_, '_>,
    proposals: &mut [Proposal],
) -> Result<(), Error> {
    match drafted {
        Err(error) if error.is_out_of_memory() || error.is_lost() => Err(error),
        Err(_) => {
            for (text, _, proposal) in who_asks(arm, texts, proposals) {
                text.fail(arm, Failure::NoPass);
                proposal.arm = Arm::Off;
                proposal.draft = Draft::default();
            }
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Seconds of the quickest of a few runs; of one, where it is slow.
fn quickest(run: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut best = f64::INFINITY;
    for i in 0..3 {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
        // The first run may have to load kernels.
        if best > if i == 0 { LONG_PASS } else { QUICK_PASS } {
            break;
        }
    }
    Ok(best)
}

impl Generation {
    /// Whether what a drafter reads is kept for it.
    fn feeds(&self, arm: Arm) -> bool {
        match arm {
            Arm::Dflash => self.sequence.draft.is_some(),
            Arm::Mtp => self.sequence.feed.is_some(),
            Arm::Off => true,
        }
    }

    /// This drafter is not asked again.
    pub(crate) fn fail(&mut self, arm: Arm, failure: Failure) {
        self.failed.push(arm);
        self.learned.choice.drop_arm(arm);
        self.fallback.get_or_insert(failure.of(arm));
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
