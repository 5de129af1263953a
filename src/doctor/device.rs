//! The GPU: driver, cards, memory, kernels of this build, and the test of every op against the
//! reference.

use super::{Args, section};
use anyhow::{Context, Result, bail};
use compute::cuda::{self, Cuda, Images};
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
pub(crate) struct Devices {
    /// The driver's CUDA version, or why there is none.
    driver: String,
    /// Architectures whose kernels are in this build.
    kernels: Vec<&'static str>,
    cards: Vec<Seen>,
}

/// A card, or why it cannot be used.
#[derive(Serialize)]
#[serde(untagged)]
enum Seen {
    Card(Card),
    Unusable { index: usize, error: String },
}

#[derive(Serialize)]
struct Card {
    name: String,
    capability: String,
    multiprocessors: u32,
    memory_gb: f64,
    free_gb: f64,
    read_gb_s: f64,
    /// From the host's memory, and back.
    upload_gb_s: f64,
    download_gb_s: f64,
}

impl Devices {
    pub(crate) fn look() -> Self {
        let kernels = cuda::architectures();
        let driver = match cuda::driver_version() {
            Ok((major, minor)) => format!("CUDA {major}.{minor}"),
            Err(error) => return Self { driver: error.to_string(), kernels, cards: Vec::new() },
        };
        let seen = |index| match card(index) {
            Ok(card) => Seen::Card(card),
            Err(error) => Seen::Unusable { index, error: format!("{error:#}") },
        };
        let cards = (0..cuda::devices().unwrap_or(0)).map(seen).collect();
        Self { driver, kernels, cards }
    }

    /// Memory and reading rate of the first card that can be used, in bytes and bytes a second.
    pub(crate) fn first(&self) -> Option<(f64, f64)> {
        self.cards.iter().find_map(|seen| match seen {
            Seen::Card(card) => Some((card.memory_gb * 1e9, card.read_gb_s * 1e9)),
            Seen::Unusable { .. } => None,
        })
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let kernels = match self.kernels.is_empty() {
            true => {
                "none in this build; compiled at first use where a libnvrtc is found".to_owned()
            }
            false => self.kernels.join(" "),
        };
        section(out, "gpu", &[("driver", self.driver.clone()), ("kernels", kernels)])?;
        for seen in &self.cards {
            let card = match seen {
                Seen::Card(card) => card,
                Seen::Unusable { index, error } => {
                    section(out, "", &[("card", format!("cuda:{index} cannot be used: {error}"))])?;
                    continue;
                }
            };
            let lines = [
                ("card", format!("{}, compute capability {}", card.name, card.capability)),
                ("memory", format!("{:.1} GB, {:.1} GB free", card.memory_gb, card.free_gb)),
                (
                    "reads",
                    format!("{:.0} GB/s, {} multiprocessors", card.read_gb_s, card.multiprocessors),
                ),
                (
                    "copies",
                    format!(
                        "{:.1} GB/s there, {:.1} GB/s back",
                        card.upload_gb_s, card.download_gb_s
                    ),
                ),
            ];
            section(out, "", &lines)?;
        }
        Ok(())
    }
}

fn card(index: usize) -> Result<Card> {
    let cuda = Cuda::new(index, Images::Best)?;
    let info = cuda.info().clone();
    let (free, total) = cuda.memory_info()?;
    let bytes = (free / 4).min(4 << 30);
    let read = bytes as f64 / cuda.read_seconds(bytes)?;
    let (upload, download) = cuda.copy_seconds(256 << 20)?;
    Ok(Card {
        name: info.name,
        capability: format!("{}.{}", info.major, info.minor),
        multiprocessors: info.multiprocessors,
        memory_gb: total as f64 / 1e9,
        free_gb: free as f64 / 1e9,
        read_gb_s: read / 1e9,
        upload_gb_s: f64::from(256 << 20) / upload / 1e9,
        download_gb_s: f64::from(256 << 20) / download / 1e9,
    })
}

/// Every op of the device against the reference, twice with the same bits, then the model in every
/// mode.
pub(crate) fn selftest(args: &Args) -> Result<()> {
    let Some(index) = args.model.device.card()? else {
        bail!("the self-test is about a GPU, and `--device cpu` names none");
    };
    let images = if args.ptx { Images::Ptx } else { Images::Best };
    let once = args.once || args.only.is_some();
    let only = args.only.as_deref().unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let mut runs: Vec<Vec<u32>> = Vec::new();
    for _ in 0..if once { 1 } else { 2 } {
        let mut cuda = Cuda::new(index, images)
            .with_context(|| format!("the self-test needs a CUDA device, cuda:{index}"))?;
        let mut failed = 0;
        let checks = compute::selftest::run(&mut cuda, only, |check| {
            failed += usize::from(!check.holds());
            if !check.holds() || args.verbose {
                let word = if check.holds() { "ok  " } else { "FAIL" };
                let _ = writeln!(
                    out,
                    "{word} {:.1e} of {:.0e}  {}",
                    check.worst, check.tolerance, check.name
                );
            }
        })?;
        writeln!(out, "{} checks of ops, {failed} failed ({})", checks.len(), cuda.info().name)?;
        if checks.is_empty() {
            bail!("no check has `{only}` in its name; --verbose without --only prints the names");
        }
        if failed > 0 {
            bail!("{failed} of {} checks failed", checks.len());
        }
        runs.push(checks.iter().map(|check| check.worst.to_bits()).collect());
    }
    if runs.windows(2).any(|two| two[0] != two[1]) {
        bail!("two runs of the same checks differ");
    }
    if once || args.ptx {
        return Ok(());
    }
    writeln!(out, "twice the same bits")?;
    drop(out);
    bench::parity_of(&args.model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_does_not_open_is_shown_with_the_reason() {
        let error = "out of memory".to_owned();
        let cards = vec![Seen::Unusable { index: 1, error }];
        let devices = Devices { driver: "CUDA 13.0".to_owned(), kernels: Vec::new(), cards };
        let mut out = Vec::new();
        devices.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("  card  cuda:1 cannot be used: out of memory\n"), "{text}");
        let json = serde_json::to_value(&devices).unwrap();
        assert_eq!(json["cards"][0], serde_json::json!({"index": 1, "error": "out of memory"}));
    }
}
