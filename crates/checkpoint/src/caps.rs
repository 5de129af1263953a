//! Bounds on configuration numbers, so that products of a few of them cannot overflow and a hostile
//! file cannot ask for absurd work. Real values stay far below.

use crate::Error;
use crate::report::Claim;

/// Any width, count or length in a configuration.
const DIMENSION: usize = 1 << 24;
/// Layers of a model; the largest has 64.
pub(crate) const LAYERS: usize = 1 << 8;
/// Experts of a layer; the largest has 512.
pub(crate) const EXPERTS: usize = 1 << 10;

/// Rows of a drafter's block; published ones have 8 or 16.
pub(crate) const BLOCK: usize = 1 << 8;

/// A positive dimension below the cap.
pub(crate) fn dimension(what: &'static str, claim: &Claim<usize>) -> Result<usize, Error> {
    let cap = match what {
        "blocks" | "layers" => LAYERS,
        "experts" => EXPERTS,
        _ => DIMENSION,
    };
    if (1..=cap).contains(&claim.value) {
        return Ok(claim.value);
    }
    let (value, from) = (claim.value.to_string(), claim.from.clone());
    Err(Error::Invalid { what, value, from, expected: format!("1 to {cap}") })
}
