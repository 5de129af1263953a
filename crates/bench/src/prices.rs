//! Prices to see by what `auto` would choose elsewhere: milliseconds of stages, from the runs of
//! `docs/runs` that are named. They are of one text and a short context.

use anyhow::{Result, bail};
use engine::Prices;

/// A machine and a model: verifies by rows, drafters' first and further positions, a commit.
type Machine = (&'static [(usize, f64)], &'static [(&'static str, f64, f64)], f64);

const H200_27B: Machine = (
    &[(1, 6.07), (4, 6.30), (8, 6.33), (16, 7.51), (24, 10.5), (32, 12.1), (64, 20.0)],
    // The next-token block as in the runs of several texts.
    &[("dflash", 1.16, 0.0), ("mtp", 0.42, 0.43)],
    0.05,
);
const H200_35B_A3B: Machine = (
    &[(1, 2.19), (4, 2.76), (8, 3.30), (16, 4.65), (24, 6.34), (32, 7.26), (64, 11.1)],
    &[("dflash", 0.65, 0.0), ("mtp", 0.24, 0.22)],
    0.06,
);
/// The tiny pair in a processor's cache, where rows cost nearly what they cost alone.
const CPU: Machine = (
    &[(1, 0.137), (2, 0.23), (4, 0.38), (8, 0.72), (16, 1.38), (32, 2.8), (64, 5.6)],
    &[("dflash", 1.0, 0.0), ("mtp", 0.12, 0.10)],
    0.02,
);

/// The prices of that name.
pub(crate) fn prices(name: &str) -> Result<Prices> {
    let (verify, drafts, commit) = match name {
        "h200-27b" => H200_27B,
        "h200-35b-a3b" => H200_35B_A3B,
        "cpu" => CPU,
        _ => bail!("`--prices {name}`: h200-27b, h200-35b-a3b or cpu expected"),
    };
    let seconds = |ms: f64| ms / 1e3;
    Ok(Prices {
        verify: verify.iter().map(|(rows, ms)| (*rows, seconds(*ms))).collect(),
        drafts: drafts.iter().map(|(d, a, b)| (*d, seconds(*a), seconds(*b))).collect(),
        commit: seconds(commit),
    })
}
