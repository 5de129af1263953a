//! Rows to draft to verify to commit: the target as a composition of ops, the state of a sequence,
//! and the draw of a token. Knows no text.
//!
//! A pass takes rows `(token, sequence, parent)` and only reads; `commit` alone writes.
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

mod choose;
pub mod draft;
mod engine;
mod error;
mod generation;
pub mod judge;
mod measure;
mod model;
mod propose;
mod rehearse;
mod round;
pub mod sampling;
mod score;
mod sequence;
mod size;
mod state;
mod step;
mod stow;
pub mod synthetic;

pub use compute::{PAGE_TOKENS, Row};
pub use engine::Engine;
pub use error::Error;
pub use generation::Generation;
pub use model::{Accepted, Model, Options, Random, Requantised, Tensor, WeightSource};
pub use propose::Spec;
pub use rehearse::Rehearsed;
pub use round::Round;
pub use sequence::{Block, Sequence};
pub use state::{DraftState, KeptRows};
pub use stow::Stowed;
