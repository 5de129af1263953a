//! What a request says by reference: the response that it goes on from, items that are kept,
//! thinking that a client was given sealed and sends back.

use super::store::{Kept, Store};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::settings::random;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Begins thinking that was sealed here.
const SEAL: &str = "forerun-1.";

/// Thinking in the form of `encrypted_content`. Nobody is meant to read it, but it is no secret: it
/// is base64.
pub(super) fn seal(thinking: &str) -> String {
    format!("{SEAL}{}", STANDARD.encode(thinking))
}

/// Thinking that was sealed here; somebody else's seal says nothing.
fn unseal(sealed: &str) -> Option<String> {
    let bytes = STANDARD.decode(sealed.strip_prefix(SEAL)?).ok()?;
    String::from_utf8(bytes).ok()
}

/// A request with all items that its answer depends on.
pub(super) struct Recalled {
    pub(super) body: Map<String, Value>,
    /// Items before the request's own.
    pub(super) before: usize,
}

/// Puts the items of the response that a request goes on from before its own.
pub(super) fn recall(
    body: &Map<String, Value>,
    store: Option<&Store>,
) -> Result<Recalled, ApiError> {
    let mut body = body.clone();
    let previous = previous(&Fields::of(&body), store)?;
    body.remove("previous_response_id");
    let mut items = previous.map(|kept| kept.conversation()).unwrap_or_default();
    let before = items.len();
    match body.get("input") {
        Some(Value::Array(own)) => items.extend(own.iter().cloned()),
        Some(Value::String(text)) => items.push(json!({"role": "user", "content": text})),
        // What is missing or wrong is named where input is read.
        _ => return Ok(Recalled { body, before: 0 }),
    }
    for item in &mut items {
        resolve(item, store);
    }
    body.insert("input".into(), Value::Array(items));
    Ok(Recalled { body, before })
}

fn previous(fields: &Fields<'_>, store: Option<&Store>) -> Result<Option<Arc<Kept>>, ApiError> {
    let name = "previous_response_id";
    let Some(id) = fields.string(name)? else { return Ok(None) };
    let Some(store) = store else {
        let expected = "nothing (responses are not kept: send the whole conversation, or start the server \
            with `--store-responses MIB`)";
        return Err(fields.wrong(name, expected));
    };
    let kept = store.get(id);
    let kept = kept.ok_or_else(|| fields.wrong(name, "the id of a response that is kept"))?;
    Ok(Some(kept))
}

/// Puts an item in the place of a reference to it, and thinking into an item that has it sealed or
/// as a summary.
fn resolve(item: &mut Value, store: Option<&Store>) {
    if item["type"] == "item_reference"
        && let Some(kept) = item["id"].as_str().and_then(|id| store?.item(id))
    {
        *item = kept;
    }
    let silent = item["content"].as_array().is_none_or(Vec::is_empty);
    if item["type"] == "reasoning" && silent {
        let sealed = item["encrypted_content"].as_str().and_then(unseal);
        let summary = || {
            let parts = item["summary"].as_array()?;
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            Some(texts.join("\n\n"))
        };
        if let Some(text) = sealed.or_else(summary).filter(|text| !text.is_empty()) {
            item["content"] = json!([{"type": "reasoning_text", "text": text}]);
        }
    }
}

/// An input item as it is kept and told: with a type, an id, and content in parts.
pub(super) fn told(mut item: Value) -> Value {
    let Some(fields) = item.as_object_mut() else { return item };
    let kind =
        fields.entry("type").or_insert_with(|| json!("message")).as_str().unwrap_or_default();
    let prefix = match kind {
        "message" => "msg",
        "function_call" => "fc",
        "reasoning" => "rs",
        _ => "item",
    };
    let id = format!("{prefix}_{:016x}", random());
    if fields.get("id").is_none_or(Value::is_null) {
        fields.insert("id".into(), json!(id));
    }
    if let Some(Value::String(text)) = fields.get("content") {
        let kind = if fields.get("role") == Some(&json!("assistant")) {
            "output_text"
        } else {
            "input_text"
        };
        let part = json!([{"type": kind, "text": text}]);
        fields.insert("content".into(), part);
    }
    item
}

/// Errors count the request's own items.
pub(super) fn own(error: ApiError, before: usize) -> ApiError {
    let ApiError::Field { field, message } = &error else { return error };
    let index =
        |field: &str| field.strip_prefix("input[")?.split_once(']')?.0.parse::<usize>().ok();
    match index(field) {
        Some(at) if at >= before && before > 0 => {
            let (all, own) = (format!("input[{at}]"), format!("input[{}]", at - before));
            ApiError::field(field.replacen(&all, &own, 1), message.replacen(&all, &own, 1))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recalled(body: Value, store: Option<&Store>) -> Result<Recalled, String> {
        recall(body.as_object().unwrap(), store).map_err(ApiError::named)
    }

    #[test]
    fn thinking_comes_back_from_its_seal() {
        let sealed = seal("hm, 7 × 6");
        let item = json!({"type": "reasoning", "summary": [], "encrypted_content": sealed});
        let body = recalled(json!({"input": [item]}), None).unwrap().body;
        assert_eq!(
            body["input"][0]["content"],
            json!([{"type": "reasoning_text", "text": "hm, 7 × 6"}])
        );
        let summary =
            json!([{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]);
        let item = json!({"type": "reasoning", "summary": summary, "encrypted_content": "somebody else's"});
        let body = recalled(json!({"input": [item]}), None).unwrap().body;
        assert_eq!(body["input"][0]["content"][0]["text"], "a\n\nb");
    }

    #[test]
    fn earlier_items_come_first() {
        let store = Store::new(1 << 20);
        let answer =
            json!({"type": "message", "id": "msg_1", "role": "assistant", "content": "hello"});
        store.keep(
            &json!({"id": "resp_1", "output": [answer]}),
            &[told(json!({"role": "user", "content": "hi"}))],
        );
        let asked = json!({"previous_response_id": "resp_1", "input": "and?"});
        let Recalled { body, before } = recalled(asked, Some(&store)).unwrap();
        assert_eq!(before, 2);
        assert_eq!(body["input"][0]["content"], json!([{"type": "input_text", "text": "hi"}]));
        assert_eq!((&body["input"][1], &body["input"][2]["content"]), (&answer, &json!("and?")));
        assert!(body.get("previous_response_id").is_none());
        let asked = json!({"input": [{"type": "item_reference", "id": "msg_1"}]});
        assert_eq!(recalled(asked, Some(&store)).unwrap().body["input"][0], answer);

        let named = |id: &str, store| {
            recalled(json!({"previous_response_id": id, "input": "x"}), store).err()
        };
        assert_eq!(named("resp_2", Some(&store)).as_deref(), Some("previous_response_id"));
        assert_eq!(named("resp_1", None).as_deref(), Some("previous_response_id"));
        let error = own(ApiError::field("input[2].role", "`input[2].role` is missing"), 2);
        assert_eq!(error, ApiError::field("input[0].role", "`input[0].role` is missing"));
    }
}
