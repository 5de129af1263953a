//! How many drafted tokens are accepted: as many as with the float32 reference, and fewer where
//! the drafter is read wrongly.

mod support;

use checkpoint::{Drafter, DrafterConfig, Overrides, Target};
use compute::{Activations, KvType};
use engine::Spec;
use engine::sampling::Sampling;
use std::collections::BTreeMap;
use std::path::PathBuf;
use support::{CHAIN, Pair, answer, begin, ids, pair};
use testing::Tensors;

fn mean(lengths: &[usize]) -> f64 {
    lengths.iter().sum::<usize>() as f64 / lengths.len() as f64
}

#[test]
fn chain_acceptance_is_the_references() {
    for name in ["dense", "moe"] {
        check_chain_acceptance(name, &pair(name));
    }
}

/// The same with the bf16 files, which are not in the repository.
#[test]
fn chain_acceptance_at_full_precision() {
    let Some(folder) = std::env::var_os("FORERUN_FULL_MODELS").map(PathBuf::from) else {
        println!("skipped: the full-precision models need FORERUN_FULL_MODELS");
        return;
    };
    for (name, target) in [("dense", "dense/target-bf16.gguf"), ("moe", "moe/hf")] {
        let target = Target::open(&folder.join(target)).expect("the target opens");
        let draft = folder.join(name).join("draft-hf");
        let drafter = Drafter::open(&draft, &Overrides::default(), Some(&target.config))
            .expect("the drafter opens");
        let golden = testing::prompts(&folder.join("golden"), name);
        check_chain_acceptance(name, &Pair { target, drafter, golden });
    }
}

fn check_chain_acceptance(name: &str, pair: &Pair) {
    let mut engine = pair.engine(KvType::F16, Activations::F32, CHAIN);
    let mut suites = BTreeMap::<String, (Vec<usize>, Vec<usize>)>::new();
    for golden in pair.golden.iter().filter(|g| g["suite"] != "long") {
        let (prompt, expected) = (ids(&golden["prompt_ids"]), ids(&golden["greedy_ids"]));
        let (_, lengths) = answer(&mut engine, &prompt, &Sampling::default(), expected.len());
        let suite = suites.entry(golden["suite"].as_str().expect("a name").to_owned()).or_default();
        suite.0.extend(lengths);
        suite.1.extend(ids(&golden["accept_lengths"]).into_iter().map(|l| l as usize));
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (suite, (a, b)) in suites {
        let ratio = mean(&a) / mean(&b);
        println!("{name} {suite}: {:.3}, golden {:.3}", mean(&a), mean(&b));
        assert!(
            (ratio - 1.0).abs() < 0.05,
            "{name} {suite}: {:.3} against {:.3}",
            mean(&a),
            mean(&b)
        );
        ours.extend(a);
        theirs.extend(b);
    }
    assert!(
        (mean(&ours) / mean(&theirs) - 1.0).abs() < 0.02,
        "{name}: {} {}",
        mean(&ours),
        mean(&theirs)
    );
}

#[test]
fn trees_accept_more_than_chains() {
    for name in ["dense", "moe"] {
        let pair = pair(name);
        let mut engine = pair.engine(KvType::F16, Activations::F32, CHAIN);
        for (suite, least) in [("complete", 1.15), ("math", 0.99), ("code", 0.99), ("plan", 0.99)] {
            let goldens: Vec<_> = pair.golden.iter().filter(|g| g["suite"] == suite).collect();
            let mut run = |spec: Spec| {
                engine.set_spec(spec);
                let all = goldens.iter().flat_map(|g| {
                    let (prompt, length) = (ids(&g["prompt_ids"]), ids(&g["greedy_ids"]).len());
                    answer(&mut engine, &prompt, &Sampling::default(), length).1
                });
                mean(&all.collect::<Vec<_>>())
            };
            let (chain, tree) = (run(CHAIN), run(Spec::Tree { block: 16, budget: 22 }));
            println!("{name} {suite}: chain {chain:.3}, tree {tree:.3}");
            assert!(tree >= least * chain, "{name} {suite}: tree {tree}, chain {chain}");
        }
    }
}

/// Each of these mistakes leaves the text right, so only acceptance can show it.
#[test]
fn mistakes_in_the_drafter_show_in_acceptance() {
    let dense = pair("dense");
    let long: Vec<u32> = {
        let golden = dense.golden.iter().find(|g| g["suite"] == "long").expect("a long prompt");
        ids(&golden["prompt_ids"])
    };
    let acceptance = |pair: &Pair, config: &DrafterConfig, prompts: &[Vec<u32>]| {
        let (kv, f32s) = (KvType::F16, Activations::F32);
        let mut engine = pair.engine_with(config, &pair.drafter.weights, kv, f32s, CHAIN);
        let all = prompts.iter().flat_map(|p| answer(&mut engine, p, &Sampling::default(), 64).1);
        mean(&all.collect::<Vec<_>>())
    };
    let prompts = [dense.prompts("code", 1), dense.prompts("math", 2)].concat();
    let right = dense.drafter.config.clone();
    let sound = acceptance(&dense, &right, &prompts);
    let worse = |what: &str, change: &dyn Fn(&mut DrafterConfig)| {
        let mut config = right.clone();
        change(&mut config);
        let found = acceptance(&dense, &config, &prompts);
        println!("{what}: {found:.2} instead of {sound:.2}");
        assert!(found < 0.97 * sound, "{what}: {found} instead of {sound}");
    };
    worse("taps shifted by one", &|c| c.taps.iter_mut().for_each(|t| *t += 1));
    worse("two taps swapped", &|c| c.taps.swap(0, 1));
    worse("causal", &|c| c.layers.iter_mut().for_each(|l| l.causal = true));
    // On short prompts rotation by another base and a wider window change the numbers, if not
    // always the choice.
    let first_logits = |pair: &Pair, config: &DrafterConfig, prompt: &[u32]| {
        let (kv, f32s) = (KvType::F16, Activations::F32);
        let mut engine = pair.engine_with(config, &pair.drafter.weights, kv, f32s, CHAIN);
        let mut text = begin(&mut engine, prompt, &Sampling::default());
        engine.step(&mut text, 16).expect("a round");
        engine.drafter("dflash").expect("a drafter").logits(7).expect("logits").to_vec()
    };
    let differs = |what: &str, pair: &Pair, prompt: &[u32], change: &dyn Fn(&mut DrafterConfig)| {
        let mut config = pair.drafter.config.clone();
        let before = first_logits(pair, &config, prompt);
        change(&mut config);
        let after = first_logits(pair, &config, prompt);
        let moved = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{what}: logits move by {moved:.2}");
        assert!(moved > 0.2, "{what}: logits move by {moved} only");
    };
    differs("window dropped", &dense, &long, &|c| {
        c.layers.iter_mut().for_each(|l| l.window = None)
    });
    differs("theta 1e6", &dense, &long, &|c| c.rope.theta = 1e6);
    let moe = pair("moe");
    let long: Vec<u32> =
        ids(
            &moe.golden.iter().find(|g| g["suite"] == "long").expect("a long prompt")["prompt_ids"],
        );
    differs("YaRN skipped", &moe, &long, &|c| c.rope.scaling = None);
}

#[test]
fn drafter_logits_are_the_references() {
    for name in ["dense", "moe"] {
        let pair = pair(name);
        let golden = Tensors::open(&testing::goldens(), &format!("{name}-q4"));
        let mut engine = pair.engine(KvType::F16, Activations::F32, CHAIN);
        let mut checked = 0;
        for name_of in golden.names() {
            let Some(key) = name_of.strip_suffix(".draft_logits") else { continue };
            let expected = golden.rows(&name_of).expect("logits");
            let prompt = pair.golden.iter().map(|g| ids(&g["prompt_ids"])).find(|p| {
                match key.strip_prefix("plong") {
                    Some(len) => len
                        .parse::<usize>()
                        .is_ok_and(|len| p.len().abs_diff(len) < 200 && p.len() > 300),
                    None => {
                        key == "p0" && *p == ids(&pair.golden[0]["prompt_ids"])
                            || key == "p1" && *p == ids(&pair.golden[1]["prompt_ids"])
                    }
                }
            });
            let Some(prompt) = prompt else { continue };
            let mut text = begin(&mut engine, &prompt, &Sampling::default());
            engine.step(&mut text, 16).expect("a round");
            let drafter = engine.drafter("dflash").expect("a drafter");
            let mut worst = 0.0f32;
            for (i, row) in expected.iter().enumerate() {
                let found = drafter.logits(i).expect("logits");
                assert_eq!(found.len(), row.len());
                worst = found.iter().zip(row).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
            }
            println!("{name} {key}: {worst:.4}");
            assert!(worst < 0.02, "{name} {key}: drafter logits differ by {worst}");
            checked += 1;
        }
        assert!(checked >= 2, "{name}: {checked} drafts compared");
    }
}
