//! What benches share: their arguments, how they time, and how they write their run.

use crate::{Named, Table, path};
use anyhow::{Context, Result};
use std::path::Path;
use std::time::{Duration, Instant};

/// A program that measures, with the run it is making: `--run NAME` among its arguments writes that
/// to `docs/runs`.
pub struct Bench {
    /// The other arguments.
    pub words: Vec<String>,
    /// What is written in the end; load and time are those of the beginning.
    pub run: Named,
    name: Option<String>,
}

impl Bench {
    /// `line` is the command up to its `--`.
    pub fn new(line: &str) -> Result<Self> {
        Self::of(line, std::env::args().skip(1))
    }

    fn of(line: &str, arguments: impl Iterator<Item = String>) -> Result<Self> {
        // `--bench` is what cargo itself adds.
        let mut arguments = arguments.filter(|word| word != "--bench");
        let (mut words, mut name) = (Vec::new(), None);
        while let Some(word) = arguments.next() {
            match word.as_str() {
                "--run" => name = Some(arguments.next().context("`--run`: a name expected")?),
                _ => words.push(word),
            }
        }
        let quoted =
            |word: &String| if word.contains(' ') { format!("\"{word}\"") } else { word.clone() };
        let given = words.iter().map(quoted).chain(name.iter().map(|name| format!("--run {name}")));
        let command = given.fold(format!("{line} --"), |command, word| command + " " + &word);
        Ok(Self { words, run: Named::here(command), name })
    }

    /// Says the tables, and writes the run if it has a name.
    pub fn finish(
        mut self,
        shapes: &str,
        tables: impl IntoIterator<Item = (&'static str, Table)>,
    ) -> Result<()> {
        for (name, table) in tables {
            println!("\n{name}:\n{table}");
            self.run.tables.insert(name.to_owned(), table);
        }
        self.run.shapes = shapes.to_owned();
        match self.name {
            // Benches run in the folder of their crate.
            Some(name) => {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runs");
                self.run.write(&path(&folder, &name)?)
            }
            None => Ok(()),
        }
    }
}

/// The middle of some numbers; NaN of none.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Seconds that `f` takes: the median of samples of at least a millisecond each, half a second of
/// them or three.
pub fn seconds(mut f: impl FnMut()) -> f64 {
    let mut sample = |times: u32| {
        let begin = Instant::now();
        (0..times).for_each(|_| f());
        begin.elapsed()
    };
    let mut times = 1;
    while sample(times) < Duration::from_millis(1) {
        times *= 2;
    }
    let begin = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < 3 || begin.elapsed() < Duration::from_millis(500) {
        samples.push(sample(times).as_secs_f64() / f64::from(times));
    }
    median(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_from_the_arguments_and_the_rest_is_left() {
        let of = |words: &[&str]| Bench::of("cargo bench", words.iter().map(|w| (*w).to_owned()));
        let bench = of(&["--bench", "2", "dense Q4", "--run", "mine"]).unwrap();
        assert_eq!(
            (bench.words, bench.name.as_deref()),
            (vec!["2".to_owned(), "dense Q4".to_owned()], Some("mine"))
        );
        assert_eq!(bench.run.command, "cargo bench -- 2 \"dense Q4\" --run mine");
        assert!(of(&["--run"]).is_err());
    }

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }
}
