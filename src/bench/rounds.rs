//! `forerun bench rounds`: what a round costs at a published shape, without its weights. Random weights, real kernels,
//! and an acceptance that is imposed, since random drafts never stand; the floor is bytes over measured bandwidth.

use super::cost::{Read, measured_bandwidth};
use super::floor::Floor;
use super::kernels::{self, Launches};
use super::named::{Figure as Cell, Named, Table};
use super::statistics::{Interval, interval};
use crate::model_flags::DeviceFlags;
use anyhow::{Result, bail};
use checkpoint::TargetConfig;
use engine::draft::MAX_NODES;
use engine::synthetic::{self, Mix};
use engine::{Engine, Generation, Sequence, Spec};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Shape: qwen3.6-27b, qwen3.6-35b-a3b and others; `list` prints their names
    #[arg(long, value_name = "SHAPE", default_value = "qwen3.6-27b")]
    synthetic: String,
    /// Types of the target's weights
    #[arg(long, value_enum, default_value = "q4_k_m")]
    quant: super::Weights,
    /// Types of the drafter's weights
    #[arg(long, value_enum, default_value = "q8_0")]
    draft_quant: super::Weights,
    /// Tokens kept of each round, on average; figures that rest on it say so
    #[arg(long, value_name = "LENGTH", default_value_t = 5.12)]
    assume_accept: f64,
    /// Tokens of context before the rounds
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1024")]
    context: Vec<usize>,
    /// Rows of verifies, 1 to 64
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,8,16,24,32,64")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=64))]
    rows: Vec<u8>,
    /// Tokens of the prompts that are read
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512,2048")]
    prompt: Vec<usize>,
    /// Budgets of tree rounds, 1 to 63
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "31")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=63))]
    tree: Vec<u8>,
    /// Blocks of chain rounds, 2 to 16
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16")]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=16))]
    chain: Vec<u8>,
    /// Depths of rounds of the target's own next-token block, 1 to 7; none unless given
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=7))]
    mtp: Vec<u8>,
    /// Also rounds of so many texts together, 2 to 32: plain ones, chains and those of the next-token block
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=32))]
    texts: Vec<u8>,
    /// Rounds of each kind; half as many verifies, a quarter for the stages of a round; prompts are read five times
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also time every launch of a verify and of a chain round, by itself
    #[arg(long)]
    kernels: bool,
    /// Write the figures to this file, as a run that `bench tables` takes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceFlags,
}

/// One figure.
#[derive(Clone, Debug)]
struct Figure {
    what: String,
    /// Tokens of context when it was taken.
    context: usize,
    ms: Interval,
    /// Bytes of weights and state it cannot do without, over the measured bandwidth.
    floor_ms: f64,
    /// Milliseconds of draft, verify, commit, each waited for; only of rounds.
    stages_ms: Option<[f64; 3]>,
    /// From the imposed length, or the tokens of a prompt.
    tokens_per_s: Option<f64>,
    /// Bytes copied to the device and back, of one of them.
    bytes_up: u64,
    bytes_down: u64,
}

struct Figures {
    device: String,
    shape: String,
    time: String,
    command: String,
    weight_bytes: u64,
    draft_bytes: u64,
    bandwidth_gb_s: f64,
    assumed_accept_length: f64,
    /// Distinct experts of the last layer that a pass of 16 rows touched.
    experts_of_16_rows: Option<f64>,
    figures: Vec<Figure>,
    launches: Vec<Launches>,
}

fn mix(weights: super::Weights) -> Mix {
    match weights {
        super::Weights::Q4 => Mix::Q4_K_M,
        super::Weights::Q8 => Mix::Q8_0,
        super::Weights::Bf16 => Mix::BF16,
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.synthetic == "list" {
        let mut out = std::io::stdout().lock();
        synthetic::NAMES.iter().try_for_each(|name| writeln!(out, "{name}"))?;
        return Ok(());
    }
    let Some(config) = synthetic::named(&args.synthetic) else {
        bail!("unknown shape `{}`: {} expected", args.synthetic, synthetic::NAMES.join(", "));
    };
    if !(args.assume_accept.is_finite() && args.assume_accept >= 1.0) {
        bail!("`--assume-accept {}`: a round keeps at least one token", args.assume_accept);
    }
    let config = TargetConfig { mtp: config.mtp.filter(|_| !args.mtp.is_empty()), ..config };
    if config.mtp.is_none() && !args.mtp.is_empty() {
        bail!("`--mtp`: `{}` has no next-token block", args.synthetic);
    }
    let drafter = synthetic::drafter_for(&args.synthetic);
    let weights = synthetic::Weights::new(&config, mix(args.quant), 1).with_distinct_tokens();
    let drafter = drafter.map(|d| {
        let weights = synthetic::Weights::of_drafter(&d, mix(args.draft_quant), 2);
        (d, weights)
    });
    let block = format!("blk.{}.", config.layers.len());
    let (mtp, bytes): (BTreeMap<_, _>, BTreeMap<_, _>) =
        weights.bytes().into_iter().partition(|(name, _)| name.starts_with(&block));
    let read = Read::new(&config, &bytes);
    let draft_bytes: u64 = drafter.iter().flat_map(|(_, w)| w.bytes().into_values()).sum();
    let head_bytes = bytes.get("output.weight").or(bytes.get("token_embd.weight")).copied().unwrap_or(0);
    let mut backend = args.device.backend()?;
    let bandwidth = match backend.read_bandwidth()? {
        Some(bandwidth) => bandwidth,
        None => measured_bandwidth(read.by(1) as usize, args.device.cpu()?.threads()),
    };
    let device = backend.describe();
    eprintln!("{device}: {:.0} GB/s; making weights", bandwidth / 1e9);
    let pair = drafter.as_ref().map(|(d, w)| (d, w as &dyn engine::WeightSource));
    let engine = Engine::load(backend, (&config, &weights), pair, args.device.kv(), Spec::Off)?;
    let kv_bytes = {
        let row = args.device.kv().row_bytes(config.attention.head_dim);
        config.attention_layers() * 2 * config.attention.kv_heads * row
    };
    let mut bench = Bench {
        engine,
        args,
        figures: Vec::new(),
        launches: Vec::new(),
        read: HashMap::new(),
        vocab: config.vocab,
    };
    let floor = Floor {
        read: &read,
        kv_bytes,
        state: bench.engine.model().recurrent_layout(),
        drafter: drafter.as_ref().map(|(config, _)| config),
        draft_bytes: draft_bytes + head_bytes,
        mtp_bytes: Read::new(&config, &mtp).by(1) + head_bytes,
        prompt_rows: bench.engine.model().options().max_rows,
        bandwidth,
    };
    for &tokens in &args.prompt {
        bench.prompt(tokens, floor.prompt(tokens))?;
    }
    let mut experts = None;
    for &context in &args.context {
        bench.plain(context, 1, &floor)?;
        let counted = bench.verifies(context, &floor)?;
        experts = experts.or(counted);
        bench.rounds(context, 1, &floor)?;
        for texts in args.texts.iter().map(|&texts| usize::from(texts)) {
            bench.plain(context, texts, &floor)?;
            bench.rounds(context, texts, &floor)?;
        }
    }
    let figures = Figures {
        device,
        shape: args.synthetic.clone(),
        time: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M").to_string(),
        command: std::iter::once("forerun".to_owned())
            .chain(std::env::args().skip(1))
            .collect::<Vec<_>>()
            .join(" "),
        weight_bytes: read.all(),
        draft_bytes,
        bandwidth_gb_s: bandwidth / 1e9,
        assumed_accept_length: args.assume_accept,
        experts_of_16_rows: experts,
        figures: bench.figures,
        launches: bench.launches,
    };
    figures.print()?;
    if let Some(path) = &args.out {
        figures.named().write(path)?;
    }
    Ok(())
}

struct Bench<'a> {
    engine: Engine,
    args: &'a Args,
    figures: Vec<Figure>,
    launches: Vec<Launches>,
    /// Contexts that were read, all but their last token, by their length and whether a drafter read them too.
    read: HashMap<(usize, bool), Sequence>,
    vocab: usize,
}

/// Runs of a pass whose launches are timed one by one.
const TIMED_RUNS: usize = 5;

impl Bench<'_> {
    fn tokens(&self, count: usize) -> Vec<u32> {
        (0..count).map(|i| ((100 + i * 7919) % self.vocab.min(200_000)) as u32).collect()
    }

    fn text(&mut self, context: usize, spec: Spec) -> Result<Generation> {
        self.engine.set_spec(spec);
        let (prompt, key) = (self.tokens(context), (context, spec != Spec::Off));
        if !self.read.contains_key(&key) {
            self.read.retain(|(length, _), _| *length == context);
            let (_, sequence) = self.engine.time_prompt(&prompt[..context.saturating_sub(1)])?;
            self.read.insert(key, sequence);
        }
        Ok(self.engine.rehearsal(self.read[&key].clone(), &prompt)?)
    }

    /// Texts of so much context, none of which has anything in common with another.
    fn company(&mut self, context: usize, texts: usize, spec: Spec) -> Result<Vec<Generation>> {
        let mut company = vec![self.text(context, spec)?];
        let prompt = self.tokens(context);
        while company.len() < texts {
            let (_, sequence) = self.engine.time_prompt(&prompt[..context.saturating_sub(1)])?;
            company.push(self.engine.rehearsal(sequence, &prompt)?);
        }
        Ok(company)
    }

    fn push(&mut self, figure: Figure) {
        let tokens = figure.tokens_per_s.map_or_else(String::new, |t| format!(", {t:.0} tok/s"));
        eprintln!("{:24} {:8.3} ms, floor {:.3}{tokens}", figure.what, figure.ms.value, figure.floor_ms);
        self.figures.push(figure);
    }

    /// Times every launch of what `pass` does, if that was asked for.
    fn watch(
        &mut self,
        what: &str,
        mut pass: impl FnMut(&mut Engine) -> Result<(), engine::Error>,
    ) -> Result<()> {
        if !self.args.kernels {
            return Ok(());
        }
        self.engine.backend().time_launches(true)?;
        let done = (0..TIMED_RUNS).try_for_each(|_| pass(&mut self.engine));
        let timed = self.engine.backend().time_launches(false)?;
        self.launches.push(Launches::new(what.to_owned(), TIMED_RUNS, timed));
        Ok(done?)
    }

    fn prompt(&mut self, tokens: usize, floor_ms: f64) -> Result<()> {
        self.engine.set_spec(Spec::Off);
        let prompt = self.tokens(tokens);
        self.engine.time_prompt(&prompt)?;
        let mut times = Vec::new();
        for _ in 0..5 {
            times.push(self.engine.time_prompt(&prompt)?.0 * 1e3);
        }
        let ms = interval(&times);
        let tokens_per_s = Some(tokens as f64 / ms.value * 1e3);
        let what = format!("prompt of {tokens}");
        let none = (0, 0);
        self.push(figure(what, 0, ms, floor_ms, tokens_per_s, none));
        Ok(())
    }

    fn plain(&mut self, context: usize, texts: usize, floor: &Floor<'_>) -> Result<()> {
        let mut company = self.company(context, texts, Spec::Off)?;
        let (mut times, mut bytes) = (Vec::new(), (0, 0));
        for i in 0..self.args.rounds + 5 {
            let before = self.engine.backend().transferred();
            let seconds = self.engine.rehearse(&mut company, 1, false)?.round_s;
            let after = self.engine.backend().transferred();
            bytes = (after.0 - before.0, after.1 - before.1);
            if i >= 5 {
                times.push(seconds * 1e3);
            }
        }
        let ms = interval(&times);
        let tokens_per_s = Some(texts as f64 * 1e3 / ms.value);
        let (what, floor_ms) = (of_texts("plain decode", texts), floor.pass(texts, texts * context));
        self.push(figure(what, context, ms, floor_ms, tokens_per_s, bytes));
        Ok(())
    }

    /// Verifies by rows; the distinct experts that 16 rows touched, of a mixture.
    fn verifies(&mut self, context: usize, floor: &Floor<'_>) -> Result<Option<f64>> {
        let mut text = self.text(context, Spec::Off)?;
        let mut experts = None;
        for rows in self.args.rows.iter().map(|&rows| usize::from(rows)) {
            let mut times = Vec::new();
            for i in 0..self.args.rounds.div_ceil(2) + 3 {
                let seconds = self.engine.time_verify(&mut text, rows)?;
                if i >= 3 {
                    times.push(seconds * 1e3);
                }
            }
            if rows == 16 {
                experts = self.engine.model().experts_touched(rows).map(|n| n as f64);
            }
            let what = format!("verify of {rows} rows");
            self.watch(&what, |engine| engine.time_verify(&mut text, rows).map(drop))?;
            self.push(figure(what, context, interval(&times), floor.pass(rows, context), None, (0, 0)));
        }
        Ok(experts)
    }

    /// Rounds as asked for: trees of one text, chains and those of the next-token block also of several.
    fn rounds(&mut self, context: usize, texts: usize, floor: &Floor<'_>) -> Result<()> {
        let args = self.args;
        let floors = |rows: usize, draft_ms: f64| {
            let (rows, kept) = ((texts * rows).min(MAX_NODES + 1), args.assume_accept.min(rows as f64));
            [draft_ms, floor.pass(rows, texts * context), texts as f64 * floor.commit(kept)]
        };
        for depth in args.mtp.iter().map(|&depth| usize::from(depth)) {
            let spec = Spec::Mtp { depth };
            let floors = floors(depth + 1, depth as f64 * floor.mtp());
            self.round(context, texts, spec, &format!("MTP-{depth} round"), floors)?;
        }
        if self.engine.drafter().is_none() {
            return Ok(());
        }
        for block in args.chain.iter().map(|&block| usize::from(block)) {
            let spec = Spec::Chain { block, budget: block - 1 };
            let floors = floors(block, floor.draft(texts * context));
            let stages = self.round(context, texts, spec, &format!("chain-{block} round"), floors)?;
            for (stage, name) in [(0, "draft"), (2, "commit")] {
                let what = of_texts(&format!("{name}, block {block}"), texts);
                self.push(figure(what, context, stages[stage], floors[stage], None, (0, 0)));
            }
        }
        for budget in args.tree.iter().filter(|_| texts == 1).map(|&budget| usize::from(budget)) {
            let spec = Spec::Tree { block: 16, budget };
            let floors = floors(budget + 1, floor.draft(context));
            self.round(context, 1, spec, &format!("tree round, {} rows", budget + 1), floors)?;
        }
        Ok(())
    }

    /// Whole rounds; milliseconds of their draft, verify and commit, each waited for.
    fn round(
        &mut self,
        context: usize,
        texts: usize,
        spec: Spec,
        what: &str,
        floors_ms: [f64; 3],
    ) -> Result<[Interval; 3]> {
        let mut company = self.company(context, texts, spec)?;
        let accept = self.args.assume_accept;
        // Whole lengths whose mean is the imposed one.
        let length = |i: usize| ((i + 1) as f64 * accept) as usize - (i as f64 * accept) as usize;
        let (mut times, mut bytes, mut tokens) = (Vec::new(), (0, 0), 0);
        for i in 0..self.args.rounds as usize + 5 {
            let before = self.engine.backend().transferred();
            let rehearsed = self.engine.rehearse(&mut company, length(i), false)?;
            let after = self.engine.backend().transferred();
            bytes = (after.0 - before.0, after.1 - before.1);
            if i >= 5 {
                times.push(rehearsed.round_s * 1e3);
                tokens += rehearsed.tokens;
            }
        }
        let mut stages = [const { Vec::new() }; 3];
        for i in 0..self.args.rounds.div_ceil(4) as usize {
            let r = self.engine.rehearse(&mut company, length(i), true)?;
            for (list, seconds) in stages.iter_mut().zip([r.draft_s, r.verify_s, r.commit_s]) {
                list.push(seconds * 1e3);
            }
        }
        let what = of_texts(what, texts);
        if matches!(spec, Spec::Chain { .. }) {
            self.watch(&what, |engine| engine.rehearse(&mut company, 5, false).map(drop))?;
        }
        let ms = interval(&times);
        let tokens_per_s = Some(tokens as f64 / times.len() as f64 / ms.value * 1e3);
        let stages = stages.map(|list| interval(&list));
        let floor_ms = floors_ms.iter().sum();
        let mut figure = figure(what, context, ms, floor_ms, tokens_per_s, bytes);
        figure.stages_ms = Some(stages.map(|ms| ms.value));
        self.push(figure);
        Ok(stages)
    }
}

/// What was measured, of so many texts together.
fn of_texts(what: &str, texts: usize) -> String {
    if texts == 1 { what.to_owned() } else { format!("{what}, {texts} texts") }
}

fn figure(
    what: String,
    context: usize,
    ms: Interval,
    floor_ms: f64,
    tokens_per_s: Option<f64>,
    (bytes_up, bytes_down): (u64, u64),
) -> Figure {
    Figure { what, context, ms, floor_ms, stages_ms: None, tokens_per_s, bytes_up, bytes_down }
}

impl Figures {
    /// The same as a run that pages quote.
    fn named(&self) -> Named {
        let columns = [
            "",
            "context",
            "ms",
            "floor ms",
            "ratio",
            "tok/s",
            "draft + verify + commit ms",
            "bytes up / down",
        ];
        let round = |x: f64, by: f64| (x * by).round() / by;
        let none = || Cell::Text(String::new());
        let row = |f: &Figure| {
            let stages =
                f.stages_ms.map_or_else(String::new, |[d, v, c]| format!("{d:.2} + {v:.2} + {c:.2}"));
            let bytes =
                if f.bytes_up > 0 { format!("{} / {}", f.bytes_up, f.bytes_down) } else { String::new() };
            vec![
                Cell::Text(f.what.clone()),
                Cell::Number(f.context as f64),
                Cell::Interval([f.ms.value, f.ms.low, f.ms.high].map(|x| round(x, 1e3))),
                Cell::Number(round(f.floor_ms, 1e3)),
                Cell::Number(round(f.ms.value / f.floor_ms, 1e2)),
                f.tokens_per_s.map_or_else(none, |t| Cell::Number(t.round())),
                Cell::Text(stages),
                Cell::Text(bytes),
            ]
        };
        let table = Table {
            columns: columns.map(str::to_owned).to_vec(),
            rows: self.figures.iter().map(row).collect(),
        };
        let experts = self
            .experts_of_16_rows
            .map_or_else(String::new, |n| format!("; 16 rows touched {n} experts of the last layer"));
        Named {
            machine: format!("{}, memory read at {:.0} GB/s", self.device, self.bandwidth_gb_s),
            build: runs::machine::build(&std::env::current_exe().unwrap_or_default()),
            date: self.time.clone(),
            command: self.command.clone(),
            shapes: format!(
                "{}, random weights: target {:.2} GB, drafter {:.2} GB; acceptance of {} imposed{experts}",
                self.shape,
                self.weight_bytes as f64 / 1e9,
                self.draft_bytes as f64 / 1e9,
                self.assumed_accept_length
            ),
            tables: [("rounds", table), ("kernels", kernels::table(&self.launches))]
                .into_iter()
                .filter(|(_, table)| !table.rows.is_empty())
                .map(|(name, table)| (name.to_owned(), table))
                .collect(),
        }
    }

    fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{} on {}, {} UTC", self.shape, self.device, self.time)?;
        writeln!(
            out,
            "target {:.2} GB, drafter {:.2} GB, memory read at {:.0} GB/s; acceptance of {} imposed",
            self.weight_bytes as f64 / 1e9,
            self.draft_bytes as f64 / 1e9,
            self.bandwidth_gb_s,
            self.assumed_accept_length
        )?;
        if let Some(experts) = self.experts_of_16_rows {
            writeln!(out, "experts of the last layer that 16 rows touched: {experts}")?;
        }
        writeln!(
            out,
            "{:24} {:>7} {:>9} {:>9} {:>6} {:>9}  draft+verify+commit, bytes up/down",
            "", "context", "ms", "floor ms", "ratio", "tok/s"
        )?;
        for f in &self.figures {
            let tokens = f.tokens_per_s.map_or_else(String::new, |t| format!("{t:.0}"));
            let (floor, ratio) = (f.floor_ms, f.ms.value / f.floor_ms);
            let stages =
                f.stages_ms.map_or_else(String::new, |[d, v, c]| format!("{d:.3} + {v:.3} + {c:.3}"));
            let bytes =
                if f.bytes_up > 0 { format!("{}/{}", f.bytes_up, f.bytes_down) } else { String::new() };
            writeln!(
                out,
                "{:24} {:>7} {:>9.3} {floor:>9.3} {ratio:>6.2} {tokens:>9}  {stages} {bytes}",
                f.what, f.context, f.ms.value
            )?;
        }
        kernels::print(&mut out, &self.launches)?;
        Ok(out.flush()?)
    }
}
