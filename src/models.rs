//! `forerun models`: the catalogue, what of it is here, and what fits this machine.

use anyhow::Result;
use compute::cuda::{self, Cuda, Images};
use hub::catalogue::{Build, Drafter, Entry};
use hub::{CATALOGUE, Settings, gigabytes};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Arguments of `forerun models`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a model would run in.
pub(crate) struct Room {
    /// The card's name, or `memory`.
    place: String,
    /// Whether it is a card's.
    pub(crate) is_card: bool,
    /// Bytes of it.
    pub(crate) bytes: u64,
}

impl Room {
    /// The memory of the first card, where one can be used, else the machine's.
    pub(crate) fn look() -> Self {
        let card = match cuda::devices() {
            Ok(count) if count > 0 => Cuda::new(0, Images::Best).ok(),
            _ => None,
        };
        let memory =
            card.and_then(|card| Some((card.info().name.clone(), card.memory_info().ok()?)));
        match memory {
            Some((place, (_, total))) => Self { place, is_card: true, bytes: total as u64 },
            None => {
                let bytes = runs::machine::memory();
                Self { place: "memory".to_owned(), is_card: false, bytes }
            }
        }
    }

    fn fits(&self, entry: &Entry, build: &Build) -> bool {
        entry.need(build) <= self.bytes
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (settings, room) = (Settings::from_env(), Room::look());
    let mut out = std::io::stdout().lock();
    if args.json {
        let models: Vec<Value> =
            CATALOGUE.iter().map(|entry| described(entry, &room, &settings)).collect();
        let object = json!({
            "room": {"place": room.place, "bytes": room.bytes},
            "models": models,
        });
        writeln!(out, "{object}")?;
        return Ok(out.flush()?);
    }
    writeln!(out, "{:<26} {:>8}  {:<7} {:<4}  drafter", "name", "size", "card", "here")?;
    for entry in CATALOGUE {
        for (i, build) in entry.builds.iter().enumerate() {
            let word = word(entry, build, i);
            let card = entry.card(build).map_or("-".to_owned(), |card| format!("{card} GB"));
            let card = format!("{card}{}", if room.fits(entry, build) { " *" } else { "" });
            let drafter = match entry.drafter().filter(|_| i == 0) {
                Some(d) => format!("{} ({})", d.hub, d.kind.name()),
                None => String::new(),
            };
            let here = if is_here(&word, &settings) { "yes" } else { "" };
            let size = gigabytes(build.bytes);
            let line = format!("{word:<26} {size:>8}  {card:<7} {here:<4}  {drafter}");
            writeln!(out, "{}", line.trim_end())?;
        }
    }
    writeln!(
        out,
        "\n* fits this machine ({}, {}), with its drafter and some thousand tokens of context\n\
         `forerun pull NAME` fetches a model and its drafter; any `owner/name:QUANT` of the Hub \
         works as well",
        room.place,
        gigabytes(room.bytes)
    )?;
    Ok(out.flush()?)
}

/// The word for a build: the first is the usual one and needs no more than the model's name.
fn word(entry: &Entry, build: &Build, index: usize) -> String {
    match index {
        0 => entry.name.to_owned(),
        _ => format!("{}:{}", entry.name, build.quant),
    }
}

fn is_here(word: &str, settings: &Settings) -> bool {
    hub::find(Path::new(word), settings).is_ok()
}

fn described(entry: &Entry, room: &Room, settings: &Settings) -> Value {
    let builds: Vec<Value> = entry
        .builds
        .iter()
        .enumerate()
        .map(|(i, build)| {
            json!({
                "name": word(entry, build, i),
                "quant": build.quant,
                "bytes": build.bytes,
                "card_gb": entry.card(build),
                "fits": room.fits(entry, build),
                "here": is_here(&word(entry, build, i), settings),
            })
        })
        .collect();
    let drafter = |d: &Drafter| {
        let kind = d.kind.name();
        json!({"name": d.hub, "kind": kind, "bytes": d.bytes})
    };
    json!({
        "name": entry.name,
        "family": entry.family,
        "size": entry.size,
        "repository": entry.repository,
        "builds": builds,
        "drafters": entry.drafters.iter().map(drafter).collect::<Vec<_>>(),
        "mtp": entry.mtp,
    })
}
