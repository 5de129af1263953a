//! The next-token block: from the target's hidden state at `t` and token `t + 1` it predicts token
//! `t + 2`. It has keys and values of its own and is a small model of its own, with the same two
//! verbs.

use super::{
    LastPass, Loader, Model, Options, Recorder, Shared, WeightSource, check_pass, record_head,
};
use crate::state::KeptRows;
use crate::{Error, Sequence};
use checkpoint::{TargetConfig, target::Mixer};
use compute::{Arena, Backend, Buf, KvLayout, Op, Pass, Ranked, Row};
use std::borrow::Cow;

/// Rows of a pass that decodes; longer ones are prompts.
const DECODE_ROWS: usize = 64;

/// The block on a backend.
pub(crate) struct Mtp {
    layout: KvLayout,
    pub(super) arena: Arena,
    input: Buf,
    pub(super) hidden: Buf,
    logits: Buf,
    pub(super) last: LastPass,
}

impl Mtp {
    pub(crate) fn load(
        backend: &mut dyn Backend,
        config: &TargetConfig,
        source: &dyn WeightSource,
        options: &Options,
        shared: &Shared,
    ) -> Result<Self, Error> {
        let mtp = config.mtp.as_ref().ok_or(Error::NoMtp)?;
        let block = format!("blk.{}", config.layers.len());
        let named = |part: &str| format!("{block}.nextn.{part}.weight");
        let width = config.hidden;
        let attention = &config.attention;
        let layout = KvLayout {
            kind: options.kv,
            layers: 1,
            heads: attention.kv_heads,
            head_dim: attention.head_dim,
        };
        let loader = Loader { backend: &mut *backend, source };
        let mut record = Recorder::new("mtp", config, loader, layout);
        let eps = config.norm_eps;
        let input = record.plan.numbers("target hidden", width);
        let embedded = record.plan.numbers("embedded", width);
        let joined = record.plan.activation("joined", 2 * width);
        let table = match mtp.own_embedding {
            true => record.loader.table(&named("embed_tokens"), config.vocab, width)?,
            false => shared.embedding,
        };
        record.plan.record(Op::Embed { table, out: embedded });
        for (x, norm, offset) in [(embedded, "enorm", 0), (input, "hnorm", width)] {
            let weight = record.loader.vector(&named(norm), width)?;
            record.plan.record(Op::Norm {
                x,
                add: None,
                weight,
                eps,
                out: joined,
                offset,
                tap: None,
            });
        }
        let project = record.loader.matrix(&named("eh_proj"), width, 2 * width)?;
        record.plan.matmul(joined, project, record.x);
        record.block(&block, Mixer::Attention, 0)?;
        let hidden = record.plan.activation("hidden", width);
        let norm = match mtp.own_norm {
            true => record.loader.vector(&named("shared_head_norm"), width)?,
            false => shared.output_norm,
        };
        record.norm(norm, hidden, 0);
        let head = match mtp.own_head {
            true => record.loader.matrix(&named("shared_head_head"), config.vocab, width)?,
            false => shared.head,
        };
        let logits = record_head(&mut record, hidden, head, config.vocab);
        let arena = record.loader.backend.arena(
            record.plan.into(),
            options.max_rows,
            options.max_chosen,
        )?;
        Ok(Self { layout, arena, input, hidden, logits, last: LastPass::default() })
    }

    pub(crate) fn layout(&self) -> KvLayout {
        self.layout
    }
}

impl Model {
    /// A pass through the next-token block. Every row takes a hidden state, the next of `hidden`,
    /// which lists them as (where, first, how many): the target's after the output norm, or this
    /// block's own output when it is chained; its token is the one after. Only reads the sequences.
    pub fn forward_mtp(
        &mut self,
        backend: &mut dyn Backend,
        rows: &[Row],
        hidden: &[(&KeptRows, usize, usize)],
        chosen: &[u32],
        sequences: &[&Sequence],
    ) -> Result<(), Error> {
        let (max_rows, max_chosen) = (self.options.max_rows, self.options.max_chosen);
        check_pass(&self.config, rows.iter().map(|r| r.token), chosen.len(), max_rows, max_chosen)?;
        let mtp = self.mtp.as_mut().ok_or(Error::NoMtp)?;
        mtp.last = LastPass::default();
        let states: Option<Vec<_>> = sequences.iter().map(|s| s.mtp.as_ref()).collect();
        let states = states.ok_or(Error::NoMtp)?;
        let mut at = 0;
        for (kept, first, count) in hidden {
            kept.load(backend, &mut mtp.arena, (mtp.input, at), *first, *count)?;
            at += count;
        }
        assert_eq!(at, rows.len(), "a hidden state for every row");
        let mut pass = Pass::new(rows, chosen, states.iter().map(|s| s.view()).collect());
        if rows.len() > DECODE_ROWS {
            pass = pass.as_prompt();
        }
        backend.run(&mut mtp.arena, &pass)?;
        mtp.last = LastPass {
            rows: rows.to_vec(),
            committed: states.iter().map(|s| s.committed).collect(),
        };
        Ok(())
    }

    /// The best token of each of the first `rows` chosen rows of the last pass through the
    /// next-token block, with its log-probability; nothing where a logit is not a number.
    pub(crate) fn rank_mtp(
        &self,
        backend: &mut dyn Backend,
        rows: usize,
    ) -> Result<Vec<Option<Ranked>>, Error> {
        let mtp = self.mtp.as_ref().ok_or(Error::NoMtp)?;
        Ok(backend.rank(&mtp.arena, mtp.logits, rows, 1)?)
    }

    /// Logits of the `i`th chosen row of that pass: [vocab].
    pub fn mtp_logits(&self, i: usize) -> Result<Cow<'_, [f32]>, Error> {
        let mtp = self.mtp.as_ref().ok_or(Error::NoMtp)?;
        Ok(mtp.arena.row(mtp.logits, i)?)
    }

    /// Output of a row of that pass: [hidden].
    pub fn mtp_hidden(&self, row: usize) -> Result<Cow<'_, [f32]>, Error> {
        let mtp = self.mtp.as_ref().ok_or(Error::NoMtp)?;
        Ok(mtp.arena.row(mtp.hidden, row)?)
    }
}
