//! Modes of proposing as `bench` names them: `off`, `chain:8` (rows of a block), `tree:22`
//! (budget), `mtp:3` (depth), `lookup:15` and `auto:31` (budget).

use anyhow::{Context, Result, bail};
use engine::Spec;
use launch::Running;

/// A mode with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) name: String,
    pub(crate) spec: Spec,
}

/// What there is to propose with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    /// Rows of a block the drafter was trained for.
    pub(crate) block: Option<usize>,
    /// Rows of a block that `auto` may ask for, where it runs unless something else is said.
    pub(crate) widest: Option<usize>,
    pub(crate) mtp: bool,
    /// Rows of a pass, of which a draft leaves one to the newest token.
    pub(crate) rows: usize,
}

/// Budget of a tree and of lookup, and depth of MTP unless said.
const TREE_BUDGET: usize = 22;
const LOOKUP_BUDGET: usize = 15;
const MTP_DEPTH: usize = 3;
const MAX_DEPTH: usize = 7;

impl Means {
    pub(crate) fn of(running: &Running) -> Self {
        let widest = match running.engine.spec() {
            Spec::Auto { block, .. } => Some(block),
            _ => None,
        };
        Self {
            widest,
            block: running.engine.drafter("dflash").and_then(|drafter| drafter.block()),
            mtp: running.engine.model().config().mtp.is_some(),
            rows: running.engine.text_rows(),
        }
    }

    /// Whether a mode of this kind can run.
    fn allow(self, kind: &str) -> bool {
        match kind {
            "chain" | "tree" => self.block.is_some(),
            "mtp" => self.mtp,
            _ => true,
        }
    }

    /// The mode of that name.
    pub(crate) fn mode(self, name: &str) -> Result<Mode> {
        let (kind, number) = match name.split_once(':') {
            Some((kind, number)) => {
                let wrong = || format!("mode `{name}`: a number expected after the colon");
                (kind, Some(number.parse::<usize>().with_context(wrong)?))
            }
            None => (name, None),
        };
        if !self.allow(kind) {
            bail!("mode `{name}`: the model has nothing to propose that way with");
        }
        let within = |number: usize, low: usize, high: usize, what: &str| match number {
            n if (low..=high).contains(&n) => Ok(n),
            n => bail!("mode `{name}`: {what} of {n}, {low} to {high} expected"),
        };
        let block = self.block.unwrap_or(2);
        let spec = match kind {
            "off" if number.is_none() => Spec::Off,
            "auto" => {
                let (block, budget) =
                    (self.widest.unwrap_or(block), number.unwrap_or(Spec::AUTO_BUDGET));
                Spec::Auto { block, budget: within(budget, 1, self.rows - 1, "a budget")? }
            }
            "chain" => {
                let block = within(number.unwrap_or(block), 2, block, "a block")?;
                Spec::Chain { block, budget: block - 1 }
            }
            "tree" => {
                let budget = within(number.unwrap_or(TREE_BUDGET), 1, self.rows - 1, "a budget")?;
                Spec::Tree { block, budget }
            }
            "mtp" => {
                Spec::Mtp { depth: within(number.unwrap_or(MTP_DEPTH), 1, MAX_DEPTH, "a depth")? }
            }
            "lookup" => {
                let budget = number.unwrap_or(LOOKUP_BUDGET);
                Spec::Lookup { budget: within(budget, 1, self.rows - 1, "a budget")? }
            }
            _ => bail!(
                "unknown mode `{name}`: off, chain[:BLOCK], tree[:BUDGET], mtp[:DEPTH], \
                 lookup[:BUDGET] or auto[:BUDGET] expected"
            ),
        };
        Ok(Mode { name: name.to_owned(), spec })
    }

    /// Of these modes, those that can run.
    pub(crate) fn possible(self, names: &[&str]) -> Vec<Mode> {
        let fits = |name: &&&str| self.allow(name.split(':').next().unwrap_or_default());
        // A drafter may be trained for a block shorter than a name asks for.
        names.iter().filter(fits).filter_map(|name| self.mode(name).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_proposed() {
        let means = Means { block: Some(16), widest: None, mtp: false, rows: 64 };
        assert_eq!(means.mode("chain").unwrap().spec, Spec::Chain { block: 16, budget: 15 });
        assert_eq!(means.mode("chain:4").unwrap().spec, Spec::Chain { block: 4, budget: 3 });
        assert_eq!(means.mode("lookup:9").unwrap().spec, Spec::Lookup { budget: 9 });
        assert_eq!(means.mode("tree:40").unwrap().spec, Spec::Tree { block: 16, budget: 40 });
        for wrong in ["mtp", "chain:17", "tree:64", "tree:0", "tree:x", "off:1", "fast"] {
            assert!(means.mode(wrong).is_err(), "{wrong}");
        }
        let names: Vec<String> = means
            .possible(&["off", "mtp:3", "chain:32", "auto"])
            .into_iter()
            .map(|m| m.name)
            .collect();
        assert_eq!(names, ["off", "auto"]);
    }
}
