//! A target's next-token block in a file of its own: what llama.cpp's converter writes as
//! `mtp-*.gguf` (the target's keys, the block, and copies of embedding and head), or the `mtp.*`
//! tensors of a Hugging Face checkpoint by themselves.

use super::slots::{hf_slots, slots};
use super::{Mtp, TargetConfig, gguf};
use crate::report::Report;
use crate::weights::{Slot, Weights};
use crate::{Error, Source};
use formats::Tensors;
use std::path::{Path, PathBuf};

/// What only this block has, in either container.
const JOINS: &str = ".nextn.eh_proj.weight";
const HF_JOINS: &str = "mtp.fc.weight";

/// An open next-token block, to be joined to its target.
#[derive(Debug)]
pub struct MtpBlock {
    /// The target it belongs to, with this block in it.
    pub config: TargetConfig,
    /// Its tensors, named as they would be in the target's file.
    pub weights: Weights,
    /// How it was read.
    pub report: Report,
    pub(super) mtp: Mtp,
}

impl MtpBlock {
    /// Whether a source holds such a block and no target.
    pub fn is_in(source: &Source) -> bool {
        let tensors = source.tensors();
        match source {
            Source::Gguf { .. } => prefix(tensors).is_some_and(|block| {
                let others = |name: &str| name.starts_with("blk.") && !name.starts_with(&block);
                !tensors.iter().any(|tensor| others(&tensor.name))
            }),
            Source::Safetensors { .. } => {
                let others = |name: &str| !name.starts_with("mtp.") && name.contains("layers.");
                tensors.get(HF_JOINS).is_some() && !tensors.iter().any(|t| others(&t.name))
            }
        }
    }

    /// Opens a file or folder that must hold such a block.
    pub fn open(path: &Path, target: Option<&TargetConfig>) -> Result<Self, Error> {
        let source = Source::open(path)?;
        match Self::is_in(&source) {
            true => Self::read(source, target),
            false => Err(Error::Kind { wanted: "a target's MTP block", found: "something else" }),
        }
    }

    /// Reads a block out of an open source, against its target or, where none is given, against
    /// what the file says of it.
    pub fn read(source: Source, target: Option<&TargetConfig>) -> Result<Self, Error> {
        let mut report = Report::default();
        let said = match &source {
            Source::Gguf { gguf, .. } => {
                let arch = gguf.string("general.architecture")?.unwrap_or_default().to_owned();
                Some(gguf::config(gguf, &arch, &mut report)?)
            }
            Source::Safetensors { .. } => None,
        };
        if let (Some(said), Some(target)) = (&said, target) {
            check(said, target)?;
        }
        let mut config = target.or(said.as_ref()).ok_or(Error::MtpAlone)?.clone();
        let mtp = found(source.tensors());
        config.mtp = Some(mtp.clone());
        let block = format!("blk.{}.", config.layers.len());
        let is_own = |slot: &Slot| slot.name.starts_with(&block);
        let (tensors, slots) = match source {
            Source::Gguf { gguf, .. } => {
                let tensors = gguf.into_tensors();
                let mut own: Vec<_> = slots(&config).into_iter().filter(is_own).collect();
                // Some files count their only block from 0.
                if let Some(prefix) = prefix(&tensors).filter(|prefix| *prefix != block) {
                    let names = own.iter_mut().flat_map(|slot| &mut slot.places);
                    names
                        .flat_map(|place| &mut place.tensors)
                        .for_each(|name| *name = name.replacen(&block, &prefix, 1));
                }
                (tensors, own)
            }
            Source::Safetensors { tensors, .. } => {
                (tensors, hf_slots(&config, "").into_iter().filter(is_own).collect())
            }
        };
        // The target has these itself, and its own types of them.
        let copies = ["token_embd.weight", "output.weight", "output_norm.weight"];
        let (weights, skipped) =
            Weights::find(tensors, slots, |name| copies.contains(&name) || is_shared(name))?;
        report.skipped = skipped;
        report.note("mtp", &config.mtp, "its tensors");
        Ok(Self { config, weights, report, mtp })
    }

    /// A file of such a block beside a target that has none: `mtp-*.gguf` in its folder, or in a
    /// folder `MTP` there. Nothing unless there is exactly one.
    pub fn beside(target: &Path) -> Option<PathBuf> {
        let folder = if target.is_dir() { target } else { target.parent()? };
        // A bare file name has the parent "", which is the working folder.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let mut found = Vec::new();
        for folder in [folder.to_owned(), folder.join("MTP")] {
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            found.extend(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| {
                let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase());
                name.is_some_and(|n| n.starts_with("mtp-") && n.ends_with(".gguf"))
            }));
        }
        found.retain(|path| path != target);
        match found.len() {
            1 => found.pop(),
            _ => None,
        }
    }
}

/// Embedding, head and final norm under Hugging Face's names.
fn is_shared(name: &str) -> bool {
    let ends = ["embed_tokens.weight", "lm_head.weight", "norm.weight"];
    !name.starts_with("mtp.") && !name.contains("layers.") && ends.iter().any(|e| name.ends_with(e))
}

/// `blk.64.`, where the block lies.
fn prefix(tensors: &Tensors) -> Option<String> {
    let name = tensors.iter().find_map(|t| t.name.strip_suffix(JOINS))?;
    Some(format!("{name}."))
}

/// What the block has of its own.
fn found(tensors: &Tensors) -> Mtp {
    let block = prefix(tensors).unwrap_or_default();
    let has = |gguf: &str, hf: &str| {
        let gguf = format!("{block}nextn.{gguf}.weight");
        tensors.get(&gguf).is_some() || tensors.get(&format!("mtp.{hf}.weight")).is_some()
    };
    Mtp {
        own_embedding: has("embed_tokens", "embed_tokens"),
        own_head: has("shared_head_head", "lm_head"),
        own_norm: has("shared_head_norm", "norm"),
    }
}

/// A block of another model would only draft nonsense, and be found out by its acceptance.
fn check(said: &TargetConfig, target: &TargetConfig) -> Result<(), Error> {
    let pairs = [
        ("hidden size", said.hidden, target.hidden),
        ("vocabulary", said.vocab, target.vocab),
        ("layer count", said.layers.len(), target.layers.len()),
        ("query heads", said.attention.q_heads, target.attention.q_heads),
        ("key heads", said.attention.kv_heads, target.attention.kv_heads),
        ("head width", said.attention.head_dim, target.attention.head_dim),
    ];
    for (what, block, target) in pairs {
        if block != target {
            return Err(Error::disagree(what, block, "the MTP block", target, "the target"));
        }
    }
    if said.ffn != target.ffn {
        let (block, target) = (format!("{:?}", said.ffn), format!("{:?}", target.ffn));
        return Err(Error::disagree("the FFN", block, "the MTP block", target, "the target"));
    }
    Ok(())
}
