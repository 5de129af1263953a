//! What each type of the key/value cache changes in what a target says of a text, on the processor
//! and without rounded activations:
//!
//!     cargo run --release -p forerun-engine --example caches -- \
//!         models/dense/target-Q4_K_M.gguf [FACTOR] < tokens.json
//!
//! With a factor, a power of two, one column of 32 of the keys is so many times as large, and that of
//! the queries as small: the model says the same, with keys such as larger models have.
//!
//! Standard input is a list of tokens, as `/tokenize` of a server answers. Printed are, for each type
//! and stretch of the text, against f16: the mean Kullback-Leibler divergence of the next token's
//! probabilities, the mean difference of the logarithms that the text's own tokens had (absolute,
//! then with its sign), and how often another token was the likeliest.

use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::{Engine, Sequence, Spec, Tensor, WeightSource, sampling::Likelihood};
use formats::BlockType;
use std::borrow::Cow;
use std::error::Error;
use std::path::Path;

/// Where stretches of the text end.
const ENDS: [usize; 6] = [1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15];

/// Sums over the tokens of a stretch.
#[derive(Clone, Copy, Default)]
struct Sums {
    tokens: usize,
    divergence: f64,
    absolute: f64,
    signed: f64,
    others: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("caches TARGET.gguf")?;
    let target = checkpoint::Target::open(Path::new(&path))?;
    let factor = std::env::args().nth(2).map_or(Ok(1.0), |factor| factor.parse())?;
    let rotary = target.config.attention.rotary_dims;
    let source = Uneven { weights: &target.weights, rotary, factor };
    let mut readers = Vec::new();
    for kv in KvType::ALL {
        let weights = (&target.config, &source as &dyn WeightSource);
        let cpu = Box::new(Cpu::new(CpuLevel::detect(), 1, Activations::F32));
        let engine = Engine::load(cpu, weights, None, kv, Spec::Off)?;
        let sequence = engine.sequence();
        readers.push((kv, engine, sequence));
    }
    let tokens: Vec<u32> = serde_json::from_reader(std::io::stdin())?;
    let mut sums = [[Sums::default(); ENDS.len()]; KvType::ALL.len()];
    let rows = readers[0].1.scored_rows();
    for from in (0..tokens.len().saturating_sub(1)).step_by(rows) {
        let to = (from + rows).min(tokens.len() - 1);
        let Some(stretch) = ENDS.iter().position(|end| from < *end) else { break };
        let mut told = readers.iter_mut().map(|(_, engine, sequence)| {
            read(engine, sequence, &tokens[from..to], &tokens[from + 1..=to])
        });
        let expected = told.next().ok_or("f16 is a type")??;
        for (sums, found) in sums[1..].iter_mut().zip(told) {
            let found = found?;
            expected.iter().zip(&found).for_each(|(p, q)| sums[stretch].add(p, q));
        }
    }
    println!("| cache | tokens | divergence | difference | signed | other likeliest |");
    println!("|---|---|---|---|---|---|");
    for ((kv, ..), sums) in readers.iter().zip(&sums).skip(1) {
        for (end, s) in ENDS.iter().zip(sums).filter(|(_, s)| s.tokens > 0) {
            let mean = |sum: f64| sum / s.tokens as f64;
            println!(
                "| {kv:?} | to {end} | {:.6} | {:.5} | {:+.5} | {:.3} % |",
                mean(s.divergence),
                mean(s.absolute),
                mean(s.signed),
                100.0 * mean(s.others as f64),
            );
        }
    }
    Ok(())
}

/// Weights of a target of which some columns of keys are larger and those of queries smaller, among
/// the columns that positions do not turn.
struct Uneven<'a> {
    weights: &'a checkpoint::Weights,
    rotary: usize,
    factor: f32,
}

impl WeightSource for Uneven<'_> {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let by = match name.rsplit_once('.')?.0.rsplit_once('.').map(|(_, part)| part) {
            Some("attn_k_norm") => self.factor,
            Some("attn_q_norm") => 1.0 / self.factor,
            _ => return WeightSource::tensor(self.weights, name),
        };
        let weight = self.weights.get(name)?;
        let mut numbers = self.weights.decode(weight);
        numbers.iter_mut().skip(self.rotary + 5).step_by(32).for_each(|x| *x *= by);
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Some(Tensor { ty: BlockType::F32, shape: weight.shape.clone(), bytes: Cow::Owned(bytes) })
    }
}

/// All probabilities after each of the tokens.
fn read(
    engine: &mut Engine,
    sequence: &mut Sequence,
    tokens: &[u32],
    following: &[u32],
) -> Result<Vec<Likelihood>, engine::Error> {
    engine.read_scored(sequence, tokens, following, usize::MAX)
}

impl Sums {
    fn add(&mut self, expected: &Likelihood, found: &Likelihood) {
        let mut of_token = vec![0.0; found.top.len()];
        found.top.iter().for_each(|(token, logprob)| of_token[*token as usize] = *logprob);
        let terms = expected.top.iter().map(|(token, logprob)| {
            let p = f64::from(*logprob);
            p.exp() * (p - f64::from(of_token[*token as usize]))
        });
        let difference = f64::from(found.logprob - expected.logprob);
        self.tokens += 1;
        self.divergence += terms.sum::<f64>();
        self.absolute += difference.abs();
        self.signed += difference;
        self.others += usize::from(found.top[0].0 != expected.top[0].0);
    }
}
