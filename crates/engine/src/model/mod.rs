//! The target: weights on a backend, one plan for every pass, and the two verbs `forward` and
//! `commit`.

mod borrowed;
mod commit;
mod placement;
mod record;
mod requantise;
mod source;

use crate::{Error, Sequence};
pub(crate) use borrowed::Borrowed;
use borrowed::{name_embedding, name_head};
use checkpoint::{
    TargetConfig,
    target::{Ffn, Mixer},
};
pub use commit::Accepted;
use commit::LastPass;
use compute::{
    Arena, Backend, Buf, Cpu, Draw, Drawn, Extent, Kind, KvLayout, KvType, MatrixId, Op,
    PAGE_TOKENS, Pass, Plan, Product, RecurrentLayout, Role, Row, Rows, VectorId,
};
pub(crate) use placement::Weights;
pub use placement::{Form, NamedWeight, Place, Placement};
pub(crate) use record::Recorder;
pub use requantise::Requantised;
pub use source::{Random, Tensor, WeightSource};
pub(crate) use source::{each_row, numbers};
use std::{borrow::Cow, collections::HashSet, time::Duration};

/// How a model is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Type of the key/value cache.
    pub kv: KvType,
    /// Rows of the largest pass; prompts are read in chunks of this.
    pub max_rows: usize,
    /// Rows of a pass that can have logits.
    pub max_chosen: usize,
    /// Layers whose residual stream is kept, in this order.
    pub taps: Vec<usize>,
    /// Whether the queries of every attention layer can be read after a pass.
    pub queries: bool,
    /// Where the target's weights lie.
    pub placement: Placement,
}

impl Options {
    /// What suits a backend: passes as large as it takes them, no layers tapped, all weights on
    /// its device.
    pub fn new(backend: &dyn Backend) -> Self {
        let (max_rows, max_chosen) = (backend.prompt_rows(), backend.decode_rows());
        let (placement, queries) = (Placement::ON_DEVICE, false);
        Self { kv: KvType::F16, max_rows, max_chosen, taps: Vec::new(), queries, placement }
    }
}

/// A target on a backend.
pub struct Model {
    config: TargetConfig,
    options: Options,
    kv: KvLayout,
    recurrent: RecurrentLayout,
    arena: Arena,
    weights: Weights,
    shared: Shared,
    /// [rows, hidden]: after the output norm.
    hidden: Buf,
    /// [chosen, vocab].
    logits: Buf,
    /// [rows, taps, hidden].
    taps: Buf,
    /// By attention layer, where they are kept: [rows, heads, (query, gate)].
    queries: Vec<Buf>,
    last: LastPass,
}

impl Model {
    /// Records the plan and takes the weights in that it names.
    pub fn load(
        backend: &mut dyn Backend,
        config: &TargetConfig,
        source: &dyn WeightSource,
        options: Options,
    ) -> Result<Self, Error> {
        check(config)?;
        let (kv, recurrent) = layouts(config, options.kv);
        let mut record = Recorder::new("target", config, Weights::default(), kv);
        record.plan.recurrent(recurrent);
        record.keeps_queries = options.queries;
        let embedding = name_embedding(&mut record.weights, config);
        record.plan.record(Op::Embed { table: embedding, out: record.x });
        let taps = record.plan.numbers("taps", options.taps.len() * config.hidden);
        let (mut attention_layers, mut gdn_layers) = (0, 0);
        for (index, mixer) in config.layers.iter().enumerate() {
            let count = match mixer {
                Mixer::Attention => &mut attention_layers,
                Mixer::Gdn => &mut gdn_layers,
            };
            record.block(&format!("blk.{index}"), *mixer, *count);
            *count += 1;
            if let Some(column) = options.taps.iter().position(|t| *t == index) {
                record.tap(taps, column * config.hidden);
            }
        }
        let hidden = record.plan.activation("hidden", config.hidden);
        let output_norm = record.weights.vector("output_norm.weight", config.hidden);
        record.norm(output_norm, hidden, 0);
        let head = name_head(&mut record.weights, config, embedding);
        let logits = record_head(&mut record, hidden, head, config.vocab);
        let (queries, plan, mut weights) = (record.queries, record.plan, record.weights);
        weights.place(options.placement, source, backend)?;
        let plan = plan.linked(weights.links());
        let experts = experts_of(&plan);
        if !experts.is_empty() {
            backend.cache_experts(&experts, options.placement.copies)?;
        }
        let shared = Shared { embedding, head, output_norm };
        let arena = backend.arena(plan.into(), options.max_rows, options.max_chosen)?;
        let last = LastPass::default();
        let config = config.clone();
        Ok(Self {
            config,
            options,
            kv,
            recurrent,
            arena,
            weights,
            shared,
            hidden,
            logits,
            taps,
            queries,
            last,
        })
    }

    /// The shape of what a sequence keeps for layers without keys and values.
    pub fn recurrent_layout(&self) -> RecurrentLayout {
        self.recurrent
    }

    /// The model's shape.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// How it was set up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The weights that drafters share with it.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// All that it named, for drafters to go on with.
    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Bytes of the state of a sequence of so many tokens, but for keys and values that lie far.
    pub(crate) fn state_bytes(&self, tokens: usize) -> usize {
        state_bytes(&self.config, self.kv.kind, tokens) - self.far_bytes(tokens)
    }

    /// Bytes of keys and values of such a sequence that lie in the host's memory.
    pub fn far_bytes(&self, tokens: usize) -> usize {
        self.far_pages(tokens) * self.kv.page_bytes()
    }

    /// What a device brings of them at a time to read a prompt: those of a layer.
    pub fn brought_bytes(&self, tokens: usize) -> usize {
        match self.far_pages(tokens) {
            0 => 0,
            pages => (pages + self.kv.layers) * (self.kv.page_bytes() / self.kv.layers),
        }
    }

    /// Pages that are put aside. The rows of a pass always lie near.
    fn far_pages(&self, tokens: usize) -> usize {
        let near = self.options.placement.near_tokens.max(self.options.max_rows + PAGE_TOKENS);
        tokens.div_ceil(PAGE_TOKENS).saturating_sub(near.div_ceil(PAGE_TOKENS))
    }

    /// An empty sequence.
    pub fn sequence(&self) -> Sequence {
        Sequence::new(self.kv, self.options.placement.near_tokens, self.recurrent)
    }

    /// One pass over rows of any sequences; `chosen` rows get logits. Only reads the sequences.
    pub fn forward(
        &mut self,
        backend: &mut dyn Backend,
        rows: &[Row],
        chosen: &[u32],
        sequences: &[&Sequence],
    ) -> Result<(), Error> {
        self.pass(backend, rows, chosen, sequences, Role::Decode)
    }

    /// The same for part of a prompt: the rows of each sequence follow each other from its tip.
    pub fn forward_prompt(
        &mut self,
        backend: &mut dyn Backend,
        rows: &[Row],
        chosen: &[u32],
        sequences: &[&Sequence],
    ) -> Result<(), Error> {
        self.pass(backend, rows, chosen, sequences, Role::Prompt)
    }

    fn pass(
        &mut self,
        backend: &mut dyn Backend,
        rows: &[Row],
        chosen: &[u32],
        sequences: &[&Sequence],
        role: Role,
    ) -> Result<(), Error> {
        let (max_rows, max_chosen) = (self.options.max_rows, self.options.max_chosen);
        check_pass(
            self.config.vocab,
            rows.iter().map(|r| r.token),
            chosen.len(),
            max_rows,
            max_chosen,
        )?;
        self.last = LastPass::default();
        let mut pass = Pass::new(rows, chosen, sequences.iter().map(|s| s.view()).collect());
        if role == Role::Prompt {
            pass = pass.as_prompt();
        }
        backend.run(&mut self.arena, &pass)?;
        let tips = sequences.iter().map(|s| (s.committed, None)).collect();
        self.last = LastPass { rows: rows.to_vec(), tips };
        Ok(())
    }

    /// Time of each op of a pass on the CPU, with its name, for people who look for speed.
    pub fn profile(
        &mut self,
        cpu: &mut Cpu,
        rows: &[Row],
        chosen: &[u32],
        sequence: &Sequence,
    ) -> Vec<(String, Duration)> {
        let pass = Pass::new(rows, chosen, vec![sequence.view()]);
        self.last = LastPass::default();
        let times = cpu.profile(&mut self.arena, &pass);
        self.arena.plan().ops.iter().map(ToString::to_string).zip(times).collect()
    }

    /// Reads a prompt in chunks and commits it; the logits of its last token are `logits(0)`
    /// afterwards. `progress` is told how many tokens are done.
    pub fn read(
        &mut self,
        backend: &mut dyn Backend,
        sequence: &mut Sequence,
        tokens: &[u32],
        mut progress: impl FnMut(usize),
    ) -> Result<(), Error> {
        let mut done = 0;
        for chunk in tokens.chunks(self.options.max_rows) {
            let rows: Vec<Row> = chain(chunk, 0).collect();
            let path: Vec<u32> = (0..chunk.len() as u32).collect();
            self.forward_prompt(backend, &rows, &[chunk.len() as u32 - 1], &[sequence])?;
            self.commit(backend, 0, sequence, &path)?;
            done += chunk.len();
            progress(done);
        }
        Ok(())
    }

    /// Logits of the `i`th chosen row of the last pass: `[vocab]`.
    pub fn logits(&self, backend: &dyn Backend, i: usize) -> Result<Cow<'_, [f32]>, Error> {
        Ok(backend.row(&self.arena, self.logits, i)?)
    }

    /// A row of the last pass after the output norm: `[hidden]`.
    pub fn hidden(&self, row: usize) -> Result<Cow<'_, [f32]>, Error> {
        Ok(self.arena.row(self.hidden, row)?)
    }

    /// The residual stream of a row of the last pass after the tapped layers: [taps, hidden].
    pub fn taps(&self, row: usize) -> Result<Cow<'_, [f32]>, Error> {
        Ok(self.arena.row(self.taps, row)?)
    }

    /// The queries of the first `rows` rows of the last pass, of each attention layer, after norm
    /// and rotation: [rows, heads, (query, gate)]. None unless they are kept.
    pub(crate) fn queries(&self, rows: usize) -> Result<Vec<Cow<'_, [f32]>>, Error> {
        self.queries.iter().map(|layer| Ok(self.arena.first_rows(*layer, rows)?)).collect()
    }

    /// The experts of the last layer that each of the first rows of a pass went to, row by row;
    /// none without experts.
    pub fn experts_chosen(&self, rows: usize) -> Result<Option<Vec<u32>>, Error> {
        let Some(ids) = self.arena.plan().find("experts") else { return Ok(None) };
        Ok(Some(self.arena.read_words(ids, rows)?.to_vec()))
    }

    /// How many different ones these are.
    pub fn experts_touched(&self, rows: usize) -> Result<Option<usize>, Error> {
        let distinct = |ids: Vec<u32>| ids.into_iter().collect::<HashSet<u32>>().len();
        Ok(self.experts_chosen(rows)?.map(distinct))
    }

    /// Tokens drawn from the logits of the first chosen rows; nothing where the caller is better
    /// off drawing itself.
    pub(crate) fn draw(
        &self,
        backend: &mut dyn Backend,
        draws: &[Draw],
    ) -> Result<Option<Vec<Drawn>>, Error> {
        Ok(backend.draw(&self.arena, self.logits, draws)?)
    }
}

/// The shapes of what a sequence keeps: keys and values, and what layers without them have instead.
fn layouts(config: &TargetConfig, kind: KvType) -> (KvLayout, RecurrentLayout) {
    let (attention, gdn) = (&config.attention, &config.gdn);
    let layers = config.attention_layers();
    let kv = KvLayout { kind, layers, heads: attention.kv_heads, head_dim: attention.head_dim };
    let recurrent = RecurrentLayout {
        layers: config.layers.len() - layers,
        key_heads: gdn.key_heads,
        value_heads: gdn.value_heads,
        dim: gdn.head_dim,
        kernel: gdn.conv_kernel,
    };
    (kv, recurrent)
}

/// Bytes of the state of a sequence of so many tokens: keys and values, three anchors while one is
/// folded, the tape.
pub fn state_bytes(config: &TargetConfig, kind: KvType, tokens: usize) -> usize {
    let (kv, recurrent) = layouts(config, kind);
    let recurrent = 4 * (3 * recurrent.anchor_len() + recurrent.tape_len());
    tokens.div_ceil(PAGE_TOKENS) * kv.page_bytes() + recurrent
}

/// Gate, up and down of the experts of each layer.
fn experts_of(plan: &Plan) -> Vec<[MatrixId; 3]> {
    let weights = |op: &Op| match op {
        Op::Experts(experts) => Some(experts.experts.weights),
        _ => None,
    };
    plan.ops.iter().filter_map(weights).collect()
}

/// Adds rows that name their parents from 0 on; gives the index of the first.
pub(crate) fn append(rows: &mut Vec<Row>, more: impl IntoIterator<Item = Row>) -> u32 {
    let first = rows.len() as u32;
    rows.extend(more.into_iter().map(|row| Row { parent: row.parent.map(|p| p + first), ..row }));
    first
}

/// The rows of tokens that follow each other from the tip of a sequence.
pub(crate) fn chain(tokens: &[u32], sequence: u32) -> impl Iterator<Item = Row> {
    tokens.iter().zip(0u32..).map(move |(token, i)| Row {
        token: *token,
        sequence,
        parent: i.checked_sub(1),
    })
}

/// Weights that drafters may share with the target, as plans name them.
pub(crate) struct Shared {
    pub(crate) embedding: MatrixId,
    pub(crate) head: MatrixId,
    pub(crate) output_norm: VectorId,
}

/// Records the LM head over the chosen rows and returns the buffer of logits.
pub(crate) fn record_head(
    record: &mut Recorder<'_>,
    hidden: Buf,
    head: MatrixId,
    vocab: usize,
) -> Buf {
    let logits = record.plan.buffer_of("logits", Kind::Numbers, vocab, Extent::Chosen);
    let product = Product { x: hidden, weight: head, out: logits, rows: Rows::Chosen };
    record.plan.record(Op::Matmul { products: vec![product] });
    logits
}

/// Refuses a pass that the arena has no room for, or tokens beyond the vocabulary.
pub(crate) fn check_pass(
    vocab: usize,
    mut tokens: impl ExactSizeIterator<Item = u32>,
    chosen: usize,
    max_rows: usize,
    max_chosen: usize,
) -> Result<(), Error> {
    let rows = tokens.len();
    if rows > max_rows || chosen > max_chosen {
        return Err(Error::PassTooLarge { rows, chosen, max_rows, max_chosen });
    }
    match tokens.find(|t| *t as usize >= vocab) {
        Some(token) => Err(Error::Token { token, vocab }),
        None => Ok(()),
    }
}

/// Refuses sizes that the ops do not have.
fn check(config: &TargetConfig) -> Result<(), Error> {
    let multiple = |what, found: usize, of: usize, expected| match found.is_multiple_of(of) {
        true => Ok(()),
        false => Err(Error::Unsupported { what, found, expected }),
    };
    multiple("a hidden size", config.hidden, 32, "a multiple of 32")?;
    multiple("an attention head width", config.attention.head_dim, 32, "a multiple of 32")?;
    multiple(
        "a number of rotated dimensions",
        config.attention.rotary_dims,
        32,
        "a multiple of 32",
    )?;
    multiple("a Gated DeltaNet head width", config.gdn.head_dim, 32, "a multiple of 32")?;
    let widths = match config.ffn {
        Ffn::Dense { width } => [width, width],
        Ffn::Moe { width, shared_width, .. } => [width, shared_width],
    };
    for width in widths {
        multiple("a feed-forward width", width, 32, "a multiple of 32")?;
    }
    if config.attention_layers() == config.layers.len() {
        let expected = "at least 1";
        return Err(Error::Unsupported {
            what: "a number of Gated DeltaNet layers",
            found: 0,
            expected,
        });
    }
    if config.gdn.conv_kernel != compute::CONV_REACH + 1 {
        let found = config.gdn.conv_kernel;
        return Err(Error::Unsupported { what: "a convolution kernel", found, expected: "4" });
    }
    Ok(())
}
