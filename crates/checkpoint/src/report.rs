//! How a configuration came to be: which key or shape gave each value, and what looked odd on the
//! way.

use serde::Serialize;

/// Where one value of a configuration came from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resolution {
    /// The configuration's field.
    pub field: &'static str,
    /// What it was resolved to.
    pub value: serde_json::Value,
    /// The key, shape, flag or rule that said so.
    pub from: String,
}

/// The account given beside a configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// One entry per value, in the order of the configuration.
    pub resolved: Vec<Resolution>,
    /// What is allowed but looks wrong.
    pub warnings: Vec<String>,
    /// Tensors of parts that are not run, such as a vision tower.
    pub skipped: Vec<String>,
}

impl Report {
    pub(crate) fn note<T: Serialize>(
        &mut self,
        field: &'static str,
        value: &T,
        from: impl Into<String>,
    ) {
        // By way of text, so that a 32-bit float is shown as short as it is: 1e-6, not
        // 9.999999974752427e-7.
        let text = serde_json::to_string(value).expect("configuration values are plain data");
        let value = serde_json::from_str(&text).expect("just written");
        self.resolved.push(Resolution { field, value, from: from.into() });
    }

    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }
}

/// A value with its origin, before it is settled.
#[derive(Clone, Debug)]
pub(crate) struct Claim<T> {
    pub(crate) value: T,
    pub(crate) from: String,
}

impl<T> Claim<T> {
    pub(crate) fn new(value: T, from: impl Into<String>) -> Self {
        Self { value, from: from.into() }
    }

    pub(crate) fn key(value: T, key: &str) -> Self {
        Self::new(value, format!("`{key}`"))
    }
}
