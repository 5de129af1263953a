//! Whole passes of drafters with random weights, against a forward pass in plain f32 that knows
//! nothing of plans: logits, candidates, their scores, the walk and the tree.

use super::*;
use crate::model::{Borrowed, Model, Options, Tensor};
use crate::synthetic::{self, Mix};
use checkpoint::drafter::{
    BlockConv as ConvShape, Confidence, DraftLayer, Extras, Markov, Scales, Selector,
};
use checkpoint::{Rope, TargetConfig};
use compute::reference::{dot, rms_norm, sigmoid, silu};
use compute::{Activations, Cpu, CpuLevel};
use formats::BlockType;
use std::collections::HashMap;

const VOCAB: usize = 4096;
const CONTEXT: usize = 11;

/// Random weights as f32, with something done to each tensor.
struct Altered {
    weights: synthetic::Weights,
    change: fn(&str, &mut [f32]),
}

impl Altered {
    fn numbers(&self, name: &str) -> Vec<f32> {
        let tensor = self.weights.tensor(name).unwrap_or_else(|| panic!("no `{name}`"));
        let mut numbers = vec![0.0; tensor.shape.iter().product()];
        formats::blocks::decode(tensor.ty, &tensor.bytes, &mut numbers);
        // Codebooks of a size that makes them matter.
        if ["selector_pred", "selector_succ", "markov"].iter().any(|part| name.starts_with(part)) {
            numbers.iter_mut().for_each(|x| *x *= 4.0);
        }
        (self.change)(name, &mut numbers);
        numbers
    }
}

impl WeightSource for Altered {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let shape = self.weights.tensor(name)?.shape;
        let bytes = self.numbers(name).iter().flat_map(|x| x.to_le_bytes()).collect();
        Some(Tensor { ty: BlockType::F32, shape, bytes: Cow::Owned(bytes) })
    }
}

/// A random target and drafter, and what the drafter has read.
pub(super) struct Fixture {
    pub(super) cpu: Cpu,
    target: Altered,
    pub(super) drafter: Dflash,
    weights: Altered,
}

pub(super) fn untouched(_: &str, _: &mut [f32]) {}

impl Fixture {
    pub(super) fn new(config: &DrafterConfig, change: fn(&str, &mut [f32])) -> Self {
        Self::beside(untouched, config, change)
    }

    /// The same with something done to the target's tensors too.
    pub(super) fn beside(
        target: fn(&str, &mut [f32]),
        config: &DrafterConfig,
        change: fn(&str, &mut [f32]),
    ) -> Self {
        let mut cpu = Cpu::new(CpuLevel::detect(), 2, Activations::F32);
        let shape = TargetConfig { mtp: None, ..synthetic::tiny() };
        let target =
            Altered { weights: synthetic::Weights::new(&shape, Mix::BF16, 1), change: target };
        let options = Options { max_rows: 64, max_chosen: 64, ..Options::new(&cpu) };
        let model = Model::load(&mut cpu, &shape, &target, options).expect("a target");
        let weights =
            Altered { weights: synthetic::Weights::of_drafter(config, Mix::BF16, 2), change };
        let drafter =
            Dflash::load(&mut cpu, config, &weights, Borrowed::of(&model)).expect("a drafter");
        Self { cpu, target, drafter, weights }
    }

    /// A state that has read random features, and the features.
    pub(super) fn read(&mut self, seed: u64) -> (DraftState, Vec<Vec<f32>>) {
        let width = self.drafter.config.taps.len() * self.drafter.config.hidden;
        let mut random = compute::selftest::Random(seed);
        let features: Vec<Vec<f32>> = (0..CONTEXT).map(|_| random.numbers(width)).collect();
        let mut state = self.drafter.state();
        state.pending.push_numbers(&mut self.cpu, &features.concat()).expect("room");
        self.drafter.absorb(&mut self.cpu, &mut [&mut state]).expect("a pass");
        (state, features)
    }

    pub(super) fn fill_in(
        &mut self,
        state: &DraftState,
        tip: u32,
        rows: usize,
        ranks: usize,
    ) -> Lattice {
        let found = self.drafter.fill_in(&mut self.cpu, &[(state, tip)], rows, ranks);
        found.expect("a pass").remove(0).expect("numbers")
    }

    /// Logits of so many positions of the newest block.
    pub(super) fn logits(&self, positions: usize) -> Vec<Vec<f32>> {
        (0..positions).map(|i| self.drafter.logits(i).expect("logits").into_owned()).collect()
    }
}

/// The drafter of the tests that follow, without anything of later generations.
pub(super) fn plain() -> DrafterConfig {
    DrafterConfig {
        hidden: 256,
        layers: vec![
            DraftLayer { window: Some(9), causal: false },
            DraftLayer { window: None, causal: false },
        ],
        q_heads: 4,
        kv_heads: 2,
        head_dim: 32,
        ffn: 96,
        taps: vec![1, 4],
        block: 8,
        trained_block: None,
        mask_token: 4095,
        rope: Rope { theta: 1e4, scaling: None },
        norm_eps: 1e-6,
        context_length: None,
        explicit_causal: None,
        extras: Extras::default(),
    }
}

pub(super) fn dflash2() -> DrafterConfig {
    let extras = Extras {
        conv: Some(ConvShape { kernel: 2, group: 16 }),
        selector: Some(Selector { rank: 64, top_k: 16, vocab: VOCAB }),
        real_vocab: Some(4000),
        ..Extras::default()
    };
    DrafterConfig { extras, ..plain() }
}

fn dspark(sample_from_anchor: bool) -> DrafterConfig {
    let extras = Extras {
        markov: Some(Markov { rank: 32, vocab: VOCAB }),
        confidence: Some(Confidence { with_markov: true, bias: true }),
        sample_from_anchor,
        ..Extras::default()
    };
    DrafterConfig { extras, ..plain() }
}

/// Blocks that look back only, factors on everything, and a convolution of three taps.
fn scaled_and_causal() -> DrafterConfig {
    let mut config = dflash2();
    config.layers.iter_mut().for_each(|layer| layer.causal = true);
    config.extras.conv = Some(ConvShape { kernel: 3, group: 32 });
    config.extras.scales = Scales { embedding: 3.0, logits: 0.6, softcap: Some(1.5) };
    config
}

/// The plain forward pass.
struct Plain<'a> {
    config: &'a DrafterConfig,
    target: &'a Altered,
    weights: &'a Altered,
    known: HashMap<String, Vec<f32>>,
}

/// What it gives for a block: by proposed position.
struct Expected {
    logits: Vec<Vec<f32>>,
    hidden: Vec<Vec<f32>>,
}

impl<'a> Plain<'a> {
    fn of(fixture: &'a Fixture) -> Self {
        let config = &fixture.drafter.config;
        Self { config, target: &fixture.target, weights: &fixture.weights, known: HashMap::new() }
    }

    fn weight(&mut self, name: &str) -> Vec<f32> {
        let weights = self.weights;
        self.known.entry(name.to_owned()).or_insert_with(|| weights.numbers(name)).clone()
    }

    fn times(&mut self, name: &str, x: &[f32]) -> Vec<f32> {
        self.weight(name).chunks_exact(x.len()).map(|row| dot(row, x)).collect()
    }

    fn norm(&mut self, name: &str, x: &[f32]) -> Vec<f32> {
        let weight = self.weight(name);
        rms_norm(x, &weight, self.config.norm_eps)
    }

    /// Heads normed and rotated, rounded as the cache rounds them.
    fn heads(&mut self, name: Option<&str>, x: &[f32], position: usize, round: bool) -> Vec<f32> {
        let dim = self.config.head_dim;
        let frequencies = self.config.rope.inverse_frequencies(dim);
        let mut heads = Vec::new();
        for head in x.chunks_exact(dim) {
            let mut head = head.to_vec();
            if let Some(name) = name {
                head = self.norm(name, &head);
                for (i, frequency) in frequencies.iter().enumerate() {
                    let (sin, cos) = (position as f32 * frequency).sin_cos();
                    let (a, b) = (head[i], head[i + dim / 2]);
                    (head[i], head[i + dim / 2]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
            heads.extend(head);
        }
        if round {
            heads.iter_mut().for_each(|x| *x = half::f16::from_f32(*x).to_f32());
        }
        heads
    }

    /// Keys and values of a row.
    fn kept(&mut self, layer: usize, x: &[f32], position: usize) -> (Vec<f32>, Vec<f32>) {
        let named = |part: &str| format!("blk.{layer}.{part}.weight");
        let (k, v) = (self.times(&named("attn_k"), x), self.times(&named("attn_v"), x));
        let k = self.heads(Some(&named("attn_k_norm")), &k, position, true);
        (k, self.heads(None, &v, position, true))
    }

    /// One of a sub-layer's two convolutions over all rows; coefficients come from `normed`.
    fn convolve(
        &mut self,
        name: &str,
        side: usize,
        rows: &[Vec<f32>],
        normed: &[Vec<f32>],
    ) -> Vec<Vec<f32>> {
        let Some(conv) = self.config.extras.conv else { return rows.to_vec() };
        let (hidden, taps) = (self.config.hidden, conv.kernel);
        let (base, groups) = (self.weight(&format!("{name}_conv_base")), hidden / conv.group);
        let mut out = Vec::new();
        for (j, normed) in normed.iter().enumerate() {
            let dynamic = self.times(&format!("{name}_conv_proj.weight"), normed);
            let at = |c: usize| {
                let tap = |t: usize| {
                    let own = dynamic[(side * taps + t) * groups + c / conv.group];
                    (base[(side * taps + t) * hidden + c] + own) * rows[j - t][c]
                };
                (0..taps.min(j + 1)).map(tap).sum()
            };
            out.push((0..hidden).map(at).collect());
        }
        out
    }

    fn attend(&mut self, layer: usize, rows: &[Vec<f32>], context: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let seen = self.config.layers[layer];
        let (dim, per_kv) = (self.config.head_dim, self.config.q_heads / self.config.kv_heads);
        let mut kept = Vec::new();
        for (position, x) in context.iter().chain(rows).enumerate() {
            kept.push(self.kept(layer, x, position));
        }
        let mut out = Vec::new();
        for (j, x) in rows.iter().enumerate() {
            let own = context.len() + j;
            let q = self.times(&format!("blk.{layer}.attn_q.weight"), x);
            let q = self.heads(Some(&format!("blk.{layer}.attn_q_norm.weight")), &q, own, false);
            let sees = |p: usize| {
                seen.window.is_none_or(|window| own.abs_diff(p) < window)
                    && (p <= own || !seen.causal)
            };
            let mut attended = Vec::new();
            for (h, q) in q.chunks_exact(dim).enumerate() {
                let at = h / per_kv * dim;
                let keys: Vec<usize> = (0..kept.len()).filter(|p| sees(*p)).collect();
                let scores: Vec<f32> = keys
                    .iter()
                    .map(|p| (dot(q, &kept[*p].0[at..at + dim]) / (dim as f32).sqrt()).exp())
                    .collect();
                let total: f32 = scores.iter().sum();
                attended.extend((0..dim).map(|c| {
                    let parts = keys.iter().zip(&scores).map(|(p, s)| s * kept[*p].1[at + c]);
                    parts.sum::<f32>() / total
                }));
            }
            out.push(self.times(&format!("blk.{layer}.attn_output.weight"), &attended));
        }
        out
    }

    fn forward(&mut self, features: &[Vec<f32>], tip: u32, rows: usize) -> Expected {
        let (hidden, extras) = (self.config.hidden, self.config.extras.clone());
        let mut context = Vec::new();
        for features in features {
            let projected = self.times("fc.weight", features);
            context.push(self.norm("enc.output_norm.weight", &projected));
        }
        let table = self.target.numbers("token_embd.weight");
        let embedded = |token: u32| -> Vec<f32> {
            let row = &table[token as usize * hidden..][..hidden];
            row.iter().map(|x| x * extras.scales.embedding).collect()
        };
        let mask = self.config.mask_token;
        let mut x: Vec<Vec<f32>> =
            (0..rows).map(|j| embedded(if j == 0 { tip } else { mask })).collect();
        let add = |x: &mut [Vec<f32>], y: Vec<Vec<f32>>| {
            x.iter_mut().flatten().zip(y.into_iter().flatten()).for_each(|(x, y)| *x += y);
        };
        for layer in 0..self.config.layers.len() {
            let named = |part: &str| format!("blk.{layer}.{part}.weight");
            let attention = format!("blk.{layer}.attn");
            let normed: Vec<_> = x.iter().map(|x| self.norm(&named("attn_norm"), x)).collect();
            let mixed = self.convolve(&attention, 0, &normed, &normed);
            let y = self.attend(layer, &mixed, &context);
            add(&mut x, self.convolve(&attention, 1, &y, &normed));
            let ffn = format!("blk.{layer}.ffn");
            let normed: Vec<_> = x.iter().map(|x| self.norm(&named("ffn_norm"), x)).collect();
            let mut y = Vec::new();
            for mixed in self.convolve(&ffn, 0, &normed, &normed) {
                let gate = self.times(&named("ffn_gate"), &mixed);
                let up = self.times(&named("ffn_up"), &mixed);
                let act: Vec<f32> = gate.iter().zip(up).map(|(g, u)| silu(*g) * u).collect();
                y.push(self.times(&named("ffn_down"), &act));
            }
            add(&mut x, self.convolve(&ffn, 1, &y, &normed));
        }
        let head = self.target.numbers("output.weight");
        let skipped = usize::from(!extras.sample_from_anchor);
        let hidden: Vec<_> =
            x[skipped..].iter().map(|x| self.norm("output_norm.weight", x)).collect();
        let scaled = |logit: f32| match extras.scales.softcap {
            Some(cap) => cap * (logit * extras.scales.logits / cap).tanh(),
            None => logit * extras.scales.logits,
        };
        let of = |z: &Vec<f32>| head.chunks_exact(z.len()).map(|row| scaled(dot(row, z))).collect();
        Expected { logits: hidden.iter().map(of).collect(), hidden }
    }

    /// The term of a candidate after a token.
    fn pair(&mut self, before: u32, token: u32, hidden: &[f32]) -> f32 {
        let extras = &self.config.extras;
        let row = |table: &[f32], token: u32, rank: usize| -> Vec<f32> {
            table[token as usize * rank..][..rank].to_vec()
        };
        if let Some(selector) = extras.selector {
            let gates = self.times("selector_hidden.weight", hidden);
            let a = row(&self.weight("selector_predecessor.weight"), before, selector.rank);
            let b = row(&self.weight("selector_successor.weight"), token, selector.rank);
            return (0..selector.rank).map(|r| a[r] * gates[r] * b[r]).sum();
        }
        let rank = extras.markov.expect("a selector or a Markov head").rank;
        let a = row(&self.weight("markov_w1.weight"), before, rank);
        dot(&a, &row(&self.weight("markov_w2.weight"), token, rank))
    }

    fn confidence(&mut self, before: u32, hidden: &[f32]) -> f32 {
        let rank = self.config.extras.markov.expect("a Markov head").rank;
        let w1 = self.weight("markov_w1.weight")[before as usize * rank..][..rank].to_vec();
        let features = [hidden, &w1].concat();
        sigmoid(self.times("conf_proj.weight", &features)[0] + self.weight("conf_proj.bias")[0])
    }
}

/// The best `count` tokens below `vocab`: by logit, then by id.
pub(super) fn best(logits: &[f32], vocab: usize, count: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..vocab as u32).collect();
    ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    ids.truncate(count);
    ids
}

#[track_caller]
fn assert_near(what: &str, found: f32, expected: f32) {
    assert!((found - expected).abs() < 1e-3, "{what} is {found}, not {expected}");
}

/// Everything a drafter that knows the token before says of a block of so many rows.
fn check_choices(config: &DrafterConfig, rows: usize) {
    let mut fixture = Fixture::new(config, untouched);
    let (state, features) = fixture.read(3);
    let tip = 77;
    let lattice = fixture.fill_in(&state, tip, rows, 16);
    let chain = fixture.fill_in(&state, tip, rows, 1).best_first(64);
    let positions = fixture.drafter.positions(rows);
    let Candidates { buf, count } = fixture.drafter.candidates.expect("it selects");
    let numbers = fixture.drafter.block.first_rows(buf, positions).expect("a buffer").into_owned();
    let mut plain = Plain::of(&fixture);
    let expected = plain.forward(&features, tip, rows);
    assert_eq!(expected.logits.len(), positions);
    let vocab = config.extras.real_vocab.unwrap_or(VOCAB);
    let (mut before, mut walked) = (vec![tip; count], tip);
    for (i, row) in numbers.chunks_exact(count * (2 + count)).enumerate() {
        let logits = fixture.drafter.logits(i).expect("logits");
        for (found, expected) in logits.iter().zip(&expected.logits[i]) {
            assert_near("a logit", *found, *expected);
        }
        let candidates = best(&expected.logits[i], vocab, count);
        let ids: Vec<u32> = row[..count].iter().map(|id| *id as u32).collect();
        assert_eq!(ids, candidates, "candidates of position {i}");
        let own = |b: usize| expected.logits[i][candidates[b] as usize];
        for b in 0..count {
            assert_near("a candidate's own", row[count + b] - row[count], own(b) - own(0));
        }
        let mut scores = Vec::new();
        for a in 0..count {
            for b in 0..count {
                let pair = plain.pair(before[a], candidates[b], &expected.hidden[i]);
                assert_near("a pair", row[2 * count + a * count + b], pair);
                scores.push(own(b) + pair);
            }
        }
        // The anchor is before all of the first.
        if i == 0 {
            assert!(row[2 * count..].chunks_exact(count).all(|r| r == &row[2 * count..3 * count]));
        }
        for a in 0..if i == 0 { 1 } else { count } {
            let of = |b: &usize| scores[a * count + b];
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|x, y| of(y).total_cmp(&of(x)));
            let after: Vec<(u32, f32)> = lattice.after(i + 1, a).collect();
            let tokens: Vec<u32> = order.iter().map(|b| candidates[*b]).collect();
            assert_eq!(after.iter().map(|(t, _)| *t).collect::<Vec<_>>(), tokens);
            // A softmax over the candidates, whose mass is what the whole vocabulary leaves them.
            let mass: f32 = row[count..2 * count].iter().map(|log| log.exp()).sum();
            let total: f32 = (0..count).map(|b| of(&b).exp()).sum();
            let mut likely = of(&order[0]).exp() / total * mass;
            if config.extras.confidence.is_some() {
                likely = likely.min(plain.confidence(before[a], &expected.hidden[i]));
            }
            assert_near("the likeliest", after[0].1.exp(), likely);
        }
        let at = before.iter().position(|token| *token == walked).expect("it was a candidate");
        let next = (0..count).max_by(|x, y| {
            let of = |b: usize| scores[at * count + b];
            of(*x).total_cmp(&of(*y))
        });
        walked = candidates[next.expect("candidates")];
        assert_eq!(chain.nodes[i].token, walked, "the walk at position {i}");
        before = candidates;
    }
    assert_eq!(chain.nodes.len(), positions);
}

#[test]
fn dflash2_is_what_the_plain_forward_says() {
    check_choices(&dflash2(), 8);
    // Fewer rows than it was trained with, and more.
    check_choices(&dflash2(), 3);
    check_choices(&dflash2(), 16);
}

#[test]
fn factors_caps_and_causal_blocks_are_what_the_plain_forward_says() {
    check_choices(&scaled_and_causal(), 8);
}

#[test]
fn dspark_is_what_the_plain_forward_says() {
    check_choices(&dspark(true), 8);
    check_choices(&dspark(false), 8);
}

/// JetSpec's are the first generation's tensors with blocks that look back only.
#[test]
fn drafters_without_a_selector_rank_what_the_plain_forward_says() {
    let mut causal = plain();
    causal.layers.iter_mut().for_each(|layer| layer.causal = true);
    for mut config in [plain(), causal] {
        config.extras.real_vocab = Some(500);
        let mut fixture = Fixture::new(&config, untouched);
        let (state, features) = fixture.read(5);
        let lattice = fixture.fill_in(&state, 9, 8, 4);
        let expected = Plain::of(&fixture).forward(&features, 9, 8);
        for (i, logits) in expected.logits.iter().enumerate() {
            let tokens: Vec<u32> = lattice.after(i + 1, 0).map(|(token, _)| token).collect();
            assert_eq!(tokens, best(logits, 500, 4), "position {i}");
        }
    }
}

/// Blocks of several texts share passes, whatever the number of their rows; none sees another.
#[test]
fn several_texts_with_a_markov_head_are_each_as_if_alone() {
    for config in [dspark(true), dspark(false)] {
        super::specified_tests::check_company(&config);
    }
}

#[test]
fn sizes_without_kernels_are_refused() {
    let mut config = dflash2();
    config.extras.conv = Some(ConvShape { kernel: 2, group: 8 });
    assert!(matches!(check(&config, VOCAB), Err(Error::Unsupported { found: 8, .. })));
    config.extras.conv = Some(ConvShape { kernel: 5, group: 16 });
    assert!(matches!(check(&config, VOCAB), Err(Error::Unsupported { found: 5, .. })));
    let short = dflash2();
    assert!(matches!(check(&short, VOCAB + 1), Err(Error::Unsupported { found: VOCAB, .. })));
}
