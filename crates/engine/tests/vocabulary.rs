//! The vocabulary of the published models, 248,320 rows, with everything else small: the dense
//! target with its next-token block, the mixture of experts, and a DFlash drafter for each.

use checkpoint::target::{Attention, Ffn, Gdn, Mixer, Mtp};
use checkpoint::{DrafterConfig, Rope, TargetConfig, drafter::DraftLayer};
use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::sampling::Sampling;
use engine::synthetic::{Mix, Weights};
use engine::{Engine, Spec, WeightSource};

const VOCABULARY: usize = 248_320;

fn target(ffn: Ffn) -> TargetConfig {
    TargetConfig {
        hidden: 64,
        vocab: VOCABULARY,
        layers: vec![Mixer::Gdn, Mixer::Attention],
        attention: Attention {
            q_heads: 2,
            kv_heads: 1,
            head_dim: 64,
            rotary_dims: 32,
            rope: Rope { theta: 1e7, scaling: None },
        },
        gdn: Gdn { key_heads: 1, value_heads: 2, head_dim: 32, conv_kernel: 4 },
        ffn,
        norm_eps: 1e-6,
        context_length: 4096,
        tied_head: false,
        mtp: Some(Mtp { own_embedding: false, own_head: false, own_norm: true }),
    }
}

fn drafter() -> DrafterConfig {
    let published = engine::synthetic::drafters_for("qwen3.6-27b");
    let shape = published.into_iter().next().expect("a published drafter");
    DrafterConfig {
        hidden: 64,
        layers: vec![DraftLayer { window: None, causal: false }],
        q_heads: 2,
        kv_heads: 1,
        head_dim: 64,
        ffn: 128,
        taps: vec![0, 1],
        mask_token: 248_070,
        ..shape
    }
}

#[test]
fn the_published_vocabulary_is_read_drafted_and_written_in_every_mode() {
    let experts = Ffn::Moe { experts: 8, used: 2, width: 32, shared_width: 32, weights_scale: 1.0 };
    for ffn in [Ffn::Dense { width: 128 }, experts] {
        let (target, drafter) = (target(ffn), drafter());
        let weights = Weights::new(&target, Mix::Q8_0, 5);
        let draft_weights = Weights::of_drafter(&drafter, Mix::Q8_0, 6);
        let cpu = Cpu::new(CpuLevel::detect(), 2, Activations::Int8);
        let pair = Some((&drafter, &draft_weights as &dyn WeightSource));
        let mut engine =
            Engine::load(Box::new(cpu), (&target, &weights), pair, KvType::F16, Spec::Off)
                .expect("the pair loads");
        // The last rows of the vocabulary too.
        let prompt = [0, 248_319, 248_045, 151_000, 17];
        let sampling = Sampling { temperature: 1.0, seed: 9, ..Sampling::default() };
        let mut plain: Option<Vec<u32>> = None;
        for spec in [
            Spec::Off,
            Spec::Chain { block: 16, budget: 15 },
            Spec::Tree { block: 16, budget: 22 },
            Spec::Mtp { depth: 3 },
            Spec::Auto { block: 16, budget: 31 },
        ] {
            engine.set_spec(spec);
            let sequence = engine.sequence();
            let mut text = engine
                .begin(sequence, &prompt, &prompt, sampling.clone(), Vec::new(), |_| ())
                .expect("the prompt is read");
            let mut tokens = vec![text.tip()];
            while tokens.len() < 8 {
                let round = engine.step(&mut text, 8 - tokens.len()).expect("a round");
                tokens.extend(round.emitted);
            }
            assert!(tokens.iter().all(|token| (*token as usize) < VOCABULARY), "{tokens:?}");
            assert_eq!(&tokens, plain.get_or_insert_with(|| tokens.clone()), "{spec:?}");
        }
        let plain = plain.expect("modes ran");
        assert!(plain.iter().any(|token| *token > 65_536), "{plain:?}");
    }
}
