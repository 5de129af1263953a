//! `forerun bench experts`: how often each expert of a mixture is chosen while prompts are read and
//! answered, as a file from which `--expert-counts` knows which copies to begin with.

use crate::ask::Asked;
use crate::modes::Mode;
use crate::progress::Progress;
use crate::suites;
use anyhow::{Result, bail};
use checkpoint::target::Ffn;
use engine::Spec;
use engine::sampling::Sampling;
use launch::{ExpertCounts, ModelFlags};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Suites; all unless given
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    suite: Vec<String>,
    /// Prompts of your own instead, one JSON object a line with `prompt` or `messages`: the more
    /// they are like what will be asked, the better
    #[arg(long, value_name = "FILE", conflicts_with = "suite")]
    prompts: Option<PathBuf>,
    /// Prompts of each suite; all unless given
    #[arg(long, value_name = "N")]
    per_suite: Option<usize>,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    model: ModelFlags,
}

/// What published counts of real models give as their measure of how unevenly experts are chosen.
const BEST: f64 = 0.6;

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut running = args.model.load()?;
    let Ffn::Moe { experts, .. } = running.engine.model().config().ffn else {
        bail!("`bench experts`: the model has no experts");
    };
    // What was measured while loading chose experts too.
    let Some(before) = running.engine.backend().expert_choices()? else {
        bail!(
            "`bench experts`: a GPU counts experts where copies of some lie in its memory: give \
             `--place experts=hot`, or `--device cpu`"
        );
    };
    let names = if args.suite.is_empty() { suites::names() } else { args.suite.clone() };
    let count = args.per_suite.unwrap_or(usize::MAX);
    let suites = match &args.prompts {
        Some(path) => vec![suites::file(path, count, &running.text)?],
        None => {
            let suite = |name: &String| suites::suite(name, count, &running.text);
            names.iter().map(suite).collect::<Result<_>>()?
        }
    };
    let prompts = suites.iter().flat_map(|s| s.prompts.iter().map(|prompt| (&s.name, prompt)));
    let progress = Progress::new(prompts.clone().count(), "experts");
    // Drafted tokens that are not accepted would be counted too.
    let mode = &Mode { name: "off".to_owned(), spec: Spec::Off };
    let (sampling, max_tokens, mut tokens) = (Sampling::default(), args.max_tokens, 0);
    for (suite, prompt) in prompts {
        let asked = Asked { mode, prompt, sampling: &sampling, max_tokens };
        tokens += prompt.len() + asked.answer(&mut running)?.ids.len();
        progress.step(suite);
    }
    drop(progress);
    let all = running.engine.backend().expert_choices()?.unwrap_or_default();
    // Counters come round to 0.
    let chosen: Vec<u32> = all.iter().zip(before).map(|(n, b)| n.wrapping_sub(b)).collect();
    let counts = ExpertCounts::new(&running.name, tokens as u64, experts, &chosen);
    counts.write(&args.out)?;
    println!(
        "{tokens} tokens: the best {:.0} % of a layer's {experts} experts have {:.1} % of its \
         choices; written: {}",
        100.0 * BEST,
        100.0 * counts.share_of_best(BEST),
        args.out.display()
    );
    Ok(())
}
