//! Runs that pages quote: what was measured, on what, when and by which command, with tables of
//! figures. What measures writes them itself, so that no figure is typed; `forerun bench tables`
//! fills pages from them.
#![forbid(unsafe_code)]

mod bench;
mod figure;
pub mod machine;

pub use anyhow::Result;
pub use bench::{Bench, median, seconds};
pub use figure::{Figure, Table, number};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A run with a name, which is the name of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The processor or card, and how busy it was.
    pub machine: String,
    /// Version, profile and checksum of the program.
    pub build: String,
    /// UTC.
    pub date: String,
    /// What makes the figures again.
    pub command: String,
    /// Models, their types, and how much of them was run.
    pub shapes: String,
    /// Tables by name.
    pub tables: BTreeMap<String, Table>,
}

impl Named {
    /// A run that begins now, of this program on this machine; what was run and its tables are to
    /// follow.
    pub fn here(command: String) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            machine: format!(
                "{}, {cores} cores, load {:.1} before",
                machine::processor(),
                machine::load()
            ),
            build: std::env::current_exe()
                .map_or_else(|_| String::new(), |program| machine::build(&program)),
            date: machine::time(),
            command,
            shapes: String::new(),
            tables: BTreeMap::new(),
        }
    }

    /// Reads a run and checks that its rows are as wide as its tables.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(shown)?;
        let named: Self = serde_json::from_str(&text).with_context(shown)?;
        for (name, table) in &named.tables {
            if let Some(row) = table.rows.iter().find(|r| r.len() != table.columns.len()) {
                bail!(
                    "{}: a row of `{name}` has {} figures, {} expected",
                    shown(),
                    row.len(),
                    table.columns.len()
                );
            }
        }
        Ok(named)
    }

    /// Writes the file, and its folder where there is none.
    pub fn write(&self, path: &Path) -> Result<()> {
        let shown = || path.display().to_string();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(shown)?;
        }
        std::fs::write(path, compact(&serde_json::to_value(self)?)).with_context(shown)
    }
}

/// Where the run of that name lies in `folder`.
pub fn path(folder: &Path, name: &str) -> Result<PathBuf> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
    match !name.is_empty() && !name.starts_with('.') && name.chars().all(fits) {
        true => Ok(folder.join(format!("{name}.json"))),
        false => bail!("`{name}` is no name of a run: letters, digits, `-`, `.` and `_` expected"),
    }
}

/// JSON that can be read and compared by people: a line for each key, and for each row of a table.
fn compact(value: &serde_json::Value) -> String {
    fn put(text: &mut String, value: &serde_json::Value, depth: usize) {
        let pad = "  ".repeat(depth + 1);
        let (open, close, lines): (char, char, Vec<(String, &serde_json::Value)>) = match value {
            serde_json::Value::Object(map) => {
                let line = |(k, v)| (format!("{}: ", serde_json::Value::from(k as &str)), v);
                ('{', '}', map.iter().map(|(k, v)| line((k.as_str(), v))).collect())
            }
            serde_json::Value::Array(list)
                if list.iter().any(serde_json::Value::is_array) && depth < 4 =>
            {
                ('[', ']', list.iter().map(|v| (String::new(), v)).collect())
            }
            _ => return text.push_str(&value.to_string()),
        };
        text.push(open);
        for (i, (key, value)) in lines.iter().enumerate() {
            text.push_str(if i == 0 { "\n" } else { ",\n" });
            text.push_str(&pad);
            text.push_str(key);
            put(text, value, depth + 1);
        }
        text.push_str(&format!("\n{}{close}", "  ".repeat(depth)));
    }
    let mut text = String::new();
    put(&mut text, value, 0);
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_reads_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = Named::here("c".to_owned());
        run.tables.insert(
            "t".to_owned(),
            Table::new(&["x", "y"], vec![vec!["a".into(), 1.5.into()], vec!["b".into(), 2.into()]]),
        );
        let file = path(&folder.path().join("new"), "run-1.a").unwrap();
        run.write(&file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("\n        [\"a\",1.5],\n"), "{text}");
        let value = |run: &Named| serde_json::to_value(run).unwrap();
        assert_eq!(value(&Named::open(&file).unwrap()), value(&run));

        std::fs::write(&file, text.replace("[\"a\",1.5]", "[\"a\"]")).unwrap();
        let error = Named::open(&file).unwrap_err().to_string();
        assert!(error.ends_with("a row of `t` has 1 figures, 2 expected"), "{error}");
        for wrong in ["", ".", "../run", "a/b", "a b"] {
            assert!(path(folder.path(), wrong).is_err(), "{wrong}");
        }
    }
}
