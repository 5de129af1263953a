//! `tokenizer.json` -> [`Vocabulary`], and back. The file describes a pipeline; anything in it that
//! differs from the one pipeline known here is refused by name.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::MAX_TOKENS;
use super::split;
use super::vocabulary::{TokenizerError as Error, Vocabulary};

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    /// `type` and the switches.
    #[serde(flatten)]
    rest: HashMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Text(String),
}

/// Reads a `tokenizer.json`.
pub(super) fn vocabulary(bytes: &[u8]) -> Result<Vocabulary, Error> {
    let file: File = serde_json::from_slice(bytes)?;
    check("normalizer", &file.normalizer["type"], &[json!("NFC")], "NFC")?;
    check(
        "post-processor",
        &file.post_processor["type"],
        &[Value::Null, json!("ByteLevel")],
        "ByteLevel",
    )?;
    check("decoder", &file.decoder["type"], &[json!("ByteLevel")], "ByteLevel")?;
    check(
        "model",
        file.model.rest.get("type").unwrap_or(&Value::Null),
        &[json!("BPE"), Value::Null],
        "BPE",
    )?;
    for (part, found) in &file.model.rest {
        if part != "type" && ![Value::Null, json!(false), json!("")].contains(found) {
            let found = format!("{part}={found}");
            return Err(Error::Unsupported { part: "model switch", found, known: "none" });
        }
    }
    let pre = split_name(&file.pre_tokenizer)?.to_owned();

    let size =
        file.model.vocab.values().chain(file.added_tokens.iter().map(|added| &added.id)).max();
    let size = size.map_or(0, |id| *id as usize + 1);
    if size > MAX_TOKENS {
        return Err(Error::TooManyTokens { tokens: size, limit: MAX_TOKENS });
    }
    let mut tokens = vec![String::new(); size];
    let mut token_types = vec![5; size]; // a hole in the numbering is an unused row
    let mut place = |id: u32, token: String, kind: i32| {
        let (there, there_kind) = (&mut tokens[id as usize], &mut token_types[id as usize]);
        if *there_kind != 5 && *there != token {
            return Err(Error::DuplicateId { id, first: there.clone(), second: token });
        }
        (*there, *there_kind) = (token, kind);
        Ok(())
    };
    for (token, id) in file.model.vocab {
        place(id, token, 1)?;
    }
    for Added { id, content, special, single_word, lstrip, rstrip, normalized } in file.added_tokens
    {
        let switches = [
            (single_word, "single_word"),
            (lstrip, "lstrip"),
            (rstrip, "rstrip"),
            (normalized, "normalized"),
        ];
        if let Some((_, problem)) = switches.into_iter().find(|switch| switch.0) {
            return Err(Error::AddedToken { id, token: content, problem });
        }
        place(id, content, if special { 3 } else { 4 })?;
    }
    let merges = file.model.merges.into_iter().map(|merge| match merge {
        Merge::Pair(left, right) => format!("{left} {right}"),
        Merge::Text(merge) => merge,
    });
    let merges = merges.collect();
    Ok(Vocabulary {
        model: "gpt2".into(),
        pre,
        tokens,
        token_types,
        merges,
        ..Vocabulary::default()
    })
}

/// The `tokenizer.json` that describes the same tokenizer, for others who read such files.
pub(super) fn of_vocabulary(vocabulary: &Vocabulary) -> Result<Value, Error> {
    vocabulary.check()?;
    let pattern = split::pattern_of(&vocabulary.pre);
    let known = vocabulary.tokens.iter().zip(&vocabulary.token_types).zip(0u32..);
    let known = known.filter(|((_, kind), _)| **kind != 5);
    // Added tokens are among the others too, so that their ids are theirs whatever is missing.
    let vocab: serde_json::Map<String, Value> =
        known.clone().map(|((token, _), id)| (token.clone(), json!(id))).collect();
    let added = known.filter(|((_, kind), _)| [3, 4].contains(*kind)).map(|((token, kind), id)| {
        json!({"id": id, "content": token, "special": *kind == 3, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    });
    let spelling = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": prefix});
    let merges = vocabulary.merges.iter().map(|merge| match merge.split_once(' ') {
        Some((left, right)) => json!([left, right]),
        None => json!(merge),
    });
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<Value>>(),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            spelling(false),
        ]},
        "post_processor": null,
        "decoder": spelling(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab,
            "merges": merges.collect::<Vec<Value>>()},
    }))
}

/// The split behind `Sequence[Split, ByteLevel]`, byte-level in spelling alone.
fn split_name(pre_tokenizer: &Value) -> Result<&'static str, Error> {
    let steps = &pre_tokenizer["pretokenizers"];
    let (split, spelling) = (&steps[0], &steps[1]);
    let types = json!([&pre_tokenizer["type"], &split["type"], &spelling["type"], &steps[2]]);
    check(
        "pre-tokenizer",
        &types,
        &[json!(["Sequence", "Split", "ByteLevel", null])],
        "Sequence, Split, ByteLevel",
    )?;
    let switches = json!([
        &split["behavior"],
        &split["invert"],
        &spelling["add_prefix_space"],
        &spelling["use_regex"]
    ]);
    let known = "Isolated, not inverted, no prefix space, no second pattern";
    check("pre-tokenizer switches", &switches, &[json!(["Isolated", false, false, false])], known)?;
    let pattern = &split["pattern"]["Regex"];
    pattern.as_str().and_then(split::name_of).ok_or_else(|| Error::Unsupported {
        part: "split pattern",
        found: pattern.to_string(),
        known: split::KNOWN_NAMES,
    })
}

fn check(
    part: &'static str,
    found: &Value,
    allowed: &[Value],
    known: &'static str,
) -> Result<(), Error> {
    if allowed.contains(found) {
        return Ok(());
    }
    Err(Error::Unsupported { part, found: found.to_string(), known })
}
