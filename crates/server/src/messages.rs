//! The messages of a chat request, checked and brought into the form that chat templates read:
//! `content` is one string, `arguments` of tool calls are objects.

use crate::arguments;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::parts::{self, Unread};
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
    let newest = newest(messages);
    let read = messages.iter().enumerate().map(|(i, message)| {
        read_message(&Fields::within(message, format!("messages[{i}]"))?, newest == Some(i))
    });
    read.collect()
}

/// The place of what the user says now: the last message, whatever the system says after it. What
/// is not text is refused there alone; everything before has been answered, or was followed by
/// something else to answer.
pub(crate) fn newest(messages: &[Value]) -> Option<usize> {
    let aside = |message: &Value| matches!(message["role"].as_str(), Some("system" | "developer"));
    let last = messages.iter().rposition(|message| !aside(message))?;
    (messages[last]["role"] == "user").then_some(last)
}

fn read_message(fields: &Fields<'_>, newest: bool) -> Result<Value, ApiError> {
    fields.required("role")?;
    let role = match fields.string("role")? {
        Some("developer") => "system",
        // Results of functions as they were before there were tools.
        Some("function") => "tool",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        _ => {
            return Err(
                fields.unlisted("role", "`system`, `developer`, `user`, `assistant` or `tool`")
            );
        }
    };
    let mut read = Map::new();
    read.insert("role".into(), json!(role));
    let calls = match role {
        "assistant" => read_calls(fields)?,
        _ => Vec::new(),
    };
    let unread = if newest || role == "system" { Unread::Refused } else { Unread::Noted };
    let content = match fields.get("content") {
        Some(content) => parts::read(content, &fields.path("content"), unread)?,
        None if role == "assistant" && fields.get("audio").is_some() => parts::note("audio"),
        None if role == "assistant" => fields.string("refusal")?.unwrap_or_default().to_owned(),
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

/// Tool calls of an earlier answer, also the one call of the time before there were tools.
fn read_calls(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let calls = fields.array("tool_calls")?.unwrap_or_default();
    let read = calls.iter().enumerate().map(|(i, call)| {
        let call = Fields::within(call, format!("{}[{i}]", fields.path("tool_calls")))?;
        let id = call.string("id")?;
        let (name, arguments) = match (call.string("type")?, call.object("custom")?) {
            (Some("custom"), Some(custom)) => {
                custom.required("name")?;
                (custom.string("name")?, json!({"input": custom.string("input")?.unwrap_or_default()}))
            }
            _ => {
                call.required("function")?;
                let function = call.object("function")?.ok_or_else(|| call.wrong("function", "an object"))?;
                read_function(&function)?
            }
        };
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
    });
    let mut read = read.collect::<Result<Vec<Value>, ApiError>>()?;
    if let Some(function) = fields.object("function_call")?.filter(|_| read.is_empty()) {
        let (name, arguments) = read_function(&function)?;
        read.push(json!({"type": "function", "function": {"name": name, "arguments": arguments}}));
    }
    Ok(read)
}

/// The name and the arguments of a call; these come as JSON in a string.
fn read_function<'a>(function: &Fields<'a>) -> Result<(Option<&'a str>, Value), ApiError> {
    function.required("name")?;
    let arguments = match function.get("arguments") {
        None => json!({}),
        Some(Value::Object(object)) => json!(object),
        Some(Value::String(text)) => Value::Object(arguments::read(text)),
        Some(_) => return Err(function.wrong("arguments", "a JSON object in a string")),
    };
    Ok((function.string("name")?, arguments))
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
        let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}});
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
        assert_eq!(
            (&read[2]["content"], &read[2]["reasoning_content"]),
            (&json!(""), &json!("hm"))
        );
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
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "messages[0].content[0].text",
            ),
            (
                json!([{"role": "user", "content": [{"type": "smell"}]}]),
                "messages[0].content[0].type",
            ),
            (json!([{"role": "assistant", "tool_calls": 3}]), "messages[0].tool_calls"),
            (
                json!([{"role": "assistant", "tool_calls": [{}]}]),
                "messages[0].tool_calls[0].function",
            ),
            (call(json!({})), "messages[0].tool_calls[0].function.name"),
            (
                call(json!({"name": "f", "arguments": 3})),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            let error = messages(value.clone()).unwrap_err();
            assert_eq!(error.object()["error"]["param"], field, "{value}");
        }
        let image = json!([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]);
        assert_eq!(
            messages(image).unwrap_err().to_string(),
            "`messages[0].content[1]` is of type `image_url`: the model that is served reads text only"
        );
    }

    #[test]
    fn what_was_said_once_can_be_said_again() {
        let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
        let seen = "[an image that this model cannot see]\n";
        let call = |arguments: &str| json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let read = messages(json!([
            {"role": "user", "content": image},
            {"role": "user", "content": "What is it?"},
            {"role": "assistant", "content": null, "tool_calls": [call("{\"path\": \"a.p"),
                {"id": "d", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}]},
            {"role": "tool", "tool_call_id": "c", "content": image},
            {"role": "assistant", "content": null, "function_call": {"name": "g", "arguments": ""}},
            {"role": "function", "name": "g", "content": "7"},
            {"role": "assistant", "content": null, "audio": {"id": "x"}},
            {"role": "user", "content": "Go on"},
            {"role": "system", "content": "Be brief"},
        ]))
        .unwrap();
        assert_eq!((&read[0]["content"], &read[3]["content"]), (&json!(seen), &json!(seen)));
        let arguments = |message: usize, call: usize| {
            &read[message]["tool_calls"][call]["function"]["arguments"]
        };
        assert_eq!(arguments(2, 0), &json!({"path": "a.p"}));
        assert_eq!(arguments(2, 1), &json!({"input": "*** Begin"}));
        assert_eq!((arguments(4, 0), &read[5]["role"]), (&json!({}), &json!("tool")));
        assert_eq!(read[6]["content"], "[audio that this model cannot hear]");
        // What the user says now is another matter, whatever the system adds.
        let now = json!([{"role": "user", "content": image}, {"role": "system", "content": "x"}]);
        assert_eq!(messages(now).unwrap_err().named(), "messages[0].content[0]");
        let robot = messages(json!([{"role": "robot", "content": "x"}])).unwrap_err().to_string();
        assert!(robot.starts_with("`messages[0].role` is `robot`, `system`"), "{robot}");
    }
}
