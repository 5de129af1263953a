//! Chats as they were before tools: `functions` and `function_call`, in requests, in their history
//! and in answers. A request is brought into today's form, and an answer back.

use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// The same request in today's form; nothing where it is in that form already.
pub(crate) fn modern(body: &Map<String, Value>) -> Result<Option<Map<String, Value>>, ApiError> {
    let fields = Fields::of(body);
    let messages =
        fields.get("messages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let asks = ["functions", "function_call"].iter().any(|name| fields.get(name).is_some());
    if !asks && !messages.iter().any(is_legacy) {
        return Ok(None);
    }
    let mut modern = body.clone();
    if asks {
        for (old, new) in [("functions", "tools"), ("function_call", "tool_choice")] {
            if fields.get(old).is_some() && fields.get(new).is_some() {
                let message = format!("`{old}` and `{new}` say the same: send one of them");
                return Err(ApiError::field(old, message));
            }
        }
        let functions = fields.array("functions")?.unwrap_or_default();
        for (i, function) in functions.iter().enumerate() {
            let function = Fields::within(function, format!("functions[{i}]"))?;
            function.required("name")?;
            function.string("name")?;
        }
        let tools =
            functions.iter().map(|function| json!({"type": "function", "function": function}));
        modern.insert("tools".into(), tools.collect());
        if let Some(choice) = read_choice(&fields, functions)? {
            modern.insert("tool_choice".into(), choice);
        }
        modern.insert("parallel_tool_calls".into(), json!(false));
    }
    let messages: Vec<Value> = messages.iter().map(modern_message).collect();
    if !messages.is_empty() {
        modern.insert("messages".into(), Value::Array(messages));
    }
    Ok(Some(modern))
}

fn read_choice(fields: &Fields<'_>, functions: &[Value]) -> Result<Option<Value>, ApiError> {
    let expected = "`none`, `auto` or the name of one of `functions`";
    match fields.get("function_call") {
        None => Ok(None),
        Some(Value::String(choice)) if choice == "none" || choice == "auto" => {
            Ok(Some(json!(choice)))
        }
        Some(Value::Object(_)) => {
            let choice = fields.object("function_call")?;
            let name = choice.map(|choice| choice.string("name")).transpose()?.flatten();
            if !functions.iter().any(|function| function["name"].as_str() == name && name.is_some())
            {
                return Err(fields.wrong("function_call", expected));
            }
            Ok(Some(json!({"type": "function", "function": {"name": name}})))
        }
        Some(_) => Err(fields.wrong("function_call", expected)),
    }
}

fn is_legacy(message: &Value) -> bool {
    message["role"] == "function" || !message["function_call"].is_null()
}

/// A result of a function is one of a tool; calls of it had no ids.
fn modern_message(message: &Value) -> Value {
    let mut modern = message.clone();
    let Some(object) = modern.as_object_mut().filter(|_| is_legacy(message)) else { return modern };
    if message["role"] == "function" {
        object.insert("role".into(), json!("tool"));
        let id = message["name"].as_str().unwrap_or_default();
        object.insert("tool_call_id".into(), json!(id));
    }
    // What is no object is refused where messages are read.
    if message["function_call"].is_object()
        && let Some(call) = object.remove("function_call")
    {
        let id = call["name"].clone();
        object
            .insert("tool_calls".into(), json!([{"id": id, "type": "function", "function": call}]));
    }
    modern
}

/// A message or a delta as it was then: one call at most, and no id.
pub(crate) fn former(mut message: Value) -> Value {
    if let Some(object) = message.as_object_mut()
        && let Some(calls) = object.remove("tool_calls")
    {
        object.insert("function_call".into(), calls[0]["function"].clone());
    }
    message
}

/// Why an answer ended, as it was said then.
pub(crate) fn former_reason(reason: &'static str) -> &'static str {
    if reason == "tool_calls" { "function_call" } else { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: Value) -> Result<Option<Value>, String> {
        modern(body.as_object().unwrap())
            .map(|body| body.map(Value::Object))
            .map_err(ApiError::named)
    }

    #[test]
    fn requests_and_history_are_brought_up_to_date() {
        assert_eq!(
            of(json!({"messages": [{"role": "user", "content": "x"}], "tools": []})),
            Ok(None)
        );
        let body = of(json!({
            "functions": [{"name": "f", "parameters": {"type": "object"}}], "function_call": {"name": "f"},
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "42"},
            ],
        }));
        let body = body.unwrap().unwrap();
        assert_eq!(body["tools"][0]["function"]["name"], "f");
        assert_eq!(body["tool_choice"], json!({"type": "function", "function": {"name": "f"}}));
        assert_eq!(body["messages"][1]["tool_calls"][0]["function"]["arguments"], "{}");
        assert_eq!(body["messages"][2]["role"], "tool");
        assert_eq!(body["messages"][2]["tool_call_id"], body["messages"][1]["tool_calls"][0]["id"]);
        for (body, field) in [
            (json!({"functions": 3}), "functions"),
            (json!({"functions": [{}]}), "functions[0].name"),
            (
                json!({"functions": [{"name": "f"}], "function_call": {"name": "g"}}),
                "function_call",
            ),
            (json!({"functions": [{"name": "f"}], "function_call": "f"}), "function_call"),
            (json!({"functions": [{"name": "f"}], "tools": []}), "functions"),
        ] {
            assert_eq!(of(body.clone()), Err(field.to_owned()), "{body}");
        }
    }

    #[test]
    fn answers_are_brought_back() {
        let call = json!({"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let message = former(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        assert_eq!(message["function_call"], json!({"name": "f", "arguments": "{}"}));
        assert!(message.get("tool_calls").is_none());
        assert_eq!(former(json!({"content": "x"})), json!({"content": "x"}));
        assert_eq!((former_reason("tool_calls"), former_reason("stop")), ("function_call", "stop"));
    }
}
