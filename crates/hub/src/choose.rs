//! Which files of a repository a name means: one quantisation of several, all parts of a split
//! file, or a folder of safetensors with what belongs to it.

use crate::{HubName, gigabytes};
use anyhow::{Result, bail};

/// Preferred among several, where a name does not say: the usual compromise for a model, and what
/// keeps a drafter's acceptance.
const OF_MODELS: [&str; 6] = ["UD-Q4_K_XL", "Q4_K_M", "UD-Q4_K_M", "Q4_K_S", "Q4_0", "Q8_0"];
const OF_DRAFTERS: [&str; 4] = ["Q8_0", "BF16", "F16", "Q4_K_M"];

/// What belongs to a folder of safetensors beside the weights.
const BESIDE: [&str; 7] = [
    "config.json",
    // How older exports of modelopt say what their weights are.
    "hf_quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
];

/// A file as a repository or a folder lists it.
pub(crate) trait Listed {
    /// Its path in the repository.
    fn path(&self) -> &str;
    /// Its bytes.
    fn size(&self) -> u64;
}

/// What a name means.
#[derive(Debug)]
pub(crate) struct Choice<'a, F> {
    /// All files of it.
    pub files: Vec<&'a F>,
    /// The file to open; nothing where the folder itself is opened.
    pub open: Option<&'a F>,
}

/// A GGUF, whole or in parts.
struct Set<'a, F> {
    /// The name of the file without parts and ending, in small letters.
    stem: String,
    parts: Vec<&'a F>,
    /// How many parts the names promise.
    promised: usize,
}

/// The files that a name means.
pub(crate) fn choose<'a, F: Listed>(name: &HubName, files: &'a [F]) -> Result<Choice<'a, F>> {
    if let Some(path) = &name.file {
        let Some(file) = files.iter().find(|file| file.path() == path) else {
            bail!("`{}` has no file `{path}`", name.repository);
        };
        return Ok(whole(set_of(file, files), files));
    }
    let sets = sets(files);
    if sets.is_empty() {
        return folder(name, files);
    }
    let is_drafter = name.repository.to_ascii_lowercase().contains("dflash");
    let wanted: Vec<&str> = match &name.quant {
        Some(quant) => vec![quant.as_str()],
        None if is_drafter => OF_DRAFTERS.to_vec(),
        None => OF_MODELS.to_vec(),
    };
    let matching = |quant: &str| {
        let fitting = sets.iter().filter(|set| is_quant(&set.stem, quant));
        // `UD-Q4_K_XL` also ends in `Q4_K_XL`; the shorter name is the one that was said.
        fitting.min_by_key(|set| set.stem.len())
    };
    let only = (sets.len() == 1 && name.quant.is_none()).then(|| &sets[0]);
    let Some(set) = only.or_else(|| wanted.into_iter().find_map(matching)) else {
        let shown: Vec<String> = sets
            .iter()
            .map(|set| format!("{} ({})", label(&set.stem), gigabytes(set.bytes())))
            .collect();
        let asked = name.quant.as_ref().map(|quant| format!(" `{quant}`")).unwrap_or_default();
        bail!(
            "`{}` has no file{asked}; there are {}: add one to the name, as in `{}:{}`",
            name.repository,
            shown.join(", "),
            name.repository,
            label(&sets[0].stem)
        );
    };
    if set.parts.len() != set.promised {
        bail!(
            "`{name}` is not whole: {} of {} parts are here, `forerun pull {name}` fetches the \
             rest",
            set.parts.len(),
            set.promised
        );
    }
    Ok(whole(set.parts.clone(), files))
}

/// The parts of a GGUF, and a configuration beside it, which some drafters need.
fn whole<'a, F: Listed>(parts: Vec<&'a F>, files: &'a [F]) -> Choice<'a, F> {
    let open = parts.first().copied();
    let config = files.iter().filter(|file| file.path() == "config.json");
    Choice { files: parts.into_iter().chain(config).collect(), open }
}

/// A folder of safetensors.
fn folder<'a, F: Listed>(name: &HubName, files: &'a [F]) -> Result<Choice<'a, F>> {
    let at_root = |file: &&F| !file.path().contains('/');
    let is_weight = |path: &str| path.ends_with(".safetensors") || path.ends_with(".index.json");
    let weights = files.iter().filter(at_root).filter(|file| is_weight(file.path())).count();
    if weights == 0 {
        bail!(
            "`{}` has neither GGUF nor safetensors files: Forerun reads those two",
            name.repository
        );
    }
    if let Some(quant) = &name.quant {
        bail!(
            "`{}` is a folder of safetensors without quantisations: leave `:{quant}` away, or \
             name a repository of GGUF files",
            name.repository
        );
    }
    let belongs = |path: &str| is_weight(path) || BESIDE.contains(&path);
    let files = files.iter().filter(at_root).filter(|file| belongs(file.path())).collect();
    Ok(Choice { files, open: None })
}

impl<F: Listed> Set<'_, F> {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|file| file.size()).sum()
    }
}

/// The models among the files, with the parts of each in order.
fn sets<F: Listed>(files: &[F]) -> Vec<Set<'_, F>> {
    let mut sets: Vec<Set<'_, F>> = Vec::new();
    let mut models: Vec<&F> = files.iter().filter(|file| is_model(file.path())).collect();
    models.sort_by_key(|file| file.path());
    for file in models {
        let (stem, promised) = stem(file.path());
        match sets.iter_mut().find(|set| set.stem == stem) {
            Some(set) => set.parts.push(file),
            None => sets.push(Set { stem, parts: vec![file], promised }),
        }
    }
    sets
}

/// The parts of the file that was named.
fn set_of<'a, F: Listed>(file: &'a F, files: &'a [F]) -> Vec<&'a F> {
    let (wanted, promised) = stem(file.path());
    if promised == 1 {
        return vec![file];
    }
    let mut parts: Vec<&F> = files.iter().filter(|f| stem(f.path()).0 == wanted).collect();
    parts.sort_by_key(|file| file.path());
    parts
}

/// A GGUF that is a model by itself: no image reader, no MTP block alone, no importance matrix.
fn is_model(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let file = path.rsplit('/').next().unwrap_or(&path);
    let is_other = file.contains("mmproj") || file.contains("imatrix") || file.starts_with("mtp-");
    path.ends_with(".gguf") && !is_other && !path.starts_with("mtp/")
}

/// The name without folders, parts and ending, and how many parts there are.
fn stem(path: &str) -> (String, usize) {
    let file = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let file = file.strip_suffix(".gguf").unwrap_or(&file);
    let parts = file.rsplit_once("-of-").and_then(|(before, count)| {
        let (stem, number) = before.rsplit_once('-')?;
        let count = count.parse().ok().filter(|_| number.parse::<usize>().is_ok())?;
        Some((stem.to_owned(), count))
    });
    parts.unwrap_or_else(|| (file.to_owned(), 1))
}

/// Whether a file's name ends in that quantisation.
fn is_quant(stem: &str, quant: &str) -> bool {
    let before = stem.strip_suffix(quant.to_ascii_lowercase().as_str());
    before.is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_']))
}

/// The quantisation in a file's name, or all of it.
fn label(stem: &str) -> String {
    let stem = stem.to_ascii_uppercase();
    let tail = stem.rsplit(['-', '.']).next().unwrap_or(&stem);
    let is_type = ["Q", "IQ", "BF", "F", "MXFP", "NVFP", "TQ"].iter().any(|start| {
        tail.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    match (is_type, stem.ends_with(&format!("-UD-{tail}"))) {
        (true, true) => format!("UD-{tail}"),
        (true, false) => tail.to_owned(),
        (false, _) => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Listed for (&str, u64) {
        fn path(&self) -> &str {
            self.0
        }

        fn size(&self) -> u64 {
            self.1
        }
    }

    fn chosen(repository: &str, quant: Option<&str>, files: &[&'static str]) -> String {
        let files: Vec<(&str, u64)> = files.iter().map(|path| (*path, 17_600_000_000)).collect();
        let name = HubName { quant: quant.map(str::to_owned), ..HubName::of(repository) };
        match choose(&name, &files) {
            Ok(choice) => {
                let all: Vec<&str> = choice.files.iter().map(|file| file.0).collect();
                format!("{} <- {}", choice.open.map_or("folder", |file| file.0), all.join(" "))
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn quantisations_and_parts() {
        let files = [
            "M-Q4_K_M.gguf",
            "M-UD-Q4_K_XL.gguf",
            "Q8_0/M-Q8_0-00002-of-00002.gguf",
            "Q8_0/M-Q8_0-00001-of-00002.gguf",
            "MTP/mtp-M-Q4_0.gguf",
            "mmproj-F16.gguf",
            "README.md",
        ];
        let of = |quant| chosen("a/b", quant, &files);
        assert_eq!(of(None), "M-UD-Q4_K_XL.gguf <- M-UD-Q4_K_XL.gguf");
        assert_eq!(of(Some("q4_k_m")), "M-Q4_K_M.gguf <- M-Q4_K_M.gguf");
        assert_eq!(of(Some("Q4_K_XL")), "M-UD-Q4_K_XL.gguf <- M-UD-Q4_K_XL.gguf");
        let parts = "Q8_0/M-Q8_0-00001-of-00002.gguf Q8_0/M-Q8_0-00002-of-00002.gguf";
        assert_eq!(of(Some("Q8_0")), format!("Q8_0/M-Q8_0-00001-of-00002.gguf <- {parts}"));
        assert_eq!(
            of(Some("Q2_K")),
            "`a/b` has no file `Q2_K`; there are Q4_K_M (17.6 GB), UD-Q4_K_XL (17.6 GB), Q8_0 \
             (35.2 GB): add one to the name, as in `a/b:Q4_K_M`"
        );
        let half = chosen("a/b", Some("Q8_0"), &["M-Q8_0-00001-of-00002.gguf"]);
        assert!(half.contains("1 of 2 parts are here, `forerun pull a/b:Q8_0`"), "{half}");
        let files = ["M.F16.gguf", "M.mmproj-f16.gguf", "M.imatrix.gguf"];
        assert_eq!(chosen("a/b", Some("F16"), &files), "M.F16.gguf <- M.F16.gguf");
        assert_eq!(chosen("a/b", None, &files), "M.F16.gguf <- M.F16.gguf");
    }

    #[test]
    fn drafters_are_wanted_whole_and_folders_with_what_belongs_to_them() {
        let files = ["d-q4_k_m.gguf", "d-q8_0.gguf", "config.json"];
        assert_eq!(
            chosen("a/X-DFlash-GGUF", None, &files),
            "d-q8_0.gguf <- d-q8_0.gguf config.json"
        );
        let files = ["hf_quant_config.json", "model.safetensors", "x/model.safetensors", "README"];
        assert_eq!(chosen("a/b", None, &files), "folder <- hf_quant_config.json model.safetensors");
        assert!(chosen("a/b", Some("Q8_0"), &files).contains("without quantisations"));
        assert!(chosen("a/b", None, &["pytorch_model.bin"]).contains("neither GGUF nor"));
        assert_eq!(chosen("a/b", None, &["odd-name.gguf"]), "odd-name.gguf <- odd-name.gguf");
    }
}
