//! A target, its drafters and the backends they run on: how they are loaded, how a prompt is read
//! and a text begun, and how state is committed.

use crate::archive::Archive;
use crate::backends::{Backends, Home};
use crate::choose::Proposer;
use crate::crossing::Crossing;
use crate::draft::{Drafter, Reads, dflash::Dflash, lookup::Lookup, mtp::Mtp};
use crate::generation::Generation;
use crate::judge::token_of;
use crate::model::{Accepted, Borrowed, Model, Options, Placement, WeightSource};
use crate::prices::Prices;
use crate::propose::{Failure, Learned, Slot, Spec};
use crate::sampling::{Constraint, History, Likelihood, Sampler, Sampling};
use crate::size::{Costs, Curve};
use crate::stow::Copies;
use crate::{Error, Row, Sequence, StateBlock};
use checkpoint::{DrafterConfig, TargetConfig};
use compute::{Backend, Draw, Drawn, KvType};
use std::borrow::Cow;

/// Bytes of features that may wait to be taken in: in batches that costs little, and while nobody
/// drafts nothing at all.
const MAX_WAITING: usize = 8 << 20;

/// A target, its drafters and the backends they run on.
pub struct Engine {
    pub(crate) backends: Backends,
    pub(crate) model: Model,
    /// Who can propose, in the order they are preferred where nothing is known of them.
    pub(crate) drafters: Vec<Slot>,
    pub(crate) spec: Spec,
    pub(crate) costs: Costs,
    /// Seconds of a commit by its tokens, where no state is folded.
    pub(crate) commit_costs: Curve,
    /// What earlier texts taught, which a new one starts from.
    pub(crate) learned: Learned,
    /// Blocks of sequences that have copies in the host's memory.
    pub(crate) copies: Copies,
    /// Pages that were put aside, for other texts that have them near.
    pub(crate) put_aside: Copies,
    /// Blocks of sequences that lie in files.
    pub(crate) archive: Archive,
    /// What its states belong to, where somebody has worked that out.
    pub(crate) identity: Option<[u8; 32]>,
    /// Bytes of earlier texts that may be kept to look into.
    pub(crate) memory: usize,
    /// What stages count as, where that is imposed.
    pub(crate) prices: Option<Prices>,
}

impl Engine {
    /// Loads a target and, where one is given, its drafter. `spec` must have the drafter it asks
    /// for.
    pub fn load(
        backend: Box<dyn Backend>,
        target: (&TargetConfig, &dyn WeightSource),
        drafter: Option<(&DrafterConfig, &dyn WeightSource)>,
        kv: KvType,
        spec: Spec,
    ) -> Result<Self, Error> {
        let memory = (kv, Placement::ON_DEVICE);
        Self::load_placed(backend.into(), target, drafter, memory, spec)
    }

    /// The same with some of the target's weights in the host's memory, and the drafter on a
    /// backend of its own where there are two.
    pub fn load_placed(
        mut backends: Backends,
        target: (&TargetConfig, &dyn WeightSource),
        drafter: Option<(&DrafterConfig, &dyn WeightSource)>,
        (kv, placement): (KvType, Placement),
        spec: Spec,
    ) -> Result<Self, Error> {
        let taps = drafter.map_or_else(Vec::new, |(config, _)| config.taps.clone());
        let options = Options { kv, taps, placement, ..Options::new(&*backends.target) };
        let model = Model::load(&mut *backends.target, target.0, target.1, options)?;
        let mut drafters = Vec::new();
        if let Some((config, source)) = drafter {
            drafters.push(load_drafter(&mut backends, target, (config, source), &model)?);
        }
        if model.config().mtp.is_some() {
            drafters.push(Slot::new(Mtp::load(&mut *backends.target, target.1, &model)?));
        }
        drafters.push(Slot::new(Lookup::default()));
        let is_asked = |slot: &Slot| slot.drafter.shape(spec).is_some();
        match spec {
            Spec::Off | Spec::Lookup { .. } | Spec::Auto { .. } => {}
            _ if drafters.iter().any(is_asked) => {}
            Spec::Mtp { .. } => return Err(Error::NoMtp),
            Spec::Chain { .. } | Spec::Tree { .. } => return Err(Error::NoDrafter),
        }
        let learned = Learned::new(drafters.len());
        let mut engine = Self {
            backends,
            model,
            drafters,
            spec,
            costs: Costs::default(),
            commit_costs: Curve::default(),
            learned,
            copies: Copies::default(),
            put_aside: Copies::default(),
            archive: Archive::default(),
            identity: None,
            memory: 0,
            prices: None,
        };
        if matches!(spec, Spec::Auto { .. }) {
            engine.measure()?;
        }
        Ok(engine)
    }

    /// What the target runs on, and everything that has no backend of its own.
    pub fn backend(&mut self) -> &mut dyn Backend {
        &mut *self.backends.target
    }

    /// What a drafter runs on that has a backend of its own.
    pub fn drafter_backend(&self) -> Option<&dyn Backend> {
        self.backends.own.as_deref()
    }

    /// What people call that.
    pub fn drafter_device(&self) -> Option<&str> {
        self.backends.own_name.as_deref()
    }

    /// Bytes that the state of texts takes, wherever it lies.
    pub fn held(&self) -> usize {
        let own = self.drafter_backend().map_or(0, |own| own.budget().held());
        self.backends.target.budget().held() + own
    }

    /// Bytes that it may take beside the target.
    pub fn state_limit(&self) -> usize {
        self.backends.target.budget().limit()
    }

    /// Lets the state of texts take no more than so many bytes, each backend its part of them.
    pub fn limit_state(&self, bytes: usize) {
        const LONG: usize = 1 << 14;
        let (at_target, own) = (self.state_bytes(LONG), self.own_state_bytes(LONG));
        let share =
            |part: usize| (bytes as u128 * part as u128 / (at_target + own) as u128) as usize;
        let budgets = [(Home::Target, share(at_target)), (Home::Own, share(own))];
        for (home, bytes) in &budgets[..if own > 0 { 2 } else { 1 }] {
            let budget = self.backends.of(*home).budget();
            budget.set_limit(budget.limit().min(*bytes));
        }
    }

    /// The target.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Bytes of the state of a sequence of so many tokens, drafters included but for those that
    /// lie elsewhere.
    pub fn state_bytes(&self, tokens: usize) -> usize {
        self.model.state_bytes(tokens) + self.drafts_bytes(Home::Target, tokens)
    }

    /// The same of what lies on a drafter's own backend.
    pub fn own_state_bytes(&self, tokens: usize) -> usize {
        self.drafts_bytes(Home::Own, tokens)
    }

    fn drafts_bytes(&self, home: Home, tokens: usize) -> usize {
        let there = self.drafters.iter().filter(|slot| slot.home() == home);
        there.map(|slot| slot.drafter.state_bytes(tokens)).sum()
    }

    /// The blocks of a sequence that take of the target's budget: what was put aside does not, nor
    /// what lies on a drafter's own backend.
    pub fn near_blocks(&self, sequence: &Sequence) -> Vec<StateBlock> {
        let is_own = |drafter: usize| self.drafters[drafter].home() == Home::Own;
        sequence.blocks_that(|drafter, block| !block.is_far() && !drafter.is_some_and(is_own))
    }

    /// Logits of the `i`th chosen row of the last pass: `[vocab]`.
    pub fn logits(&self, i: usize) -> Result<Cow<'_, [f32]>, Error> {
        self.model.logits(&*self.backends.target, i)
    }

    /// How tokens are proposed.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    /// Proposes otherwise in sequences made from now on.
    pub fn set_spec(&mut self, spec: Spec) {
        self.spec = spec;
    }

    /// Lets lookup use up to so many bytes of texts that were written before; none unless said.
    /// They change no text, but how fast one is written then tells something of others.
    pub fn set_memory(&mut self, bytes: usize) {
        self.memory = bytes;
    }

    /// A text that has been written, for those that come to look into.
    pub fn remember(&mut self, written: &[u32]) {
        let (memory, drafters) = (self.memory, &mut self.drafters);
        if memory > 0 {
            drafters.iter_mut().for_each(|slot| slot.drafter.remember(written, memory));
        }
    }

    /// A drafter by its name, `dflash`, `mtp` or `lookup`, where it is loaded.
    pub fn drafter(&self, name: &str) -> Option<&dyn Drafter> {
        self.drafters.iter().map(|slot| &*slot.drafter).find(|drafter| drafter.name() == name)
    }

    /// What a proposer is called.
    pub(crate) fn name_of(&self, who: Proposer) -> &'static str {
        who.map_or("off", |drafter| self.drafters[drafter].drafter.name())
    }

    /// An empty sequence, with room for what the drafters that `spec` may ask keep.
    pub fn sequence(&self) -> Sequence {
        let mut sequence = self.model.sequence();
        let state = |slot: &Slot| slot.drafter.shape(self.spec).map(|_| slot.drafter.state());
        sequence.drafts = self.drafters.iter().map(state).collect();
        sequence
    }

    /// Rows of the largest pass that decodes: what texts and their drafts share.
    pub fn decode_rows(&self) -> usize {
        self.backends.target.decode_rows()
    }

    /// Those of them that one text has at most.
    pub fn text_rows(&self) -> usize {
        self.backends.target.text_rows()
    }

    /// Reads `unread` into `sequence`, draws the first token and is ready to go on. `prompt` is all
    /// that is before it, for the penalties.
    pub fn begin(
        &mut self,
        sequence: Sequence,
        unread: &[u32],
        prompt: &[u32],
        sampling: Sampling,
        ends: Vec<u32>,
        progress: impl FnMut(usize),
    ) -> Result<Generation, Error> {
        self.begin_within(None, sequence, unread, prompt, sampling, ends, progress)
    }

    /// Begins a text that stays within `constraint`.
    pub fn begin_within(
        &mut self,
        constraint: Option<Box<dyn Constraint>>,
        mut sequence: Sequence,
        unread: &[u32],
        prompt: &[u32],
        sampling: Sampling,
        ends: Vec<u32>,
        mut progress: impl FnMut(usize),
    ) -> Result<Generation, Error> {
        if unread.is_empty() {
            return Err(Error::NothingToRead);
        }
        let mut done = 0;
        for chunk in unread.chunks(self.model.options().max_rows) {
            self.read(&mut sequence, chunk)?;
            done += chunk.len();
            progress(done);
        }
        self.begin_read(0, constraint, sequence, prompt, 0, sampling, ends)
    }

    /// Draws the first token of a text whose last token has just been read, as text `index` of its
    /// pass. Of `prompt`, all that was read, the last `written` tokens are the text's own: penalties
    /// and the constraint count them as such, so that it goes on as it would have where it was
    /// begun.
    pub fn begin_read(
        &mut self,
        index: usize,
        mut constraint: Option<Box<dyn Constraint>>,
        mut sequence: Sequence,
        prompt: &[u32],
        written: usize,
        sampling: Sampling,
        ends: Vec<u32>,
    ) -> Result<Generation, Error> {
        let (asked, own) = prompt.split_at(prompt.len().saturating_sub(written));
        // Counting a long prompt takes milliseconds, and one penalty alone asks what is in it.
        let is_counted = sampling.repetition_penalty != 1.0;
        let mut history = History::new(if is_counted { asked } else { &[] });
        own.iter().for_each(|token| history.push(*token));
        if let Some(constraint) = &mut constraint
            && let Some(at) = own.iter().position(|token| !constraint.push(*token))
        {
            let reason = format!("token {} of what was written does not fit", own[at]);
            return Err(Error::Constraint { position: asked.len() + at, reason });
        }
        let mut sampler = Sampler::default();
        let plain = sampling.plain(sequence.committed()).filter(|_| constraint.is_none());
        // Rows are drawn from in order, the last of them for this text.
        let draws: Vec<Draw> = plain.map_or_else(Vec::new, |draw| vec![draw; index + 1]);
        let tip = match self.draw(&draws)? {
            Some(drawn) => token_of(drawn[index], draws[index].position)?,
            None => {
                let (logits, position) = (self.logits(index)?, sequence.committed());
                sampler.draw_within(
                    constraint.as_deref_mut(),
                    &sampling,
                    &history,
                    &logits,
                    position,
                )?
            }
        };
        history.push(tip);
        if let Some(constraint) = &mut constraint {
            constraint.push(tip);
        }
        let mut learned = self.learned.for_new_text();
        let absent = (0..self.drafters.len()).filter(|i| sequence.draft(*i).is_none());
        absent.for_each(|drafter| learned.leave_out(drafter));
        self.absorb(&mut sequence)?;
        let mut text =
            Generation::new(sequence, tip, sampling, history, sampler, constraint, ends, learned);
        for (i, slot) in self.drafters.iter().enumerate().filter(|(_, slot)| slot.is_broken) {
            text.fail(i, slot.drafter.title(), Failure::NotNumbers);
        }
        Ok(text)
    }

    /// How likely the first token of a text was that was read as text `index` of the last pass; only
    /// right after [`Self::begin`], while its logits are there.
    pub fn first_likelihood(
        &self,
        index: usize,
        text: &Generation,
        top: usize,
    ) -> Result<Likelihood, Error> {
        Ok(Likelihood::of(&self.logits(index)?, text.tip, top))
    }

    /// Sets aside what a commit of `rows` rows needs: nothing is allocated between a pass and its
    /// commit, so a text that was judged cannot fail for want of room.
    pub fn reserve(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), Error> {
        if sequence.pending_bytes() >= MAX_WAITING {
            self.absorb(sequence)?;
        }
        sequence.reserve(&*self.backends.target, &mut self.put_aside, rows)?;
        for (slot, draft) in self.drafters.iter().zip(&mut sequence.drafts) {
            let Some(state) = draft else { continue };
            let backend = self.backends.of(slot.home());
            let reserved = state.reserve(backend, rows);
            slot.spare(reserved, draft, backend.budget())?;
        }
        Ok(())
    }

    /// Draws from the first rows of the last pass, where the backend does that.
    pub(crate) fn draw(&mut self, draws: &[Draw]) -> Result<Option<Vec<Drawn>>, Error> {
        match draws.is_empty() {
            true => Ok(None),
            false => self.model.draw(&mut *self.backends.target, draws),
        }
    }

    /// Takes in what waits for the drafters. Happens by itself where a text begins and goes on; a
    /// sequence that several will go on from had better have done it before.
    pub fn absorb(&mut self, sequence: &mut Sequence) -> Result<(), Error> {
        for (slot, draft) in self.drafters.iter_mut().zip(&mut sequence.drafts) {
            let Some(state) = draft else { continue };
            let backend = self.backends.of_mut(slot.home());
            let absorbed = slot.drafter.absorb(backend, &mut [state]);
            slot.spare(absorbed, draft, backend.budget())?;
        }
        Ok(())
    }

    /// Makes rows of the last pass part of sequences: keys and values, recurrent state, and what
    /// drafters read of them. A text's failure is its own.
    pub(crate) fn commit_all(
        &mut self,
        rows: &[Row],
        mut texts: Vec<Accepted<'_>>,
    ) -> Vec<Result<(), Error>> {
        let same = texts.iter_mut().map(|text| text.reborrow()).collect();
        let mut done = self.model.commit_all(&mut *self.backends.target, same);
        for drafter in 0..self.drafters.len() {
            self.keep_for(drafter, rows, &mut texts, &mut done);
        }
        done
    }

    /// Keeps what a drafter reads of the rows that were committed.
    fn keep_for(
        &mut self,
        drafter: usize,
        rows: &[Row],
        texts: &mut [Accepted<'_>],
        done: &mut [Result<(), Error>],
    ) {
        let slot = &mut self.drafters[drafter];
        let (mut results, mut states) = (Vec::new(), Vec::new());
        for (done, text) in done.iter_mut().zip(&mut *texts).filter(|(done, _)| done.is_ok()) {
            if let Some(state) = text.sequence.draft_mut(drafter) {
                results.push(done);
                states.push((state, text.path));
            }
        }
        let reads = slot.drafter.reads();
        let kept = states.iter_mut().map(|(state, path)| (&mut state.pending, *path)).collect();
        let kept = match &mut slot.crossing {
            None => self.model.keep(&mut *self.backends.target, reads, kept),
            Some(crossing) => {
                let carried = crossing.carry(&mut self.backends, &self.model, reads, kept);
                if carried.is_err() {
                    // Rows may be missing: they go on without it.
                    texts.iter_mut().for_each(|text| text.sequence.leave_draft(drafter));
                    return;
                }
                states.iter().map(|_| Ok(())).collect()
            }
        };
        for ((done, (state, path)), kept) in results.into_iter().zip(states).zip(kept) {
            if kept.is_ok() {
                let tokens = path.iter().map(|row| rows[*row as usize].token);
                match reads {
                    Reads::Tokens => state.written.extend(tokens),
                    Reads::Taps | Reads::Hidden => state.follow_all(path.len(), tokens),
                }
            }
            *done = kept;
        }
    }

    /// The same for one sequence.
    pub(crate) fn commit(
        &mut self,
        index: usize,
        sequence: &mut Sequence,
        rows: &[Row],
        path: &[u32],
    ) -> Result<(), Error> {
        self.commit_all(rows, vec![Accepted { index, sequence, path }]).into_iter().collect()
    }
}

/// A drafter with weights of its own, where it is to lie.
fn load_drafter(
    backends: &mut Backends,
    target: (&TargetConfig, &dyn WeightSource),
    (config, source): (&DrafterConfig, &dyn WeightSource),
    model: &Model,
) -> Result<Slot, Error> {
    let Some(own) = &mut backends.own else {
        let borrowed = Borrowed::of(model);
        return Ok(Slot::new(Dflash::load(&mut *backends.target, config, source, borrowed)?));
    };
    let borrowed = Borrowed::copied(&mut **own, target.0, target.1)?;
    let drafter = Dflash::load(&mut **own, config, source, borrowed)?;
    let crossing = Crossing::new(backends, config.taps.len() * config.hidden)?;
    Ok(Slot { crossing: Some(crossing), ..Slot::new(drafter) })
}
