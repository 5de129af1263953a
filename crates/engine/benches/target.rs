//! Speed of the target on this machine: `cargo bench -p engine -- [threads] [name...]`. Each figure is the best of
//! several rounds, since the machine may be shared; ratios come from the same run.

use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::{Model, Options, Row, Sequence, sampling, synthetic};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let threads = arguments.iter().find_map(|a| a.parse().ok()).unwrap_or(2);
    let wanted = |name: &str| {
        let mut names = arguments.iter().filter(|a| a.parse::<usize>().is_err()).peekable();
        names.peek().is_none() || names.any(|n| name.contains(n.as_str()))
    };
    println!("{:?}, {threads} threads; tokens per second (best of several rounds)", CpuLevel::detect());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = [
        ("dense Q4_K_M", "models/dense/target-Q4_K_M.gguf"),
        ("dense Q8_0", "dense/target-Q8_0.gguf"),
        ("dense BF16", "dense/target-bf16.gguf"),
        ("moe Q4_K_M", "tests/fixtures/moe/target-Q4_K_M.gguf"),
    ];
    for (name, file) in files {
        // The larger files are not in the repository: `FORERUN_FULL_MODELS` names the folder that `training/` fills.
        let folder = match file.starts_with("dense/") {
            true => std::env::var_os("FORERUN_FULL_MODELS").map(PathBuf::from).unwrap_or_default(),
            false => root.clone(),
        };
        let path = folder.join(file);
        if wanted(name) && path.exists() {
            let mut cpu = Cpu::new(CpuLevel::detect(), threads, Activations::Int8);
            let begin = Instant::now();
            let target = checkpoint::Target::open(&path).expect("the model opens");
            let options = Options { max_rows: 512, ..Options::default() };
            let mut model =
                Model::load(&mut cpu, &target.config, &target.weights, options).expect("it loads");
            println!("\n{name}: loaded in {:.0} ms, {:.1} MB of weights", ms(begin), megabytes(&cpu));
            measure(&mut model, &mut cpu, 100, 20);
            if name == "dense Q4_K_M" && wanted("context") {
                long(&mut model, &mut cpu);
            }
        }
    }
    if wanted("synthetic 0.8b") {
        let config = synthetic::qwen35_0_8b();
        let mut cpu = Cpu::new(CpuLevel::detect(), threads, Activations::Int8);
        let weights = synthetic::Weights::new(&config, synthetic::Mix::Q4_K_M, 1);
        let begin = Instant::now();
        let options = Options { max_rows: 128, ..Options::default() };
        let mut model = Model::load(&mut cpu, &config, &weights, options).expect("it loads");
        let bytes = megabytes(&cpu);
        println!("\nsynthetic 0.8b Q4_K_M: made in {:.0} ms, {bytes:.0} MB of weights", ms(begin));
        println!("  at 29 GB/s a token takes {:.1} ms", bytes / 29.0);
        measure(&mut model, &mut cpu, 8, 3);
    }
}

fn ms(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

fn megabytes(cpu: &Cpu) -> f64 {
    cpu.weight_bytes() as f64 / 1e6
}

fn chain(n: usize) -> Vec<Row> {
    (0..n as u32).map(|i| Row { token: 100 + i % 900, sequence: 0, parent: i.checked_sub(1) }).collect()
}

/// The shortest of `rounds` runs, in ms.
fn best(rounds: usize, mut f: impl FnMut()) -> f64 {
    (0..rounds)
        .map(|_| {
            let begin = Instant::now();
            f();
            ms(begin)
        })
        .fold(f64::INFINITY, f64::min)
}

fn pass(model: &mut Model, cpu: &mut Cpu, sequence: &Sequence, rows: usize) {
    let chosen: Vec<u32> = (0..rows.min(64) as u32).collect();
    model.forward(cpu, &chain(rows), &chosen, &[sequence]).expect("a pass");
}

fn measure(model: &mut Model, cpu: &mut Cpu, tokens: usize, rounds: usize) {
    let prompt: Vec<u32> = chain(model.options().max_rows).iter().map(|r| r.token).collect();
    let empty = model.sequence();
    let read = best(rounds.min(8), || {
        let mut sequence = empty.clone();
        model.read(cpu, &mut sequence, &prompt, |_| ()).expect("the prompt is read");
    });
    println!("  prompt of {}: {:.0} tok/s", prompt.len(), prompt.len() as f64 / read * 1e3);
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
            token = sampling::greedy(&model.logits(0)).expect("finite");
            times.push([pass, commit, ms(begin) - pass - commit]);
        }
    }
    let mut totals: Vec<f64> = times.iter().map(|t| t.iter().sum()).collect();
    totals.sort_by(f64::total_cmp);
    let median = |i: usize| {
        let mut part: Vec<f64> = times.iter().map(|t| t[i]).collect();
        part.sort_by(f64::total_cmp);
        part[part.len() / 2] * 1e3
    };
    println!(
        "  decode: {:.0} tok/s by the median token, {:.0} by the mean of the fastest half; median us: pass {:.0}, commit {:.1}, draw {:.1}",
        1e3 / totals[totals.len() / 2],
        1e3 * (totals.len() / 2) as f64 / totals[..totals.len() / 2].iter().sum::<f64>(),
        median(0),
        median(1),
        median(2),
    );
    let mut single = 0.0;
    for rows in [1, 2, 4, 8, 16, 24, 32, 64] {
        let chosen: Vec<u32> = (0..rows as u32).collect();
        let time = best(5 * rounds, || model.forward(cpu, &chain(rows), &chosen, &[&start]).expect("a pass"));
        if rows == 1 {
            single = time;
        }
        println!("  pass of {rows:2} rows: {time:.3} ms, {:.2} single-row passes", time / single);
    }
}

/// Where the time of a pass goes: the shortest time of each op over several passes, summed by name.
fn profile(model: &mut Model, cpu: &mut Cpu, sequence: &Sequence, rows: usize, rounds: usize) {
    let chosen: Vec<u32> = (0..if rows > 64 { 1 } else { rows } as u32).collect();
    let mut shortest = model.profile(cpu, &chain(rows), &chosen, sequence);
    for _ in 0..rounds {
        for (best, (_, time)) in shortest.iter_mut().zip(model.profile(cpu, &chain(rows), &chosen, sequence))
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

/// Prompts of 1K, 8K and 32K tokens.
fn long(model: &mut Model, cpu: &mut Cpu) {
    for tokens in [1024, 8192, 32768] {
        let prompt: Vec<u32> = chain(tokens).iter().map(|r| r.token).collect();
        let mut sequence = model.sequence();
        let read = best(1, || model.read(cpu, &mut sequence, &prompt, |_| ()).expect("the prompt is read"));
        let decode = best(20, || pass(model, cpu, &sequence, 1));
        let (speed, bytes) = (tokens as f64 / read * 1e3, sequence.bytes() as f64 / 1e6);
        println!(
            "  context {tokens}: prompt {speed:.0} tok/s, then {decode:.3} ms a token, {bytes:.0} MB of state ({:?})",
            KvType::F16
        );
    }
}
