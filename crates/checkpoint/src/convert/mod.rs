//! A drafter of any dialect to a GGUF in the upstream dialect.
//!
//! Rows are read, encoded and written in parallel through positioned reads and writes, so memory
//! stays at a few buffers a core whatever the model's size, and the file appears under its name
//! only when it is whole.

mod tokenizer;

pub use tokenizer::from_target as tokenizer_of;

use crate::drafter::{Kind, Scales};
use crate::{Drafter, DrafterConfig, Error, Weight};
use formats::gguf::{Entries, Header, Overwrite, Writer};
use formats::{BlockType, TensorInfo, blocks, quantize};
use rayon::prelude::*;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Source bytes handled by one task: large enough to amortise a read, small enough to keep memory
/// and waits low.
const TASK_BYTES: usize = 4 << 20;

/// The mixes a drafter can be written in. Norms are F32 in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Mix {
    F16,
    Bf16,
    Q8_0,
    /// Q4_K, with Q6_K where llama.cpp's mix spends more bits; `fc` and the convolutions'
    /// projections at 8 bits, because acceptance hangs on them.
    Q4KM,
}

impl Mix {
    /// Every mix, as `--type` spells it.
    pub const NAMES: [(&'static str, Self); 4] =
        [("f16", Self::F16), ("bf16", Self::Bf16), ("q8_0", Self::Q8_0), ("q4_k_m", Self::Q4KM)];

    /// The type a tensor is written in. A row that is not whole blocks falls back to 8 bits, then
    /// to F16.
    fn type_of(self, weight: &Weight, layers: usize) -> BlockType {
        // Norms, base kernels and the one row of a confidence head are too small to save on.
        let [rows, row] = weight.shape[..] else { return BlockType::F32 };
        if rows == 1 {
            return BlockType::F32;
        }
        let wanted = match self {
            Self::F16 => BlockType::F16,
            Self::Bf16 => BlockType::BF16,
            Self::Q8_0 => BlockType::Q8_0,
            Self::Q4KM if is_sensitive(&weight.name) => BlockType::Q8_0,
            Self::Q4KM if more_bits(&weight.name, layers) => BlockType::Q6_K,
            Self::Q4KM => BlockType::Q4_K,
        };
        let fits = |ty: &BlockType| row.is_multiple_of(ty.block_len());
        [wanted, BlockType::Q8_0, BlockType::F16].into_iter().find(fits).unwrap_or(BlockType::F16)
    }

    /// `general.file_type`.
    fn file_type(self) -> u32 {
        match self {
            Self::F16 => 1,
            Self::Bf16 => 32,
            Self::Q8_0 => 7,
            Self::Q4KM => 15,
        }
    }
}

impl FromStr for Mix {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found
            .map(|&(_, mix)| mix)
            .ok_or_else(|| "one of f16, bf16, q8_0, q4_k_m expected".to_owned())
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) =
            Self::NAMES.iter().find(|(_, mix)| mix == self).expect("every mix has a name");
        f.write_str(name)
    }
}

/// Weights that every row of a block goes through before anything can make up for their error.
fn is_sensitive(name: &str) -> bool {
    name == "fc.weight" || name.ends_with("_conv_proj.weight")
}

/// Value and down projections of the outer eighths and of every third layer between, as in
/// llama.cpp's Q4_K_M.
fn more_bits(name: &str, layers: usize) -> bool {
    let mut parts = name.split('.');
    let (Some("blk"), Some(index), Some("attn_v" | "ffn_down")) =
        (parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let index: usize = index.parse().unwrap_or(0);
    index < layers / 8 || index >= 7 * layers / 8 || (index - layers / 8) % 3 == 2
}

/// How far a conversion is, and a way to stop it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Source bytes done.
    pub done: AtomicU64,
    /// Set to end the conversion; nothing is left behind.
    pub stop: AtomicBool,
}

/// What a conversion wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Tensors written.
    pub tensors: usize,
    /// Bytes read from the source.
    pub source_bytes: u64,
    /// Tensors already quantised in the source and quantised again.
    pub requantised: usize,
}

/// Bytes of weights a conversion will read.
pub fn source_bytes(drafter: &Drafter) -> u64 {
    written(drafter).map(|w| w.byte_len() as u64).sum()
}

/// The weights that are written: tensors of a selector that was left out would be without keys.
fn written(drafter: &Drafter) -> impl Iterator<Item = &Weight> {
    let selector = drafter.config.extras.selector.is_some();
    drafter.weights.iter().filter(move |w| selector || !w.name.starts_with("selector_"))
}

/// Writes `drafter` to `out`. `name` is used where the source has none; `tokenizer` replaces the
/// source's own.
pub fn convert(
    drafter: &Drafter,
    name: &str,
    mix: Mix,
    tokenizer: Option<&Entries>,
    out: &Path,
    overwrite: Overwrite,
    progress: &Progress,
) -> Result<Summary, Error> {
    let weights: Vec<&Weight> = written(drafter).collect();
    let layers = drafter.config.layers.len();
    let types: Vec<BlockType> = weights.iter().map(|w| mix.type_of(w, layers)).collect();
    let mut header = Header::new("dflash");
    let parameters: usize = weights.iter().map(|w| w.elements()).sum();
    describe(&mut header.entries, drafter, name, parameters)?;
    header.entries.append(tokenizer.unwrap_or(&drafter.origin.tokenizer));
    header.entries.u32("tokenizer.ggml.mask_token_id", drafter.config.mask_token);
    header.entries.u32("general.quantization_version", 2);
    header.entries.u32("general.file_type", mix.file_type());
    for (weight, &ty) in weights.iter().zip(&types) {
        header.tensor(&weight.name, ty, &weight.shape);
    }
    let io = |cause| Error::Io { path: out.to_owned(), cause };
    let named = |error| match error {
        formats::gguf::Error::Io(cause) => io(cause),
        other => other.into(),
    };
    let writer = Writer::create(out, &header, overwrite).map_err(named)?;

    let tasks: Vec<Task<'_>> =
        (0..weights.len()).flat_map(|i| Task::split(drafter, i, weights[i], types[i])).collect();
    tasks.par_iter().try_for_each_init(Buffers::default, |buffers, task| {
        if progress.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        task.run(drafter, &writer, buffers)?;
        progress.done.fetch_add(task.source_len as u64, Ordering::Relaxed);
        Ok(())
    })?;
    if progress.stop.load(Ordering::Relaxed) {
        return Err(Error::Stopped);
    }
    writer.finish().map_err(named)?;
    let twice = |(w, ty): &(&&Weight, &BlockType)| {
        w.ty.block_len() > 1 && w.ty != **ty && ty.block_len() > 1
    };
    let requantised = weights.iter().zip(&types).filter(twice).count();
    Ok(Summary { tensors: weights.len(), source_bytes: source_bytes(drafter), requantised })
}

/// The metadata that says everything [`DrafterConfig`] holds, under the upstream dialect's keys.
fn describe(
    entries: &mut Entries,
    drafter: &Drafter,
    name: &str,
    parameters: usize,
) -> Result<(), Error> {
    let config: &DrafterConfig = &drafter.config;
    entries.string("general.type", "model");
    entries.string("general.name", drafter.origin.name.as_deref().unwrap_or(name));
    entries.string("general.size_label", &size_label(parameters));
    entries.u32("dflash.block_count", config.layers.len() as u32);
    if let Some(length) = config.context_length {
        entries.u32("dflash.context_length", length as u32);
    }
    entries.u32("dflash.embedding_length", config.hidden as u32);
    entries.u32("dflash.feed_forward_length", config.ffn as u32);
    entries.u32("dflash.attention.head_count", config.q_heads as u32);
    entries.u32("dflash.attention.head_count_kv", config.kv_heads as u32);
    if let Some(causal) = causal(config)? {
        entries.bool("dflash.attention.causal", causal);
    }
    if let Some(yarn) = config.rope.scaling {
        entries.string("dflash.rope.scaling.type", "yarn");
        entries.f32("dflash.rope.scaling.factor", yarn.factor);
        entries.u32("dflash.rope.scaling.original_context_length", yarn.original_context as u32);
        entries.f32("dflash.rope.scaling.yarn_beta_fast", yarn.beta_fast);
        entries.f32("dflash.rope.scaling.yarn_beta_slow", yarn.beta_slow);
    }
    entries.f32("dflash.rope.freq_base", config.rope.theta);
    entries.f32("dflash.attention.layer_norm_rms_epsilon", config.norm_eps);
    entries.u32("dflash.attention.key_length", config.head_dim as u32);
    entries.u32("dflash.attention.value_length", config.head_dim as u32);
    entries.u32("dflash.block_size", config.block as u32);
    // Upstream counts from 1.
    let taps: Vec<i32> = config.taps.iter().map(|&tap| tap as i32 + 1).collect();
    entries.i32s("dflash.target_layers", &taps);
    describe_extras(entries, config);
    // One window serves all sliding layers: the reader has no other.
    if let Some(window) = config.layers.iter().find_map(|l| l.window) {
        entries.u32("dflash.attention.sliding_window", window as u32);
        let sliding: Vec<bool> = config.layers.iter().map(|l| l.window.is_some()).collect();
        entries.bools("dflash.attention.sliding_window_pattern", &sliding);
    }
    Ok(())
}

/// The one word on causality that the dialect has. Silence is read as the rule, but beside a
/// selector as "none is causal": there the word is what the rule came to, where one word says it.
fn causal(config: &DrafterConfig) -> Result<Option<bool>, Error> {
    if config.explicit_causal.is_some() || config.extras.selector.is_none() {
        return Ok(config.explicit_causal);
    }
    let first = config.layers[0].causal;
    if config.layers.iter().all(|layer| layer.causal == first) {
        return Ok(Some(first));
    }
    Err(Error::Unsupported {
        what: format!("writing a drafter with a selector that is {}", config.layer_summary()),
        from: "the one key says it for all layers; give `--draft-causal true` or `false`".into(),
    })
}

/// What a drafter has beyond the first generation. Upstream reads DSpark's ranks off its tensors.
fn describe_extras(entries: &mut Entries, config: &DrafterConfig) {
    let extras = &config.extras;
    if let Some(conv) = extras.conv {
        entries.u32("dflash.conv_kernel_size", conv.kernel as u32);
        entries.u32("dflash.conv_group_size", conv.group as u32);
    }
    if let Some(selector) = extras.selector {
        entries.u32("dflash.selector_rank", selector.rank as u32);
        entries.u32("dflash.selector_top_k", selector.top_k as u32);
    }
    if extras.markov.is_some() {
        entries.bool("dflash.sample_from_anchor", extras.sample_from_anchor);
    }
    let neutral = Scales::default();
    if extras.scales.embedding != neutral.embedding {
        entries.f32("dflash.embedding_scale", extras.scales.embedding);
    }
    if extras.scales.logits != neutral.logits {
        entries.f32("dflash.logit_scale", extras.scales.logits);
    }
    if let Some(cap) = extras.scales.softcap {
        entries.f32("dflash.final_logit_softcapping", cap);
    }
    // A switch by which upstream gives all rows of a block one image-aware position; the whole head
    // is rotated with it and without it.
    if extras.kind() == Kind::Dflash2 {
        let sections = [config.head_dim as i32 / 2, 0, 0, 0];
        entries.i32s("dflash.rope.dimension_sections", &sections);
    }
}

/// `4.2M`, `1.7B`: two digits at least.
fn size_label(parameters: usize) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")];
    let (unit, suffix) =
        units.into_iter().find(|&(unit, _)| parameters as f64 >= unit).unwrap_or((1e3, "K"));
    let scaled = parameters as f64 / unit;
    let decimals = usize::from(scaled.round() < 10.0);
    format!("{scaled:.decimals$}{suffix}")
}

/// Some rows of one tensor.
struct Task<'a> {
    index: usize,
    source: &'a TensorInfo,
    to: BlockType,
    elements: usize,
    source_from: usize,
    source_len: usize,
    out_from: usize,
}

/// One thread's reused memory.
#[derive(Default)]
struct Buffers {
    source: Vec<u8>,
    numbers: Vec<f32>,
    out: Vec<u8>,
}

impl<'a> Task<'a> {
    fn split(drafter: &'a Drafter, index: usize, weight: &'a Weight, to: BlockType) -> Vec<Self> {
        let source = weight
            .stored(drafter.weights.tensors())
            .expect("a drafter's tensors are stored as they are");
        let row = weight.shape[weight.shape.len() - 1];
        let rows = weight.elements() / row;
        let bytes = |ty: BlockType, elements: usize| elements / ty.block_len() * ty.block_bytes();
        let rows_each = (TASK_BYTES / bytes(source.ty, row).max(1)).max(1);
        (0..rows)
            .step_by(rows_each)
            .map(|first| {
                let elements = rows_each.min(rows - first) * row;
                Self {
                    index,
                    source,
                    to,
                    elements,
                    source_from: bytes(source.ty, first * row),
                    source_len: bytes(source.ty, elements),
                    out_from: bytes(to, first * row),
                }
            })
            .collect()
    }

    fn run(&self, drafter: &Drafter, writer: &Writer, buffers: &mut Buffers) -> Result<(), Error> {
        let Buffers { source, numbers, out } = buffers;
        source.resize(self.source_len, 0);
        let tensors = drafter.weights.tensors();
        let io = |cause| Error::Io { path: self.source.name.clone().into(), cause };
        tensors.read_at(self.source, self.source_from as u64, source).map_err(io)?;
        if self.source.ty == self.to {
            return Ok(writer.write_at(self.index, self.out_from as u64, source)?);
        }
        numbers.resize(self.elements, 0.0);
        blocks::decode(self.source.ty, source, numbers);
        out.resize(self.elements / self.to.block_len() * self.to.block_bytes(), 0);
        quantize::encode(self.to, numbers, out).map_err(|cause| Error::Encode {
            tensor: self.source.name.clone(),
            ty: self.to,
            cause,
        })?;
        Ok(writer.write_at(self.index, self.out_from as u64, out)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_labels_have_two_digits() {
        let labels = [
            (4_195_840, "4.2M"),
            (1_730_000_000, "1.7B"),
            (15_000_000, "15M"),
            (470_000_000, "470M"),
        ];
        for (parameters, label) in labels {
            assert_eq!(size_label(parameters), label);
        }
    }

    #[test]
    fn more_bits_go_to_the_layers_llama_cpp_gives_them() {
        let layers = |part: &str, count: usize| {
            (0..count)
                .filter(|i| more_bits(&format!("blk.{i}.{part}.weight"), count))
                .collect::<Vec<_>>()
        };
        assert_eq!(layers("attn_v", 8), [0, 3, 6, 7]);
        assert_eq!(layers("ffn_down", 5), [2, 4]);
        assert_eq!(layers("attn_q", 8), [0usize; 0]);
    }
}
