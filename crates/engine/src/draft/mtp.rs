//! The target's own next-token block as a drafter: from the target's hidden state at `t` and token
//! `t + 1` it predicts token `t + 2`. Chained, it proposes one token a pass for all texts that ask.
//!
//! Rows of its cache are always computed from the target's true hidden states; drafted rows are
//! computed again in each pass and never committed.

use super::{Ask, Drafter, Lattice, Reads, Shape};
use crate::model::{
    Model, Placement, Recorder, WeightSource, append, chain, check_pass, record_head,
};
use crate::propose::Spec;
use crate::state::{DraftState, KeptRows, commit_pages, keep_rows};
use crate::{Error, Row};
use checkpoint::target::Mixer;
use compute::{Arena, Backend, Buf, CommitPath, KvLayout, Op, PAGE_TOKENS, Pass, Ranked};
use std::borrow::Cow;

/// Tokens the block was found to predict usefully in a row.
const MAX_DEPTH: usize = 7;

/// The block on a backend.
pub struct Mtp {
    layout: KvLayout,
    width: usize,
    vocab: usize,
    arena: Arena,
    /// [rows, hidden]: the hidden state each row follows.
    input: Buf,
    hidden: Buf,
    logits: Buf,
    /// Rows of its largest pass, and of one that decodes.
    max_rows: usize,
    decode_rows: usize,
    /// Those of them that one text has at most.
    text_rows: usize,
}

/// Hidden states for rows of a pass: where they wait, the first, how many.
type Hidden<'a> = (&'a KeptRows, usize, usize);

impl Mtp {
    /// Records the block's plan and takes its weights in; it shares what it lacks with the target.
    pub fn load(
        backend: &mut dyn Backend,
        source: &dyn WeightSource,
        target: &Model,
    ) -> Result<Self, Error> {
        let (config, options, shared) = (target.config(), target.options(), target.shared());
        let mtp = config.mtp.as_ref().ok_or(Error::NoMtp)?;
        let block = format!("blk.{}", config.layers.len());
        let named = |part: &str| format!("{block}.nextn.{part}.weight");
        let (width, attention) = (config.hidden, &config.attention);
        let (heads, head_dim) = (attention.kv_heads, attention.head_dim);
        let layout = KvLayout { kind: options.kv, layers: 1, heads, head_dim };
        let mut record = Recorder::new("mtp", config, target.weights().clone(), layout);
        let eps = config.norm_eps;
        let input = record.plan.numbers("target hidden", width);
        let embedded = record.plan.numbers("embedded", width);
        let joined = record.plan.activation("joined", 2 * width);
        let table = match mtp.own_embedding {
            true => record.weights.table(&named("embed_tokens"), config.vocab, width),
            false => shared.embedding,
        };
        record.plan.record(Op::Embed { table, out: embedded });
        for (x, norm, offset) in [(embedded, "enorm", 0), (input, "hnorm", width)] {
            let weight = record.weights.vector(&named(norm), width);
            let (add, tap, out) = (None, None, joined);
            record.plan.record(Op::Norm { x, add, weight, eps, out, offset, tap });
        }
        let project = record.weights.matrix(&named("eh_proj"), width, 2 * width);
        record.plan.matmul(joined, project, record.x);
        record.block(&block, Mixer::Attention, 0);
        let hidden = record.plan.activation("hidden", width);
        let norm = match mtp.own_norm {
            true => record.weights.vector(&named("shared_head_norm"), width),
            false => shared.output_norm,
        };
        record.norm(norm, hidden, 0);
        let head = match mtp.own_head {
            true => record.weights.matrix(&named("shared_head_head"), config.vocab, width),
            false => shared.head,
        };
        let logits = record_head(&mut record, hidden, head, config.vocab);
        let (max_rows, decode_rows) = (options.max_rows, options.max_chosen);
        let (plan, mut weights) = (record.plan, record.weights);
        weights.place(Placement::ON_DEVICE, source, backend)?;
        let arena = backend.arena(plan.linked(weights.links()).into(), max_rows, decode_rows)?;
        let vocab = config.vocab;
        let text_rows = backend.text_rows();
        Ok(Self {
            layout,
            width,
            vocab,
            arena,
            input,
            hidden,
            logits,
            max_rows,
            decode_rows,
            text_rows,
        })
    }

    /// A pass. Every row takes a hidden state, the next of `hidden`: the target's after the output
    /// norm, or this block's own output when it is chained; its token is the one after. Only reads
    /// the states.
    pub fn forward(
        &mut self,
        backend: &mut dyn Backend,
        rows: &[Row],
        hidden: &[Hidden<'_>],
        chosen: &[u32],
        states: &[&DraftState],
    ) -> Result<(), Error> {
        let tokens = rows.iter().map(|row| row.token);
        check_pass(self.vocab, tokens, chosen.len(), self.max_rows, self.decode_rows)?;
        let mut at = 0;
        for (kept, first, count) in hidden {
            kept.load(backend, &mut self.arena, (self.input, at), *first, *count)?;
            at += count;
        }
        assert_eq!(at, rows.len(), "a hidden state for every row");
        let mut pass = Pass::new(rows, chosen, states.iter().map(|state| state.view()).collect());
        // More than a text decodes at once is read as prompts are; so is what a pause left behind.
        if hidden.iter().any(|(_, _, count)| *count > self.text_rows) {
            pass = pass.as_prompt();
        }
        Ok(backend.run(&mut self.arena, &pass)?)
    }

    /// Makes rows of the last pass part of states.
    pub fn commit(
        &self,
        backend: &mut dyn Backend,
        texts: Vec<(&mut DraftState, Vec<u32>)>,
    ) -> Result<(), Error> {
        let (mut states, paths): (Vec<_>, Vec<_>) = texts.into_iter().unzip();
        let pages = states.iter_mut().zip(&paths).map(|(state, rows)| {
            (&mut state.caches[0].0, CommitPath { rows, position: state.committed })
        });
        let done = commit_pages(backend, &self.arena, 0, pages.collect());
        done.into_iter().collect::<Result<(), _>>()?;
        states.into_iter().zip(&paths).for_each(|(state, path)| state.take_in(path.len()));
        Ok(())
    }

    /// The best token of each of the first `rows` chosen rows of the last pass.
    fn rank(&self, backend: &mut dyn Backend, rows: usize) -> Result<Vec<Option<Ranked>>, Error> {
        Ok(backend.rank(&self.arena, self.logits, rows, 1, self.vocab)?)
    }

    /// Takes what waits of all texts into the cache in one pass; the row of each that has its
    /// newest token.
    fn take_in(
        &mut self,
        backend: &mut dyn Backend,
        asks: &mut [Ask<'_>],
    ) -> Result<Vec<u32>, Error> {
        let (mut rows, mut newest): (Vec<Row>, Vec<u32>) = (Vec::new(), Vec::new());
        for (ask, number) in asks.iter_mut().zip(0..) {
            if ask.state.next_tokens.len() > MAX_DEPTH {
                self.absorb(backend, &mut [ask.state])?;
            }
            ask.state.follow(ask.tip);
            let waiting = &ask.state.next_tokens;
            let last = (waiting.len() as u32).checked_sub(1).ok_or(Error::NoMtp)?;
            newest.push(append(&mut rows, chain(waiting, number)) + last);
        }
        let states: Vec<&DraftState> = asks.iter().map(|ask| &*ask.state).collect();
        let hidden: Vec<_> = states.iter().map(|s| (&s.pending, 0, s.next_tokens.len())).collect();
        self.forward(backend, &rows, &hidden, &newest, &states)?;
        let begins = std::iter::once(0).chain(newest.iter().map(|row| row + 1));
        let paths = begins.zip(&newest).map(|(first, last)| (first..=*last).collect());
        let texts = asks.iter_mut().map(|ask| &mut *ask.state).zip(paths);
        self.commit(backend, texts.collect())?;
        Ok(newest)
    }

    /// Chains from their first tokens on, which were ranked at the rows `newest`.
    fn go_on(
        &mut self,
        backend: &mut dyn Backend,
        asks: &[Ask<'_>],
        mut newest: Vec<u32>,
        mut ranked: Vec<Option<Ranked>>,
    ) -> Result<Vec<Option<Lattice>>, Error> {
        let mut lattices = vec![Some(Lattice::default()); asks.len()];
        let mut chains: Vec<Vec<u32>> = vec![Vec::new(); asks.len()];
        let mut hidden: Vec<KeptRows> = asks.iter().map(|_| KeptRows::new(self.width)).collect();
        let mut going: Vec<usize> = (0..asks.len()).collect();
        loop {
            let (mut on, mut kept_rows) = (Vec::with_capacity(going.len()), Vec::new());
            for ((&i, ranked), row) in going.iter().zip(ranked).zip(newest) {
                let (Some(lattice), Some(ranked)) = (&mut lattices[i], ranked) else {
                    lattices[i] = None;
                    continue;
                };
                lattice.push(&ranked);
                chains[i].push(ranked[0].0);
                let most = asks[i].shape.depth.min(asks[i].room);
                if lattice.len() < most && (asks[i].goes_on)(lattice) {
                    kept_rows.push(row);
                    on.push(i);
                }
            }
            going = on;
            if going.is_empty() {
                return Ok(lattices);
            }
            let chained = hidden.iter_mut().enumerate().filter(|(i, _)| going.contains(i));
            let kept = chained.map(|(_, kept)| kept).zip(kept_rows.chunks(1)).collect();
            let kept = keep_rows(backend, &self.arena, self.hidden, kept);
            kept.into_iter().collect::<Result<(), _>>()?;
            // A pass takes all drafted rows again, which costs little more than the last.
            let (mut rows, mut chosen) = (Vec::new(), Vec::with_capacity(going.len()));
            for (&i, number) in going.iter().zip(0..) {
                append(&mut rows, chain(&chains[i], number));
                chosen.push(rows.len() as u32 - 1);
            }
            let kept: Vec<_> = going.iter().map(|&i| (&hidden[i], 0, hidden[i].len())).collect();
            let states: Vec<&DraftState> = going.iter().map(|&i| &*asks[i].state).collect();
            self.forward(backend, &rows, &kept, &chosen, &states)?;
            ranked = self.rank(backend, chosen.len())?;
            newest = chosen;
        }
    }
}

impl Drafter for Mtp {
    fn name(&self) -> &'static str {
        "mtp"
    }

    fn title(&self) -> &'static str {
        "the MTP block"
    }

    fn reads(&self) -> Reads {
        Reads::Hidden
    }

    fn shape(&self, spec: Spec) -> Option<Shape> {
        let depth = match spec {
            Spec::Mtp { depth } => depth,
            Spec::Auto { budget, .. } => budget,
            Spec::Off | Spec::Chain { .. } | Spec::Tree { .. } | Spec::Lookup { .. } => {
                return None;
            }
        };
        let depth = depth.min(MAX_DEPTH);
        Some(Shape { depth, ranks: 1, budget: depth })
    }

    fn state(&self) -> DraftState {
        DraftState::new(&[(self.layout, None)], self.width)
    }

    fn state_bytes(&self, tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS) * self.layout.page_bytes()
    }

    /// Takes in the rows whose following token is known.
    fn absorb(
        &mut self,
        backend: &mut dyn Backend,
        states: &mut [&mut DraftState],
    ) -> Result<(), Error> {
        for state in states {
            while !state.next_tokens.is_empty() {
                let count = state.next_tokens.len().min(self.max_rows);
                let rows: Vec<Row> = chain(&state.next_tokens[..count], 0).collect();
                let newest = count as u32 - 1;
                self.forward(backend, &rows, &[(&state.pending, 0, count)], &[newest], &[state])?;
                self.commit(backend, vec![(&mut **state, (0..=newest).collect())])?;
            }
        }
        Ok(())
    }

    fn propose(
        &mut self,
        backend: &mut dyn Backend,
        asks: &mut [Ask<'_>],
    ) -> Result<Vec<Option<Lattice>>, Error> {
        let mut lattices = Vec::with_capacity(asks.len());
        // As many texts as fit a pass, each with what a round left waiting or drafted.
        for group in asks.chunks_mut(self.decode_rows / (MAX_DEPTH + 1)) {
            let newest = self.take_in(backend, group)?;
            let ranked = self.rank(backend, group.len())?;
            lattices.extend(self.go_on(backend, group, newest, ranked)?);
        }
        Ok(lattices)
    }

    fn logits(&self, i: usize) -> Result<Cow<'_, [f32]>, Error> {
        Ok(self.arena.row(self.logits, i)?)
    }
}
