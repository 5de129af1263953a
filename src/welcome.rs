//! `forerun` alone: what to do next.

use crate::models::Room;
use hub::catalogue::best;
use hub::{CATALOGUE, Settings};
use std::io::Write;
use std::path::Path;

/// Shows a newcomer the way, and whoever has models their names.
pub(crate) fn show() -> anyhow::Result<()> {
    let settings = Settings::from_env();
    let is_here = |name: &&str| hub::find(Path::new(name), &settings).is_ok();
    let here: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).filter(is_here).collect();
    let mut out = std::io::stdout().lock();
    writeln!(out, "Forerun {}: Qwen3.5, 3.6 and 3.8 models, faster.\n", env!("CARGO_PKG_VERSION"))?;
    let mut step = |command: &str, what: &str| writeln!(out, "  {command:<44} {what}");
    match here.first() {
        Some(name) => {
            step(&format!("forerun chat --model {name}"), "talk with it here")?;
            step(&format!("forerun serve --model {name}"), "a page and APIs on 127.0.0.1:8000")?;
            step("forerun models", "others, and what fits this machine")?;
        }
        None => {
            let name = suggested();
            step("forerun run \"Write Python quicksort\"", "the tiny model inside the binary")?;
            step("forerun models", "models, and what fits this machine")?;
            step(&format!("forerun pull {name}"), "fetch one that fits here, with its drafter")?;
            step(&format!("forerun serve --model {name}"), "a page and APIs on 127.0.0.1:8000")?;
        }
    }
    step("forerun doctor", "what this machine can do")?;
    step("forerun help", "every verb; `forerun help run` every flag")?;
    if here.len() > 1 {
        writeln!(out, "\non this machine: {}", here.join(", "))?;
    }
    Ok(out.flush()?)
}

/// A model that likely runs well here; `forerun doctor` measures before it says so.
fn suggested() -> &'static str {
    let room = Room::look();
    // What cards and processors of these years read at least, in bytes a second.
    let read_rate = if room.is_card { 3e11 } else { 4e10 };
    best(room.bytes, read_rate).map_or("qwen3.5-0.8b", |(entry, _)| entry.name)
}
