//! A drafter looked at: how often its tokens are right, and whether it would be right more often
//! under other settings. Settings are ranked by how likely the drafter finds the target's own
//! tokens, on texts beyond its window: acceptance alone is too blunt to tell neighbours apart.

use super::alternatives::{self, Alternative, Setting};
use super::texts::{self, Prompts};
use super::trial::{self, Acceptance, Gain, Trial, by_counting};
use super::{Args, advice, section};
use anyhow::{Context, Result, bail};
use bench::{Progress, table};
use checkpoint::{Drafter, DrafterConfig, TargetConfig};
use engine::draft::dflash::Dflash;
use engine::draft::probe::{Contexts, Probe, Reading};
use launch::{Loaded, TextSide};
use serde::Serialize;
use std::io::Write;
use text::Tokenizer;

/// Tokens that the target goes on with.
pub(crate) const TOKENS: usize = 40;
/// Settings that may be wrong at once.
const MOST_FAULTS: usize = 3;
/// Texts that alternatives are tried on before the best of each setting are tried on all.
const FEW: usize = 2;
const BEST: usize = 2;
/// A loss on these few beyond which the others are not looked at.
const HOPELESS: f64 = 0.1;

/// What was seen of a drafter.
#[derive(Serialize)]
pub(crate) struct Examination {
    pub(crate) model: String,
    pub(crate) settings: String,
    /// Texts of each kind and the tokens of the longest.
    pub(crate) chats: usize,
    pub(crate) long_texts: usize,
    pub(crate) longest: usize,
    pub(crate) window: Option<usize>,
    /// As it is set now, over chats and long texts.
    pub(crate) acceptance: Acceptance,
    pub(crate) thinking: Option<Acceptance>,
    pub(crate) not_thinking: Option<Acceptance>,
    /// As it is set now, over the long texts, which everything below is about.
    pub(crate) log_likelihood: f64,
    /// Best first.
    pub(crate) alternatives: Vec<Ranked>,
    /// What should be set instead, in the order it was found.
    pub(crate) faults: Vec<Fault>,
    /// With all that set.
    pub(crate) mended: Acceptance,
    /// The log-likelihood of the first position by merely counting tokens.
    pub(crate) by_counting: f64,
    /// What the weights before quantisation gain.
    pub(crate) source: Option<Gain>,
    pub(crate) advice: String,
}

/// An alternative with its place.
#[derive(Clone, Serialize)]
pub(crate) struct Ranked {
    pub(crate) setting: Setting,
    pub(crate) name: String,
    pub(crate) flag: String,
    pub(crate) log_likelihood: f64,
    pub(crate) gain: Gain,
}

/// A setting that does not fit the weights.
#[derive(Serialize)]
pub(crate) struct Fault {
    pub(crate) setting: Setting,
    pub(crate) what: &'static str,
    pub(crate) flag: String,
    pub(crate) gain: Gain,
}

/// Looks at the drafter of `args`; nothing where there is none.
pub(crate) fn examine(args: &Args) -> Result<Option<Examination>> {
    let Loaded { name, target, drafter, text, .. } = args.model.open()?;
    let Some(drafter) = drafter else { return Ok(None) };
    let config = &drafter.config;
    let context =
        args.model.ctx.unwrap_or(target.config.context_length).min(target.config.context_length);
    let layers = alternatives::layers(config, &target.config);
    let (backend, _) = args.model.device.backend()?;
    let mut probe =
        Probe::load(backend, (&target.config, &target.weights), layers, args.model.device.kv())?;
    let loaded = probe.drafter(config, &drafter.weights)?;

    let readings = Readings::gather(&mut probe, args, config, &text, context)?;
    let Readings { thinking, not_thinking, long } = &readings;
    let long: Vec<&Reading> = long.iter().collect();
    let all: Vec<&Reading> =
        thinking.iter().chain(not_thinking).chain(long.iter().copied()).collect();

    let not_numbers = "the drafter's logits are not numbers";
    let kept = trial::contexts(&mut probe, &loaded, config, &long)?;
    let (target_config, tokenizer) = (&target.config, &text.tokenizer);
    let mut search = Search {
        probe,
        drafter: loaded,
        target: target_config,
        tokenizer,
        long,
        kept: (config.clone(), kept),
    };
    let acceptance = search.try_on(config, &all)?.context(not_numbers)?.acceptance();
    let base = search.try_on_long(config, usize::MAX)?.context(not_numbers)?;
    let (alternatives, faults, mended) = search.run(config, &base)?;
    let mended_trial = search.try_on_long(&mended, usize::MAX)?.context(not_numbers)?;
    let source = match &args.draft_source {
        Some(path) => {
            let source = args.model.open_drafter(path, &target.config)?;
            Some(search.gain_of(&source, &mended, &mended_trial)?)
        }
        None => None,
    };
    let mut chats = |readings: &[Reading]| -> Result<_> {
        let readings: Vec<&Reading> = readings.iter().collect();
        let tried = if readings.is_empty() { None } else { search.try_on(&mended, &readings)? };
        Ok(tried.map(|t| t.acceptance()))
    };
    let (with, without) = (chats(thinking)?, chats(not_thinking)?);
    let mut examination = Examination {
        model: name,
        settings: settings(config),
        chats: thinking.len() + not_thinking.len(),
        long_texts: search.long.len(),
        longest: search.longest(),
        window: config.layers.iter().filter_map(|l| l.window).max(),
        acceptance,
        thinking: with,
        not_thinking: without,
        log_likelihood: base.log_likelihood(),
        alternatives,
        faults,
        mended: search.try_on(&mended, &all)?.context(not_numbers)?.acceptance(),
        by_counting: by_counting(&all, target.config.vocab),
        source,
        advice: String::new(),
    };
    examination.advice = advice::advise(&examination);
    Ok(Some(examination))
}

/// The target's own answers: to chats with thinking and without, and to long conversations.
struct Readings {
    thinking: Vec<Reading>,
    not_thinking: Vec<Reading>,
    long: Vec<Reading>,
}

impl Readings {
    fn gather(
        probe: &mut Probe,
        args: &Args,
        config: &DrafterConfig,
        text: &TextSide,
        context: usize,
    ) -> Result<Self> {
        let prompts = Prompts::gather(args, text)?;
        let steps = prompts.thinking.len() * 2 + usize::from(args.texts);
        let progress = Progress::new(steps, "reading");
        let mut read = |turns: &[Vec<u32>]| -> Result<Reading> {
            let reading = probe.read(turns, TOKENS, text.tokenizer.ends())?;
            progress.step("reading");
            Ok(reading)
        };
        let mut single = |prompts: &[Vec<u32>]| -> Result<Vec<Reading>> {
            prompts.iter().map(|prompt| read(std::slice::from_ref(prompt))).collect()
        };
        let (thinking, not_thinking) = (single(&prompts.thinking)?, single(&prompts.not_thinking)?);
        let both = thinking.iter().zip(&not_thinking);
        let answered: Vec<&[u32]> =
            both.flat_map(|(a, b)| [&a.tokens[..], &b.tokens[..]]).collect();
        let long = texts::long(args, config, context, &prompts, &answered)?;
        let long = long.iter().map(|turns| read(turns)).collect::<Result<Vec<Reading>>>()?;
        if long.iter().flat_map(|r| &r.answers).filter(|a| a.len() > 1).count() < 3 {
            bail!("the target ends almost every long text at once: there is nothing to look at");
        }
        Ok(Self { thinking, not_thinking, long })
    }
}

/// What the search works with.
struct Search<'a> {
    probe: Probe,
    drafter: Dflash,
    target: &'a TargetConfig,
    tokenizer: &'a Tokenizer,
    long: Vec<&'a Reading>,
    /// What the drafter keeps of the long texts under some configuration.
    kept: (DrafterConfig, Vec<Contexts>),
}

impl Search<'_> {
    fn try_on(&mut self, config: &DrafterConfig, readings: &[&Reading]) -> Result<Option<Trial>> {
        let contexts = trial::contexts(&mut self.probe, &self.drafter, config, readings)?;
        Ok(trial::trial(&mut self.probe, &self.drafter, config, readings, &contexts)?)
    }

    /// The same on the first `count` long texts, whose contexts may be there already.
    fn try_on_long(&mut self, config: &DrafterConfig, count: usize) -> Result<Option<Trial>> {
        let context = |c: &DrafterConfig| {
            (c.taps.clone(), c.rope, c.layers.iter().map(|l| l.window).collect::<Vec<_>>())
        };
        let long: Vec<&Reading> = self.long.iter().copied().take(count).collect();
        match context(config) == context(&self.kept.0) {
            true => Ok(trial::trial(&mut self.probe, &self.drafter, config, &long, &self.kept.1)?),
            false => self.try_on(config, &long),
        }
    }

    /// What another drafter's weights gain over `base`, all under one configuration.
    fn gain_of(&mut self, source: &Drafter, config: &DrafterConfig, base: &Trial) -> Result<Gain> {
        let weights = self.probe.drafter(&source.config, &source.weights)?;
        let contexts = trial::contexts(&mut self.probe, &weights, config, &self.long)?;
        let tried = trial::trial(&mut self.probe, &weights, config, &self.long, &contexts)?;
        Ok(tried.context("the unquantised drafter's logits are not numbers")?.gain(base))
    }

    /// Tokens of the longest text.
    fn longest(&self) -> usize {
        self.long.iter().map(|r| r.tokens.len()).max().unwrap_or(0)
    }

    /// Changes the setting that gains most, again and again, until none does: the first ranking,
    /// what was changed, and the settings at the end.
    fn run(
        &mut self,
        config: &DrafterConfig,
        base: &Trial,
    ) -> Result<(Vec<Ranked>, Vec<Fault>, DrafterConfig)> {
        let (mut current, mut fitting) = (config.clone(), base.clone());
        let (mut first, mut faults) = (None, Vec::new());
        while faults.len() < MOST_FAULTS {
            let mut found = self.rank(&current, &fitting)?;
            found.sort_by(|(_, a, _), (_, b, _)| b.log_likelihood.total_cmp(&a.log_likelihood));
            first.get_or_insert_with(|| {
                found.iter().map(|(_, ranked, _)| ranked.clone()).collect::<Vec<_>>()
            });
            let Some(real) = found.iter().find(|(_, r, _)| r.gain.is_real()) else { break };
            let best = found.iter().position(|(_, r, _)| r.setting == real.1.setting).unwrap_or(0);
            let (alternative, ranked, trial) = found.swap_remove(widest(&found, best));
            faults.push(Fault {
                setting: ranked.setting,
                what: ranked.setting.fault(),
                flag: ranked.flag,
                gain: ranked.gain,
            });
            (current, fitting) = (alternative.config, trial);
        }
        Ok((first.unwrap_or_default(), faults, current))
    }

    /// The best alternatives of each setting, tried on all long texts unless few of them show that
    /// it is no use.
    fn rank(
        &mut self,
        config: &DrafterConfig,
        base: &Trial,
    ) -> Result<Vec<(Alternative, Ranked, Trial)>> {
        let mut all = alternatives::alternatives(config, self.target, self.longest());
        all.extend(alternatives::masks(config, self.target.vocab, self.tokenizer));
        let progress = Progress::new(all.len(), "trying");
        let kept = trial::contexts(&mut self.probe, &self.drafter, config, &self.long)?;
        self.kept = (config.clone(), kept);
        let mut screened: Vec<(Gain, Alternative, Trial)> = Vec::new();
        for alternative in all {
            progress.step(&alternative.name);
            if let Some(trial) = self.try_on_long(&alternative.config, FEW)? {
                screened.push((trial.gain(base), alternative, trial));
            }
        }
        screened.sort_by(|(a, ..), (b, ..)| b.mean.total_cmp(&a.mean));
        let mut ranked: Vec<(Alternative, Ranked, Trial)> = Vec::new();
        for (few, alternative, trial) in screened {
            let Alternative { setting, name, flag, .. } = alternative.clone();
            if ranked.iter().filter(|(a, ..)| a.setting == setting).count() == BEST {
                continue;
            }
            let promising = few.mean > -HOPELESS;
            let all =
                if promising { self.try_on_long(&alternative.config, usize::MAX)? } else { None };
            let trial = all.unwrap_or(trial);
            let gain = trial.gain(base);
            let log_likelihood = base.log_likelihood() + gain.mean;
            ranked.push((alternative, Ranked { setting, name, flag, log_likelihood, gain }, trial));
        }
        Ok(ranked)
    }
}

/// Of windows that fit as well as the best, the widest: texts that a narrower one would do for say
/// nothing against it.
fn widest(found: &[(Alternative, Ranked, Trial)], best: usize) -> usize {
    let as_good = |i: &usize| {
        let (a, _, trial) = &found[*i];
        a.setting == found[best].0.setting && !found[best].2.gain(trial).is_real()
    };
    let window = |i: &usize| found[*i].0.config.layers.iter().filter_map(|l| l.window).max();
    match found[best].0.setting {
        Setting::Window => (0..found.len()).filter(as_good).max_by_key(window).unwrap_or(best),
        _ => best,
    }
}

/// A drafter's settings in a line.
fn settings(config: &DrafterConfig) -> String {
    let taps = config.taps.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let yarn = match config.rope.scaling {
        Some(yarn) => format!("YaRN by {} over {}", yarn.factor, yarn.original_context),
        None => "no YaRN".to_owned(),
    };
    format!(
        "taps {taps}; {}; theta {:e}, {yarn}; mask token {}; blocks of {}",
        config.layer_summary(),
        config.rope.theta,
        config.mask_token,
        config.block
    )
}

impl Examination {
    pub(crate) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let beyond = match self.window {
            Some(window) if self.longest <= window => {
                format!("none beyond the window of {window}: nothing can be said of it")
            }
            Some(window) => format!("beyond the window of {window}"),
            None => "there is no window".to_owned(),
        };
        let length = |a: &Acceptance| {
            format!("{:.2} tokens a round, log-likelihood {:.3}", a.accept_length, a.log_likelihood)
        };
        let mut lines = vec![
            ("model", self.model.clone()),
            ("settings", self.settings.clone()),
            (
                "texts",
                format!(
                    "{} chats, {} long ones of up to {} tokens ({beyond})",
                    self.chats, self.long_texts, self.longest
                ),
            ),
            ("as set", length(&self.acceptance)),
        ];
        if !self.faults.is_empty() {
            lines.push(("mended", length(&self.mended)));
        }
        lines.extend(self.thinking.iter().map(|a| ("thinking", length(a))));
        lines.extend(self.not_thinking.iter().map(|a| ("no thinking", length(a))));
        if let Some(gain) = &self.source {
            lines.push(("unquantised", format!("gains {:+.3} ± {:.3}", gain.mean, gain.error)));
        }
        writeln!(out)?;
        section(out, "drafter", &lines)?;

        let percent =
            |shares: &[f64]| shares.iter().map(|s| format!("{:.0}", 100.0 * s)).collect::<Vec<_>>();
        let numbers: Vec<String> =
            (1..=self.acceptance.right_by_position.len()).map(|k| k.to_string()).collect();
        let header: Vec<&str> =
            ["position"].into_iter().chain(numbers.iter().map(String::as_str)).collect();
        let row = |name: &str, shares: &[f64]| [vec![name.to_owned()], percent(shares)].concat();
        let rows = vec![
            row("right %", &self.acceptance.right_by_position),
            row("accepted %", &self.acceptance.accepted_by_position),
        ];
        table(out, &header, rows)?;

        let header = ["alternative", "log-likelihood", "gain", "error", "flag"];
        let line = |r: &Ranked| {
            vec![
                r.name.clone(),
                format!("{:.3}", r.log_likelihood),
                format!("{:+.3}", r.gain.mean),
                format!("{:.3}", r.gain.error),
                r.flag.clone(),
            ]
        };
        let none = vec![
            "as set".to_owned(),
            format!("{:.3}", self.log_likelihood),
            "0".to_owned(),
            "0".to_owned(),
            String::new(),
        ];
        let (better, worse): (Vec<&Ranked>, Vec<&Ranked>) =
            self.alternatives.iter().partition(|r| r.log_likelihood > self.log_likelihood);
        let rows =
            better.into_iter().map(line).chain([none]).chain(worse.into_iter().map(line)).collect();
        table(out, &header, rows)
    }
}
