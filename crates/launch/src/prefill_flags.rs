//! Speculative prefill as the command line asks for it: which model scores, what is kept, and of
//! which prompts.

use crate::answer::{STOPPED, refuse_too_long};
use crate::host_memory::{Held, free_with_swap};
use crate::loading::{self, Loaded};
use crate::{DeviceFlags, Running, locate};
use anyhow::{Context, Result, bail};
use checkpoint::{Overrides, Target};
use compute::KvType;
use engine::{Long, PrefillReport, Scorer, Shortener, WeightSource};
use hub::Draft;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use text::{Droppable, Tokenizer};

/// Flags of what reads long prompts.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Long prompts, not exact")]
pub struct PrefillFlags {
    /// Read only what matters of long prompts, as this small model tells: a name or a file as for
    /// `--model`, with the same tokens as the target. Answers are then to a shorter prompt, and say
    /// so; off unless given
    #[arg(long, value_name = "NAME|FILE")]
    prefill_scorer: Option<PathBuf>,
    /// What is kept of the insides of long questions, texts and tools' results, above 0 up to 1
    /// [default: 0.1]
    #[arg(long, value_name = "SHARE", requires = "prefill_scorer", value_parser = share)]
    prefill_keep: Option<f32>,
    /// Only prompts of more tokens are shortened [default: 32000]
    #[arg(long, value_name = "TOKENS", requires = "prefill_scorer")]
    prefill_keep_from: Option<usize>,
}

/// A model that is to score, its files open.
pub struct OpenScorer {
    /// For people: the file's name.
    pub name: String,
    /// What is kept unless a request says otherwise.
    pub keep: f32,
    /// Prompts of more tokens are shortened.
    pub from: usize,
    target: Target,
    device: DeviceFlags,
}

impl PrefillFlags {
    /// As if that model alone was named.
    pub fn of_scorer(scorer: PathBuf) -> Self {
        Self { prefill_scorer: Some(scorer), prefill_keep: None, prefill_keep_from: None }
    }

    /// Opens the scorer, where there is one, and holds its tokens against the target's.
    pub fn open(&self, device: &DeviceFlags, tokenizer: &Tokenizer) -> Result<Option<OpenScorer>> {
        let Some(word) = &self.prefill_scorer else { return Ok(None) };
        let path = locate(word)?;
        let Loaded { name, target, text, .. } =
            loading::load(Some(&path), &Draft::Nothing, &Overrides::default())
                .context("`--prefill-scorer`")?;
        if let Some(id) = first_difference(&text.tokenizer, tokenizer) {
            let shown =
                |tokenizer: &Tokenizer| String::from_utf8_lossy(tokenizer.bytes(id)).into_owned();
            bail!(
                "`--prefill-scorer {}`: its token {id} is `{}`, the target's is `{}`: a scorer \
                 needs the target's vocabulary",
                word.display(),
                shown(&text.tokenizer).escape_debug(),
                shown(tokenizer).escape_debug()
            );
        }
        let (keep, from) =
            (self.prefill_keep.unwrap_or(0.1), self.prefill_keep_from.unwrap_or(32_000));
        Ok(Some(OpenScorer { name, keep, from, target, device: device.clone() }))
    }
}

impl OpenScorer {
    fn check_memory(&self) -> Result<()> {
        Held::of(&self.target, None, None, KvType::F16).check(free_with_swap(), None)
    }

    /// Takes the scorer's weights in, on a backend of its own.
    pub fn start(&self) -> Result<Shortener> {
        let (backend, room) = self.device.backend()?;
        match room {
            Some(room) => backend.budget().set_limit(room.bytes),
            None => self.check_memory().context("`--prefill-scorer`")?,
        }
        let weights = (&self.target.config, &self.target.weights as &dyn WeightSource);
        Ok(Shortener::new(Scorer::load(backend, weights)?))
    }
}

/// Shortens prompts of one who asks at a time.
pub struct Prefill {
    open: OpenScorer,
    shortener: Shortener,
}

impl Prefill {
    /// Starts it, where it was asked for.
    pub fn start(
        flags: &PrefillFlags,
        device: &DeviceFlags,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>> {
        let Some(open) = flags.open(device, tokenizer)? else { return Ok(None) };
        let shortener = open.start()?;
        Ok(Some(Self { open, shortener }))
    }

    /// The tokens that are read of a prompt, and what is told of that where it is a long one. Where
    /// scoring fails the prompt is read whole. Fails once `stop` is set.
    pub fn shorten(
        &mut self,
        running: &Running,
        prompt: Vec<u32>,
        stop: &AtomicBool,
    ) -> Result<(Vec<u32>, Option<PrefillReport>)> {
        let OpenScorer { name, keep, from, .. } = &self.open;
        if prompt.len() <= *from || *keep >= 1.0 {
            return Ok((prompt, None));
        }
        // The context counts what was asked, here as at the server.
        refuse_too_long(prompt.len(), running.context)?;
        let start = Instant::now();
        let Droppable { ranges, boundary } =
            Droppable::within(&running.text.tokenizer, &prompt, *from);
        let long = Long { prompt: &prompt, droppable: &ranges, boundary, share: *keep };
        let shortened = self.shortener.shorten(long, || !stop.load(Ordering::Relaxed));
        let (seconds, tokens) = (start.elapsed().as_secs_f64(), prompt.len());
        Ok(match shortened {
            Ok(Some(kept)) => {
                let report = PrefillReport::shortened(tokens, *keep, &kept, name, seconds);
                (kept.tokens(&prompt), Some(report))
            }
            Ok(None) => bail!(STOPPED),
            Err(error) => {
                let why = format!("the scorer failed: {error}");
                (prompt, Some(PrefillReport::whole(tokens, *keep, why)))
            }
        })
    }
}

/// The first id that is another text in the two. Whether one takes a token for a control token and
/// the other does not, as files made by different programs do, makes no difference: ids are all that
/// a scorer is given.
fn first_difference(one: &Tokenizer, other: &Tokenizer) -> Option<u32> {
    let mut all = 0..one.len().max(other.len()) as u32;
    all.find(|id| one.bytes(*id) != other.bytes(*id))
}

fn share(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "a share above 0 up to 1 is expected, such as 0.1".to_owned())
}
