//! Models of any shape with random weights: to measure cost without files, and to test laws on.

use crate::Skew;
use crate::model::{self, Tensor, WeightSource};
use checkpoint::{
    DrafterConfig, Rope, TargetConfig,
    drafter::{BlockConv, DraftLayer, Extras, Selector},
    target::{Attention, Ffn, Gdn, Mixer, Mtp, slots},
};
use formats::{BlockType, blocks::integers::Scale};
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

/// Which block types the matrices get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum Mix {
    /// Every matrix Q8_0.
    Q8_0,
    /// Q4_K, with Q6_K where llama.cpp's Q4_K_M mix has it: the head, and in half of the layers
    /// `attn_v`, `attn_qkv` and `ffn_down`.
    Q4_K_M,
    /// Every matrix BF16.
    BF16,
    /// As folders of FP8 are: matrices FP8, the head BF16.
    FP8,
    /// As folders of NVFP4 are: matrices FP4, the head BF16.
    NVFP4,
    /// As folders of AWQ are: matrices INT4 in groups of 128, the head BF16.
    AWQ,
    /// Every matrix IQ3_S, with a head of Q6_K.
    IQ3_S,
}

impl Mix {
    /// The type of matrices, where one serves all but the head, and the type of the head.
    const fn types(self) -> Option<[BlockType; 2]> {
        match self {
            Self::Q4_K_M => None,
            Self::Q8_0 => Some([BlockType::Q8_0; 2]),
            Self::BF16 => Some([BlockType::BF16; 2]),
            Self::FP8 => Some([BlockType::FP8, BlockType::BF16]),
            Self::NVFP4 => Some([BlockType::FP4, BlockType::BF16]),
            Self::AWQ => Some([BlockType::INT4, BlockType::BF16]),
            Self::IQ3_S => Some([BlockType::IQ3_S, BlockType::Q6_K]),
        }
    }
}

/// Random weights for a configuration. A tensor is made when it is asked for.
pub struct Weights {
    shapes: HashMap<String, Vec<usize>>,
    layers: usize,
    mix: Mix,
    seed: u64,
    /// Standard deviation of embeddings, where it is not that of other matrices.
    embedding: Option<f32>,
    /// How often experts are chosen, where that is not alike.
    skew: Option<Skew>,
}

impl Weights {
    /// Random weights; the same seed gives the same ones.
    pub fn new(config: &TargetConfig, mix: Mix, seed: u64) -> Self {
        let shapes = slots(config).into_iter().map(|s| (s.name, s.shape)).collect();
        Self { shapes, layers: config.layers.len(), mix, seed, embedding: None, skew: None }
    }

    /// Random weights for a drafter.
    pub fn of_drafter(config: &DrafterConfig, mix: Mix, seed: u64) -> Self {
        let slots = checkpoint::drafter::slots(config);
        let shapes = slots.into_iter().map(|s| (s.name, s.shape)).collect();
        Self { shapes, layers: config.layers.len(), mix, seed, embedding: None, skew: None }
    }

    /// With embeddings that are large beside everything layers add to them, so that hidden states
    /// stay as different as their tokens are: rows of distinct tokens visit as many experts as
    /// uniform routing would make them visit.
    pub fn with_distinct_tokens(self) -> Self {
        Self { embedding: Some(64.0), ..self }
    }

    /// With routers that prefer some experts, others in each layer.
    pub fn with_skew(self, skew: Option<Skew>) -> Self {
        Self { skew, ..self }
    }

    /// Bytes of each tensor as its type stores them, the next-token block's left out.
    pub fn bytes(&self) -> BTreeMap<String, u64> {
        let bytes = |(name, shape): (&String, &Vec<usize>)| {
            let len: usize = shape.iter().product();
            let bytes = self.block_type(name, shape).bytes_for(len).unwrap_or(0);
            (name.clone(), bytes as u64)
        };
        self.shapes.iter().map(bytes).collect()
    }

    fn seed_of(&self, name: &str) -> u64 {
        name.bytes().fold(self.seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
    }

    fn block_type(&self, name: &str, shape: &[usize]) -> BlockType {
        let cols = *shape.last().unwrap_or(&0);
        let small = shape.len() < 2
            || ["conv1d", "conv_base", "ffn_gate_inp"].iter().any(|part| name.contains(part));
        // Of an embedding only a few rows are ever read.
        let is_light = !matches!(self.mix, Mix::Q8_0 | Mix::BF16);
        let block_type = match self.mix.types() {
            _ if small => BlockType::F32,
            _ if is_light && name == "token_embd.weight" => BlockType::Q4_K,
            Some([_, head]) if name == "output.weight" => head,
            Some([matrix, _]) => matrix,
            None => {
                let layer =
                    name.split('.').nth(1).and_then(|l| l.parse::<usize>().ok()).unwrap_or(0);
                // llama.cpp's `use_more_bits`: the first and last eighth of the layers, and every
                // third between.
                let eighth = self.layers / 8;
                let more =
                    layer < eighth || layer >= self.layers - eighth || (layer - eighth) % 3 == 2;
                let wide =
                    ["attn_v.", "attn_qkv.", "ffn_down"].iter().any(|part| name.contains(part));
                if name == "output.weight" || (wide && more) {
                    BlockType::Q6_K
                } else {
                    BlockType::Q4_K
                }
            }
        };
        if cols.is_multiple_of(block_type.block_len()) { block_type } else { BlockType::F32 }
    }
}

impl WeightSource for Weights {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let shape = self.shapes.get(name)?;
        let ty = self.block_type(name, shape);
        let len = shape.iter().product();
        let mut random = Random(self.seed_of(name));
        let bytes = if name.ends_with("norm.weight") {
            floats((0..len).map(|_| 1.0 + 0.1 * random.number()))
        } else if name.ends_with("conv_base") {
            // Near the identity: a row itself, and a little of the one before it.
            let (taps, cols) = (shape[1], shape[2]);
            let whole = |i: usize| if (i / cols).is_multiple_of(taps) { 1.0 } else { 0.0 };
            floats((0..len).map(|i| whole(i) + 0.1 * random.number()))
        } else if let (Some(skew), true) = (&self.skew, name.ends_with(".ffn_gate_inp.weight")) {
            let (cols, scale) = (shape[1], 1.0 / (shape[1] as f32).sqrt());
            let factors = skew.factors(|| random.next());
            floats((0..len).map(|i| factors[i / cols] * scale * random.number()))
        } else if name.ends_with("ssm_a") {
            floats((0..len).map(|_| -0.3 * random.number().exp()))
        } else {
            // Products of normed activations keep a size of about 1.
            let scale = 1.0 / (*shape.last().unwrap_or(&1) as f32).sqrt();
            let embedding = self.embedding.filter(|_| name == "token_embd.weight");
            random.blocks(ty, len, embedding.unwrap_or(scale))
        };
        Some(Tensor { ty, shape: shape.clone(), bytes: Cow::Owned(bytes) })
    }

    fn random(&self, name: &str) -> Option<model::Random> {
        let shape = self.shapes.get(name)?;
        let ty = self.block_type(name, shape);
        let scale = 1.0 / (*shape.last()? as f32).sqrt();
        (ty != BlockType::F32).then(|| model::Random {
            ty,
            shape: shape.clone(),
            scale,
            seed: self.seed_of(name),
        })
    }
}

fn floats(numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    numbers.flat_map(f32::to_le_bytes).collect()
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// About normal, standard deviation 1.
    fn number(&mut self) -> f32 {
        let bits = self.next();
        let sum: f32 = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as f32 / 65536.0 - 0.5).sum();
        sum * 1.732
    }

    /// Blocks whose codes are random and whose scales give numbers of about `scale`.
    fn blocks(&mut self, ty: BlockType, len: usize, scale: f32) -> Vec<u8> {
        // Where the f16 scales of a block lie, and what a block's codes (with its own small scales)
        // amount to.
        let (halves, size): (&[usize], f32) = match ty {
            BlockType::F32 => return floats((0..len).map(|_| scale * self.number())),
            BlockType::BF16 => {
                let numbers = (0..len).map(|_| half::bf16::from_f32(scale * self.number()));
                return numbers.flat_map(|x| x.to_le_bytes()).collect();
            }
            BlockType::Q8_0 => (&[0], 74.0),
            BlockType::Q4_K => (&[0, 2], 190.0),
            BlockType::Q6_K => (&[208], 1360.0),
            BlockType::IQ3_S => (&[0], 140.0),
            // Theirs are of other kinds.
            _ => (&[], 1.0),
        };
        let mut bytes = vec![0u8; len / ty.block_len() * ty.block_bytes()];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            // A negative `dmin` half the time would shift whole blocks; a fraction of `d` of either
            // sign keeps the mean near 0.
            for (i, at) in halves.iter().enumerate() {
                let d = scale / size * if i == 0 { 1.0 } else { 7.5 };
                block[*at..at + 2].copy_from_slice(&half::f16::from_f32(d).to_le_bytes());
            }
            tame(ty, block, scale);
        }
        bytes
    }
}

/// Scales of the blocks that folders are made of, for numbers of about `scale`.
fn tame(ty: BlockType, block: &mut [u8], scale: f32) {
    let head = match ty {
        BlockType::FP8 => {
            // Below 2: no NaN.
            block[4..].iter_mut().for_each(|q| *q &= 0xbf);
            (scale / 0.6).to_le_bytes()
        }
        BlockType::FP4 => {
            // From 0.5 to 1.
            block[4..12].iter_mut().for_each(|d| *d = *d & 7 | 0x30);
            (scale / 2.14).to_le_bytes()
        }
        BlockType::INT4 => {
            let scale = half::f16::from_f32(scale / 4.6).to_f32();
            Scale::new(scale, 8).expect("a scale of 16 bits").0
        }
        _ => return,
    };
    block[..4].copy_from_slice(&head);
}

/// Layers with full attention every fourth.
fn hybrid(layers: usize) -> Vec<Mixer> {
    (1..=layers).map(|i| if i % 4 == 0 { Mixer::Attention } else { Mixer::Gdn }).collect()
}

fn config(
    hidden: usize,
    vocab: usize,
    layers: usize,
    heads: [usize; 2],
    gdn: [usize; 2],
    ffn: Ffn,
) -> TargetConfig {
    TargetConfig {
        hidden,
        vocab,
        layers: hybrid(layers),
        attention: Attention {
            q_heads: heads[0],
            kv_heads: heads[1],
            head_dim: 256,
            rotary_dims: 64,
            rope: Rope { theta: 1e7, scaling: None },
        },
        gdn: Gdn { key_heads: gdn[0], value_heads: gdn[1], head_dim: 128, conv_kernel: 4 },
        ffn,
        norm_eps: 1e-6,
        context_length: 262_144,
        tied_head: false,
        mtp: Some(Mtp { own_embedding: false, own_head: false, own_norm: true }),
    }
}

/// The shape of the tiny dense model.
pub fn tiny() -> TargetConfig {
    config(256, 4096, 8, [4, 2], [2, 6], Ffn::Dense { width: 768 })
}

/// The shape of the tiny mixture of experts.
pub fn tiny_moe() -> TargetConfig {
    let ffn = Ffn::Moe { experts: 16, used: 4, width: 256, shared_width: 256, weights_scale: 1.0 };
    TargetConfig { mtp: None, ..config(256, 4096, 4, [4, 2], [2, 6], ffn) }
}

/// The shape of Qwen3.5 0.8B, whose head is tied to its embedding.
pub fn qwen35_0_8b() -> TargetConfig {
    let shape = config(1024, 248_320, 24, [8, 2], [16, 16], Ffn::Dense { width: 3584 });
    TargetConfig { tied_head: true, ..shape }
}

/// The shape of Qwen3.5 4B, whose head is tied to its embedding.
pub fn qwen35_4b() -> TargetConfig {
    let shape = config(2560, 248_320, 32, [16, 4], [16, 32], Ffn::Dense { width: 9216 });
    TargetConfig { tied_head: true, ..shape }
}

/// The shape of Qwen3.5 9B.
pub fn qwen35_9b() -> TargetConfig {
    config(4096, 248_320, 32, [16, 4], [16, 32], Ffn::Dense { width: 12_288 })
}

/// The shape of Qwen3.5, Qwen3.6 and Qwen3.8 27B.
pub fn qwen36_27b() -> TargetConfig {
    config(5120, 248_320, 64, [24, 4], [16, 48], Ffn::Dense { width: 17_408 })
}

/// The shape of Qwen3.5 and Qwen3.6 35B-A3B.
pub fn qwen36_35b_a3b() -> TargetConfig {
    let ffn = Ffn::Moe { experts: 256, used: 8, width: 512, shared_width: 512, weights_scale: 1.0 };
    config(2048, 248_320, 40, [16, 2], [16, 32], ffn)
}

/// The drafters that are published for the target of that name. DFlash: four layers with a window
/// of 2048 and a full one for 27B; five with a window of 4096 and a full one for 35B-A3B. DFlash 2:
/// five or six layers that all slide and see the whole block.
pub fn drafters_for(name: &str) -> Vec<DrafterConfig> {
    let dflash = |hidden, ffn, sliding: usize, window, taps: &[usize]| {
        let layer = |window| DraftLayer { window, causal: window.is_some() };
        let layers = [vec![layer(Some(window)); sliding], vec![layer(None)]].concat();
        DrafterConfig { hidden, ffn, taps: taps.to_vec(), layers, ..qwen_drafter() }
    };
    let dflash2 = |hidden, ffn, layers: usize, taps: &[usize]| DrafterConfig {
        layers: vec![DraftLayer { window: Some(2048), causal: false }; layers],
        block: 8,
        explicit_causal: Some(false),
        extras: Extras {
            conv: Some(BlockConv { kernel: 2, group: 16 }),
            selector: Some(Selector { rank: 256, top_k: 16, vocab: 248_320 }),
            real_vocab: Some(248_077),
            ..Extras::default()
        },
        ..dflash(hidden, ffn, 0, 2048, taps)
    };
    const OF_35B: [usize; 8] = [1, 6, 11, 16, 22, 27, 32, 37];
    match name {
        "qwen3.6-27b" => vec![dflash(5120, 17_408, 4, 2048, &[1, 16, 31, 46, 61])],
        "qwen3.8-27b" => vec![dflash2(5120, 17_408, 5, &[5, 19, 33, 47, 61])],
        "qwen3.6-35b-a3b" => {
            vec![dflash(2048, 6144, 5, 4096, &OF_35B), dflash2(2048, 6144, 6, &OF_35B)]
        }
        _ => Vec::new(),
    }
}

/// What the published drafters have in common.
fn qwen_drafter() -> DrafterConfig {
    DrafterConfig {
        hidden: 0,
        layers: Vec::new(),
        q_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 0,
        taps: Vec::new(),
        block: 16,
        trained_block: None,
        mask_token: 248_070,
        rope: Rope { theta: 1e7, scaling: None },
        norm_eps: 1e-6,
        context_length: None,
        explicit_causal: None,
        extras: Extras::default(),
    }
}

/// The shapes that have names.
pub const NAMES: [&str; 8] = [
    "tiny",
    "tiny-moe",
    "qwen3.5-0.8b",
    "qwen3.5-4b",
    "qwen3.5-9b",
    "qwen3.6-27b",
    "qwen3.6-35b-a3b",
    "qwen3.8-27b",
];

/// The shape of that name.
pub fn named(name: &str) -> Option<TargetConfig> {
    let shapes: [fn() -> TargetConfig; NAMES.len()] =
        [tiny, tiny_moe, qwen35_0_8b, qwen35_4b, qwen35_9b, qwen36_27b, qwen36_35b_a3b, qwen36_27b];
    NAMES.iter().zip(shapes).find(|(n, _)| **n == name).map(|(_, shape)| shape())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, Options, model::chain};
    use compute::{Activations, Cpu, CpuLevel};

    #[test]
    fn distinct_tokens_visit_experts_as_uniform_routing_would() {
        let ffn =
            Ffn::Moe { experts: 256, used: 8, width: 32, shared_width: 32, weights_scale: 1.0 };
        let config = TargetConfig { mtp: None, ..config(256, 512, 16, [4, 2], [2, 6], ffn) };
        let mut cpu = Cpu::new(CpuLevel::detect(), 1, Activations::Int8);
        let touched = |weights: Weights, cpu: &mut Cpu| {
            let options = Options { max_rows: 80, max_chosen: 16, ..Options::new(cpu) };
            let mut model = Model::load(cpu, &config, &weights, options).unwrap();
            let tokens: Vec<u32> = (0..80).map(|i| i * 7 % 512).collect();
            let mut sequence = model.sequence();
            let rows: Vec<_> = chain(&tokens[..64], 0).collect();
            model.forward(cpu, &rows, &[], &[&sequence]).unwrap();
            model.commit(cpu, 0, &mut sequence, &(0..64).collect::<Vec<_>>()).unwrap();
            let rows: Vec<_> = chain(&tokens[64..], 0).collect();
            model.forward(cpu, &rows, &[], &[&sequence]).unwrap();
            model.experts_touched(16).unwrap().unwrap()
        };
        let weights = || Weights::new(&config, Mix::Q8_0, 1);
        let (distinct, plain) =
            (touched(weights().with_distinct_tokens(), &mut cpu), touched(weights(), &mut cpu));
        // 256 (1 - (1 - 8 / 256)^16)
        let uniform = 102;
        assert!(
            distinct > uniform * 9 / 10 && distinct > plain,
            "{distinct} experts, {plain} otherwise"
        );
    }

    #[test]
    fn skewed_routers_choose_by_their_odds() {
        let ffn =
            Ffn::Moe { experts: 128, used: 8, width: 32, shared_width: 32, weights_scale: 1.0 };
        let config = TargetConfig { mtp: None, ..config(256, 4096, 4, [4, 2], [2, 6], ffn) };
        for share in [0.6, 0.8, 0.93] {
            let skew = Skew::new(128, 8, share).expect("a router");
            let mut cpu = Cpu::new(CpuLevel::detect(), 1, Activations::Int8);
            let weights =
                Weights::new(&config, Mix::Q8_0, 1).with_distinct_tokens().with_skew(Some(skew));
            let options = Options { max_rows: 64, ..Options::new(&cpu) };
            let mut model = Model::load(&mut cpu, &config, &weights, options).unwrap();
            let mut chosen = vec![0u32; 128];
            for first in 0..20 {
                let tokens: Vec<u32> = (0..64).map(|i| (first * 64 + i) * 7 % 4096).collect();
                let rows: Vec<_> = chain(&tokens, 0).collect();
                let sequence = model.sequence();
                model.forward_prompt(&mut cpu, &rows, &[], &[&sequence]).unwrap();
                let ids = model.experts_chosen(64).unwrap().unwrap();
                ids.iter().for_each(|id| chosen[*id as usize] += 1);
            }
            chosen.sort_by(|a, b| b.cmp(a));
            let best = chosen[..77].iter().sum::<u32>() as f64 / (20.0 * 64.0 * 8.0);
            // Those that turn out best of some alike have a little more than their share.
            assert!((-0.03..0.07).contains(&(best - share)), "{best} of {share}");
        }
    }
}
