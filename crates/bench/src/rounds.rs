//! `forerun bench rounds`: what a round costs at a published shape, without its weights. Random
//! weights, real kernels, and an acceptance that is imposed, since random drafts never stand; the
//! floor is bytes over measured bandwidth.

use crate::cost::{Read, measured_bandwidth};
use crate::figures::{Figure, Figures};
use crate::floor::{Elsewhere, Floor};
use crate::kernels::Launches;
use crate::statistics::{Interval, interval};
use anyhow::{Result, bail};
use compute::expert_cache::Hits;
use engine::{Engine, Generation, Sequence, Spec, synthetic};
use launch::{DeviceFlags, Plan};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

mod setup;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Shape: qwen3.6-27b, qwen3.6-35b-a3b and others; `list` prints their names
    #[arg(long, value_name = "SHAPE", default_value = "qwen3.6-27b")]
    synthetic: String,
    /// With a DFlash 2 drafter, where DFlash drafters of both generations are published
    #[arg(long)]
    dflash2: bool,
    /// Types of the target's weights
    #[arg(long, value_enum, default_value = "q4_k_m")]
    quant: crate::Weights,
    /// Types of the drafter's weights
    #[arg(long, value_enum, default_value = "q8_0")]
    draft_quant: crate::Weights,
    /// The share of all choices that the best 60 % of a mixture's experts take, from 0.6, which is
    /// all alike, to 1; texts of trained models are at 0.93 and more
    #[arg(long, value_name = "SHARE")]
    routing_skew: Option<f64>,
    /// Tokens kept of each round, on average; figures that rest on it say so
    #[arg(long, value_name = "LENGTH", default_value_t = 5.12)]
    assume_accept: f64,
    /// Tokens of context before the rounds
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1024")]
    context: Vec<usize>,
    /// Rows of verifies, as many as a pass has at most
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,8,16,24,32,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    rows: Vec<u16>,
    /// Tokens of the prompts that are read
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512,2048")]
    prompt: Vec<usize>,
    /// Budgets of tree rounds, one less than that at most
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "31")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    tree: Vec<u16>,
    /// Blocks of chain rounds, 2 to 16
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16")]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=16))]
    chain: Vec<u8>,
    /// Depths of rounds of the target's own next-token block, 1 to 7; none unless given
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=7))]
    mtp: Vec<u8>,
    /// Also rounds of so many texts together, from 2 on, as many as a pass has rows: plain ones,
    /// chains and those of the next-token block
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(2..))]
    texts: Vec<u16>,
    /// Rounds of each kind; half as many verifies, a quarter for the stages of a round; prompts are
    /// read five times
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also time every launch of a verify, of a chain round and of plain rounds of several texts,
    /// by itself
    #[arg(long)]
    kernels: bool,
    /// Write the figures to this file, as a run that `bench tables` takes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceFlags,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.synthetic == "list" {
        let mut out = std::io::stdout().lock();
        synthetic::NAMES.iter().try_for_each(|name| writeln!(out, "{name}"))?;
        return Ok(());
    }
    let config = setup::shape(args)?;
    let drafter = setup::drafter(args)?;
    let skew = setup::skew(args, &config)?;
    let weights = synthetic::Weights::new(&config, args.quant.mix(), 1)
        .with_distinct_tokens()
        .with_skew(skew.clone());
    let drafter = drafter.map(|d| {
        let weights = synthetic::Weights::of_drafter(&d, args.draft_quant.mix(), 2);
        (d, weights)
    });
    let block = format!("blk.{}.", config.layers.len());
    let (mtp, bytes): (BTreeMap<_, _>, BTreeMap<_, _>) =
        weights.bytes().into_iter().partition(|(name, _)| name.starts_with(&block));
    let read = Read::new(&config, &bytes).with_odds(skew.as_ref().map(|skew| skew.odds()));
    let (looked_up, multiplied): (BTreeMap<_, _>, BTreeMap<_, _>) = drafter
        .iter()
        .flat_map(|(_, weights)| weights.bytes())
        .partition(|(name, _)| setup::is_codebook(name));
    let multiplied: u64 = multiplied.into_values().sum();
    let draft_bytes = multiplied + looked_up.into_values().sum::<u64>();
    let head_bytes =
        bytes.get("output.weight").or(bytes.get("token_embd.weight")).copied().unwrap_or(0);
    let (mut backend, room) = args.device.backend()?;
    let trees = args.tree.iter().map(|n| usize::from(*n) + 1);
    let of_text = args.rows.iter().map(|n| usize::from(*n)).chain(trees).max().unwrap_or(0);
    if of_text > backend.text_rows() {
        let most = backend.text_rows();
        bail!("a pass of {of_text} rows of a text is asked for, which has {most} at most here");
    }
    let (texts, most) = (args.texts.iter().copied().max().unwrap_or(0), backend.decode_rows());
    if usize::from(texts) > most {
        bail!("a pass of {texts} texts is asked for, and has {most} rows at most here");
    }
    if !backend.has_own_memory() && args.device.place.disk().is_none() {
        launch::check_weights(read.all() + draft_bytes)?;
    }
    let bandwidth = match backend.read_bandwidth()? {
        Some(bandwidth) => bandwidth,
        None => measured_bandwidth(read.by(1) as usize, args.device.cpu()?.threads()),
    };
    let device = backend.describe();
    eprintln!("{device}: {:.0} GB/s; making weights", bandwidth / 1e9);
    let pair = drafter.as_ref().map(|(d, w)| (d, w as &dyn engine::WeightSource));
    let bus = backend.bus_bandwidth()?;
    let (engine, plan) = setup::load(args, backend, room, (&config, &weights), pair)?;
    let kv_bytes = {
        let row = args.device.kv().row_bytes(config.attention.head_dim);
        config.attention_layers() * 2 * config.attention.kv_heads * row
    };
    let mut bench = Bench {
        engine,
        args,
        figures: Vec::new(),
        launches: Vec::new(),
        read: None,
        vocab: config.vocab,
    };
    let near_tokens = bench.engine.model().options().placement.near_tokens;
    let placed = plan.filter(|plan| plan.host_weights + plan.far_state > 0);
    let elsewhere = placed.zip(bus).map(|(plan, bus)| elsewhere(&plan, bus, near_tokens));
    let floor = Floor {
        read: &read,
        kv_bytes,
        state: bench.engine.model().recurrent_layout(),
        drafter: drafter.as_ref().map(|(config, _)| config),
        draft_bytes: multiplied + head_bytes,
        mtp_bytes: Read::new(&config, &mtp).by(1) + head_bytes,
        prompt_rows: bench.engine.model().options().max_rows,
        bandwidth,
        elsewhere,
    };
    let experts_of_16_rows = bench.everything(&floor)?;
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
        bus_gb_s: elsewhere.map(|elsewhere| elsewhere.bandwidth / 1e9),
        assumed_accept_length: args.assume_accept,
        placed: placed.map(|plan| plan.line()),
        experts_of_16_rows,
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
    /// The context that was read last, all but its last token, with its length and whether a
    /// drafter and the next-token block read it too. One, because they are as large as texts are.
    read: Option<((usize, bool, bool), Sequence)>,
    vocab: usize,
}

/// Runs of a pass whose launches are timed one by one.
const TIMED_RUNS: usize = 5;

impl Bench<'_> {
    /// Measures all that was asked for; returns how many experts 16 rows visit, where there are
    /// any.
    fn everything(&mut self, floor: &Floor<'_>) -> Result<Option<f64>> {
        let args = self.args;
        for &tokens in &args.prompt {
            self.prompt(tokens, floor.prompt(tokens))?;
        }
        let mut experts = None;
        for &context in &args.context {
            self.plain(context, 1, floor)?;
            let counted = self.verifies(context, floor)?;
            experts = experts.or(counted);
            self.rounds(context, 1, floor)?;
            for texts in args.texts.iter().map(|&texts| usize::from(texts)) {
                self.plain(context, texts, floor)?;
                self.rounds(context, texts, floor)?;
            }
        }
        Ok(experts)
    }

    fn tokens(&self, count: usize) -> Vec<u32> {
        (0..count).map(|i| ((100 + i * 7919) % self.vocab.min(200_000)) as u32).collect()
    }

    fn text(&mut self, context: usize, spec: Spec) -> Result<Generation> {
        self.engine.set_spec(spec);
        let wants_mtp = matches!(spec, Spec::Mtp { .. });
        let (prompt, key) =
            (self.tokens(context), (context, spec != Spec::Off && !wants_mtp, wants_mtp));
        let known = self.read.take().filter(|(of, _)| *of == key);
        let sequence = match known {
            Some((_, sequence)) => sequence,
            None => self.engine.time_prompt(&prompt[..context.saturating_sub(1)])?.1,
        };
        self.read = Some((key, sequence.clone()));
        Ok(self.engine.rehearsal(sequence, &prompt)?)
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
        let cold = figure.cold.map_or_else(String::new, |c| format!(", {:.2} % cold", 100.0 * c));
        eprintln!(
            "{:24} {:8.3} ms, floor {:.3}{tokens}{cold}",
            figure.what, figure.ms.value, figure.floor_ms
        );
        self.figures.push(figure);
    }

    /// Rounds before those that count: where experts have copies, until these have come.
    fn warm_up(&mut self) -> usize {
        if self.engine.backend().expert_hits().is_some() { 40 } else { 5 }
    }

    /// The share of choices since then that no copy was there for, and what to ask from next.
    fn cold_since(&mut self, before: Option<Hits>) -> Option<f64> {
        let (before, now) = (before?, self.engine.backend().expert_hits()?);
        let (hot, cold) = (now.hot - before.hot, now.cold - before.cold);
        Some(cold as f64 / (hot + cold).max(1) as f64)
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
        self.push(Figure { tokens_per_s, ..Figure::new(what, 0, ms, floor_ms) });
        Ok(())
    }

    fn plain(&mut self, context: usize, texts: usize, floor: &Floor<'_>) -> Result<()> {
        let mut company = self.company(context, texts, Spec::Off)?;
        let (mut times, mut bytes, mut hits) = (Vec::new(), (0, 0), None);
        let warm_up = self.warm_up();
        for i in 0..self.args.rounds as usize + warm_up {
            if i == warm_up {
                hits = self.engine.backend().expert_hits();
            }
            let before = self.engine.backend().transferred();
            let seconds = self.engine.rehearse(&mut company, 1, false)?.round_s;
            let after = self.engine.backend().transferred();
            bytes = (after.0 - before.0, after.1 - before.1);
            if i >= warm_up {
                times.push(seconds * 1e3);
            }
        }
        let (ms, cold) = (interval(&times), self.cold_since(hits));
        let tokens_per_s = Some(texts as f64 * 1e3 / ms.value);
        let (what, floor_ms) = (of_texts("plain decode", texts), floor.pass(texts, texts, context));
        if texts > 1 {
            self.watch(&what, |engine| engine.rehearse(&mut company, 1, false).map(drop))?;
        }
        let (bytes_up, bytes_down) = bytes;
        let figure = Figure::new(what, context, ms, floor_ms);
        self.push(Figure { tokens_per_s, cold, bytes_up, bytes_down, ..figure });
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
                experts = self.engine.model().experts_touched(rows)?.map(|n| n as f64);
            }
            let what = format!("verify of {rows} rows");
            self.watch(&what, |engine| engine.time_verify(&mut text, rows).map(drop))?;
            self.push(Figure::new(what, context, interval(&times), floor.pass(rows, 1, context)));
        }
        Ok(experts)
    }

    /// Rounds as asked for: trees of one text, chains and those of the next-token block also of
    /// several.
    fn rounds(&mut self, context: usize, texts: usize, floor: &Floor<'_>) -> Result<()> {
        let (args, most) = (self.args, self.engine.text_rows());
        let rounds = |name: String, spec: Spec, rows: usize, draft_ms: f64| {
            let rows = rows.min((most / texts).max(1));
            let kept = args.assume_accept.min(rows as f64);
            let verify_ms = floor.pass(texts * rows, texts, context);
            let floors_ms = [draft_ms, verify_ms, texts as f64 * floor.commit(kept)];
            Rounds { what: of_texts(&name, texts), context, texts, spec, kept, floors_ms }
        };
        for depth in args.mtp.iter().map(|&depth| usize::from(depth)) {
            let draft_ms = depth as f64 * floor.mtp();
            self.round(&rounds(
                format!("MTP-{depth} round"),
                Spec::Mtp { depth },
                depth + 1,
                draft_ms,
            ))?;
        }
        if self.engine.drafter("dflash").is_none() {
            return Ok(());
        }
        let draft_ms = floor.draft(texts, context);
        for block in args.chain.iter().map(|&block| usize::from(block)) {
            let spec = Spec::Chain { block, budget: block - 1 };
            let rounds = rounds(format!("chain-{block} round"), spec, block, draft_ms);
            let stages = self.round(&rounds)?;
            for (stage, name) in [(0, "draft"), (2, "commit")] {
                let what = of_texts(&format!("{name}, block {block}"), texts);
                self.push(Figure::new(what, context, stages[stage], rounds.floors_ms[stage]));
            }
        }
        for budget in args.tree.iter().filter(|_| texts == 1).map(|&budget| usize::from(budget)) {
            let (rows, spec) = (budget + 1, Spec::Tree { block: 16, budget });
            self.round(&rounds(format!("tree round, {rows} rows"), spec, rows, draft_ms))?;
        }
        Ok(())
    }

    /// Whole rounds; milliseconds of their draft, verify and commit, each waited for.
    fn round(&mut self, rounds: &Rounds) -> Result<[Interval; 3]> {
        let &Rounds { ref what, context, texts, spec, kept, floors_ms } = rounds;
        let mut company = self.company(context, texts, spec)?;
        // Whole lengths whose mean is the imposed one.
        let length = |i: usize| ((i + 1) as f64 * kept) as usize - (i as f64 * kept) as usize;
        let (mut times, mut bytes, mut hits) = (Vec::new(), (0, 0), None);
        let warm_up = self.warm_up();
        for i in 0..self.args.rounds as usize + warm_up {
            if i == warm_up {
                hits = self.engine.backend().expert_hits();
            }
            let before = self.engine.backend().transferred();
            let seconds = self.engine.rehearse(&mut company, length(i), false)?.round_s;
            let after = self.engine.backend().transferred();
            bytes = (after.0 - before.0, after.1 - before.1);
            if i >= warm_up {
                times.push(seconds * 1e3);
            }
        }
        let cold = self.cold_since(hits);
        let mut stages = [const { Vec::new() }; 3];
        for i in 0..self.args.rounds.div_ceil(4) as usize {
            let r = self.engine.rehearse(&mut company, length(i), true)?;
            for (list, seconds) in stages.iter_mut().zip([r.draft_s, r.verify_s, r.commit_s]) {
                list.push(seconds * 1e3);
            }
        }
        if matches!(spec, Spec::Chain { .. }) {
            self.watch(what, |engine| engine.rehearse(&mut company, 5, false).map(drop))?;
        }
        let ms = interval(&times);
        let tokens_per_s = Some(texts as f64 * kept / ms.value * 1e3);
        let stages = stages.map(|list| interval(&list));
        let figure = Figure::new(what.clone(), context, ms, floors_ms.iter().sum());
        let (bytes_up, bytes_down) = bytes;
        let stages_ms = Some(stages.map(|ms| ms.value));
        self.push(Figure { stages_ms, tokens_per_s, cold, bytes_up, bytes_down, ..figure });
        Ok(stages)
    }
}

/// Rounds of one kind.
struct Rounds {
    what: String,
    /// Tokens of each text before them.
    context: usize,
    texts: usize,
    spec: Spec,
    /// Tokens that each text keeps of a round, on average.
    kept: f64,
    /// Of draft, verify and commit.
    floors_ms: [f64; 3],
}

/// What lies in the host's memory of a model that is planned so.
fn elsewhere(plan: &Plan, bandwidth: f64, near_tokens: usize) -> Elsewhere {
    let always = (plan.host_weights - plan.host_experts) as u64;
    let on_device = match plan.host_experts {
        0 => 1.0,
        bytes => plan.copies as f64 / bytes as f64,
    };
    Elsewhere { bandwidth, always, on_device, near_tokens }
}

/// What was measured, of so many texts together.
fn of_texts(what: &str, texts: usize) -> String {
    if texts == 1 { what.to_owned() } else { format!("{what}, {texts} texts") }
}
