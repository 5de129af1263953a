//! The repository's pairs in an engine, and answers of theirs.
#![allow(dead_code, unreachable_pub)]

use checkpoint::{Drafter, DrafterConfig, Overrides, Target};
use compute::{Activations, Backend, Cpu, CpuLevel, KvType, Memory};
use engine::sampling::Sampling;
use engine::{Archived, ArchivedBlock, Backends, BlockName, Engine, Generation};
use engine::{Placement, Spec, WeightSource};
use serde_json::Value;
use std::sync::Arc;
pub use testing::ids;

/// What ends a text of the tiny models.
pub const ENDS: [u32; 2] = [4066, 4064];
pub const CHAIN: Spec = Spec::Chain { block: 16, budget: 15 };

/// A target and its drafter, and what the float32 reference made of them.
pub struct Pair {
    pub target: Target,
    pub drafter: Drafter,
    pub golden: Vec<Value>,
}

/// The pair of that name: `dense` or `moe`.
pub fn pair(name: &str) -> Pair {
    let files = if name == "dense" { testing::Pair::dense() } else { testing::Pair::moe() };
    let target = Target::open(&files.target).expect("the target opens");
    let drafter = Drafter::open(&files.drafter, &Overrides::default(), Some(&target.config));
    let golden = testing::prompts(&testing::goldens(), &format!("{name}-q4"));
    Pair { target, drafter: drafter.expect("the drafter opens"), golden }
}

/// A processor with so many threads.
pub fn cpu(threads: usize, activations: Activations) -> Box<dyn Backend> {
    Box::new(Cpu::new(CpuLevel::detect(), threads, activations))
}

impl Pair {
    pub fn engine(&self, kv: KvType, activations: Activations, spec: Spec) -> Engine {
        self.engine_with(&self.drafter.config, &self.drafter.weights, kv, activations, spec)
    }

    /// With another drafter.
    pub fn engine_with(
        &self,
        config: &DrafterConfig,
        weights: &dyn WeightSource,
        kv: KvType,
        activations: Activations,
        spec: Spec,
    ) -> Engine {
        let target = (&self.target.config, &self.target.weights as &dyn WeightSource);
        let engine = Engine::load(cpu(2, activations), target, Some((config, weights)), kv, spec);
        engine.expect("the pair loads")
    }

    /// On another backend.
    pub fn engine_on(&self, backend: Box<dyn Backend>, spec: Spec) -> Engine {
        let target = (&self.target.config, &self.target.weights as &dyn WeightSource);
        let drafter = (&self.drafter.config, &self.drafter.weights as &dyn WeightSource);
        let engine = Engine::load(backend, target, Some(drafter), KvType::F16, spec);
        engine.expect("the pair loads")
    }

    /// With what leaves the device's memory where a placement says so.
    pub fn engine_placed(
        &self,
        backend: Box<dyn Backend>,
        (kv, placement): (KvType, Placement),
        spec: Spec,
    ) -> Engine {
        let target = (&self.target.config, &self.target.weights as &dyn WeightSource);
        let drafter = (&self.drafter.config, &self.drafter.weights as &dyn WeightSource);
        let memory = (kv, placement);
        let engine = Engine::load_placed(backend.into(), target, Some(drafter), memory, spec);
        engine.expect("the pair loads")
    }

    /// With the drafter on a backend of its own.
    pub fn engine_apart(
        &self,
        target: Box<dyn Backend>,
        drafter: Box<dyn Backend>,
        spec: Spec,
    ) -> Engine {
        let backends = Backends::apart(target, drafter, "elsewhere");
        let target = (&self.target.config, &self.target.weights as &dyn WeightSource);
        let drafter = (&self.drafter.config, &self.drafter.weights as &dyn WeightSource);
        let memory = (KvType::F16, Placement::ON_DEVICE);
        let engine = Engine::load_placed(backends, target, Some(drafter), memory, spec);
        engine.expect("the pair loads")
    }

    /// The first `count` prompts of a suite.
    pub fn prompts(&self, suite: &str, count: usize) -> Vec<Vec<u32>> {
        let of_suite = self.golden.iter().filter(|g| g["suite"] == suite);
        of_suite.take(count).map(|g| ids(&g["prompt_ids"])).collect()
    }
}

pub fn begin(engine: &mut Engine, prompt: &[u32], sampling: &Sampling) -> Generation {
    let sequence = engine.sequence();
    engine
        .begin(sequence, prompt, prompt, sampling.clone(), ENDS.to_vec(), |_| ())
        .expect("the prompt is read")
}

/// Tokens and acceptance lengths of one answer.
pub fn answer(
    engine: &mut Engine,
    prompt: &[u32],
    sampling: &Sampling,
    max: usize,
) -> (Vec<u32>, Vec<usize>) {
    let mut text = begin(engine, prompt, sampling);
    let (mut tokens, mut lengths) = (vec![text.tip()], Vec::new());
    while tokens.len() < max && !ENDS.contains(&tokens[tokens.len() - 1]) {
        let round = engine.step(&mut text, max - tokens.len()).expect("a round");
        lengths.push(round.accept_length());
        tokens.extend(round.emitted);
    }
    (tokens, lengths)
}

/// The blocks of a state as they come back from files.
pub fn copies(archived: &Archived) -> Vec<(BlockName, Memory)> {
    let copy = |block: &Arc<ArchivedBlock>| {
        let memory = block.memory().expect("its bytes");
        ([0; 32], memory.to_host().expect("a copy"))
    };
    archived.blocks.iter().map(copy).collect()
}
