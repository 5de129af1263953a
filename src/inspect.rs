//! `forerun inspect`: what a file is, how each setting was found, its tensors, and what looks
//! wrong.

use anyhow::{Result, bail};
use checkpoint::{
    Checkpoint, Drafter, DrafterConfig, Report, Source, Target, TargetConfig, Weights,
};
use compute::KvType;
use engine::{Engine, Placement, Spec, WeightSource};
use launch::{Beside, DraftFlags, DraftPlan, Need, Plan};
use launch::{about, locate};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `forerun inspect`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A GGUF file, a Hugging Face folder, a safetensors file, or a name as for `--model`
    file: PathBuf,
    /// Check a drafter against this target
    #[arg(long, value_name = "NAME|FILE")]
    target: Option<PathBuf>,
    /// Count what a target needs of a GPU, at its own context or at so many tokens; of a drafter
    /// what it needs of one of its own, beside `--target`
    #[arg(long, value_name = "TOKENS", num_args = 0..=1, default_missing_value = "0")]
    device: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    draft: DraftFlags,
}

/// What is printed; the text form shows the same.
#[derive(Serialize)]
struct Findings<'a> {
    file: String,
    kind: &'static str,
    /// Which kind of drafter.
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<checkpoint::drafter::Kind>,
    container: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dialect: Option<checkpoint::drafter::Dialect>,
    config: Config<'a>,
    layers: String,
    resolved: &'a [checkpoint::Resolution],
    warnings: &'a [String],
    skipped: &'a [String],
    totals: Totals,
    tensors: Vec<Tensor<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_memory: Option<Plan>,
    /// What a drafter needs of a device of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart: Option<DraftPlan>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Config<'a> {
    Target(&'a TargetConfig),
    /// The target that the block belongs to.
    Mtp(&'a TargetConfig),
    Drafter(&'a DrafterConfig),
}

#[derive(Serialize)]
struct Totals {
    tensors: usize,
    parameters: usize,
    bytes: usize,
    bytes_by_type: BTreeMap<String, usize>,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    stored_as: &'a [String],
    #[serde(rename = "type")]
    ty: String,
    shape: &'a [usize],
    bytes: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let target = args.target.as_deref().map(locate).transpose()?;
    let target = target.as_deref().map(|p| Target::open(p).map_err(about(p))).transpose()?;
    let against = target.as_ref();
    let target = against.map(|t| &t.config);
    let file = &locate(&args.file)?;
    let source = Source::open(file).map_err(about(file))?;
    let container = source.container();
    let opened = Checkpoint::read(source, &args.draft.overrides(), target).map_err(about(file))?;
    let mut findings = match &opened {
        Checkpoint::Target(t) => {
            Findings::new(args, container, Config::Target(&t.config), None, &t.weights, &t.report)
        }
        Checkpoint::Mtp(m) => {
            Findings::new(args, container, Config::Mtp(&m.config), None, &m.weights, &m.report)
        }
        Checkpoint::Drafter(d) => Findings::new(
            args,
            container,
            Config::Drafter(&d.config),
            Some(d.dialect),
            &d.weights,
            &d.report,
        ),
    };
    match (args.device, &opened, against) {
        (Some(tokens), Checkpoint::Target(t), _) => {
            findings.device_memory = Some(needed(t, None, tokens)?);
        }
        (Some(tokens), Checkpoint::Drafter(d), Some(t)) => {
            findings.apart = needed(t, Some(d), tokens)?.drafter;
        }
        (Some(_), Checkpoint::Drafter(_), None) => {
            bail!("`--device`: what a drafter needs follows from its target: give `--target FILE`")
        }
        _ => {}
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &findings).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        findings.print(&mut out)?;
    }
    Ok(out.flush()?)
}

/// What a target needs of a card with 24 GB or so, which reads prompts 256 tokens at a time, and a
/// drafter of another one.
fn needed(target: &Target, drafter: Option<&Drafter>, tokens: usize) -> Result<Plan> {
    let need = Need::count(256, drafter.map(|_| Beside::card(1, 256)), |ledgers| {
        let weights = (&target.config, &target.weights as &dyn WeightSource);
        let drafter = drafter.map(|d| (&d.config, &d.weights as &dyn WeightSource));
        let memory = (KvType::F16, Placement::ON_DEVICE);
        Ok(Engine::load_placed(ledgers, weights, drafter, memory, Spec::Off)?)
    })?;
    Ok(need.at(if tokens > 0 { tokens } else { target.config.context_length }))
}

impl<'a> Findings<'a> {
    fn new(
        args: &Args,
        container: String,
        config: Config<'a>,
        dialect: Option<checkpoint::drafter::Dialect>,
        weights: &'a Weights,
        report: &'a Report,
    ) -> Self {
        let (kind, family, layers) = match &config {
            Config::Target(t) => {
                let attention = t.attention_layers();
                let gdn = t.layers.len() - attention;
                let mtp = if t.mtp.is_some() { ", MTP block" } else { "" };
                ("target", None, format!("{attention} attention, {gdn} Gated DeltaNet{mtp}"))
            }
            Config::Mtp(t) => {
                let layers = t.layers.len();
                ("MTP block", None, format!("one attention layer after a target's {layers}"))
            }
            Config::Drafter(d) => ("drafter", Some(d.extras.kind()), d.layer_summary()),
        };
        let tensors: Vec<Tensor<'_>> = weights
            .iter()
            .map(|w| Tensor {
                name: &w.name,
                stored_as: &w.sources,
                ty: w.ty.to_string(),
                shape: &w.shape,
                bytes: w.byte_len(),
            })
            .collect();
        let mut bytes_by_type = BTreeMap::new();
        for tensor in &tensors {
            *bytes_by_type.entry(tensor.ty.clone()).or_default() += tensor.bytes;
        }
        Self {
            file: args.file.display().to_string(),
            kind,
            family,
            container,
            dialect,
            config,
            layers,
            resolved: &report.resolved,
            warnings: &report.warnings,
            skipped: &report.skipped,
            totals: Totals {
                tensors: tensors.len(),
                parameters: weights.iter().map(|w| w.elements()).sum(),
                bytes: tensors.iter().map(|t| t.bytes).sum(),
                bytes_by_type,
            },
            tensors,
            device_memory: None,
            apart: None,
        }
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        let dialect = self.dialect.map(serde_json::to_value).transpose()?;
        let dialect = dialect.as_ref().and_then(|d| d.as_str()).unwrap_or(&self.container);
        let family = self.family.map_or(String::new(), |family| format!("{family} "));
        writeln!(out, "{}: {family}{}, {dialect}", self.file, self.kind)?;
        writeln!(out, "layers: {}", self.layers)?;
        for warning in self.warnings {
            writeln!(out, "warning: {warning}")?;
        }
        writeln!(out)?;
        for r in self.resolved {
            let value = self.shorten(&r.value);
            writeln!(out, "  {:<18} {value:<24} {}", r.field, r.from)?;
        }
        writeln!(out)?;
        let width = self.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
        for tensor in &self.tensors {
            let shape = tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
            let size = human(tensor.bytes);
            writeln!(out, "  {:<width$}  {:<6} {shape:<20} {size:>10}", tensor.name, tensor.ty)?;
        }
        writeln!(out)?;
        if !self.skipped.is_empty() {
            let names = self
                .skipped
                .iter()
                .take(3)
                .map(|n| format!("`{n}`"))
                .collect::<Vec<_>>()
                .join(", ");
            writeln!(out, "not run: {} tensors of other parts: {names} ...", self.skipped.len())?;
        }
        let by_type = self.totals.bytes_by_type.iter();
        let by_type = by_type
            .map(|(ty, &bytes)| format!("{ty} {}", human(bytes)))
            .collect::<Vec<_>>()
            .join(", ");
        let Totals { tensors, parameters, bytes, .. } = self.totals;
        writeln!(out, "{tensors} tensors, {parameters} parameters, {} ({by_type})", human(bytes))?;
        if let Some(plan) = &self.device_memory {
            writeln!(out, "on a GPU: {}", plan.line())?;
        }
        if let Some(plan) = &self.apart {
            writeln!(out, "on a GPU apart from its target's: {}", plan.line())?;
        }
        Ok(())
    }

    /// Long lists of layers are runs of the same few words.
    fn shorten(&self, value: &serde_json::Value) -> String {
        match value {
            serde_json::Value::Array(items) if items.len() > 8 => {
                let mut runs: Vec<(usize, &serde_json::Value)> = Vec::new();
                for item in items {
                    match runs.last_mut() {
                        Some((n, last)) if *last == item => *n += 1,
                        _ => runs.push((1, item)),
                    }
                }
                let text = |(n, v): &(usize, &serde_json::Value)| {
                    if *n > 1 { format!("{n} x {v}") } else { v.to_string() }
                };
                let mut shown = runs.iter().take(4).map(text).collect::<Vec<_>>().join(", ");
                if runs.len() > 4 {
                    shown.push_str(&format!(", ... ({} in all)", items.len()));
                }
                shown
            }
            serde_json::Value::Null => "-".to_owned(),
            other => other.to_string(),
        }
    }
}

/// Bytes for people: `3.22 GiB`.
pub(crate) fn human(bytes: usize) -> String {
    let units = [(1usize << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}
