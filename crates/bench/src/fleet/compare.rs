//! Real workers and simulated ones, side by side.

use super::replay::{Figures, replay};
use super::router::Policy;
use super::{Args, head, real};
use crate::named::{Figure, Named, Table};
use crate::statistics::median;
use anyhow::{Result, bail};

/// The largest difference that the simulation may have from what was measured, of each figure.
const TOLERANCE: f64 = 0.15;

/// The trace goes to real workers and to simulated ones in turns; what workers take is measured
/// before and after each time, since other work on the machine comes and goes.
pub(super) fn compare(args: &Args) -> Result<()> {
    let command = std::iter::once("forerun".to_owned()).chain(std::env::args().skip(1));
    let mut run = Named::here(command.collect::<Vec<_>>().join(" "));
    let workers = real::Workers::new(&args.against)?;
    let count = args.against.len();
    let trace = args.made(count);
    let policies = args.router.iter().filter(|policy| **policy != Policy::Kv);
    let mut found: Vec<(Policy, Vec<[Figures; 2]>)> = policies.map(|p| (*p, Vec::new())).collect();
    let mut before = workers.measure(args.slots, &trace)?;
    for _ in 0..args.repeats.max(1) {
        for (policy, pairs) in &mut found {
            let measured = workers.replay(&trace, *policy)?;
            let after = workers.measure(args.slots, &trace)?;
            let curves = before.mean(&after);
            before = after;
            println!("measured: {}", curves.line());
            let simulated = replay(&trace, &curves, &args.fleet(count), *policy);
            println!("         {}", head(args.price));
            for (kind, figures) in [("real", &measured), ("simulated", &simulated)] {
                let line = figures.line(count, args.price);
                println!("{kind:<9}{count:>7}  {:<11} {line}", policy.name());
            }
            pairs.push([measured, simulated]);
        }
    }
    let rows: Vec<Row> = found.iter().flat_map(|(policy, pairs)| rows(*policy, pairs)).collect();
    for row in &rows {
        println!("{}, {}: {:+.1} %", row.policy, row.figure, 100.0 * row.difference());
    }
    if let Some(path) = &args.out {
        let answers: usize = trace.talks.iter().map(|talk| talk.turns.len()).sum();
        run.shapes = format!(
            "{} conversations with {answers} answers, {} repeats; medians, and the least and the \
             most of them",
            trace.talks.len(),
            args.repeats
        );
        run.tables.insert("fleet".to_owned(), table(&rows));
        run.write(path)?;
    }
    let worst = rows.iter().map(|row| row.difference().abs()).fold(0.0, f64::max);
    match worst <= TOLERANCE {
        true => Ok(()),
        false => bail!(
            "the simulation is {:.0} % away from what was measured, {:.0} % were expected: is the \
             machine busy with something else?",
            100.0 * worst,
            100.0 * TOLERANCE
        ),
    }
}

/// One figure of all repeats.
struct Row {
    policy: &'static str,
    figure: &'static str,
    /// Median, least, most.
    real: [f64; 3],
    simulated: [f64; 3],
}

impl Row {
    fn difference(&self) -> f64 {
        self.simulated[0] / self.real[0] - 1.0
    }
}

fn rows(policy: Policy, pairs: &[[Figures; 2]]) -> Vec<Row> {
    let of = |which: usize, figure: usize| {
        let all: Vec<f64> = pairs.iter().map(|pair| pair[which].judged()[figure].1).collect();
        let (least, most) =
            (all.iter().copied().reduce(f64::min), all.iter().copied().reduce(f64::max));
        [median(all), least.unwrap_or(0.0), most.unwrap_or(0.0)]
    };
    let names = pairs[0][0].judged().map(|(name, _)| name);
    let row =
        |(i, figure)| Row { policy: policy.name(), figure, real: of(0, i), simulated: of(1, i) };
    names.into_iter().enumerate().map(row).collect()
}

fn table(rows: &[Row]) -> Table {
    let row = |row: &Row| -> Vec<Figure> {
        let difference = format!("{:+.1} %", 100.0 * row.difference());
        vec![
            row.policy.into(),
            row.figure.into(),
            row.real.into(),
            row.simulated.into(),
            difference.as_str().into(),
        ]
    };
    let columns = ["router", "", "workers", "simulated", "difference"];
    Table::new(&columns, rows.iter().map(row).collect())
}
