//! `forerun sessions`: conversations that were kept under a name.

use crate::session::{Record, folder, lock, path_of};
use anyhow::{Context, Result, bail};
use hub::gigabytes;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

/// Arguments of `forerun sessions`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Remove the session of that name, with all that was said in it; may be given again
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "remove")]
    json: bool,
}

/// What is told of a session.
struct Listed {
    name: String,
    model: String,
    turns: usize,
    bytes: u64,
    used: SystemTime,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for name in &args.remove {
        let path = path_of(name)?;
        if !path.is_dir() {
            bail!("there is no session `{name}`; `forerun sessions` lists those there are");
        }
        let _lock = lock(name, &path)?;
        fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
    }
    if !args.remove.is_empty() {
        return Ok(());
    }
    let (folder, mut out) = (folder()?, std::io::stdout().lock());
    let sessions = list(&folder)?;
    if args.json {
        let listed = |s: &Listed| {
            let at = s.used.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
            let Listed { name, model, turns, bytes, .. } = s;
            json!({"name": name, "model": model, "turns": turns, "bytes": bytes, "used": at})
        };
        let sessions: Vec<Value> = sessions.iter().map(listed).collect();
        writeln!(out, "{}", json!({"folder": folder, "sessions": sessions}))?;
        return Ok(());
    }
    if sessions.is_empty() {
        writeln!(out, "no sessions; `forerun chat --session NAME` begins one")?;
    }
    for Listed { name, model, turns, bytes, used } in sessions {
        let minutes = used.elapsed().map_or(0, |age| age.as_secs() / 60);
        let age = match minutes {
            0..60 => format!("{minutes} min"),
            60..2880 => format!("{} h", minutes / 60),
            _ => format!("{} days", minutes / 1440),
        };
        let with = if model.is_empty() { String::new() } else { format!(" with {model}") };
        writeln!(out, "{name:24} {turns:4} turns, {}{with}, {age} ago", gigabytes(bytes))?;
    }
    Ok(())
}

/// What lies in the folder, the last used first.
fn list(folder: &Path) -> Result<Vec<Listed>> {
    let mut sessions = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry?.path();
        // One whose first answer was never finished has a lock only.
        let data = ["conversation.json", "lock"].map(|file| fs::metadata(path.join(file)));
        let Some(data) = data.into_iter().find_map(Result::ok) else { continue };
        let Record { model, messages } = match Record::read(&path) {
            Ok(record) => record,
            Err(error) => {
                eprintln!("warning: {error:#}");
                continue;
            }
        };
        sessions.push(Listed {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            model,
            turns: messages.iter().filter(|message| message["role"] == "user").count(),
            bytes: bytes_below(&path),
            used: data.modified()?,
        });
    }
    sessions.sort_by_key(|session| std::cmp::Reverse(session.used));
    Ok(sessions)
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_below(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}
