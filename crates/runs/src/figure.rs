//! Tables and what stands in their cells.

use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter, Result};

/// Rows of figures under named columns; displayed as Markdown.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Their names.
    pub columns: Vec<String>,
    /// Each as wide as the columns.
    pub rows: Vec<Vec<Figure>>,
}

/// What stands in a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Figure {
    /// One number.
    Number(f64),
    /// Value, low and high.
    Interval([f64; 3]),
    /// A name, or nothing.
    Text(String),
}

impl Table {
    /// A table of these columns.
    pub fn new(columns: &[&str], rows: Vec<Vec<Figure>>) -> Self {
        Self { columns: columns.iter().map(|&name| name.to_owned()).collect(), rows }
    }
}

/// Four significant digits suffice to tell figures apart, and keep files small; counts stay what
/// they are.
fn rounded(number: f64) -> f64 {
    match number == number.trunc() {
        true => number,
        false => format!("{number:.3e}").parse().unwrap_or(number),
    }
}

impl From<f64> for Figure {
    fn from(number: f64) -> Self {
        Self::Number(rounded(number))
    }
}

impl From<usize> for Figure {
    fn from(count: usize) -> Self {
        Self::Number(count as f64)
    }
}

impl From<[f64; 3]> for Figure {
    fn from(interval: [f64; 3]) -> Self {
        Self::Interval(interval.map(rounded))
    }
}

impl From<&str> for Figure {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// What was not measured leaves its cell empty.
impl<T: Into<Figure>> From<Option<T>> for Figure {
    fn from(figure: Option<T>) -> Self {
        figure.map_or_else(|| Self::from(""), Into::into)
    }
}

/// A number with as many digits as say something.
pub fn number(number: f64) -> String {
    match number.abs() {
        n if n == n.trunc() && n < 1e15 => format!("{number:.0}"),
        n if n >= 100.0 => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        n if n >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

impl Display for Figure {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Number(n) => f.write_str(&number(*n)),
            Self::Interval([value, low, high]) => {
                write!(f, "{} [{}, {}]", number(*value), number(*low), number(*high))
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "| {} |", self.columns.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(self.columns.len()))?;
        for row in &self.rows {
            let cells: Vec<String> =
                row.iter().map(|figure| figure.to_string().replace('|', "\\|")).collect();
            writeln!(f, "| {} |", cells.join(" | "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_say_something() {
        let row = [
            Figure::from(0.012345),
            Figure::from(12.3456),
            Figure::from(12345.6),
            Figure::from(32_768),
            Figure::from([1234.4, 1200.0, 1300.0]),
            Figure::from(None::<f64>),
            Figure::from("a|b"),
        ];
        let table = Table::new(&["a", "b", "c", "d", "e", "f", "g"], vec![row.to_vec()]);
        let last = table.to_string().lines().last().unwrap().to_owned();
        assert_eq!(last, "| 0.012 | 12.3 | 12350 | 32768 | 1234 [1200, 1300] |  | a\\|b |");
    }
}
