//! What a chat's answer may be: free, JSON (`response_format`), a call of a tool (`tool_choice`).

use crate::error::ApiError;
use crate::fields::Fields;
use crate::router::Shared;
use serde_json::{Value, json};
use text::{Grammar, GrammarError, Shape};

/// Tools on offer at most.
const MAX_TOOLS: usize = 128;

/// Tools on offer, and which of them must be called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tools<'a> {
    /// None where none is to be called.
    pub(crate) offered: &'a [Value],
    /// Those of which one must be called; none where the model decides.
    forced: &'a [Value],
    /// Whether more than one call is wanted.
    pub(crate) parallel: bool,
    named: bool,
}

impl<'a> Tools<'a> {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    pub(crate) fn read(fields: &Fields<'a>) -> Result<Self, ApiError> {
        let tools = fields.array("tools")?.unwrap_or_default();
        if tools.len() > MAX_TOOLS {
            return Err(fields.wrong("tools", &format!("at most {MAX_TOOLS}")));
        }
        for (i, tool) in tools.iter().enumerate() {
            check_tool(&Fields::within(tool, format!("tools[{i}]"))?)?;
        }
        let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        let all = Self { offered: tools, forced: &[], parallel, named: false };
        match fields.get("tool_choice") {
            None => Ok(all),
            Some(Value::String(choice)) => match choice.as_str() {
                "auto" => Ok(all),
                "none" => Ok(Self { offered: &[], ..all }),
                "required" if tools.is_empty() => {
                    let message = "`tool_choice` is `required`, but there are no `tools`";
                    Err(ApiError::field("tool_choice", message))
                }
                "required" => Ok(Self { forced: tools, ..all }),
                _ => Err(fields.unlisted("tool_choice", "`none`, `auto`, `required` or a function")),
            },
            Some(Value::Object(_)) => {
                let Some(choice) = fields.object("tool_choice")? else { return Ok(all) };
                if choice.string("type")? != Some("function") {
                    return Err(choice.unlisted("type", "`function`"));
                }
                choice.required("function")?;
                let Some(function) = choice.object("function")? else { return Ok(all) };
                function.required("name")?;
                let name = function.string("name")?;
                let named = |tool: &Value| tool["function"]["name"].as_str() == name;
                let Some(at) = tools.iter().position(named) else {
                    return Err(function.wrong("name", "the name of one of `tools`"));
                };
                Ok(Self { forced: &tools[at..=at], named: true, ..all })
            }
            Some(_) => Err(fields.wrong("tool_choice", "`none`, `auto`, `required` or a function")),
        }
    }
}

fn check_tool(tool: &Fields<'_>) -> Result<(), ApiError> {
    tool.required("type")?;
    if tool.string("type")? != Some("function") {
        return Err(tool.unlisted("type", "`function`"));
    }
    tool.required("function")?;
    let Some(function) = tool.object("function")? else { return Ok(()) };
    function.required("name")?;
    if function.string("name")?.is_none_or(|name| name.trim().is_empty()) {
        return Err(function.wrong("name", "a name"));
    }
    function.string("description")?;
    function.object("parameters")?;
    Ok(())
}

/// The grammar that a request asks for, if it does. `thinking` says whether the prompt has left `<think>` open.
pub(crate) fn grammar(
    fields: &Fields<'_>,
    tools: &Tools<'_>,
    thinking: bool,
    shared: &Shared,
) -> Result<Option<Grammar>, ApiError> {
    let object = json!({"type": "object"});
    let schema = read_format(fields, &object)?;
    let several = tools.parallel && !tools.named;
    let (shape, field) = match (tools.forced, schema) {
        ([], None) => return Ok(None),
        // Where the model may call, its answer is a call or JSON.
        ([], json) => (Shape { json, calls: tools.offered, several, thinking }, "response_format"),
        (calls, _) => (Shape { json: None, calls, several, thinking }, "tool_choice"),
    };
    let grammar = shared.grammars()?.grammar(&shape).map_err(|error| match error {
        GrammarError::Tokenizer(_) => ApiError::Internal(error.to_string()),
        error => ApiError::field(field, format!("`{field}`: {error}")),
    })?;
    Ok(Some(grammar))
}

/// The schema of `response_format`; `object` stands for any JSON object.
fn read_format<'a>(fields: &Fields<'a>, object: &'a Value) -> Result<Option<&'a Value>, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    format.required("type")?;
    match format.string("type")? {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(object)),
        Some("json_schema") => {
            format.required("json_schema")?;
            let Some(described) = format.object("json_schema")? else { return Ok(None) };
            described.string("name")?;
            described.bool("strict")?;
            match described.required("schema")? {
                schema @ (Value::Object(_) | Value::Bool(_)) => Ok(Some(schema)),
                _ => Err(described.wrong("schema", "a JSON schema")),
            }
        }
        _ => Err(format.unlisted("type", "`text`, `json_object` or `json_schema`")),
    }
}
