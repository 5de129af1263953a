//! `forerun bench tables`: the tables of a page, written from the JSON of named runs, so that no
//! figure is typed. A block `<!-- table: RUN TABLE -->` ... `<!-- end -->` is replaced by that
//! table of that run.

use crate::named::{self, Named};
use crate::results::Results;
use anyhow::{Context, Result, bail};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The page
    #[arg(long, value_name = "FILE", default_value = "docs/performance.md")]
    page: PathBuf,
    /// The folder with a JSON file for each named run
    #[arg(long, value_name = "DIR", default_value = "docs/runs")]
    runs: PathBuf,
    /// Write nothing; fail where the page is not what the runs give
    #[arg(long)]
    check: bool,
    /// Make a named run of this results.json
    #[arg(long, value_name = "FILE", requires_all = ["name", "command"], conflicts_with = "check")]
    add: Option<PathBuf>,
    /// Its name
    #[arg(long, value_name = "NAME", requires = "add", conflicts_with = "check")]
    name: Option<String>,
    /// The command that made it
    #[arg(long, value_name = "LINE", requires = "add", conflicts_with = "check")]
    command: Option<String>,
}

const BEGIN: &str = "<!-- table: ";
const END: &str = "<!-- end -->";

pub(crate) fn run(args: &Args) -> Result<()> {
    if let (Some(results), Some(name), Some(command)) = (&args.add, &args.name, &args.command) {
        return add(&args.runs, &Results::open(results)?, name, command);
    }
    let shown = || args.page.display().to_string();
    let page = std::fs::read_to_string(&args.page).with_context(shown)?;
    let written = written(&page, &args.runs).with_context(shown)?;
    if page == written {
        return Ok(());
    }
    if args.check {
        bail!(
            "{}: the tables are not what the runs give; `forerun bench tables` writes them",
            shown()
        );
    }
    std::fs::write(&args.page, written).with_context(shown)
}

fn add(folder: &Path, results: &Results, name: &str, command: &str) -> Result<()> {
    named::named(results, command).write(&runs::path(folder, name)?)
}

/// The page with its blocks filled.
fn written(page: &str, runs: &Path) -> Result<String> {
    let (mut out, mut quoted) = (String::new(), HashSet::new());
    let mut rest = page;
    while let Some(at) = rest.find(BEGIN) {
        let (before, block) = rest.split_at(at);
        let (head, body) =
            block.split_once("-->").context("a block that is not closed by `-->`")?;
        let wanted = head[BEGIN.len()..].trim();
        let Some(end) = body.find(END) else { bail!("the block `{wanted}` has no `{END}`") };
        if body[..end].contains(BEGIN) {
            bail!("the block `{wanted}` has no `{END}`");
        }
        out += &format!("{before}{head}-->\n{}{END}", block_text(wanted, runs, &mut quoted)?);
        rest = &body[end + END.len()..];
    }
    Ok(out + rest)
}

/// A table under what its run says of itself, which is said once.
fn block_text<'a>(wanted: &'a str, folder: &Path, quoted: &mut HashSet<&'a str>) -> Result<String> {
    let mut words = wanted.split_whitespace();
    let (Some(run), Some(table)) = (words.next(), words.next()) else {
        bail!("`{wanted}`: a run and a table expected");
    };
    let named = Named::open(&runs::path(folder, run)?)?;
    let Some(found) = named.tables.get(table) else {
        let names: Vec<&str> = named.tables.keys().map(String::as_str).collect();
        bail!("run `{run}` has no table `{table}`: {} expected", names.join(", "));
    };
    if !quoted.insert(run) {
        return Ok(format!("The run `{run}` as above:\n\n{found}"));
    }
    let Named { machine, build, date, command, shapes, .. } = &named;
    let about = [machine, build, &format!("{date} UTC"), shapes];
    let about: Vec<&str> =
        about.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    Ok(format!("`{command}`; {}:\n\n{}", about.join("; "), found))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"{"machine": "M", "build": "B", "date": "2026-01-02 03:04", "command": "c",
        "shapes": "s", "tables": {"t": {"columns": ["x", "y"], "rows":
        [["a", 1.5], ["b", [1234.4, 1200, 1300]]]}}}"#;

    #[test]
    fn blocks_are_filled_and_the_rest_is_left() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("run.json"), RUN).unwrap();
        let page = "before\n<!-- table: run t -->\nold\n<!-- end -->\nafter\n";
        let once = written(page, folder.path()).unwrap();
        assert_eq!(
            once,
            "before\n<!-- table: run t -->\n`c`; M; B; 2026-01-02 03:04 UTC; s:\n\n\
             | x | y |\n|---|---|\n| a | 1.50 |\n\
             | b | 1234 [1200, 1300] |\n<!-- end -->\nafter\n"
        );
        assert_eq!(written(&once, folder.path()).unwrap(), once, "filling twice changes nothing");
        let twice = written(&page.repeat(2), folder.path()).unwrap();
        assert!(
            twice.starts_with(&once) && twice.contains("\nThe run `run` as above:\n\n| x | y |\n"),
            "{twice}"
        );
        for wrong in [
            "<!-- table: run t -->\n",
            "<!-- table: run -->\n<!-- end -->",
            "<!-- table: run u -->\n<!-- end -->",
            "<!-- table: ../run t -->\n<!-- end -->",
            "<!-- table: other t -->\n<!-- end -->",
        ] {
            assert!(written(wrong, folder.path()).is_err(), "{wrong}");
        }
    }
}
