//! A request of OpenAI's Responses API in the form of a chat request. Fields that both know under
//! one name are checked there.

use super::tools::{Offer, arguments_of, qualified};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::messages::newest;
use crate::parts::{self, Unread};
use crate::{known, settings, structured};
use serde_json::{Map, Value, json};

/// The same request as a chat, and the tools that it offers.
pub(super) fn translate(fields: &Fields<'_>) -> Result<(Map<String, Value>, Offer), ApiError> {
    let mut body = Map::new();
    let same = ["model", "temperature", "top_p", "stream", "user", "parallel_tool_calls"];
    for name in
        same.iter().chain(&known::PASSED).chain(&structured::FIELDS).chain(&settings::EXTENSIONS)
    {
        if let Some(value) = fields.get(name) {
            body.insert((*name).into(), value.clone());
        }
    }
    settings::pass_keep(fields, &mut body)?;
    // Nothing is kept between requests.
    for name in ["previous_response_id", "conversation", "prompt"] {
        if fields.get(name).is_some() {
            return Err(fields
                .wrong(name, "nothing (responses are not stored: send the whole conversation)"));
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
    let mut offer = Offer::read(fields)?;
    if let Some(choice) = offer.choice(fields)? {
        body.insert("tool_choice".into(), choice);
    }
    body.insert("tools".into(), Value::Array(std::mem::take(&mut offer.functions)));
    body.insert("messages".into(), Value::Array(translate_input(fields)?));
    Ok((body, offer))
}

fn translate_format(format: &Fields<'_>) -> Result<Value, ApiError> {
    format.required("type")?;
    Ok(match format.string("type")? {
        Some("json_schema") => {
            let schema = format.required("schema")?;
            json!({"type": "json_schema", "json_schema": {"name": format.get("name"), "schema": schema}})
        }
        Some(kind @ ("text" | "json_object")) => json!({"type": kind}),
        _ => return Err(format.unlisted("type", "`text`, `json_object` or `json_schema`")),
    })
}

/// Instructions and input as messages. What the assistant thought, said and called in a row is one
/// message.
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
    let newest = newest(items);
    for (i, item) in items.iter().enumerate() {
        translate_item(
            &Fields::within(item, format!("input[{i}]"))?,
            newest == Some(i),
            &mut messages,
        )?;
    }
    Ok(messages)
}

fn translate_item(
    item: &Fields<'_>,
    newest: bool,
    messages: &mut Vec<Value>,
) -> Result<(), ApiError> {
    let kind = item.string("type")?;
    let kind = match kind {
        None if item.get("role").is_none() && item.get("id").is_some() => "item_reference",
        None => "message",
        Some(kind) => kind,
    };
    match kind {
        "message" => {
            item.required("role")?;
            let role = item.string("role")?;
            let unread = match role {
                Some("assistant") => Unread::Noted,
                Some("user") if !newest => Unread::Noted,
                _ => Unread::Refused,
            };
            let content = parts::read(item.required("content")?, &item.path("content"), unread)?;
            match role {
                Some("assistant") => say(messages, &content),
                Some("user" | "system" | "developer") => {
                    messages.push(json!({"role": role, "content": content}));
                }
                _ => {
                    return Err(
                        item.unlisted("role", "`user`, `assistant`, `system` or `developer`")
                    );
                }
            }
        }
        "reasoning" => {
            let thought = match item.get("content") {
                Some(content) => parts::read(content, &item.path("content"), Unread::Noted)?,
                None => String::new(),
            };
            if !thought.is_empty() {
                messages.push(
                    json!({"role": "assistant", "content": "", "reasoning_content": thought}),
                );
            }
        }
        "function_call" | "custom_tool_call" => {
            item.required("name")?;
            let name =
                qualified(item.string("namespace")?, item.string("name")?.unwrap_or_default());
            let arguments = match kind {
                "function_call" => item.required("arguments")?.clone(),
                _ => {
                    item.required("input")?;
                    json!({"input": item.string("input")?})
                }
            };
            item.string("call_id")?;
            call(messages, item.get("call_id"), &name, arguments);
        }
        "function_call_output" | "custom_tool_call_output" => {
            let (id, output) = (item.required("call_id")?, item.required("output")?);
            item.string("call_id")?;
            result(messages, Some(id), parts::read(output, &item.path("output"), Unread::Noted)?);
        }
        _ => translate_other(item, kind, messages)?,
    }
    Ok(())
}

/// Items of tools that are not functions. Calls whose results are known are calls with results; of
/// everything else there is a note, so that whatever was once said can be said again.
fn translate_other(
    item: &Fields<'_>,
    kind: &str,
    messages: &mut Vec<Value>,
) -> Result<(), ApiError> {
    let id = item.get("call_id").or(item.get("id"));
    let field = |name: &str| item.get(name).cloned();
    match kind {
        "local_shell_call" | "shell_call" | "apply_patch_call" | "computer_call" => {
            let action = item.get("action").or(item.get("operation"));
            let arguments = action.map_or_else(|| json!({}), arguments_of);
            call(messages, id, kind.trim_end_matches("_call"), arguments);
        }
        "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output" => {
            let output = field("output").or(field("status")).unwrap_or(json!(""));
            result(messages, id, as_text(&output));
        }
        "computer_call_output" => result(messages, id, parts::note("computer_screenshot")),
        "mcp_call" | "code_interpreter_call" | "file_search_call" => {
            let name = item.string("name")?.unwrap_or(kind.trim_end_matches("_call"));
            let arguments = match kind {
                "mcp_call" => field("arguments").unwrap_or(json!({})),
                "code_interpreter_call" => json!({"code": item.get("code")}),
                _ => json!({"queries": item.get("queries")}),
            };
            call(messages, id, name, arguments);
            let found = ["output", "outputs", "results", "error"].into_iter().find_map(field);
            result(messages, id, found.map_or_else(String::new, |found| as_text(&found)));
        }
        "web_search_call" => {
            let action = field("action").unwrap_or(json!({}));
            let words =
                ["query", "url", "pattern"].into_iter().filter_map(|name| action[name].as_str());
            say(
                messages,
                &format!("[a search of the web: {}]", words.collect::<Vec<_>>().join(" ")),
            );
        }
        // Which tools there are is said elsewhere, and nobody is asked for approval here.
        "mcp_list_tools"
        | "mcp_approval_request"
        | "mcp_approval_response"
        | "tool_search_call"
        | "tool_search_output"
        | "additional_tools"
        | "compaction_trigger"
        | "configuration_update" => {}
        _ => say(messages, &parts::note(kind)),
    }
    Ok(())
}

/// JSON as a tool might print it: a string as it is, the words of parts that are printed.
fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The assistant says something; what it thought before belongs to it.
fn say(messages: &mut Vec<Value>, said: &str) {
    let message =
        assistant(messages, |last| last["content"] == "" && last.get("tool_calls").is_none());
    message["content"] = json!(said);
}

/// The assistant calls a function.
fn call(messages: &mut Vec<Value>, id: Option<&Value>, name: &str, arguments: Value) {
    let call =
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let message = assistant(messages, |_| true);
    match message["tool_calls"].as_array_mut() {
        Some(calls) => calls.push(call),
        None => message["tool_calls"] = json!([call]),
    }
}

/// A function answers.
fn result(messages: &mut Vec<Value>, id: Option<&Value>, content: String) {
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(body: Value) -> Result<Value, String> {
        translate(&Fields::of(body.as_object().unwrap()))
            .map(|(body, _)| Value::Object(body))
            .map_err(ApiError::named)
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
        let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
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
        assert_eq!(
            (&body["max_completion_tokens"], &body["reasoning_effort"]),
            (&json!(9), &json!("low"))
        );
    }

    #[test]
    fn what_was_said_once_can_be_said_again() {
        let image = json!({"type": "input_image", "image_url": "data:"});
        let body = translated(json!({"input": [
            {"role": "user", "content": [image]},
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": [image]},
            {"type": "function_call", "call_id": "c2", "namespace": "mcp__git__", "name": "log", "arguments": "{\"n\": "},
            {"type": "function_call_output", "call_id": "c2", "output": "done"},
            {"type": "local_shell_call", "id": "l", "call_id": "c3", "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": {}}},
            {"type": "local_shell_call_output", "id": "c3", "output": "a.py"},
            {"type": "mcp_list_tools", "server_label": "s", "tools": []},
            {"type": "mcp_call", "id": "m", "name": "f", "server_label": "s", "arguments": "{}", "output": "7"},
            {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
            {"type": "compaction", "encrypted_content": "x"},
            {"type": "dream", "id": "d"},
            {"id": "msg_1"},
            {"role": "user", "content": "go on"},
        ]}))
        .unwrap();
        let call = |id: &str, name: &str, arguments: Value| {
            json!({"role": "assistant", "content": "",
            "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]})
        };
        let tool =
            |id: &str, said: &str| json!({"role": "tool", "tool_call_id": id, "content": said});
        let answer = |said: &str| json!({"role": "assistant", "content": said});
        let seen = "[an image that this model cannot see]\n";
        let shell = json!({"command": ["ls"]});
        let expected = json!([
            {"role": "user", "content": seen},
            call("c1", "patch", json!({"input": "*** Begin"})),
            tool("c1", seen),
            call("c2", "mcp__git__log", json!("{\"n\": ")),
            tool("c2", "done"),
            call("c3", "local_shell", shell),
            tool("c3", "a.py"),
            call("m", "f", json!("{}")),
            tool("m", "7"),
            answer("[a search of the web: q]"),
            answer(&parts::note("compaction")),
            answer("[something of type dream that this model cannot read]"),
            answer("[an earlier item that is not kept here]"),
            {"role": "user", "content": "go on"},
        ]);
        assert_eq!(body["messages"], expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, field) in [
            (json!({}), "input"),
            (json!({"input": 3}), "input"),
            (json!({"input": ["x"]}), "input[0]"),
            (json!({"input": [{"content": "x"}]}), "input[0].role"),
            (json!({"input": [{"role": "user"}]}), "input[0].content"),
            (
                json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
                "input[0].content[0]",
            ),
            (json!({"input": [{"type": "function_call", "name": "f"}]}), "input[0].arguments"),
            (
                json!({"input": [{"type": "function_call_output", "output": "x"}]}),
                "input[0].call_id",
            ),
            (json!({"input": "x", "previous_response_id": "r"}), "previous_response_id"),
            (json!({"input": "x", "background": true}), "background"),
            (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
            (json!({"input": "x", "tools": [{"type": "function"}]}), "tools[0].name"),
            (json!({"input": "x", "tool_choice": {"type": "mcp"}}), "tool_choice.type"),
            (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "text.format.type"),
            (
                json!({"input": "x", "text": {"format": {"type": "json_schema"}}}),
                "text.format.schema",
            ),
            (json!({"input": "x", "reasoning": {"effort": 3}}), "reasoning.effort"),
        ] {
            assert_eq!(translated(body.clone()), Err(field.to_owned()), "{body}");
        }
    }
}
