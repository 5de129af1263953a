//! `config.json` with typed, dotted look-ups. `null` counts as absent, as in Transformers.

use crate::Error;
use serde_json::{Map, Value};
use std::path::Path;

/// The largest of these files is a `tokenizer.json` of about 20 MB.
const CAP: u64 = 64 << 20;

/// A parsed `config.json`.
#[derive(Clone, Debug, Default)]
pub struct Json {
    root: Map<String, Value>,
}

impl Json {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |cause| Error::Io { path: path.to_owned(), cause };
        let len = std::fs::metadata(path).map_err(io)?.len();
        if len > CAP {
            return Err(Error::ConfigTooLong { path: path.to_owned(), len, cap: CAP });
        }
        let bytes = std::fs::read(path).map_err(io)?;
        let value = serde_json::from_slice(&bytes)
            .map_err(|cause| Error::Json { path: path.to_owned(), cause })?;
        Self::from_value(value)
    }

    /// Takes a parsed document, which must be an object.
    pub fn from_value(value: Value) -> Result<Self, Error> {
        match value {
            Value::Object(root) => Ok(Self { root }),
            _ => Err(Error::ConfigNotObject),
        }
    }

    /// The object under a key as a configuration of its own.
    pub(crate) fn nested(&self, key: &str) -> Option<Self> {
        self.root.get(key)?.as_object().map(|root| Self { root: root.clone() })
    }

    /// This configuration with the keys of a nested object added where it has none of that name.
    pub(crate) fn with_nested(&self, key: &str) -> Option<Self> {
        let mut root = self.nested(key)?.root;
        root.extend(self.root.clone());
        Some(Self { root })
    }

    /// Adds what modelopt writes beside a configuration, in `hf_quant_config.json`, in the form
    /// that its newer versions have in the configuration itself.
    pub(crate) fn add_modelopt(&mut self, said: &Self) {
        if let Some(mut quantisation) = said.nested("quantization") {
            quantisation.root.insert("quant_method".into(), "modelopt".into());
            self.root.insert(crate::source::BESIDE.into(), Value::Object(quantisation.root));
        }
    }

    /// The value at a dotted path.
    pub fn get(&self, path: &str) -> Option<&Value> {
        let (first, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
        let mut value = self.root.get(first)?;
        for key in rest.into_iter().flat_map(|r| r.split('.')) {
            value = value.get(key)?;
        }
        (!value.is_null()).then_some(value)
    }

    /// A non-negative integer at a dotted path.
    pub fn integer(&self, path: &str) -> Result<Option<usize>, Error> {
        self.typed(path, "a non-negative integer", |v| {
            // Some exporters write whole numbers as floats.
            let float = v
                .as_f64()
                .filter(|f| f.fract() == 0.0 && (0.0..9e15).contains(f))
                .map(|f| f as u64);
            v.as_u64().or(float).map(|n| n as usize)
        })
    }

    /// A number at a dotted path.
    pub fn float(&self, path: &str) -> Result<Option<f32>, Error> {
        self.typed(path, "a number", |v| v.as_f64().map(|f| f as f32))
    }

    /// A bool at a dotted path.
    pub fn bool(&self, path: &str) -> Result<Option<bool>, Error> {
        self.typed(path, "true or false", Value::as_bool)
    }

    /// A string at a dotted path.
    pub fn string(&self, path: &str) -> Result<Option<&str>, Error> {
        self.typed(path, "a string", Value::as_str)
    }

    /// A list of integers at a dotted path.
    pub fn integers(&self, path: &str) -> Result<Option<Vec<i64>>, Error> {
        self.typed(path, "a list of integers", |v| {
            v.as_array()?.iter().map(Value::as_i64).collect()
        })
    }

    /// A list of strings at a dotted path.
    pub fn strings(&self, path: &str) -> Result<Option<Vec<&str>>, Error> {
        self.typed(path, "a list of strings", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }

    /// The keys of the object at a dotted path, with their values.
    pub fn object(&self, path: &str) -> Result<Option<&Map<String, Value>>, Error> {
        self.typed(path, "an object", Value::as_object)
    }

    fn typed<'a, T>(
        &'a self,
        path: &str,
        wanted: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(path) else { return Ok(None) };
        let wrong = || {
            let mut found = value.to_string();
            if found.chars().count() > 60 {
                found = found.chars().take(60).chain("...".chars()).collect();
            }
            Error::KeyType { key: path.to_owned(), wanted, found }
        };
        read(value).map(Some).ok_or_else(wrong)
    }
}
