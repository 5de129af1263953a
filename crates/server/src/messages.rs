//! The messages of a chat request, checked and brought into the form that chat templates read: `content` is one
//! string, `arguments` of tool calls are objects.

use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use serde_json::{Map, Value, json};

/// Messages at most.
const MAX_MESSAGES: usize = 4096;

/// Reads `messages`.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    fields.required("messages")?;
    let messages = fields.array("messages")?.unwrap_or_default();
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        return Err(fields.wrong("messages", &format!("1 to {MAX_MESSAGES} messages")));
    }
    messages.iter().enumerate().map(|(i, message)| read_message(message, format!("messages[{i}]"))).collect()
}

fn read_message(message: &Value, path: String) -> Result<Value, ApiError> {
    let fields = Fields::within(message, path)?;
    fields.required("role")?;
    let role = match fields.string("role")? {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        _ => return Err(fields.wrong("role", "`system`, `developer`, `user`, `assistant` or `tool`")),
    };
    let mut read = Map::new();
    read.insert("role".into(), json!(role));
    let calls = match role {
        "assistant" => read_calls(&fields)?,
        _ => Vec::new(),
    };
    let content = match fields.get("content") {
        Some(content) => read_content(content, fields.path("content"))?,
        None if role == "assistant" => String::new(),
        None => return Err(fields.missing("content")),
    };
    read.insert("content".into(), json!(content));
    if role == "assistant" {
        let reasoning = fields.string("reasoning_content")?.or(fields.string("reasoning")?);
        if let Some(reasoning) = reasoning {
            read.insert("reasoning_content".into(), json!(reasoning));
        }
    }
    if !calls.is_empty() {
        read.insert("tool_calls".into(), json!(calls));
    }
    for name in ["name", "tool_call_id"] {
        if let Some(value) = fields.string(name)? {
            read.insert(name.into(), json!(value));
        }
    }
    Ok(Value::Object(read))
}

/// A string, or parts that are all text.
fn read_content(content: &Value, path: String) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => return Err(wrong(path, other, "a string or an array of parts")),
    };
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let fields = Fields::within(part, format!("{path}[{i}]"))?;
        fields.required("type")?;
        match fields.string("type")? {
            Some("text") => {
                fields.required("text")?;
                text.push_str(fields.string("text")?.unwrap_or_default());
            }
            Some("refusal") => text.push_str(fields.string("refusal")?.unwrap_or_default()),
            Some(kind @ ("image_url" | "image" | "input_image" | "input_audio" | "video_url" | "file")) => {
                let message =
                    format!("`{path}[{i}]` is of type `{kind}`: the model that is served reads text only");
                return Err(ApiError::field(format!("{path}[{i}]"), message));
            }
            _ => return Err(fields.wrong("type", "`text`")),
        }
    }
    Ok(text)
}

/// Tool calls of an earlier answer; their arguments come as JSON in a string.
fn read_calls(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let calls = fields.array("tool_calls")?.unwrap_or_default();
    let read = calls.iter().enumerate().map(|(i, call)| {
        let call = Fields::within(call, format!("{}[{i}]", fields.path("tool_calls")))?;
        call.required("function")?;
        let function = call.object("function")?.ok_or_else(|| call.wrong("function", "an object"))?;
        function.required("name")?;
        let name = function.string("name")?;
        let arguments = match function.get("arguments") {
            None => json!({}),
            Some(Value::Object(object)) => json!(object),
            Some(Value::String(text)) if text.trim().is_empty() => json!({}),
            Some(Value::String(text)) => match serde_json::from_str(text) {
                Ok(Value::Object(object)) => Value::Object(object),
                _ => return Err(function.wrong("arguments", "a JSON object in a string")),
            },
            Some(_) => return Err(function.wrong("arguments", "a JSON object in a string")),
        };
        let id = call.string("id")?;
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(messages: Value) -> Result<Vec<Value>, ApiError> {
        let body = json!({"messages": messages});
        read(&Fields::of(body.as_object().unwrap()))
    }

    #[test]
    fn messages_take_the_template_s_form() {
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}});
        let read = messages(json!([
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "extra": 1},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]))
        .unwrap();
        assert_eq!(read[0], json!({"role": "system", "content": "be brief"}));
        assert_eq!(read[1], json!({"role": "user", "content": "ab"}));
        assert_eq!(read[2]["tool_calls"][0]["function"]["arguments"], json!({"a": [1]}));
        assert_eq!((&read[2]["content"], &read[2]["reasoning_content"]), (&json!(""), &json!("hm")));
        assert_eq!(read[3], json!({"role": "tool", "content": "42", "tool_call_id": "c1"}));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let call = |function: Value| json!([{"role": "assistant", "tool_calls": [{"function": function}]}]);
        for (value, field) in [
            (json!(3), "messages"),
            (json!([]), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "robot", "content": "x"}]), "messages[0].role"),
            (json!([{"role": 3, "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 3}]), "messages[0].content"),
            (json!([{"role": "user", "content": [3]}]), "messages[0].content[0]"),
            (json!([{"role": "user", "content": [{"text": "x"}]}]), "messages[0].content[0].type"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
            (json!([{"role": "user", "content": [{"type": "smell"}]}]), "messages[0].content[0].type"),
            (json!([{"role": "assistant", "tool_calls": 3}]), "messages[0].tool_calls"),
            (json!([{"role": "assistant", "tool_calls": [{}]}]), "messages[0].tool_calls[0].function"),
            (call(json!({})), "messages[0].tool_calls[0].function.name"),
            (call(json!({"name": "f", "arguments": "{"})), "messages[0].tool_calls[0].function.arguments"),
            (call(json!({"name": "f", "arguments": "[]"})), "messages[0].tool_calls[0].function.arguments"),
        ] {
            let error = messages(value.clone()).unwrap_err();
            assert_eq!(error.object()["error"]["param"], field, "{value}");
        }
        let image =
            json!([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]);
        assert_eq!(
            messages(image).unwrap_err().to_string(),
            "`messages[0].content[1]` is of type `image_url`: the model that is served reads text only"
        );
    }
}
