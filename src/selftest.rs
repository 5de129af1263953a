//! `forerun selftest`: every op of a device against the reference.

use anyhow::{Result, bail};
use compute::cuda::{Cuda, Images};
use std::io::Write;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// With the kernels that a card without ones of its own would use
    #[arg(long)]
    ptx: bool,
    /// Number of the device
    #[arg(long, default_value_t = 0)]
    index: usize,
    /// Print every check
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let images = if args.ptx { Images::Ptx } else { Images::Best };
    let mut cuda = Cuda::new(args.index, images)?;
    let mut out = std::io::stdout().lock();
    let mut failed = 0;
    let checks = compute::selftest::run(&mut cuda, |check| {
        if !check.holds() {
            failed += 1;
        }
        if args.verbose || (!check.holds() && failed < 60) {
            let word = if check.holds() { "ok  " } else { "FAIL" };
            let _ = writeln!(out, "{word} {:.2e} of {:.0e}  {}", check.worst, check.tolerance, check.name);
        }
    })?;
    writeln!(out, "{} checks, {failed} failed", checks.len())?;
    if failed > 0 {
        bail!("{failed} of {} checks failed", checks.len());
    }
    Ok(())
}
