//! A request of OpenAI's Responses API in the form of a chat request. Fields that both know under one name are checked
//! there.

use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::known;
use serde_json::{Map, Value, json};

/// The same request as a chat.
pub(super) fn translate(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut body = Map::new();
    let same = ["model", "temperature", "top_p", "stream", "user", "parallel_tool_calls"];
    for name in same.into_iter().chain(known::PASSED) {
        if let Some(value) = fields.get(name) {
            body.insert(name.into(), value.clone());
        }
    }
    // Nothing is kept between requests.
    for name in ["previous_response_id", "conversation", "prompt"] {
        if fields.get(name).is_some() {
            return Err(fields.wrong(name, "nothing (responses are not stored: send the whole conversation)"));
        }
    }
    if fields.bool("background")? == Some(true) {
        return Err(fields.wrong("background", "false"));
    }
    if let Some(limit) = fields.limit("max_output_tokens", 1)? {
        body.insert("max_completion_tokens".into(), json!(limit));
    }
    if let Some(reasoning) = fields.object("reasoning")?
        && let Some(effort) = reasoning.string("effort")?
    {
        body.insert("reasoning_effort".into(), json!(effort));
    }
    if let Some(text) = fields.object("text")?
        && let Some(format) = text.object("format")?
    {
        body.insert("response_format".into(), translate_format(&format)?);
    }
    if let Some(tools) = fields.array("tools")? {
        body.insert("tools".into(), Value::Array(translate_tools(fields, tools)?));
    }
    match fields.get("tool_choice") {
        Some(Value::Object(_)) => {
            let Some(choice) = fields.object("tool_choice")? else { return Ok(body) };
            if choice.string("type")? != Some("function") {
                return Err(choice.wrong("type", "`function`"));
            }
            let function = json!({"name": choice.required("name")?});
            body.insert("tool_choice".into(), json!({"type": "function", "function": function}));
        }
        Some(choice) => {
            body.insert("tool_choice".into(), choice.clone());
        }
        None => {}
    }
    body.insert("messages".into(), Value::Array(translate_input(fields)?));
    Ok(body)
}

fn translate_format(format: &Fields<'_>) -> Result<Value, ApiError> {
    format.required("type")?;
    Ok(match format.string("type")? {
        Some("json_schema") => {
            let schema = format.required("schema")?;
            json!({"type": "json_schema", "json_schema": {"name": format.get("name"), "schema": schema}})
        }
        Some(kind @ ("text" | "json_object")) => json!({"type": kind}),
        _ => return Err(format.wrong("type", "`text`, `json_object` or `json_schema`")),
    })
}

/// Functions. Tools that OpenAI runs itself are not there to be called, so they are not offered.
fn translate_tools(fields: &Fields<'_>, tools: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut functions = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let tool = Fields::within(tool, format!("{}[{i}]", fields.path("tools")))?;
        tool.required("type")?;
        if tool.string("type")? != Some("function") {
            continue;
        }
        let mut function = json!({"name": tool.required("name")?});
        for name in ["description", "parameters", "strict"] {
            if let Some(value) = tool.get(name) {
                function[name] = value.clone();
            }
        }
        functions.push(json!({"type": "function", "function": function}));
    }
    Ok(functions)
}

/// Instructions and input as messages. What the assistant thought, said and called in a row is one message.
fn translate_input(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.string("instructions")? {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    let items = match fields.required("input")? {
        Value::String(text) => {
            messages.push(json!({"role": "user", "content": text}));
            return Ok(messages);
        }
        Value::Array(items) => items,
        _ => return Err(fields.wrong("input", "a string or an array of items")),
    };
    for (i, item) in items.iter().enumerate() {
        translate_item(&Fields::within(item, format!("input[{i}]"))?, &mut messages)?;
    }
    Ok(messages)
}

fn translate_item(item: &Fields<'_>, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    match item.string("type")? {
        None | Some("message") => {
            item.required("role")?;
            let role = item.string("role")?;
            let content = text_of(item.required("content")?, &item.path("content"))?;
            if role == Some("assistant") {
                let message =
                    assistant(messages, |last| last["content"] == "" && last.get("tool_calls").is_none());
                message["content"] = json!(content);
            } else {
                messages.push(json!({"role": role, "content": content}));
            }
        }
        Some("function_call") => {
            let (name, arguments) = (item.required("name")?, item.required("arguments")?);
            let call = json!({"id": item.get("call_id"), "type": "function",
                "function": {"name": name, "arguments": arguments}});
            let message = assistant(messages, |_| true);
            match message["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => message["tool_calls"] = json!([call]),
            }
        }
        Some("function_call_output") => {
            let (id, output) = (item.required("call_id")?, item.required("output")?);
            let content = text_of(output, &item.path("output"))?;
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        Some("reasoning") => {
            let thought = match item.get("content") {
                Some(content) => text_of(content, &item.path("content"))?,
                None => String::new(),
            };
            if !thought.is_empty() {
                messages.push(json!({"role": "assistant", "content": "", "reasoning_content": thought}));
            }
        }
        _ => {
            return Err(
                item.wrong("type", "`message`, `function_call`, `function_call_output` or `reasoning`")
            );
        }
    }
    Ok(())
}

/// The assistant's message to add to: the last one, where `fits` says so, or a new one.
fn assistant(messages: &mut Vec<Value>, fits: impl Fn(&Value) -> bool) -> &mut Value {
    let last = messages.last().is_some_and(|last| last["role"] == "assistant" && fits(last));
    if !last {
        messages.push(json!({"role": "assistant", "content": ""}));
    }
    let at = messages.len() - 1;
    &mut messages[at]
}

/// A string, or parts that are all text.
fn text_of(value: &Value, path: &str) -> Result<String, ApiError> {
    let parts = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => return Err(wrong(path.to_owned(), other, "a string or an array of parts")),
    };
    let text = parts.iter().enumerate().map(|(i, part)| {
        let part = Fields::within(part, format!("{path}[{i}]"))?;
        part.required("type")?;
        match part.string("type")? {
            Some("input_text" | "output_text" | "reasoning_text" | "text") => {
                part.required("text")?;
                Ok(part.string("text")?.unwrap_or_default())
            }
            Some("refusal") => Ok(part.string("refusal")?.unwrap_or_default()),
            Some(kind @ ("input_image" | "input_file" | "input_audio")) => {
                let path = format!("{path}[{i}]");
                let message =
                    format!("`{path}` is of type `{kind}`: the model that is served reads text only");
                Err(ApiError::field(path, message))
            }
            _ => Err(part.wrong("type", "`input_text` or `output_text`")),
        }
    });
    text.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(body: Value) -> Result<Value, String> {
        translate(&Fields::of(body.as_object().unwrap())).map(Value::Object).map_err(ApiError::named)
    }

    #[test]
    fn requests_take_the_form_of_a_chat() {
        let body = translated(json!({
            "model": "any", "instructions": "be brief", "max_output_tokens": 9, "reasoning": {"effort": "low"},
            "store": false, "include": ["reasoning.encrypted_content"],
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "web_search"}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "null"}}},
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call f."}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "1"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
            ],
        }))
        .unwrap();
        let call =
            |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let expected = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "I call f.", "reasoning_content": "hm",
                "tool_calls": [call("c1"), call("c2")]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "tool", "tool_call_id": "c2", "content": "2"},
        ]);
        assert_eq!(body["messages"], expected);
        assert_eq!(body["tools"].as_array().unwrap().len(), 1);
        assert_eq!(body["tool_choice"], json!({"type": "function", "function": {"name": "f"}}));
        assert_eq!(body["response_format"]["json_schema"]["schema"], json!({"type": "null"}));
        assert_eq!((&body["max_completion_tokens"], &body["reasoning_effort"]), (&json!(9), &json!("low")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, field) in [
            (json!({}), "input"),
            (json!({"input": 3}), "input"),
            (json!({"input": ["x"]}), "input[0]"),
            (json!({"input": [{"type": "dream"}]}), "input[0].type"),
            (json!({"input": [{"content": "x"}]}), "input[0].role"),
            (json!({"input": [{"role": "user"}]}), "input[0].content"),
            (
                json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
                "input[0].content[0]",
            ),
            (json!({"input": [{"type": "function_call", "name": "f"}]}), "input[0].arguments"),
            (json!({"input": [{"type": "function_call_output", "output": "x"}]}), "input[0].call_id"),
            (json!({"input": "x", "previous_response_id": "r"}), "previous_response_id"),
            (json!({"input": "x", "background": true}), "background"),
            (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
            (json!({"input": "x", "tools": [{"type": "function"}]}), "tools[0].name"),
            (json!({"input": "x", "tool_choice": {"type": "mcp"}}), "tool_choice.type"),
            (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "text.format.type"),
            (json!({"input": "x", "text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
            (json!({"input": "x", "reasoning": {"effort": 3}}), "reasoning.effort"),
        ] {
            assert_eq!(translated(body.clone()), Err(field.to_owned()), "{body}");
        }
    }
}
