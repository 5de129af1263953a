//! Rows to draft to verify to commit: the target as a composition of ops, the state of a sequence,
//! and the draw of a token. Knows no text.
//!
//! # A pair that writes
//!
//! An [`Engine`] has a target, its drafters and the backends they run on. [`Engine::begin`] reads a
//! prompt, [`Engine::step`] runs a round: propose, verify in one pass, judge, commit, emit. Several
//! texts share the passes of [`Engine::step_all`].
//!
//! ```
//! use checkpoint::{Drafter, Overrides, Target};
//! use compute::{Activations, Cpu, CpuLevel, KvType};
//! use engine::sampling::Sampling;
//! use engine::{Engine, Spec};
//! use std::path::Path;
//!
//! // What files say is checked when they are opened, the drafter against its target.
//! let files = Path::new("../../models/dense");
//! let target = Target::open(&files.join("target-Q4_K_M.gguf"))?;
//! let drafter = files.join("draft-Q8_0.gguf");
//! let drafter = Drafter::open(&drafter, &Overrides::default(), Some(&target.config))?;
//!
//! // The backend takes the weights in, in the form its kernels read.
//! let cpu = Box::new(Cpu::new(CpuLevel::detect(), 1, Activations::Int8));
//! let pair = Some((&drafter.config, &drafter.weights as &dyn engine::WeightSource));
//! let chain = Spec::Chain { block: 16, budget: 15 };
//! let weights = (&target.config, &target.weights as &dyn engine::WeightSource);
//! let mut engine = Engine::load(cpu, weights, pair, KvType::F16, chain)?;
//!
//! /// Forty tokens after a prompt, and the rounds they took.
//! fn write(engine: &mut Engine, prompt: &[u32]) -> Result<(Vec<u32>, usize), engine::Error> {
//!     let sequence = engine.sequence();
//!     let ends = Vec::new();
//!     let mut text = engine.begin(sequence, prompt, prompt, Sampling::default(), ends, |_| ())?;
//!     let (mut answer, mut rounds) = (vec![text.tip()], 0);
//!     while answer.len() < 40 {
//!         // What was accepted of the draft, then the token that the target drew after it.
//!         answer.extend(engine.step(&mut text, 40 - answer.len())?.emitted);
//!         rounds += 1;
//!     }
//!     Ok((answer, rounds))
//! }
//!
//! // Ids come from outside: `text` makes them, this crate knows no text.
//! let prompt: Vec<u32> = (0..150).map(|i| 300 + i * 7 % 90).collect();
//! let (drafted, rounds) = write(&mut engine, &prompt)?;
//! engine.set_spec(Spec::Off);
//! let (plain, plain_rounds) = write(&mut engine, &prompt)?;
//! // A drafter can only change the speed.
//! assert_eq!(drafted, plain);
//! assert!(rounds < plain_rounds);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A level below
//!
//! A pass takes rows `(token, sequence, parent)` and only reads; `commit` alone writes. A
//! [`Model`] is the target by itself.
//!
//! ```
//! use compute::{Activations, Cpu, CpuLevel, Row};
//! use engine::{Model, Options, synthetic};
//!
//! let config = synthetic::tiny();
//! let mut cpu = Cpu::new(CpuLevel::detect(), 1, Activations::Int8);
//! let weights = synthetic::Weights::new(&config, synthetic::Mix::Q8_0, 1);
//! let options = Options::new(&cpu);
//! let mut model = Model::load(&mut cpu, &config, &weights, options)?;
//! let mut sequence = model.sequence();
//! model.read(&mut cpu, &mut sequence, &[1, 2, 3], |_| ())?;
//! let row = Row { token: 4, sequence: 0, parent: None };
//! model.forward(&mut cpu, &[row], &[0], &[&sequence])?;
//! let next = engine::sampling::greedy(&model.logits(&cpu, 0)?)?;
//! model.commit(&mut cpu, 0, &mut sequence, &[0])?;
//! assert_eq!(sequence.committed(), 4);
//! assert!((next as usize) < config.vocab);
//! # Ok::<(), engine::Error>(())
//! ```
#![forbid(unsafe_code)]

mod archive;
mod backends;
mod choose;
mod crossing;
pub mod draft;
mod engine;
mod error;
mod generation;
pub mod judge;
mod measure;
mod model;
mod outline;
mod prices;
mod propose;
mod read;
mod rehearse;
mod round;
pub mod sampling;
mod score;
mod sequence;
mod shorten;
mod size;
mod skew;
mod state;
mod step;
mod stow;
pub mod synthetic;

pub use archive::{Archived, ArchivedBlock, BlockName};
pub use backends::Backends;
pub use compute::{PAGE_TOKENS, Row};
pub use engine::Engine;
pub use error::Error;
pub use generation::Generation;
pub use model::{
    Accepted, Form, Model, NamedWeight, Options, Place, Placement, Random, Requantised, Tensor,
    WeightSource, state_bytes,
};
pub use outline::Outline;
pub use prices::Prices;
pub use propose::Spec;
pub use read::ReadPass;
pub use rehearse::Rehearsed;
pub use round::Round;
pub use sequence::{Sequence, StateBlock};
pub use shorten::{Long, PrefillReport, Scorer, Shortened, Shortener};
pub use skew::Skew;
pub use state::{DraftState, KeptRows};
pub use stow::Stowed;
