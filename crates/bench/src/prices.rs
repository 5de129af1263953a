//! Prices to see by what `auto` would choose elsewhere: seconds of stages, of one text and a short
//! context, as a run of `bench` measured them, or as the runs of `docs/runs` that are named did.

use crate::results::Results;
use anyhow::{Context, Result};
use engine::Prices;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What stages of a run's rounds took, in its JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stages {
    /// Verifies by rows.
    verify_s: Vec<(usize, f64)>,
    /// Passes of drafters, by name.
    drafts_s: Vec<(String, f64)>,
    commit_s: f64,
}

impl From<Prices> for Stages {
    fn from(prices: Prices) -> Self {
        let Prices { verify: verify_s, drafts: drafts_s, commit: commit_s } = prices;
        Self { verify_s, drafts_s, commit_s }
    }
}

/// A machine and a model, in milliseconds: verifies by rows, passes of drafters, a commit.
type Machine = (&'static [(usize, f64)], &'static [(&'static str, f64)], f64);

const H200_27B: Machine = (
    &[(1, 6.07), (4, 6.30), (8, 6.33), (16, 7.51), (24, 10.5), (32, 12.1), (64, 20.0)],
    // The next-token block as in the runs of several texts.
    &[("dflash", 1.16), ("mtp", 0.43)],
    0.05,
);
const H200_35B_A3B: Machine = (
    &[(1, 2.19), (4, 2.76), (8, 3.30), (16, 4.65), (24, 6.34), (32, 7.26), (64, 11.1)],
    &[("dflash", 0.65), ("mtp", 0.23)],
    0.06,
);

/// The prices of that name, or of the run in that file.
pub(crate) fn prices(name: &str) -> Result<Prices> {
    let (verify, drafts, commit) = match name {
        "h200-27b" => H200_27B,
        "h200-35b-a3b" => H200_35B_A3B,
        file => return of_run(Path::new(file)),
    };
    let seconds = |ms: f64| ms / 1e3;
    Ok(Prices {
        verify: verify.iter().map(|(rows, ms)| (*rows, seconds(*ms))).collect(),
        drafts: drafts.iter().map(|(name, ms)| ((*name).to_owned(), seconds(*ms))).collect(),
        commit: seconds(commit),
    })
}

fn of_run(path: &Path) -> Result<Prices> {
    let wrong = || {
        format!(
            "`--prices {}`: h200-27b, h200-35b-a3b or what `bench --json` wrote expected",
            path.display()
        )
    };
    let stages = Results::open(path).with_context(wrong)?.prices.with_context(wrong)?;
    let Stages { verify_s: verify, drafts_s: drafts, commit_s: commit } = stages;
    Ok(Prices { verify, drafts, commit })
}
