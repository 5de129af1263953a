//! Models that we know by a short name, with their usual files and the drafters that belong to
//! them. Best first: who asks what to run is told the first that fits.
//!
//! Sizes are those of the files when this was written. Publishers exchange files now and then, so
//! `pull` goes by what the Hub says and these serve to plan; nothing stands where we do not know.

/// Bytes of memory a model needs beside its weights: what a card takes for itself and buffers, and
/// some thousand tokens of context, which larger models have larger states of.
const BESIDE_WEIGHTS: u64 = 1_500_000_000;
const CONTEXT_SHARE: u64 = 12;

/// Memory of the cards that are sold, in gigabytes.
const CARDS: [u64; 9] = [8, 12, 16, 24, 32, 48, 80, 96, 141];

/// A model of the catalogue.
#[derive(Debug, PartialEq)]
pub struct Entry {
    /// As on the command line.
    pub name: &'static str,
    /// `Qwen3.6`.
    pub family: &'static str,
    /// `27B`, `35B-A3B`.
    pub size: &'static str,
    /// The repository of its GGUF files.
    pub repository: &'static str,
    /// Its quantisations; the first is the usual one.
    pub builds: &'static [Build],
    /// The drafters that were trained for it, best first.
    pub drafters: &'static [Drafter],
    /// Where its MTP block is, if the files of `repository` lack it.
    pub mtp: Option<&'static str>,
    /// Parts in a thousand of the weights that a token reads: all of them, but for mixtures.
    pub active: u64,
}

/// A quantisation of a model.
#[derive(Debug, PartialEq, Eq)]
pub struct Build {
    /// As in the names of files.
    pub quant: &'static str,
    /// Bytes of its files.
    pub bytes: u64,
}

/// A drafter of a model.
#[derive(Debug, PartialEq, Eq)]
pub struct Drafter {
    /// Its name on the Hub, with the file that is meant.
    pub hub: &'static str,
    /// What it is.
    pub kind: DrafterKind,
    /// Bytes of its files, where we know.
    pub bytes: Option<u64>,
}

/// Generations of drafters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrafterKind {
    /// Blocks of independent rows.
    DFlash,
    /// With convolutions and a candidate selector.
    DFlash2,
}

impl DrafterKind {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::DFlash => "DFlash",
            Self::DFlash2 => "DFlash 2",
        }
    }
}

const fn build(quant: &'static str, bytes: u64) -> Build {
    Build { quant, bytes }
}

const fn dflash(hub: &'static str, bytes: Option<u64>) -> Drafter {
    Drafter { hub, kind: DrafterKind::DFlash, bytes }
}

const fn dflash2(hub: &'static str, bytes: Option<u64>) -> Drafter {
    Drafter { hub, kind: DrafterKind::DFlash2, bytes }
}

/// All of them.
pub const CATALOGUE: &[Entry] = &[
    Entry {
        name: "qwen3.8-27b",
        family: "Qwen3.8",
        size: "27B",
        repository: "unsloth/Qwen3.8-27B-GGUF",
        builds: &[build("UD-Q4_K_XL", 17_559_178_144), build("UD-Q5_K_XL", 20_876_938_144)],
        drafters: &[dflash2("z-lab/Qwen3.8-27B-DFlash2-GGUF:Q8_0", Some(2_056_414_752))],
        mtp: Some("hf:unsloth/Qwen3.8-27B-GGUF/MTP/mtp-Qwen3.8-27B-Q4_0.gguf"),
        active: 1000,
    },
    Entry {
        name: "qwen3.6-35b-a3b",
        family: "Qwen3.6",
        size: "35B-A3B",
        repository: "unsloth/Qwen3.6-35B-A3B-GGUF",
        builds: &[build("UD-Q4_K_XL", 22_360_456_160), build("Q8_0", 36_903_140_320)],
        drafters: &[
            dflash2("incoai/Qwen3.6-35B-A3B-DFlash2", Some(1_052_503_040)),
            dflash("z-lab/Qwen3.6-35B-A3B-DFlash", None),
        ],
        mtp: Some("unsloth/Qwen3.6-35B-A3B-MTP-GGUF:UD-Q4_K_XL"),
        active: 90,
    },
    Entry {
        name: "qwen3.6-27b",
        family: "Qwen3.6",
        size: "27B",
        repository: "unsloth/Qwen3.6-27B-GGUF",
        builds: &[build("UD-Q4_K_XL", 17_612_564_704), build("Q8_0", 28_595_763_424)],
        drafters: &[dflash("z-lab/Qwen3.6-27B-DFlash", Some(3_470_000_000))],
        mtp: Some("unsloth/Qwen3.6-27B-MTP-GGUF:UD-Q4_K_XL"),
        active: 1000,
    },
    Entry {
        name: "qwen3.5-35b-a3b",
        family: "Qwen3.5",
        size: "35B-A3B",
        repository: "unsloth/Qwen3.5-35B-A3B-GGUF",
        builds: &[build("UD-Q4_K_XL", 22_200_000_000), build("Q8_0", 36_900_000_000)],
        drafters: &[dflash("z-lab/Qwen3.5-35B-A3B-DFlash", None)],
        mtp: None,
        active: 90,
    },
    Entry {
        name: "qwen3.5-27b",
        family: "Qwen3.5",
        size: "27B",
        repository: "unsloth/Qwen3.5-27B-GGUF",
        builds: &[build("UD-Q4_K_XL", 17_600_000_000), build("Q8_0", 28_600_000_000)],
        drafters: &[dflash("z-lab/Qwen3.5-27B-DFlash", Some(4_260_000_000))],
        mtp: None,
        active: 1000,
    },
    Entry {
        name: "qwen3.5-9b",
        family: "Qwen3.5",
        size: "9B",
        repository: "unsloth/Qwen3.5-9B-GGUF",
        builds: &[build("UD-Q4_K_XL", 5_966_095_584), build("Q8_0", 9_527_502_048)],
        drafters: &[dflash("z-lab/Qwen3.5-9B-DFlash", None)],
        mtp: None,
        active: 1000,
    },
    Entry {
        name: "qwen3.5-4b",
        family: "Qwen3.5",
        size: "4B",
        repository: "unsloth/Qwen3.5-4B-GGUF",
        builds: &[build("UD-Q4_K_XL", 2_900_000_000), build("Q8_0", 4_500_000_000)],
        drafters: &[dflash("z-lab/Qwen3.5-4B-DFlash", None)],
        mtp: None,
        active: 1000,
    },
    Entry {
        name: "qwen3.5-2b",
        family: "Qwen3.5",
        size: "2B",
        repository: "unsloth/Qwen3.5-2B-GGUF",
        builds: &[build("UD-Q4_K_XL", 1_339_752_704), build("Q8_0", 2_012_012_800)],
        drafters: &[],
        mtp: None,
        active: 1000,
    },
    Entry {
        name: "qwen3.5-0.8b",
        family: "Qwen3.5",
        size: "0.8B",
        repository: "unsloth/Qwen3.5-0.8B-GGUF",
        builds: &[build("UD-Q4_K_XL", 559_000_000), build("Q8_0", 812_000_000)],
        drafters: &[],
        mtp: None,
        active: 1000,
    },
];

impl Entry {
    /// The drafter that `--draft auto` takes.
    pub fn drafter(&self) -> Option<&'static Drafter> {
        self.drafters.first()
    }

    /// Bytes of memory that a build needs with its drafter, as far as sizes are known.
    pub fn need(&self, build: &Build) -> u64 {
        let drafter = self.drafter().and_then(|drafter| drafter.bytes).unwrap_or(0);
        build.bytes + drafter + BESIDE_WEIGHTS + build.bytes / CONTEXT_SHARE
    }

    /// The smallest card that holds a build, in gigabytes; none that is sold holds the largest.
    pub fn card(&self, build: &Build) -> Option<u64> {
        let need = self.need(build);
        CARDS.into_iter().find(|gigabytes| need <= gigabytes << 30)
    }

    /// Bytes that a token reads of a build's weights.
    pub fn bytes_a_token(&self, build: &Build) -> u64 {
        build.bytes / 1000 * self.active
    }
}

/// The model of that name, however it is capitalised.
pub fn entry(name: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.name.eq_ignore_ascii_case(name))
}

/// The model whose files lie in a repository.
pub fn entry_of(repository: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.repository.eq_ignore_ascii_case(repository))
}

/// The name that was likely meant.
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let alike = CATALOGUE.iter().map(|entry| (strsim::jaro_winkler(&name, entry.name), entry.name));
    let (alike, name) = alike.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (alike > 0.85).then_some(name)
}

/// Tokens a second that are as fast as people read.
pub const USEFUL: f64 = 5.0;

/// The best model that a machine of so much memory runs at a useful pace, with its usual build or a
/// better one. `read_rate` is what its memory gives in bytes a second.
pub fn best(memory: u64, read_rate: f64) -> Option<(&'static Entry, &'static Build)> {
    let runs = |entry: &Entry, build: &Build| {
        entry.need(build) <= memory && read_rate / entry.bytes_a_token(build) as f64 >= USEFUL
    };
    CATALOGUE.iter().find_map(|entry| {
        let builds = entry.builds.iter().filter(|build| runs(entry, build));
        builds.max_by_key(|build| build.bytes).map(|build| (entry, build))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Name;
    use std::path::Path;

    #[test]
    fn every_drafter_and_mtp_file_is_a_name_that_pull_understands() {
        for entry in CATALOGUE {
            let names = entry.drafters.iter().map(|drafter| drafter.hub).chain(entry.mtp);
            for name in names {
                let parsed = Name::parse(Path::new(name)).unwrap();
                assert!(matches!(parsed, Name::Hub(_)), "{name}");
            }
            assert!(!entry.builds.is_empty() && entry.name == entry.name.to_ascii_lowercase());
        }
    }

    #[test]
    fn a_machine_is_told_what_it_can_run() {
        let named = |gigabytes: u64, rate: f64| {
            best(gigabytes << 30, rate).map(|(entry, build)| (entry.name, build.quant))
        };
        // A 24 GB card, a large one, a desktop without a card, a small board.
        assert_eq!(named(24, 9e11), Some(("qwen3.8-27b", "UD-Q4_K_XL")));
        assert_eq!(named(141, 4e12), Some(("qwen3.8-27b", "UD-Q5_K_XL")));
        assert_eq!(named(32, 6e10), Some(("qwen3.6-35b-a3b", "UD-Q4_K_XL")));
        assert_eq!(named(4, 1e10), Some(("qwen3.5-2b", "UD-Q4_K_XL")));
        assert_eq!(named(1, 1e10), None);
        let entry = entry("QWEN3.6-27B").unwrap();
        assert_eq!(entry.card(&entry.builds[0]), Some(24));
        assert_eq!(nearest("qwen3.6-27"), Some("qwen3.6-27b"));
        assert_eq!(nearest("llama"), None);
    }
}
