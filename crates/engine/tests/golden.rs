//! The two tiny models against float32 results from their dequantised weights: logits, hidden
//! states, taps, the next-token block and greedy continuations, with f32 activations; and how near
//! int8 activations stay.

use compute::{Activations, Backend, Cpu, CpuLevel, reference::Reference};
use engine::draft::{Drafter, Reads, mtp::Mtp};
use engine::{KeptRows, Model, Options, Row, sampling};
use serde_json::Value;
use std::path::PathBuf;
use testing::{Pair, Tensors};

struct Golden {
    model: PathBuf,
    taps: Vec<usize>,
    prompts: Vec<Value>,
    tensors: Tensors,
}

impl Golden {
    fn open(name: &str) -> Self {
        let full = || {
            let folder = std::env::var_os("FORERUN_FULL_MODELS");
            PathBuf::from(folder.expect("asked for only where it is set"))
        };
        let (model, goldens, taps) = match name {
            "dense-q4" => (Pair::dense().target, testing::goldens(), vec![1, 3, 5, 6]),
            "moe-q4" => (Pair::moe().target, testing::goldens(), vec![0, 1, 2]),
            "dense" => {
                (full().join("dense/target-bf16.gguf"), full().join("golden"), vec![1, 3, 5, 6])
            }
            _ => (full().join("moe/hf"), full().join("golden"), vec![0, 1, 2]),
        };
        let (prompts, tensors) = (testing::prompts(&goldens, name), Tensors::open(&goldens, name));
        Self { model, taps, prompts, tensors }
    }

    fn load(&self, backend: &mut dyn Backend) -> Model {
        let target = checkpoint::Target::open(&self.model).expect("the model opens");
        let options = Options { taps: self.taps.clone(), ..Options::new(backend) };
        Model::load(backend, &target.config, &target.weights, options).expect("the model loads")
    }

    fn load_mtp(&self, backend: &mut dyn Backend, model: &Model) -> Mtp {
        let target = checkpoint::Target::open(&self.model).expect("the model opens");
        Mtp::load(backend, &target.weights, model).expect("the block loads")
    }
}

/// What a model makes of a text: for its last rows logits, hidden states and taps; and all its
/// hidden states, as the next-token block reads them.
struct Outputs {
    logits: Vec<Vec<f32>>,
    hidden: Vec<Vec<f32>>,
    taps: Vec<Vec<f32>>,
    kept: KeptRows,
}

fn outputs(model: &mut Model, backend: &mut dyn Backend, ids: &[u32], last: usize) -> Outputs {
    let mut sequence = model.sequence();
    let kept = KeptRows::new(model.config().hidden);
    let mut out = Outputs { logits: Vec::new(), hidden: Vec::new(), taps: Vec::new(), kept };
    // Chunks of 100 do not match pages, anchors or tiles.
    for (c, chunk) in ids.chunks(100).enumerate() {
        let first = c * 100;
        let rows: Vec<Row> = rows(chunk);
        let chosen: Vec<u32> =
            (0..chunk.len() as u32).filter(|r| first + *r as usize >= ids.len() - last).collect();
        model.forward(backend, &rows, &chosen, &[&sequence]).expect("a pass");
        for (i, row) in chosen.iter().enumerate() {
            out.logits.push(model.logits(backend, i).expect("logits").to_vec());
            out.hidden.push(model.hidden(*row as usize).expect("a row").to_vec());
            out.taps.push(model.taps(*row as usize).expect("a row").to_vec());
        }
        let path: Vec<u32> = (0..chunk.len() as u32).collect();
        let kept = model.keep(backend, Reads::Hidden, vec![(&mut out.kept, &path)]);
        kept.into_iter().collect::<Result<(), _>>().expect("room");
        model.commit(backend, 0, &mut sequence, &path).expect("a commit");
    }
    out
}

/// What the next-token block makes of the hidden states of a text: logits of its last rows.
fn mtp_logits(
    mtp: &mut Mtp,
    backend: &mut dyn Backend,
    ids: &[u32],
    last: usize,
    out: &Outputs,
) -> Vec<Vec<f32>> {
    let mut state = mtp.state();
    let next = sampling::greedy(out.logits.last().expect("a row")).expect("finite");
    let shifted: Vec<u32> = ids[1..].iter().copied().chain([next]).collect();
    let mut logits = Vec::new();
    for (c, chunk) in shifted.chunks(100).enumerate() {
        let first = c * 100;
        let chosen: Vec<u32> =
            (0..chunk.len() as u32).filter(|r| first + *r as usize >= ids.len() - last).collect();
        let hidden = [(&out.kept, first, chunk.len())];
        mtp.forward(backend, &rows(chunk), &hidden, &chosen, &[&state]).expect("a pass");
        let row = |i| mtp.logits(i).expect("a block").to_vec();
        logits.extend((0..chosen.len()).map(row));
        let path = (0..chunk.len() as u32).collect();
        mtp.commit(backend, vec![(&mut state, path)]).expect("a commit");
    }
    logits
}

fn rows(tokens: &[u32]) -> Vec<Row> {
    tokens
        .iter()
        .zip(0u32..)
        .map(|(token, i)| Row { token: *token, sequence: 0, parent: i.checked_sub(1) })
        .collect()
}

#[track_caller]
fn assert_within(name: &str, expected: &[Vec<f32>], got: &[Vec<f32>], absolute: f32) {
    assert_eq!(expected.len(), got.len(), "{name}");
    let worst = expected
        .iter()
        .flatten()
        .zip(got.iter().flatten())
        .map(|(e, g)| (e - g).abs())
        .fold(0.0, f32::max);
    assert!(worst <= absolute, "{name}: {worst} beyond {absolute}");
}

#[track_caller]
fn assert_relative(name: &str, expected: &[Vec<f32>], got: &[Vec<f32>], relative: f32) {
    assert_eq!(expected.len(), got.len(), "{name}");
    for (row, (e, g)) in expected.iter().zip(got).enumerate() {
        let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|v| v * v).sum::<f32>().sqrt();
        let difference =
            norm(&mut e.iter().zip(g).map(|(e, g)| e - g)) / norm(&mut e.iter().copied());
        assert!(difference <= relative, "{name} row {row}: {difference} beyond {relative}");
    }
}

fn check(golden: &Golden, backend: &mut dyn Backend, prompts: &[&str]) {
    let mut model = golden.load(backend);
    for prompt in prompts {
        let ids = golden.tensors.ids(&format!("{prompt}.ids")).expect("ids");
        let of = |part: &str| golden.tensors.rows(&format!("{prompt}.{part}"));
        let logits = of("logits").expect("logits");
        let out = outputs(&mut model, backend, &ids, logits.len());
        assert_within(&format!("{prompt} logits"), &logits, &out.logits, 0.02);
        assert_relative(
            &format!("{prompt} hidden"),
            &of("hidden").expect("hidden"),
            &out.hidden,
            1e-2,
        );
        assert_relative(&format!("{prompt} taps"), &of("taps").expect("taps"), &out.taps, 1e-2);
        if let Some(expected) = of("mtp_logits") {
            let mut mtp = golden.load_mtp(backend, &model);
            let found = mtp_logits(&mut mtp, backend, &ids, logits.len(), &out);
            assert_within(&format!("{prompt} mtp logits"), &expected, &found, 0.02);
        }
    }
}

const ALL: [&str; 4] = ["p0", "p1", "plong700", "plong2100"];

fn cpu(activations: Activations) -> Cpu {
    Cpu::new(CpuLevel::detect(), 1, activations)
}

#[test]
fn dense_with_f32_activations() {
    check(&Golden::open("dense-q4"), &mut cpu(Activations::F32), &ALL);
}

#[test]
fn moe_with_f32_activations() {
    check(&Golden::open("moe-q4"), &mut cpu(Activations::F32), &ALL);
}

#[test]
fn the_reference_ops() {
    check(&Golden::open("dense-q4"), &mut Reference::default(), &ALL[..2]);
    check(&Golden::open("moe-q4"), &mut Reference::default(), &ALL[..2]);
}

/// Mean KL divergence of the rows' distributions.
fn divergence(expected: &[Vec<f32>], got: &[Vec<f32>]) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let total: f64 = row.iter().map(|x| (*x as f64 - highest).exp()).sum();
        row.iter().map(|x| *x as f64 - highest - total.ln()).collect()
    };
    let row = |e: &[f32], g: &[f32]| -> f64 {
        let (e, g) = (log_softmax(e), log_softmax(g));
        e.iter().zip(&g).map(|(e, g)| e.exp() * (e - g)).sum()
    };
    expected.iter().zip(got).map(|(e, g)| row(e, g)).sum::<f64>() / expected.len() as f64
}

#[test]
fn int8_activations_stay_near() {
    for name in ["dense-q4", "moe-q4"] {
        let golden = Golden::open(name);
        let mut backend = cpu(Activations::Int8);
        let mut model = golden.load(&mut backend);
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        for prompt in ALL {
            let logits = golden.tensors.rows(&format!("{prompt}.logits")).expect("logits");
            got.extend(
                outputs(
                    &mut model,
                    &mut backend,
                    &golden.tensors.ids(&format!("{prompt}.ids")).expect("ids"),
                    logits.len(),
                )
                .logits,
            );
            expected.extend(logits);
        }
        let mean = divergence(&expected, &got);
        println!("{name}: mean KL {mean:.2e} over {} rows", expected.len());
        assert!(mean < 5e-4, "{name}: mean KL {mean}");
    }
}

/// Greedy ids equal the golden's, except from a step whose own margin is below 0.05.
fn check_greedy(golden: &Golden, activations: Activations) {
    let mut backend = cpu(activations);
    let mut model = golden.load(&mut backend);
    for prompt in &golden.prompts {
        let list = |key: &str| prompt[key].as_array().expect("a list").iter();
        let ids =
            |key: &str| list(key).map(|x| x.as_u64().expect("an id") as u32).collect::<Vec<u32>>();
        let margins: Vec<f64> =
            list("top2_margins").map(|x| x.as_f64().expect("a margin")).collect();
        let mut sequence = model.sequence();
        model
            .read(&mut backend, &mut sequence, &ids("prompt_ids"), |_| ())
            .expect("the prompt is read");
        for (step, expected) in ids("greedy_ids").into_iter().enumerate() {
            let token =
                sampling::greedy(&model.logits(&backend, 0).expect("logits")).expect("finite");
            if token != expected {
                assert!(
                    margins[step] < 0.05,
                    "{}: step {step} gives {token}, not {expected}",
                    prompt["prompt"]
                );
                break;
            }
            let row = Row { token, sequence: 0, parent: None };
            model.forward(&mut backend, &[row], &[0], &[&sequence]).expect("a pass");
            model.commit(&mut backend, 0, &mut sequence, &[0]).expect("a commit");
        }
    }
}

#[test]
fn greedy_continuations() {
    check_greedy(&Golden::open("dense-q4"), Activations::F32);
    check_greedy(&Golden::open("moe-q4"), Activations::F32);
}

#[test]
fn full_precision() {
    if std::env::var_os("FORERUN_FULL_MODELS").is_none() {
        println!("skipped: the full-precision models need FORERUN_FULL_MODELS");
        return;
    }
    for name in ["dense", "moe"] {
        let golden = Golden::open(name);
        check(&golden, &mut cpu(Activations::F32), &ALL);
        check_greedy(&golden, Activations::F32);
    }
}
