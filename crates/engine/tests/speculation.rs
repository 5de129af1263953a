//! Speculation against the goldens: the same tokens in every mode, and acceptance lengths as the float32 reference has
//! them.

use checkpoint::{Drafter, Overrides, Target};
use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Spec};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

struct Pair {
    target: Target,
    drafter: Drafter,
    golden: Vec<serde_json::Value>,
}

fn pair(name: &str) -> Pair {
    let folder =
        if name == "dense" { root().join("models/dense") } else { root().join("tests/fixtures/moe") };
    let target = Target::open(&folder.join("target-Q4_K_M.gguf")).expect("the target opens");
    let overrides = Overrides::default();
    let drafter = Drafter::open(&folder.join("draft-Q8_0.gguf"), &overrides, Some(&target.config))
        .expect("the drafter opens");
    let text =
        std::fs::read_to_string(root().join(format!("tests/goldens/{name}-q4.json"))).expect("goldens");
    Pair { target, drafter, golden: serde_json::from_str(&text).expect("goldens") }
}

fn engine(pair: &Pair, kv: KvType, activations: Activations, spec: Spec) -> Engine {
    let cpu = Box::new(Cpu::new(CpuLevel::detect(), 2, activations));
    let target = (&pair.target.config, &pair.target.weights as &dyn engine::WeightSource);
    let drafter = (&pair.drafter.config, &pair.drafter.weights as &dyn engine::WeightSource);
    Engine::load(cpu, target, Some(drafter), kv, spec).expect("the pair loads")
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// Tokens and acceptance lengths of one answer.
fn answer(engine: &mut Engine, prompt: &[u32], sampling: &Sampling, max: usize) -> (Vec<u32>, Vec<usize>) {
    let ends = vec![4066, 4064];
    let sequence = engine.sequence();
    let mut text = engine
        .begin(sequence, prompt, prompt, sampling.clone(), ends.clone(), |_| ())
        .expect("the prompt is read");
    let mut tokens = vec![text.anchor()];
    let mut lengths = Vec::new();
    while tokens.len() < max && !ends.contains(&tokens[tokens.len() - 1]) {
        let round = engine.step(&mut text, max - tokens.len()).expect("a round");
        lengths.push(round.accept_length());
        tokens.extend(round.emitted);
    }
    (tokens, lengths)
}

#[test]
fn chain_acceptance_is_the_references() {
    for name in ["dense", "moe"] {
        let pair = pair(name);
        let mut engine = engine(&pair, KvType::F16, Activations::Int8, Spec::Chain { block: 16, budget: 15 });
        let mut suites = std::collections::BTreeMap::<String, [f64; 4]>::new();
        for golden in &pair.golden {
            let (prompt, expected) = (ids(&golden["prompt_ids"]), ids(&golden["greedy_ids"]));
            let (tokens, lengths) = answer(&mut engine, &prompt, &Sampling::default(), expected.len());
            let theirs = ids(&golden["accept_lengths"]);
            let suite = golden["suite"].as_str().expect("a name").to_owned();
            let sums = suites.entry(suite).or_default();
            sums[0] += lengths.iter().sum::<usize>() as f64;
            sums[1] += lengths.len() as f64;
            sums[2] += theirs.iter().sum::<u32>() as f64;
            sums[3] += theirs.len() as f64;
            let same = tokens == expected;
            println!("{name} {} {same} {lengths:?} {theirs:?}", golden["suite"]);
        }
        for (suite, [a, b, c, d]) in suites {
            println!("{name} {suite}: {:.3} against {:.3}", a / b, c / d);
        }
    }
}
