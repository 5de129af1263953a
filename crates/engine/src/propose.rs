//! Who proposes, and how much: a draft as `--spec` asks for it, and what rounds teach about costs
//! and honesty.

use crate::Error;
use crate::backends::Home;
use crate::choose::{Choice, Proposer};
use crate::crossing::Crossing;
use crate::draft::{Ask, Draft, Drafter, Lattice, Reads, Shape};
use crate::prices::Prices;
use crate::size::{Calibration, Costs, Curve, NEW, best_count, best_sizes};
use crate::state::DraftState;
use crate::{Engine, Generation};
use compute::Budget;
use std::time::Instant;

/// Why a drafter is no longer asked.
#[derive(Clone, Copy)]
pub(crate) enum Failure {
    /// Its logits are not numbers.
    NotNumbers,
    /// Its pass could not be run.
    NoPass,
}

/// How tokens are proposed. A budget counts drafted nodes, of which a round judges as many as its
/// pass has rows for; a block counts rows, the newest token included.
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
    /// What followed before, where the text's last tokens occurred before.
    Lookup { budget: usize },
    /// Whatever is fastest, from round to round, with what is there.
    Auto { block: usize, budget: usize },
}

impl Spec {
    /// Drafted nodes that `auto` looks at unless told: for one text more never paid on any machine.
    pub const AUTO_BUDGET: usize = 63;
}

/// A pinned lookup proposes a path as long as it is likelier than this to stand. `auto` knows what
/// a row costs, and of what is likelier than this, as the first 15 of any match are, cuts it itself.
const LIKELY: f64 = 0.5;
const UNLIKELY: f64 = 0.1;

/// A drafter of the engine, and what is known of it besides.
pub(crate) struct Slot {
    pub(crate) drafter: Box<dyn Drafter>,
    /// Seconds of its passes, by texts that ask together.
    pub(crate) costs: Curve,
    /// Texts of the last round that asked it.
    pub(crate) asked: usize,
    /// Whether it gave no numbers when it was measured.
    pub(crate) is_broken: bool,
    /// The way of what it reads, where it has a backend of its own.
    pub(crate) crossing: Option<Crossing>,
}

impl Slot {
    pub(crate) fn new(drafter: impl Drafter + 'static) -> Self {
        let costs = Curve::default();
        let drafter = Box::new(drafter);
        Self { drafter, costs, asked: 0, is_broken: false, crossing: None }
    }

    /// Which backend it runs on.
    pub(crate) fn home(&self) -> Home {
        if self.crossing.is_some() { Home::Own } else { Home::Target }
    }

    /// Whether an error that one of these states met is the texts' too: of a backend of its own only
    /// room that is missing there, which others can make.
    fn concerns(&self, error: &Error, states: &[&DraftState], budget: &Budget) -> bool {
        match (self.home(), error) {
            (Home::Target, error) => error.is_out_of_memory() || error.is_lost(),
            (Home::Own, Error::Backend(compute::Error::OutOfMemory { needed, .. })) => {
                let crossing = self.crossing.as_ref().map_or(0, Crossing::landed_bytes);
                let fits =
                    |state: &&DraftState| state.bytes() + needed + crossing <= budget.limit();
                states.len() > 1 || states.iter().all(fits)
            }
            (Home::Own, _) => false,
        }
    }

    /// What becomes of a text whose state could not be written for this drafter: where that has a
    /// backend of its own the text goes on without it.
    pub(crate) fn spare(
        &self,
        done: Result<(), Error>,
        draft: &mut Option<DraftState>,
        budget: &Budget,
    ) -> Result<(), Error> {
        match (done, &draft) {
            (Err(error), Some(state))
                if self.home() == Home::Own && !self.concerns(&error, &[state], budget) =>
            {
                *draft = None;
                Ok(())
            }
            (done, _) => done,
        }
    }

    /// Passes of a draft of so many positions: a block is filled in by one.
    pub(crate) fn passes(&self, count: usize) -> usize {
        if self.drafter.block().is_some() { 1 } else { count }
    }

    /// Seconds of a draft of `count` positions for each of so many texts that ask together.
    fn seconds(&self, texts: usize, count: usize) -> f64 {
        self.passes(count) as f64 * self.costs.get(texts).unwrap_or(0.0) / texts.max(1) as f64
    }
}

/// How honest the drafters are, and which of them pays: alone, and for texts in company, where rows
/// are shared and a round says little of what it would be alone.
#[derive(Clone)]
pub(crate) struct Learned {
    calibrations: Vec<Calibration>,
    pub(crate) choices: [Choice; 2],
    /// Drafters that are never asked again.
    left_out: Vec<usize>,
}

impl Learned {
    pub(crate) fn new(drafters: usize) -> Self {
        let calibrations = vec![Calibration::default(); drafters];
        let choices = [Choice::new(drafters), Choice::new(drafters)];
        Self { calibrations, choices, left_out: Vec::new() }
    }

    /// What a new text starts from.
    pub(crate) fn for_new_text(&self) -> Self {
        let choices = self.choices.each_ref().map(Choice::for_new_text);
        Self { choices, ..self.clone() }
    }

    /// A drafter is never asked again.
    pub(crate) fn leave_out(&mut self, drafter: usize) {
        self.left_out.push(drafter);
        self.choices.iter_mut().for_each(|choice| choice.leave_out(drafter));
    }

    /// Whether a drafter may be asked.
    fn asks(&self, drafter: usize) -> bool {
        !self.left_out.contains(&drafter)
    }

    /// The choice of a text among so many.
    fn choice(&self, company: usize) -> &Choice {
        &self.choices[usize::from(company > 1)]
    }

    /// A round of a proposer, of whose draft `path` was accepted, among so many texts.
    pub(crate) fn add(&mut self, proposal: &Proposal, path: &[u32], seconds: f64, company: usize) {
        if let Some(drafter) = proposal.who {
            self.calibrations[drafter].add(&proposal.draft, path);
        }
        self.choices[usize::from(company > 1)].add(proposal.who, path.len(), seconds);
    }
}

/// What a text brings to a round.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// Who was asked.
    pub(crate) who: Proposer,
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
        let looked_up = self.look_up(texts)?;
        for ((text, room), looked_up) in texts.iter_mut().zip(looked_up) {
            self.note_missing(text);
            let who = self.pick(text, *room, company, &looked_up);
            let caught_up = who.map_or(Ok(0.0), |drafter| self.catch_up(drafter, text))?;
            let who = who.filter(|drafter| text.sequence.draft(*drafter).is_some());
            let is_found = who.is_some() && who == self.lookup();
            let draft = if is_found { looked_up } else { Draft::default() };
            proposals.push(Proposal { who, draft, seconds: caught_up, caught_up });
        }
        for drafter in 0..self.drafters.len() {
            let drafted = self.ask(drafter, texts, &mut proposals);
            self.go_on_without(drafter, drafted, texts, &mut proposals)?;
        }
        self.fit(texts, &mut proposals);
        let counted: f64 = proposals.iter().map(|proposal| proposal.seconds).sum();
        let all = self.seconds(start.elapsed().as_secs_f64(), |_| counted);
        let rest = (all - counted).max(0.0) / company.max(1) as f64;
        proposals.iter_mut().for_each(|proposal| proposal.seconds += rest);
        Ok(proposals)
    }

    /// Texts whose state a drafter on a backend of its own has lost do not ask it again.
    fn note_missing(&self, text: &mut Generation) {
        for (drafter, slot) in self.drafters.iter().enumerate() {
            if text.sequence.draft(drafter).is_none() && text.learned.asks(drafter) {
                text.fail(drafter, slot.drafter.title(), Failure::NoPass);
            }
        }
    }

    fn is_auto(&self) -> bool {
        matches!(self.spec, Spec::Auto { .. })
    }

    /// Which of the drafters looks texts up.
    fn lookup(&self) -> Option<usize> {
        self.drafters.iter().position(|slot| slot.drafter.reads() == Reads::Tokens)
    }

    /// What texts have written before, for `auto`: that costs nothing, so every text has it looked
    /// up.
    fn look_up(&mut self, texts: Texts<'_, '_>) -> Result<Vec<Draft>, Error> {
        let mut found = vec![Draft::default(); texts.len()];
        let fair = self.fair_nodes(texts.len()).max(1);
        let Some(lookup) = self.lookup().filter(|_| self.is_auto()) else { return Ok(found) };
        let drafter = &mut self.drafters[lookup].drafter;
        let Some(shape) = drafter.shape(self.spec) else { return Ok(found) };
        for ((text, room), found) in texts.iter_mut().zip(&mut found) {
            let Generation { sequence, tip, ends, constraint, .. } = &mut **text;
            let Some(state) = sequence.draft_mut(lookup) else { continue };
            let goes_on = Box::new(|_: &Lattice| true);
            let ask = Ask { state, tip: *tip, shape, room: fair, least: UNLIKELY, goes_on };
            let lattice = drafter.propose(&mut *self.backends.target, &mut [ask])?.pop().flatten();
            *found = lattice.unwrap_or_default().best_first(shape.budget);
            found.cut(*room, ends);
            if let Some(constraint) = constraint {
                found.prune(&mut **constraint);
            }
        }
        Ok(found)
    }

    /// Who proposes for a text among `company`. What was looked up says itself how likely it is, so
    /// it is taken wherever it promises the most, and not tried.
    fn pick(&self, text: &Generation, room: usize, company: usize, looked_up: &Draft) -> Proposer {
        let is_asked = |slot: &Slot| slot.drafter.shape(self.spec).is_some();
        let who = if self.is_auto() {
            let (who, rate) =
                text.learned.choice(company).next(|who| self.bound(who, room, company));
            let promise = |lookup: &usize| self.promise(*lookup, looked_up, text, company);
            self.lookup().filter(|lookup| promise(lookup) > rate).or(who)
        } else {
            self.drafters.iter().position(is_asked)
        };
        who.filter(|i| !text.failed.contains(i) && text.sequence.draft(*i).is_some())
    }

    /// The most tokens per second that judging some of a draft promises, which cost nothing to
    /// make.
    fn promise(&self, drafter: usize, draft: &Draft, text: &Generation, company: usize) -> f64 {
        let (calibrations, choice) = (&text.learned.calibrations, text.learned.choice(company));
        let verify = |nodes: usize| self.costs.verify_each(nodes + 1, company);
        // Judging and committing.
        let besides = (choice.plain_round() - verify(0)).max(0.0);
        let paths = calibrations[drafter].paths(draft);
        best_count(1.0, paths, |nodes| verify(nodes) + besides).1
    }

    /// Takes in what a drafter has missed while another one or nobody drafted; the seconds it took.
    fn catch_up(&mut self, drafter: usize, text: &mut Generation) -> Result<f64, Error> {
        let (spec, is_auto) = (self.spec, self.is_auto());
        let slot = &mut self.drafters[drafter];
        // A round leaves no more than that.
        let usual = slot.drafter.shape(spec).map_or(0, |shape| shape.depth + 1);
        let Some(draft) = text.sequence.drafts.get_mut(drafter) else { return Ok(0.0) };
        match draft {
            Some(state) if is_auto && state.pending.len() > usual => {
                let (start, backend) = (Instant::now(), self.backends.of_mut(slot.home()));
                let absorbed = slot.drafter.absorb(backend, &mut [state]);
                let absorbed = absorbed.and_then(|()| Ok(backend.finish()?));
                slot.spare(absorbed, draft, backend.budget())?;
                Ok(self.seconds(start.elapsed().as_secs_f64(), |_| 0.0))
            }
            _ => Ok(0.0),
        }
    }

    /// Has a drafter propose for the texts that ask it.
    fn ask(
        &mut self,
        drafter: usize,
        texts: Texts<'_, '_>,
        proposals: &mut [Proposal],
    ) -> Result<(), Error> {
        let (company, is_auto) = (texts.len(), self.is_auto());
        // That was done for every text.
        if is_auto && self.lookup() == Some(drafter) {
            return Ok(());
        }
        let fair = self.fair_nodes(company).max(1);
        let mut asked: Vec<_> = who_asks(drafter, texts, proposals).collect();
        let shape = self.shape(drafter, company).filter(|_| !asked.is_empty());
        let slot = &mut self.drafters[drafter];
        slot.asked = asked.len();
        let Some(shape) = shape else { return Ok(()) };
        let askers = asked.len();
        let mut asks = Vec::with_capacity(askers);
        for (text, room, _) in &mut asked {
            let Generation { sequence, tip, learned, ends, .. } = &mut **text;
            let room = if is_auto { fair.min(room.saturating_sub(1).max(1)) } else { fair };
            let calibration = &learned.calibrations[drafter];
            // Another token is worth asking for while it could be emitted and the chain so far is
            // likelier to stand than not.
            let goes_on = move |lattice: &Lattice| {
                let ended = lattice.last_token().is_some_and(|token| ends.contains(&token));
                let paths = calibration.paths(&lattice.best_first(lattice.len()));
                !is_auto || (!ended && paths.last().is_some_and(|path| *path > LIKELY))
            };
            let state = sequence.draft_mut(drafter).expect("who asks has a state");
            let (tip, least, goes_on) = (*tip, LIKELY, Box::new(goes_on));
            asks.push(Ask { state, tip, shape, room, least, goes_on });
        }
        let start = Instant::now();
        let backend = self.backends.of_mut(slot.home());
        let found = slot.drafter.propose(backend, &mut asks)?;
        drop(asks);
        let all = start.elapsed().as_secs_f64();
        let longest = found.iter().flatten().map(Lattice::len).max().unwrap_or(1);
        let passes = slot.passes(longest.max(1)) as f64;
        let price = |prices: &Prices| passes * prices.pass(slot.drafter.name());
        let all = self.prices.as_ref().map_or(all, price);
        slot.costs.add(askers, all / passes / self.costs.drift, NEW);
        let title = slot.drafter.title();
        for ((text, _, proposal), lattice) in asked.into_iter().zip(found) {
            proposal.seconds += all / askers as f64;
            match lattice {
                Some(lattice) => proposal.draft = lattice.best_first(shape.budget),
                None => {
                    text.fail(drafter, title, Failure::NotNumbers);
                    proposal.who = None;
                }
            }
        }
        Ok(())
    }

    /// Texts whose drafter failed go on without it: a drafter can only change the speed. Room that
    /// others can make and a target's device that is lost concern the texts themselves.
    fn go_on_without(
        &self,
        drafter: usize,
        drafted: Result<(), Error>,
        texts: Texts<'_, '_>,
        proposals: &mut [Proposal],
    ) -> Result<(), Error> {
        let Err(error) = drafted else { return Ok(()) };
        let slot = &self.drafters[drafter];
        let asked = who_asks(drafter, texts, proposals).map(|(text, ..)| &*text);
        let states: Vec<_> = asked.filter_map(|text| text.sequence.draft(drafter)).collect();
        match slot.concerns(&error, &states, self.backends.of(slot.home()).budget()) {
            true => Err(error),
            false => {
                for (text, _, proposal) in who_asks(drafter, texts, proposals) {
                    text.fail(drafter, slot.drafter.title(), Failure::NoPass);
                    if slot.home() == Home::Own {
                        text.sequence.leave_draft(drafter);
                    }
                    proposal.who = None;
                    proposal.draft = Draft::default();
                }
                Ok(())
            }
        }
    }

    /// Cuts drafts to what could be written and is worth judging.
    fn fit(&self, texts: Texts<'_, '_>, proposals: &mut [Proposal]) {
        let mut paths = Vec::with_capacity(texts.len());
        let mut fixed = 0.0;
        for ((text, room), proposal) in texts.iter_mut().zip(&mut *proposals) {
            let draft = &mut proposal.draft;
            if let Some(constraint) = &mut text.constraint {
                draft.prune(&mut **constraint);
            }
            if self.is_auto() {
                draft.cut(*room, &text.ends);
                fixed += (proposal.seconds - proposal.caught_up) / self.costs.drift;
                paths.push(proposal.who.map_or_else(Vec::new, |drafter| {
                    text.learned.calibrations[drafter].paths(draft)
                }));
            }
        }
        let sizes = match self.is_auto() {
            true => best_sizes(&paths, &self.costs, fixed, self.decode_rows()),
            false => vec![self.fair_nodes(texts.len()); texts.len()],
        };
        let sized = proposals.iter_mut().zip(sizes);
        sized.for_each(|(proposal, size)| proposal.draft.nodes.truncate(size));
    }

    /// The most tokens per second a proposer could give a text among `company`: every token it can
    /// propose is accepted, as far as there is room. Drafting it shares with those who asked last
    /// time. Nothing is said of what is looked up, which is not tried.
    fn bound(&self, who: Proposer, room: usize, company: usize) -> f64 {
        let rate = |drafting: f64, rows: usize| {
            rows as f64 / (drafting + self.costs.verify_each(rows, company))
        };
        let slot = who.map(|drafter| &self.drafters[drafter]);
        match slot.and_then(|slot| Some((slot, self.shape(who?, company)?))) {
            None => rate(0.0, 1),
            Some((slot, _)) if slot.drafter.reads() == Reads::Tokens => 0.0,
            Some((slot, shape)) => {
                let texts = (slot.asked + 1).min(company);
                let most = (shape.depth + 1).min(room).min(self.fair_nodes(company) + 1);
                let halves = std::iter::successors(Some(most), |rows| Some(rows / 2));
                let rate = |rows| rate(slot.seconds(texts, rows - 1), rows);
                halves.take_while(|rows| *rows >= 2).map(rate).fold(0.0, f64::max)
            }
        }
    }

    /// What a drafter is asked for in a round of so many texts. `auto` may be given a block wider
    /// than was trained; where rows of so wide a verify are no cheaper, the trained one costs less.
    fn shape(&self, drafter: usize, company: usize) -> Option<Shape> {
        let drafter = &self.drafters[drafter].drafter;
        let spec = match (self.spec, drafter.block()) {
            (Spec::Auto { block, budget }, Some(trained)) => {
                let is_worth =
                    block <= trained || self.costs.is_wide_worth(trained, block, company);
                Spec::Auto { block: if is_worth { block } else { trained }, budget }
            }
            (spec, _) => spec,
        };
        drafter.shape(spec)
    }

    /// Nodes for each of so many texts where nobody weighs what they cost: together they have the
    /// rows that one text may have, since rows beyond those cost in proportion.
    fn fair_nodes(&self, texts: usize) -> usize {
        (self.text_rows() / texts.max(1)).saturating_sub(1)
    }
}

impl Costs {
    /// Whether each of `texts` texts had better judge blocks of `wide` rows than of `trained`: only
    /// where a row then costs a tenth less, since the wider block takes longer to fill in.
    pub(crate) fn is_wide_worth(&self, trained: usize, wide: usize, texts: usize) -> bool {
        let row = |rows: usize| self.verify_each(rows, texts) / rows as f64;
        row(wide) < 0.9 * row(trained)
    }
}

/// The texts that ask a drafter, with their room.
fn who_asks<'a>(
    drafter: usize,
    texts: &'a mut [(&mut Generation, usize)],
    proposals: &'a mut [Proposal],
) -> impl Iterator<Item = (&'a mut Generation, usize, &'a mut Proposal)> {
    let all = texts.iter_mut().zip(proposals);
    let all = all.map(|((text, room), proposal)| (&mut **text, *room, proposal));
    all.filter(move |(.., proposal)| proposal.who == Some(drafter))
}

impl Generation {
    /// This drafter is not asked again.
    pub(crate) fn fail(&mut self, drafter: usize, title: &str, failure: Failure) {
        self.failed.push(drafter);
        self.learned.leave_out(drafter);
        self.fallback.get_or_insert_with(|| match failure {
            Failure::NotNumbers => format!("{title}'s logits are not numbers"),
            Failure::NoPass => format!("a pass of {title} failed"),
        });
    }
}
