//! Where the time of a pass goes, kernel by kernel: a table of the launches that a device timed one
//! by one.

use crate::named::{Figure, Table};
use std::collections::BTreeMap;
use std::io::{Result, Write};

/// The launches of a few runs of one pass, by kernel.
pub(crate) struct Launches {
    what: String,
    runs: usize,
    /// Seconds of every launch.
    kernels: BTreeMap<&'static str, Vec<f64>>,
}

impl Launches {
    pub(crate) fn new(what: String, runs: usize, timed: Vec<(&'static str, f64)>) -> Self {
        let mut kernels: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for (kernel, seconds) in timed {
            kernels.entry(kernel).or_default().push(seconds);
        }
        Self { what, runs, kernels }
    }

    /// A row for each kernel, the most expensive first: launches of a run, microseconds of one
    /// (median) and of all.
    fn rows(&self) -> Vec<Vec<Figure>> {
        let runs = self.runs as f64;
        let mut rows: Vec<(f64, Vec<Figure>)> = Vec::new();
        for (kernel, seconds) in &self.kernels {
            let mut sorted = seconds.clone();
            sorted.sort_by(f64::total_cmp);
            let (median, all) =
                (sorted[sorted.len() / 2] * 1e6, seconds.iter().sum::<f64>() / runs * 1e6);
            let tenth = |x: f64| Figure::Number((x * 10.0).round() / 10.0);
            let launches = Figure::Number(seconds.len() as f64 / runs);
            let names = [&self.what, *kernel].map(|name| Figure::Text(name.to_owned()));
            rows.push((
                all,
                names.into_iter().chain([launches, tenth(median), tenth(all)]).collect(),
            ));
        }
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

pub(crate) fn table(passes: &[Launches]) -> Table {
    let columns = ["pass", "kernel", "launches", "us each", "us in all"];
    Table {
        columns: columns.map(str::to_owned).to_vec(),
        rows: passes.iter().flat_map(Launches::rows).collect(),
    }
}

pub(crate) fn print(out: &mut impl Write, passes: &[Launches]) -> Result<()> {
    for pass in passes {
        writeln!(out, "{}, launch by launch:", pass.what)?;
        for row in pass.rows() {
            let [
                _,
                Figure::Text(kernel),
                Figure::Number(launches),
                Figure::Number(each),
                Figure::Number(all),
            ] = &row[..]
            else {
                unreachable!("as `rows` makes them")
            };
            writeln!(out, "  {kernel:28} {launches:>6} x {each:>8.1} us {all:>10.1} us")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_counted_a_run_and_the_dearest_kernel_comes_first() {
        let timed = vec![("norm", 2e-6), ("product", 40e-6), ("norm", 4e-6), ("product", 60e-6)];
        let table = table(&[Launches::new("verify".into(), 2, timed)]);
        let cells: Vec<String> = table.rows.iter().map(|row| format!("{row:?}")).collect();
        assert!(
            cells[0].contains("product")
                && cells[0].contains("Number(1.0), Number(60.0), Number(50.0)")
        );
        assert!(
            cells[1].contains("norm") && cells[1].contains("Number(1.0), Number(4.0), Number(3.0)")
        );
    }
}
