//! A target's tokenizer as GGUF metadata, which llama.cpp wants in a drafter too: copied from a
//! GGUF target, or made from a Hugging Face folder's `tokenizer.json`.

use crate::source::sibling;
use crate::{Error, Json, TargetConfig};
use formats::gguf::{Entries, Gguf};
use std::path::Path;

/// Token types of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// The `tokenizer.*` entries for a drafter of the target at `path`.
pub fn from_target(path: &Path, config: &TargetConfig) -> Result<Entries, Error> {
    if !path.is_dir()
        && !path.to_string_lossy().ends_with(".json")
        && !path.to_string_lossy().ends_with(".safetensors")
    {
        let gguf = Gguf::open(path)?;
        let mut entries = Entries::default();
        for (key, value) in gguf.metadata().filter(|(key, _)| key.starts_with("tokenizer.")) {
            if key != "tokenizer.ggml.mask_token_id" {
                entries.copy(key, value);
            }
        }
        return Ok(entries);
    }
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    from_folder(folder, config)
}

fn from_folder(folder: &Path, target: &TargetConfig) -> Result<Entries, Error> {
    let path = folder.join("tokenizer.json");
    let json = Json::open(&path)?;
    let settings = sibling(&path, "tokenizer_config.json")
        .map(|p| Json::open(&p))
        .transpose()?
        .unwrap_or_default();
    let mut entries = Entries::default();
    entries.string("tokenizer.ggml.model", "gpt2");
    entries.string("tokenizer.ggml.pre", pre_tokenizer(&json)?);

    let vocab =
        json.object("model.vocab")?.ok_or_else(|| Error::MissingKey("model.vocab".into()))?;
    let rows = target.vocab;
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![UNUSED; rows];
    let mut place = |id: Option<u64>, text: &str, kind: i32| {
        let slot = id.and_then(|id| usize::try_from(id).ok()).filter(|&id| id < rows);
        let slot = slot.ok_or_else(|| {
            let id = id.map_or("no number".to_owned(), |id| id.to_string());
            Error::disagree(
                "a token's id",
                format!("{id} for `{text}`"),
                "`tokenizer.json`",
                rows,
                "the target's rows",
            )
        })?;
        (tokens[slot], types[slot]) = (text.to_owned(), kind);
        Ok::<(), Error>(())
    };
    for (text, id) in vocab {
        place(id.as_u64(), text, NORMAL)?;
    }
    let added = json.get("added_tokens").and_then(|v| v.as_array()).map_or(&[][..], Vec::as_slice);
    for token in added {
        let text = token.get("content").and_then(|v| v.as_str()).unwrap_or_default();
        let special = token.get("special").and_then(|v| v.as_bool()).unwrap_or(false);
        place(
            token.get("id").and_then(|v| v.as_u64()),
            text,
            if special { CONTROL } else { USER_DEFINED },
        )?;
    }
    let merges = merges(&json)?;
    entries.strings("tokenizer.ggml.tokens", &tokens);
    entries.i32s("tokenizer.ggml.token_type", &types);
    entries.strings("tokenizer.ggml.merges", &merges);
    for (name, key) in [("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding")] {
        // Written as a string, or as an added token.
        let text =
            settings.get(name).and_then(|v| v.as_str().or_else(|| v.get("content")?.as_str()));
        if let Some(id) = text.and_then(|text| tokens.iter().position(|t| t == text)) {
            entries.u32(&format!("tokenizer.ggml.{key}_token_id"), id as u32);
        }
    }
    entries.bool("tokenizer.ggml.add_bos_token", settings.bool("add_bos_token")?.unwrap_or(false));
    let template = std::fs::read_to_string(folder.join("chat_template.jinja")).ok();
    if let Some(template) = template.as_deref().or(settings.string("chat_template")?) {
        entries.string("tokenizer.chat_template", template);
    }
    Ok(entries)
}

/// The pre-tokenizer by its split pattern: Qwen3.5's takes combining marks into words, Qwen2's does
/// not.
fn pre_tokenizer(json: &Json) -> Result<&'static str, Error> {
    let text = json.get("pre_tokenizer").map(ToString::to_string).unwrap_or_default();
    if text.contains(r"[\\p{L}\\p{M}]+|\\p{N}|") {
        Ok("qwen35")
    } else if text.contains(r"?\\p{L}+|\\p{N}|") {
        Ok("qwen2")
    } else {
        let what = "a tokenizer that splits text neither as Qwen3.5 nor as Qwen2".to_owned();
        Err(Error::Unsupported { what, from: "`pre_tokenizer` of `tokenizer.json`".into() })
    }
}

/// Merges as `left right`, from either form of `tokenizer.json`.
fn merges(json: &Json) -> Result<Vec<String>, Error> {
    let merges = json.get("model.merges").and_then(|v| v.as_array());
    let merges = merges.ok_or_else(|| Error::MissingKey("model.merges".into()))?;
    let read = |merge: &serde_json::Value| match merge {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Array(pair) => match pair.as_slice() {
            [left, right] => Some(format!("{} {}", left.as_str()?, right.as_str()?)),
            _ => None,
        },
        _ => None,
    };
    let wrong = || Error::KeyType {
        key: "model.merges".into(),
        wanted: "a list of pairs",
        found: "something else".into(),
    };
    merges.iter().map(read).collect::<Option<Vec<_>>>().ok_or_else(wrong)
}
