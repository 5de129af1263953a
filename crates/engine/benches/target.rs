//! Speed of the target on this machine: `cargo bench -p forerun-engine --bench target -- [THREADS]
//! [NAME...] [--run NAME]`. Figures are medians; ratios come from the same run.

use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::{Model, Options, Row, Sequence, sampling, synthetic};
use runs::{Bench, Figure, Table, median};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// Names the folder of the larger files, which `training/` fills; they are not in the repository.
const FOLDER: &str = "FORERUN_FULL_MODELS";

fn main() -> runs::Result<()> {
    let mut bench = Bench::new("cargo bench -p forerun-engine --bench target")?;
    if std::env::var_os(FOLDER).is_some() {
        bench.run.command.insert_str(0, &format!("{FOLDER}=DIR "));
    }
    let threads = bench.words.iter().find_map(|a| a.parse().ok()).unwrap_or(2);
    let wanted = |name: &str| {
        let mut names = bench.words.iter().filter(|a| a.parse::<usize>().is_err()).peekable();
        names.peek().is_none() || names.any(|n| name.contains(n.as_str()))
    };
    let (mut targets, mut contexts) = (Vec::new(), Vec::new());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = [
        ("dense Q4_K_M", "models/dense/target-Q4_K_M.gguf"),
        ("dense Q8_0", "dense/target-Q8_0.gguf"),
        ("dense BF16", "dense/target-bf16.gguf"),
        ("moe Q4_K_M", "tests/fixtures/moe/target-Q4_K_M.gguf"),
    ];
    for (name, file) in files {
        let folder = match file.starts_with("dense/") {
            true => std::env::var_os(FOLDER).map(PathBuf::from).unwrap_or_default(),
            false => root.clone(),
        };
        let path = folder.join(file);
        if wanted(name) && path.exists() {
            let mut cpu = Cpu::new(CpuLevel::detect(), threads, Activations::Int8);
            let begin = Instant::now();
            let target = checkpoint::Target::open(&path).expect("the model opens");
            let options = Options { max_rows: 512, ..Options::new(&cpu) };
            let mut model =
                Model::load(&mut cpu, &target.config, &target.weights, options).expect("it loads");
            println!(
                "\n{name}: loaded in {:.0} ms, {:.1} MB of weights",
                ms(begin),
                megabytes(&cpu)
            );
            targets.push(measure(name, &mut model, &mut cpu, 100, 20));
            if name == "dense Q4_K_M" && wanted("context") {
                contexts = long(&mut model, &mut cpu);
            }
        }
    }
    if wanted("synthetic 0.8b") {
        let config = synthetic::qwen35_0_8b();
        let mut cpu = Cpu::new(CpuLevel::detect(), threads, Activations::Int8);
        let weights = synthetic::Weights::new(&config, synthetic::Mix::Q4_K_M, 1);
        let begin = Instant::now();
        let options = Options { max_rows: 128, ..Options::new(&cpu) };
        let mut model = Model::load(&mut cpu, &config, &weights, options).expect("it loads");
        let bytes = megabytes(&cpu);
        println!("\nsynthetic 0.8b Q4_K_M: made in {:.0} ms, {bytes:.0} MB of weights", ms(begin));
        targets.push(measure("synthetic 0.8b Q4_K_M", &mut model, &mut cpu, 8, 3));
    }
    let target = Table::new(
        &[
            "model",
            "weights MB",
            "prompt",
            "prompt tok/s",
            "decode tok/s",
            "1 row ms",
            "16 rows ms",
            "times",
        ],
        targets,
    );
    let context = Table::new(&["context", "prompt tok/s", "ms a token", "state MB"], contexts);
    let shapes = format!(
        "{threads} threads, {:?}; 100 tokens of context unless said, KV {:?}; medians; decode includes commit and draw; contexts \
         are of dense Q4_K_M",
        CpuLevel::detect(),
        KvType::F16
    );
    let tables = [("target", target), ("context", context)];
    bench.finish(&shapes, tables.into_iter().filter(|(_, table)| !table.rows.is_empty()))
}

fn ms(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

fn megabytes(cpu: &Cpu) -> f64 {
    cpu.weight_bytes() as f64 / 1e6
}

fn chain(n: usize) -> Vec<Row> {
    (0..n as u32)
        .map(|i| Row { token: 100 + i % 900, sequence: 0, parent: i.checked_sub(1) })
        .collect()
}

/// The median of `rounds` runs, in ms.
fn time(rounds: usize, mut f: impl FnMut()) -> f64 {
    median((0..rounds).map(|_| {
        let begin = Instant::now();
        f();
        ms(begin)
    }))
}

fn pass(model: &mut Model, cpu: &mut Cpu, sequence: &Sequence, rows: usize) {
    let chosen: Vec<u32> = (0..rows.min(64) as u32).collect();
    model.forward(cpu, &chain(rows), &chosen, &[sequence]).expect("a pass");
}

/// A row of the table of targets.
fn measure(
    name: &str,
    model: &mut Model,
    cpu: &mut Cpu,
    tokens: usize,
    rounds: usize,
) -> Vec<Figure> {
    let prompt: Vec<u32> = chain(model.options().max_rows).iter().map(|r| r.token).collect();
    let empty = model.sequence();
    let read = time(rounds.min(8), || {
        let mut sequence = empty.clone();
        model.read(cpu, &mut sequence, &prompt, |_| ()).expect("the prompt is read");
    });
    let mut start = model.sequence();
    model.read(cpu, &mut start, &prompt[..100], |_| ()).expect("the prompt is read");
    for rows in [1, 16, model.options().max_rows] {
        profile(model, cpu, &start, rows, if rows == 1 { 20 * rounds } else { rounds });
    }
    // Token by token: [pass, commit, draw], in ms.
    let mut times: Vec<[f64; 3]> = Vec::new();
    for _ in 0..rounds {
        let mut sequence = start.clone();
        let mut token = 7;
        for _ in 0..tokens {
            let begin = Instant::now();
            let row = Row { token, sequence: 0, parent: None };
            model.forward(cpu, &[row], &[0], &[&sequence]).expect("a pass");
            let pass = ms(begin);
            model.commit(cpu, 0, &mut sequence, &[0]).expect("a commit");
            let commit = ms(begin) - pass;
            token = sampling::greedy(&model.logits(cpu, 0).expect("a row")).expect("finite");
            times.push([pass, commit, ms(begin) - pass - commit]);
        }
    }
    let part = |i: usize| median(times.iter().map(|t| t[i])) * 1e3;
    println!(
        "  median us of a token: pass {:.0}, commit {:.1}, draw {:.1}",
        part(0),
        part(1),
        part(2)
    );
    let passes = [1, 2, 4, 8, 16, 24, 32, 64]
        .map(|rows| (rows, time(5 * rounds, || pass(model, cpu, &start, rows))));
    let single = passes[0].1;
    for (rows, time) in passes {
        println!("  pass of {rows:2} rows: {time:.3} ms, {:.2} single-row passes", time / single);
    }
    let sixteen = passes[4].1;
    vec![
        name.into(),
        megabytes(cpu).into(),
        prompt.len().into(),
        (prompt.len() as f64 / read * 1e3).into(),
        (1e3 / median(times.iter().map(|t| t.iter().sum()))).into(),
        single.into(),
        sixteen.into(),
        (sixteen / single).into(),
    ]
}

/// Where the time of a pass goes: the shortest time of each op over several passes, summed by name.
fn profile(model: &mut Model, cpu: &mut Cpu, sequence: &Sequence, rows: usize, rounds: usize) {
    let chosen: Vec<u32> = (0..if rows > 64 { 1 } else { rows } as u32).collect();
    let mut shortest = model.profile(cpu, &chain(rows), &chosen, sequence);
    for _ in 0..rounds {
        for (best, (_, time)) in
            shortest.iter_mut().zip(model.profile(cpu, &chain(rows), &chosen, sequence))
        {
            best.1 = best.1.min(time);
        }
    }
    let mut sums: Vec<(String, f64, usize)> = Vec::new();
    for (name, time) in shortest {
        let time = time.as_secs_f64() * 1e6;
        match sums.iter_mut().find(|(n, ..)| *n == name) {
            Some(sum) => (sum.1, sum.2) = (sum.1 + time, sum.2 + 1),
            None => sums.push((name, time, 1)),
        }
    }
    let total: f64 = sums.iter().map(|s| s.1).sum();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    let parts: Vec<String> = sums.iter().map(|(n, t, c)| format!("{n} x{c} {t:.1}")).collect();
    println!("  {rows:3} rows by op, us: {} = {total:.1}", parts.join(", "));
}

/// Rows of the table of contexts: prompts of 1K, 8K and 32K tokens, and a token after them.
fn long(model: &mut Model, cpu: &mut Cpu) -> Vec<Vec<Figure>> {
    let row = |tokens: usize| {
        let prompt: Vec<u32> = chain(tokens).iter().map(|r| r.token).collect();
        let mut sequence = model.sequence();
        let read = time(3, || {
            sequence = model.sequence();
            model.read(cpu, &mut sequence, &prompt, |_| ()).expect("the prompt is read");
        });
        let decode = time(20, || pass(model, cpu, &sequence, 1));
        let megabytes = sequence.bytes() as f64 / 1e6;
        vec![tokens.into(), (tokens as f64 / read * 1e3).into(), decode.into(), megabytes.into()]
    };
    [1024, 8192, 32768].map(row).into()
}
