//! The decode round: propose, size, verify, judge, commit, emit.

use crate::choose::Arm;
use crate::draft::dflash::Dflash;
use crate::draft::{self, Draft};
use crate::judge::{Drawing, Relaxed, RowSeen, Verdict, judge, token_of};
use crate::model::{Model, Options, WeightSource, append};
use crate::propose::{Failure, Learned, Proposal, Spec};
use crate::round::{Laps, Round};
use crate::sampling::{Constraint, History, Likelihood, Sampler, Sampling};
use crate::size::{Costs, Curve, Mean, StepCosts};
use crate::state::MtpFeed;
use crate::stow::Copies;
use crate::{Error, Row, Sequence};
use checkpoint::{DrafterConfig, TargetConfig};
use compute::{ANCHOR_TOKENS, Backend, Draw, Drawn, KvType};
use std::borrow::Cow;

/// Bytes of features that may wait to be taken in: in batches that costs little, and while nobody
/// drafts nothing at all.
const MAX_WAITING: usize = 8 << 20;

/// A target, its drafters and the backend they run on.
pub struct Engine {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) model: Model,
    pub(crate) dflash: Option<Dflash>,
    pub(crate) spec: Spec,
    pub(crate) costs: Costs,
    /// Seconds of proposals of DFlash and of the next-token block, by texts that ask together.
    pub(crate) dflash_cost: Curve,
    pub(crate) mtp_cost: StepCosts,
    /// Texts of the last round that asked each of them.
    pub(crate) asked: [usize; 2],
    /// Seconds of committing a token, where no anchor is folded.
    commit_cost: Mean,
    /// What earlier texts taught, which a new one starts from.
    pub(crate) learned: Learned,
    /// Drafters that turned out to be broken when they were measured.
    pub(crate) faulty: Vec<Arm>,
    /// Blocks of sequences that have copies in the host's memory.
    pub(crate) copies: Copies,
}

/// One answer in the making.
pub struct Generation {
    pub(crate) sequence: Sequence,
    /// The newest token: drawn, emitted, not committed.
    pub(crate) anchor: u32,
    sampling: Sampling,
    history: History,
    sampler: Sampler,
    /// What may be written, where not everything may.
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// Tokens after which nothing follows.
    pub(crate) ends: Vec<u32>,
    relaxed: Option<Relaxed>,
    /// Likeliest tokens to tell beside each one emitted, where likelihoods are wanted.
    likelihoods: Option<usize>,
    pub(crate) learned: Learned,
    pub(crate) failed: Vec<Arm>,
    pub(crate) fallback: Option<&'static str>,
}

impl Engine {
    /// Loads a target and, where one is given, its drafter. `spec` must have the drafter it asks
    /// for.
    pub fn load(
        mut backend: Box<dyn Backend>,
        target: (&TargetConfig, &dyn WeightSource),
        drafter: Option<(&DrafterConfig, &dyn WeightSource)>,
        kv: KvType,
        spec: Spec,
    ) -> Result<Self, Error> {
        let taps = drafter.map_or_else(Vec::new, |(config, _)| config.taps.clone());
        let options = Options { kv, taps, max_rows: backend.prompt_rows(), ..Options::default() };
        let model = Model::load(&mut *backend, target.0, target.1, options)?;
        let dflash = match drafter {
            Some((config, source)) => Some(Dflash::load(&mut *backend, config, source, &model)?),
            None => None,
        };
        match spec {
            Spec::Chain { .. } | Spec::Tree { .. } if dflash.is_none() => {
                return Err(Error::NoDrafter);
            }
            Spec::Mtp { .. } if model.config().mtp.is_none() => return Err(Error::NoMtp),
            _ => {}
        }
        let mut arms = Vec::new();
        arms.extend(dflash.is_some().then_some(Arm::Dflash));
        arms.extend(model.config().mtp.is_some().then_some(Arm::Mtp));
        arms.push(Arm::Off);
        let (costs, learned) = (Costs::default(), Learned::new(&arms));
        let mut engine = Self {
            backend,
            model,
            dflash,
            spec,
            costs,
            dflash_cost: Curve::default(),
            mtp_cost: StepCosts::default(),
            asked: [0; 2],
            commit_cost: Mean::default(),
            learned,
            faulty: Vec::new(),
            copies: Copies::default(),
        };
        if matches!(spec, Spec::Auto { .. }) {
            engine.measure()?;
        }
        Ok(engine)
    }

    /// What everything runs on.
    pub fn backend(&mut self) -> &mut dyn Backend {
        &mut *self.backend
    }

    /// The target.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Bytes of the state of a sequence of so many tokens, drafters included.
    pub fn state_bytes(&self, tokens: usize) -> usize {
        let dflash = self.dflash.as_ref().map_or(0, |d| d.context_bytes(tokens));
        self.model.state_bytes(tokens) + dflash
    }

    /// Logits of the `i`th chosen row of the last pass: [vocab].
    pub fn logits(&self, i: usize) -> Result<Cow<'_, [f32]>, Error> {
        self.model.logits(&*self.backend, i)
    }

    /// How tokens are proposed.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    /// Proposes otherwise in sequences made from now on.
    pub fn set_spec(&mut self, spec: Spec) {
        self.spec = spec;
    }

    /// The drafter.
    pub fn drafter(&self) -> Option<&Dflash> {
        self.dflash.as_ref()
    }

    /// An empty sequence, with room for what the drafters that `spec` may ask keep.
    pub fn sequence(&self) -> Sequence {
        let mut sequence = self.model.sequence();
        let wants_dflash = !matches!(self.spec, Spec::Off | Spec::Mtp { .. });
        sequence.draft = self.dflash.as_ref().filter(|_| wants_dflash).map(|d| d.empty_context());
        let wants_mtp = matches!(self.spec, Spec::Mtp { .. } | Spec::Auto { .. });
        let has_mtp = self.model.config().mtp.is_some();
        sequence.feed = (wants_mtp && has_mtp).then(|| MtpFeed::new(self.model.config().hidden));
        sequence
    }

    /// Reads tokens into a sequence, as many as one pass takes at most: part of a prompt that
    /// [`Self::begin`] finishes.
    pub fn read(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), Error> {
        let rows: Vec<Row> = crate::model::chain(tokens, 0).collect();
        let path: Vec<u32> = (0..tokens.len() as u32).collect();
        let last = &path[path.len().saturating_sub(1)..];
        self.reserve(sequence, rows.len())?;
        self.model.forward_prompt(&mut *self.backend, &rows, last, &[sequence])?;
        self.commit(0, sequence, &rows, &path)
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
        mut constraint: Option<Box<dyn Constraint>>,
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
        let mut history = History::new(prompt);
        let mut sampler = Sampler::default();
        let plain = sampling.plain(sequence.committed()).filter(|_| constraint.is_none());
        let draws: Vec<Draw> = plain.into_iter().collect();
        let anchor = match self.draw(&draws)? {
            Some(drawn) => token_of(drawn[0], draws[0].position)?,
            None => {
                let (logits, position) = (self.logits(0)?, sequence.committed());
                sampler.draw_within(
                    constraint.as_deref_mut(),
                    &sampling,
                    &history,
                    &logits,
                    position,
                )?
            }
        };
        history.push(anchor);
        if let Some(constraint) = &mut constraint {
            constraint.push(anchor);
        }
        self.absorb(&mut sequence)?;
        let mut learned = self.learned.for_new_text();
        let absent = [(Arm::Dflash, sequence.draft.is_none()), (Arm::Mtp, sequence.feed.is_none())];
        absent
            .iter()
            .filter(|(_, absent)| *absent)
            .for_each(|(arm, _)| learned.choice_without(*arm));
        let (relaxed, failed, fallback) = (None, Vec::new(), None);
        let mut text = Generation {
            sequence,
            anchor,
            sampling,
            history,
            sampler,
            constraint,
            ends,
            relaxed,
            likelihoods: None,
            learned,
            failed,
            fallback,
        };
        self.faulty.iter().for_each(|arm| text.fail(*arm, Failure::NotNumbers));
        Ok(text)
    }

    /// How likely the first token of a text was; only right after [`Self::begin`], while its logits
    /// are there.
    pub fn first_likelihood(&self, text: &Generation, top: usize) -> Result<Likelihood, Error> {
        Ok(Likelihood::of(&self.logits(0)?, text.anchor, top))
    }

    /// One round of one text. At most `room` tokens are emitted, and none after an end.
    pub fn step(&mut self, text: &mut Generation, room: usize) -> Result<Round, Error> {
        let mut rounds = self.step_all(&mut [(text, room)])?;
        rounds.pop().expect("one text, one round")
    }

    /// One round of several texts, verified in one pass. A text that fails has to be given up and
    /// costs the others nothing. Where there is no room for what may be written, or the pass itself
    /// fails, there is no round at all and the texts are as they were: the same round can be tried
    /// again.
    pub fn step_all(
        &mut self,
        texts: &mut [(&mut Generation, usize)],
    ) -> Result<Vec<Result<Round, Error>>, Error> {
        let proposals = self.propose(texts)?;
        let mut rows: Vec<Row> = Vec::new();
        let mut firsts: Vec<u32> = Vec::with_capacity(texts.len());
        for (((text, _), proposal), i) in texts.iter_mut().zip(&proposals).zip(0..) {
            self.reserve(&mut text.sequence, proposal.draft.nodes.len() + 1)?;
            firsts.push(append(&mut rows, proposal.draft.rows(text.anchor, i)));
        }

        let mut laps = Laps::start();
        let all: Vec<u32> = (0..rows.len() as u32).collect();
        let sequences: Vec<&Sequence> = texts.iter().map(|(text, _)| &text.sequence).collect();
        self.model.forward(&mut *self.backend, &rows, &all, &sequences)?;
        let drawn = self.draw_rows(texts, &rows)?;
        let verify_s = laps.lap();
        let nodes: Vec<usize> = proposals.iter().map(|p| p.draft.nodes.len()).collect();
        let shares = self.costs.shares(&nodes, verify_s);
        self.costs.add(rows.len(), texts.len(), verify_s);

        // All are judged before any is committed.
        let mut verdicts = Vec::with_capacity(texts.len());
        for (((text, room), proposal), first) in texts.iter_mut().zip(&proposals).zip(&firsts) {
            let row = |row: usize| match drawn[*first as usize + row] {
                Some(drawn) => Ok(RowSeen::Drawn(drawn)),
                None => Ok(RowSeen::Logits(self.logits(*first as usize + row)?)),
            };
            let verdict = text.judge(&proposal.draft, *room, row);
            verdicts.push((verdict, laps.lap()));
        }

        let mut rounds = Vec::with_capacity(texts.len());
        for (i, ((text, _), (verdict, judge_s))) in texts.iter_mut().zip(verdicts).enumerate() {
            let Proposal { arm, draft, seconds: draft_s, caught_up } = &proposals[i];
            let (verdict, kept) = match verdict {
                Ok(judged) => judged,
                Err(error) => {
                    rounds.push(Err(error));
                    continue;
                }
            };

            let path: Vec<u32> = verdict.path[..kept].iter().map(|row| row + firsts[i]).collect();
            let before = text.sequence.committed();
            let told =
                text.likelihoods.map_or(Ok(Vec::new()), |top| self.tell(&path, &verdict, top));
            let kept_rows = self.commit(i, &mut text.sequence, &rows, &path);
            let likelihoods = match kept_rows.and(told) {
                Ok(likelihoods) => likelihoods,
                Err(error) => {
                    rounds.push(Err(error));
                    continue;
                }
            };
            let commit_s = laps.lap();

            let drift = self.costs.drift();
            // Every 32nd token folds an anchor, which says nothing of whose round it fell in.
            let folded = before / ANCHOR_TOKENS != text.sequence.committed() / ANCHOR_TOKENS;
            if !folded {
                self.commit_cost.add_unless_stalled(commit_s / drift / kept.max(1) as f64);
            }
            let commit = self.commit_cost.get().unwrap_or(0.0) * kept as f64;
            let seconds = (draft_s - caught_up + shares[i] + judge_s) / drift + commit;
            for learned in [&mut text.learned, &mut self.learned] {
                learned.add(*arm, draft, &verdict.path, seconds, caught_up / drift);
            }
            let emitted = verdict.tokens[..kept].to_vec();
            text.anchor = emitted.last().copied().unwrap_or(text.anchor);
            let (drafted, stood, drafter) = (draft.nodes.len(), verdict.path.len() - 1, arm.name());
            rounds.push(Ok(Round {
                emitted,
                likelihoods,
                drafted,
                stood,
                drafter,
                draft_s: *draft_s,
                verify_s,
                judge_s,
                commit_s,
            }));
        }
        Ok(rounds)
    }

    /// How likely the tokens of a verdict were, whose rows are `path`.
    fn tell(&self, path: &[u32], verdict: &Verdict, top: usize) -> Result<Vec<Likelihood>, Error> {
        let drawn = path.iter().zip(&verdict.tokens);
        drawn
            .map(|(row, token)| Ok(Likelihood::of(&self.logits(*row as usize)?, *token, top)))
            .collect()
    }

    /// Sets aside what a commit of `rows` rows needs: nothing is allocated between a pass and its
    /// commit, so a text that was judged cannot fail for want of room.
    pub fn reserve(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), Error> {
        let context = sequence.draft.as_ref().map_or(0, |context| context.pending.bytes());
        let feed = sequence.feed.as_ref().map_or(0, |feed| feed.bytes());
        if context + feed >= MAX_WAITING {
            self.absorb(sequence)?;
        }
        sequence.reserve(&*self.backend, rows)
    }

    /// Draws from the first rows of the last pass, where the backend does that.
    fn draw(&mut self, draws: &[Draw]) -> Result<Option<Vec<Drawn>>, Error> {
        match draws.is_empty() {
            true => Ok(None),
            false => self.model.draw(&mut *self.backend, draws),
        }
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
        let draw = |(row, depth): (&Row, &usize)| {
            let text = &texts[row.sequence as usize].0;
            let is_plain =
                text.relaxed.is_none() && text.likelihoods.is_none() && text.constraint.is_none();
            text.sampling.plain(text.sequence.committed() + depth).filter(|_| is_plain)
        };
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

    /// Takes in what waits for the drafters. Happens by itself where a text begins and goes on; a
    /// sequence that several will go on from had better have done it before.
    pub fn absorb(&mut self, sequence: &mut Sequence) -> Result<(), Error> {
        if let (Some(dflash), Some(context)) = (&mut self.dflash, &mut sequence.draft) {
            dflash.absorb(&mut *self.backend, &mut [context])?;
        }
        draft::mtp::absorb(&mut self.model, &mut *self.backend, sequence)
    }

    /// Makes rows of the last pass part of the sequence: keys and values, recurrent state, the
    /// drafter's features, the next-token block's rows.
    pub(crate) fn commit(
        &mut self,
        index: usize,
        sequence: &mut Sequence,
        rows: &[Row],
        path: &[u32],
    ) -> Result<(), Error> {
        self.model.commit(&mut *self.backend, index, sequence, path)?;
        if let Some(context) = &mut sequence.draft {
            let kept = vec![(&mut context.pending, path)];
            self.model
                .keep_taps(&mut *self.backend, kept)
                .into_iter()
                .collect::<Result<(), _>>()?;
        }
        if let Some(feed) = &mut sequence.feed {
            let tokens = path.iter().map(|row| rows[*row as usize].token);
            let kept = vec![(&mut feed.hidden, path)];
            self.model
                .keep_hidden(&mut *self.backend, kept)
                .into_iter()
                .collect::<Result<(), _>>()?;
            feed.follow_all(path.len(), tokens);
        }
        Ok(())
    }
}

impl Generation {
    /// Walks a draft with this text's own draws; also tells how many of its tokens to keep.
    fn judge<'l>(
        &mut self,
        draft: &Draft,
        room: usize,
        row: impl Fn(usize) -> Result<RowSeen<'l>, Error>,
    ) -> Result<(Verdict, usize), Error> {
        assert!(room > 0, "a round emits at least one token");
        let Self { sampling, history, sampler, constraint, relaxed, sequence, ends, .. } = self;
        let mut drawing = Drawing {
            sampling,
            history,
            sampler,
            constraint: constraint.as_deref_mut(),
            relaxed: *relaxed,
        };
        let verdict = judge(draft, sequence.committed(), row, &mut drawing)?;
        let kept = verdict.keep(room, ends);
        let (emitted, cut) = verdict.tokens.split_at(kept);
        cut.iter().for_each(|token| history.pop(*token));
        if let Some(constraint) = constraint {
            constraint.pop(cut.len());
        }
        *relaxed = relaxed.filter(|r| !emitted.contains(&r.think_end));
        Ok((verdict, kept))
    }

    /// The newest token: drawn and emitted, not committed.
    pub fn anchor(&self) -> u32 {
        self.anchor
    }

    /// The state: everything before the anchor.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Gives the state away.
    pub fn into_sequence(self) -> Sequence {
        self.sequence
    }

    /// Has every round tell how likely its tokens were, beside the `top` likeliest.
    pub fn tell_likelihoods(&mut self, top: usize) {
        self.likelihoods = Some(top);
    }

    /// Lets near misses stand until thinking ends. The text is then no longer exactly the target's
    /// own.
    pub fn relax(&mut self, relaxed: Relaxed) {
        self.relaxed = Some(relaxed);
    }

    /// Why proposals ended before their time, where they did.
    pub fn fallback(&self) -> Option<&'static str> {
        self.fallback
    }
}
