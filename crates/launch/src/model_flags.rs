//! Flags that every verb with a running model shares: which model, and on what.

use crate::choices::{self, Bandwidths, Choice};
use crate::device_flags::DeviceFlags;
use crate::device_memory::{Need, Plan};
use crate::draft_device::{Beside, DraftDevice};
use crate::draft_flags::DraftFlags;
use crate::loading::{self, Loaded, TextSide, WeightSummary};
use crate::place::{PlaceFlags, Room};
use crate::prepared::Prepared;
use crate::watched::Watched;
use crate::{about, locate};
use anyhow::{Result, bail};
use checkpoint::{Drafter, Target, TargetConfig};
use clap::ValueEnum;
use compute::cuda::{Cuda, Images};
use compute::{Backend, Faults, Faulty, KvType};
use engine::{Backends, Engine, Placement, Requantised, Spec, WeightSource};
use formats::BlockType;
use hub::Draft;
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Which model runs where.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// Target: a name that `forerun models` lists, one of the Hub (`owner/name:QUANT`),
    /// `ollama:NAME`, a GGUF file or a Hugging Face folder; without it the embedded one runs. A
    /// server takes several: give it again
    #[arg(long, value_name = "NAME|FILE")]
    model: Vec<PathBuf>,
    /// Drafter: a name of the Hub, a GGUF file, a safetensors file or a Hugging Face folder; `auto`
    /// for the one that belongs to the target, as names of the catalogue have it, `none` for none.
    /// Of several the first belongs to the first model, and so on
    #[arg(long, value_name = "NAME|FILE")]
    draft: Vec<PathBuf>,
    /// How tokens are proposed; auto unless given
    #[arg(long, value_enum)]
    spec: Option<Mode>,
    /// Drafted tokens judged in a round, as many as a pass has rows for; for MTP its depth, up to 7
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    budget: Option<u16>,
    /// Rows of a drafter's block, the newest token included; as trained unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    block: Option<u16>,
    /// Tokens of prompt and answer together; unless given, the model's own limit, on a GPU as much
    /// of it as fits
    #[arg(long, value_name = "N")]
    pub ctx: Option<usize>,
    /// Chat template to use instead of the model's own: a Jinja file
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    #[command(flatten)]
    /// What it runs on.
    pub device: DeviceFlags,
    #[command(flatten)]
    draft_flags: DraftFlags,
    /// Quantise a drafter of floats to this type while it is loaded: q8_0, q6_k, q5_k, q4_k or q4_0
    #[arg(long, value_name = "TYPE", value_parser = quantised, help_heading = "Drafter overrides")]
    pub(crate) draft_type: Option<BlockType>,
    /// Whether the engine is to know what its states belong to, which takes reading all weights.
    #[arg(skip)]
    pub identified: bool,
}

/// Modes of `--spec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Whatever is fastest, round by round
    Auto,
    /// No proposals
    Off,
    /// The best token of each position of a block
    Chain,
    /// The likeliest paths through a block
    Tree,
    /// The target's own next-token block
    Mtp,
    /// What followed before where the text's last tokens occurred before
    Lookup,
}

impl Mode {
    /// As `--spec` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Chain => "chain",
            Self::Tree => "tree",
            Self::Mtp => "mtp",
            Self::Lookup => "lookup",
        }
    }
}

/// A model ready to run.
pub struct Running {
    /// For people: the file's name, or `embedded`.
    pub name: String,
    /// The engine that has taken the model in.
    pub engine: Engine,
    /// How tokens are proposed.
    pub mode: Mode,
    /// What turns text into tokens and back.
    pub text: TextSide,
    /// Tokens of prompt and answer together.
    pub context: usize,
    /// What the target's weights are.
    pub weights: WeightSummary,
}

impl Running {
    /// Tokens that there are.
    pub fn vocab(&self) -> usize {
        self.engine.model().config().vocab
    }
}

impl ModelFlags {
    /// The same model on the processor, with activations as they are.
    pub fn on_processor(&self) -> Self {
        Self { device: self.device.on_processor(), ..self.clone() }
    }

    /// The way of proposing tokens that was asked for; none where all are.
    pub fn pinned_mode(&self) -> Option<&'static str> {
        self.spec.map(Mode::name).filter(|name| *name != Mode::Auto.name())
    }

    /// The first flag that was given of those that say how tokens are proposed or what a cache
    /// holds.
    pub fn pinned(&self) -> Option<&'static str> {
        let given = [
            ("--spec", self.spec.is_some()),
            ("--budget", self.budget.is_some()),
            ("--block", self.block.is_some()),
            ("--kv", self.device.kv.is_some()),
        ];
        given.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }

    /// The flags of each model, where several are given: drafters go with models in their order.
    pub fn each(&self) -> Result<Vec<Self>> {
        let (models, drafters) = (self.model.len().max(1), self.draft.len());
        if drafters != 0 && drafters != models {
            bail!(
                "there are {models} models (`--model`) and {drafters} drafters (`--draft`): give one \
                 for each, in the same order, `auto` or `none` where there is none to name"
            );
        }
        let one = |words: &[PathBuf], at: usize| words.get(at).cloned().into_iter().collect();
        let flags =
            |at| Self { model: one(&self.model, at), draft: one(&self.draft, at), ..self.clone() };
        Ok((0..models).map(flags).collect())
    }

    /// Opens the files, without taking weights in.
    pub fn open(&self) -> Result<Loaded> {
        let settings = hub::Settings::from_env();
        let (model, draft) = (one("--model", &self.model)?, one("--draft", &self.draft)?);
        let (found, draft) = hub::find_pair(model, draft, &settings)?;
        tell_once(&draft);
        let path = found.as_ref().map(|found| found.path.as_path());
        let mut loaded = loading::load(path, &draft, &self.draft_flags.overrides())?;
        if let Some(name) = found.and_then(|found| found.name) {
            loaded.name = name;
        }
        let flag = self.draft_flags.first().or(self.draft_type.map(|_| "--draft-type"));
        if let (None, Some(flag)) = (&loaded.drafter, flag) {
            bail!("`{flag}` is about a drafter, and there is none: give `--draft FILE`");
        }
        if let (None, Some(device)) = (&loaded.drafter, self.device.draft_device()?) {
            let mtp = match loaded.target.config.mtp {
                Some(_) => "; the MTP block shares the target's weights and runs where that does",
                None => "",
            };
            bail!(
                "`--draft-device {device}`: there is no drafter that could run there (give `--draft \
                 FILE`){mtp}"
            );
        }
        if let Some(path) = &self.chat_template {
            loaded.text.template = Ok(loading::template_at(path)?);
        }
        Ok(loaded)
    }

    /// Opens another drafter for that target, under the same overrides.
    pub fn open_drafter(&self, path: &Path, target: &TargetConfig) -> Result<Drafter> {
        let path = &locate(path)?;
        Drafter::open(path, &self.draft_flags.overrides(), Some(target)).map_err(about(path))
    }

    /// Loads the model.
    pub fn load(&self) -> Result<Running> {
        self.load_with(self.device.kv())
    }

    /// Loads the model with a cache of that type, whatever the flag says.
    pub fn load_with(&self, kv: KvType) -> Result<Running> {
        self.load_over(kv, |backend| backend)
    }

    /// Loads the model on a backend that fails where `faults` say.
    pub fn load_faulty(&self, faults: Faults) -> Result<Running> {
        self.load_over(self.device.kv(), |backend| Box::new(Faulty::new(backend, faults.clone())))
    }

    /// Loads the model on what `wrap` makes of the backend.
    fn load_over(
        &self,
        kv: KvType,
        wrap: impl Fn(Box<dyn Backend>) -> Box<dyn Backend>,
    ) -> Result<Running> {
        let (backend, room) = self.device.backend()?;
        let side = self.device.draft_side(&*backend)?;
        let beside = side.as_ref().map(|side| side.beside);
        let (prepared, text) = Prepared::new(self, kv, &*backend, room, beside)?;
        let engine = prepared.start_on(backend, room, side, wrap)?;
        let Prepared { name, mode, context, weights, .. } = prepared;
        Ok(Running { name, engine, mode, text, context, weights })
    }

    /// Opens the files and settles how the model runs; its weights are taken in as often as they
    /// are wanted.
    pub fn prepare(&self) -> Result<(Prepared, TextSide)> {
        let (backend, room) = self.device.backend()?;
        let beside = self.device.draft_side(&*backend)?.map(|side| side.beside);
        Prepared::new(self, self.device.kv(), &*backend, room, beside)
    }

    /// Takes the weights of opened files into backends.
    pub(crate) fn take_in(
        &self,
        target: &Target,
        drafter: Option<&Drafter>,
        backends: Backends,
        memory: (KvType, Placement),
        spec: Spec,
        bar: &ProgressBar,
    ) -> Result<Engine> {
        let target_weights = Watched::new(&target.weights, bar);
        let draft_weights = drafter.map(|d| Watched::new(&d.weights, bar));
        let quantised = match (self.draft_type, &draft_weights) {
            (Some(ty), Some(weights)) => Some(Requantised { source: weights, ty }),
            _ => None,
        };
        let source = match (&quantised, &draft_weights) {
            (Some(quantised), _) => Some(quantised as &dyn WeightSource),
            (None, weights) => weights.as_ref().map(|w| w as &dyn WeightSource),
        };
        let pair = drafter.zip(source).map(|(d, source)| (&d.config, source));
        let target = (&target.config, &target_weights as &dyn WeightSource);
        Ok(Engine::load_placed(backends, target, pair, memory, spec)?)
    }

    /// What opened files need of a device that reads prompts in passes of `prompt_rows`.
    pub(crate) fn need(
        &self,
        loaded: &Loaded,
        memory: (KvType, Placement),
        prompt_rows: usize,
        beside: Option<Beside>,
    ) -> Result<Need> {
        let Loaded { target, drafter, .. } = loaded;
        Need::count(prompt_rows, beside, |ledgers| {
            let (drafter, bar) = (drafter.as_ref(), ProgressBar::hidden());
            self.take_in(target, drafter, ledgers, memory, Spec::Off, &bar)
        })
    }

    /// Whether a plan for a GPU says anything: experts on a disk are for the processor.
    pub fn plans_for_card(&self) -> Result<bool> {
        Ok(self.device.card()?.is_some() || self.device.place.disk().is_none())
    }

    /// What the model needs of the GPU asked for, else of the first, at the context asked for or
    /// its own, with what would lie in the host's memory. A GPU that does not open counts as one
    /// that reads prompts 256 tokens at a time.
    /// Where the model does not fit whole, also the ways it can be placed, on a host that reads its
    /// memory with so many bytes a second.
    pub fn plan_memory(&self, host: f64) -> Result<(Plan, Vec<Choice>)> {
        let loaded = self.open()?;
        let config = &loaded.target.config;
        let cap = self.device.place.device_memory;
        let mut card = Cuda::new(self.device.card()?.unwrap_or(0), Images::Best).ok();
        if self.device.card()?.is_some() {
            self.device.place.check_for_card()?;
        }
        card.iter_mut().for_each(|card| cap.iter().for_each(|cap| card.cap_memory(*cap)));
        let prompt_rows = card.as_ref().map_or(256, |card| card.prompt_rows());
        let free = card.as_ref().map(Cuda::memory_info).transpose()?.map(|(free, _)| free);
        let room = Room::of_card(free.unwrap_or(usize::MAX), cap);
        let count = |placement, beside| {
            self.need(&loaded, (self.device.kv(), placement), prompt_rows, beside)
        };
        // A card that the drafter is given is taken for one of the same kind.
        let beside = self.device.draft_device()?.map(|device| match device {
            DraftDevice::Cpu => Beside::processor(256),
            DraftDevice::Cuda(index) => Beside::card(index, prompt_rows),
        });
        let as_asked = |placement| count(placement, beside);
        let (placement, need) = self.device.place.plan(config, room, self.ctx, as_asked)?;
        let plan = need.at(self.ctx.unwrap_or(config.context_length));
        let mut choices = Vec::new();
        if let (Some(card), true) = (&mut card, placement != Placement::ON_DEVICE)
            && let Some(bus) = card.bus_bandwidth()?
        {
            const BYTES: usize = 256 << 20;
            let device = BYTES as f64 / card.read_seconds(BYTES)?;
            let context = self.ctx.unwrap_or(PlaceFlags::CONTEXT.min(config.context_length));
            let bandwidths = Bandwidths { device, bus, host };
            let apart = loaded.drafter.is_some();
            choices = choices::choices(config, room, context, bandwidths, (beside, apart), count)?;
        }
        Ok((plan, choices))
    }

    /// How to propose with what was opened, where a text has so many rows in a pass.
    pub(crate) fn spec_for(&self, loaded: &Loaded, rows: usize) -> Result<(Mode, Spec)> {
        let drafter = loaded.drafter.as_ref().map(|drafter| &drafter.config);
        let mtp = loaded.target.config.mtp.is_some();
        let trained = drafter.map(|config| config.block);
        let mode = self.spec.unwrap_or(Mode::Auto);
        let block = match (self.block.map(usize::from), trained) {
            (Some(block), Some(trained)) if block > trained => {
                bail!(
                    "`--block {block}` is more than the {trained} rows the drafter was trained for"
                );
            }
            (Some(block), None) if mode == Mode::Auto => {
                bail!(
                    "`--block {block}` is about a drafter, and there is none: give `--draft FILE`"
                );
            }
            (block, trained) => block.or(trained).unwrap_or(2),
        };
        let budget = |default: usize| self.budget.map_or(default, usize::from);
        // The newest token's row proposes too in some drafters.
        let from_anchor = drafter.is_some_and(|config| config.extras.sample_from_anchor);
        let longest = block - usize::from(!from_anchor);
        let widest = loaded.longest_block.filter(|_| self.block.is_none()).unwrap_or(block);
        let spec = match mode {
            Mode::Chain | Mode::Tree if trained.is_none() => {
                bail!("`--spec {}` needs a drafter: give `--draft FILE`", mode.name())
            }
            Mode::Mtp if !mtp => bail!("`--spec mtp`: the model has no MTP block"),
            Mode::Mtp if budget(3) > 7 => {
                bail!("`--budget {}`: MTP goes 1 to 7 tokens deep", budget(3))
            }
            Mode::Tree | Mode::Lookup | Mode::Auto if budget(1) >= rows => {
                bail!(
                    "`--budget {}`: a text has {rows} rows here, for the newest token and at most \
                     {} others",
                    budget(1),
                    rows - 1
                )
            }
            Mode::Chain if budget(1) > longest => {
                bail!(
                    "`--budget {}`: a chain over a block of {block} rows has at most {longest} \
                     tokens",
                    budget(1)
                )
            }
            Mode::Off => Spec::Off,
            Mode::Chain => Spec::Chain { block, budget: budget(longest) },
            Mode::Tree => Spec::Tree { block, budget: budget(22) },
            Mode::Mtp => Spec::Mtp { depth: budget(3) },
            Mode::Lookup => Spec::Lookup { budget: budget(15) },
            Mode::Auto => Spec::Auto { block: widest, budget: budget(Spec::AUTO_BUDGET) },
        };
        Ok((mode, spec))
    }
}

/// Says which drafter was taken without being named, or why none was; once, for some verbs open a
/// model several times.
fn tell_once(draft: &Draft) {
    static TOLD: Once = Once::new();
    match draft {
        Draft::Belonging { name, .. } => TOLD.call_once(|| {
            eprintln!("drafter: {name}, which belongs to the model (`--draft none` leaves it out)");
        }),
        Draft::Absent { reason } => {
            TOLD.call_once(|| eprintln!("note: no drafter is used: {reason}"));
        }
        Draft::At(_) | Draft::Own | Draft::Nothing => {}
    }
}

/// The word of a flag that only a server may be given again.
fn one<'w>(flag: &str, words: &'w [PathBuf]) -> Result<Option<&'w Path>> {
    match words {
        [] => Ok(None),
        [word] => Ok(Some(word)),
        several => bail!(
            "`{flag}` is given {} times, and one model runs here: `forerun serve` takes several",
            several.len()
        ),
    }
}

fn quantised(text: &str) -> Result<BlockType, String> {
    match text {
        "q8_0" => Ok(BlockType::Q8_0),
        "q6_k" => Ok(BlockType::Q6_K),
        "q5_k" => Ok(BlockType::Q5_K),
        "q4_k" => Ok(BlockType::Q4_K),
        "q4_0" => Ok(BlockType::Q4_0),
        _ => Err("q8_0, q6_k, q5_k, q4_k or q4_0 expected".to_owned()),
    }
}
