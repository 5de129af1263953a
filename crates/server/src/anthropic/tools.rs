//! Tools of a request in Anthropic's form. Those that clients run themselves under a type of their
//! own (a shell, an editor, a screen, a memory) have schemas that everybody knows and nobody sends;
//! those that Anthropic's servers run are not there to be called.

use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Value, json};

/// The tools in OpenAI's form.
pub(super) fn translate(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    if fields.array("mcp_servers")?.is_some_and(|servers| !servers.is_empty()) {
        return Err(not_here("mcp_servers", "`mcp_servers`: what they offer"));
    }
    let tools = fields.array("tools")?.unwrap_or_default();
    let functions = tools
        .iter()
        .enumerate()
        .map(|(i, tool)| one(&Fields::within(tool, format!("tools[{i}]"))?));
    functions.collect()
}

/// A tool in OpenAI's form.
pub(super) fn one(tool: &Fields<'_>) -> Result<Value, ApiError> {
    match tool.string("type")? {
        None | Some("custom") => own(tool),
        Some(kind) => typed(tool, kind),
    }
}

/// A tool that says what it takes.
fn own(tool: &Fields<'_>) -> Result<Value, ApiError> {
    let (name, about) =
        (tool.required("name")?, tool.get("description").cloned().unwrap_or(json!("")));
    let parameters = tool.required("input_schema")?;
    tool.object("input_schema")?;
    Ok(
        json!({"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}),
    )
}

/// A tool of Anthropic's own, known by its type: a name and the day it was made.
fn typed(tool: &Fields<'_>, kind: &str) -> Result<Value, ApiError> {
    let family = kind.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
    let (name, about, parameters) = match family {
        "bash" => ("bash", BASH.to_owned(), bash()),
        "text_editor" => ("str_replace_based_edit_tool", EDITOR.to_owned(), editor()),
        "memory" => ("memory", MEMORY.to_owned(), memory()),
        "computer" => {
            let [width, height] = ["display_width_px", "display_height_px"]
                .map(|name| tool.get(name).map_or_else(|| "unknown".to_owned(), Value::to_string));
            (
                "computer",
                format!("{COMPUTER} The screen is {width} by {height} pixels."),
                computer(),
            )
        }
        "web_search"
        | "web_fetch"
        | "code_execution"
        | "tool_search_tool_bm25"
        | "tool_search_tool_regex"
        | "tool_search_tool"
        | "advisor"
        | "mcp_toolset" => {
            let path = tool.path("type");
            return Err(not_here(&path, &format!("`{path}` is `{kind}`: that tool")));
        }
        _ => {
            let known =
                "`custom`, or a `bash`, `text_editor`, `computer` or `memory` tool with its date,";
            return Err(tool.unlisted("type", known));
        }
    };
    let name = tool.get("name").cloned().unwrap_or(json!(name));
    Ok(
        json!({"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}),
    )
}

fn not_here(path: &str, what: &str) -> ApiError {
    ApiError::field(path, format!("{what} is run by Anthropic's servers, this server has none"))
}

const BASH: &str =
    "Runs a command in a shell whose state lasts from call to call, and returns what it prints.";
const EDITOR: &str = "Views, creates and edits files. `str_replace` replaces a text that occurs once; `insert` \
    puts text after a line; `view` shows a file with its line numbers, or the files of a folder.";
const MEMORY: &str = "Keeps files under /memories that last from conversation to conversation: views, creates, \
    edits, deletes and renames them.";
const COMPUTER: &str =
    "Uses a screen, a keyboard and a mouse: takes screenshots, clicks at coordinates, types.";

fn text() -> Value {
    json!({"type": "string"})
}

fn number() -> Value {
    json!({"type": "integer"})
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

fn bash() -> Value {
    let restart = json!({"type": "boolean", "description": "starts the shell anew; then no command is needed"});
    object(json!({"command": text(), "restart": restart}), &[])
}

fn editor() -> Value {
    let commands =
        json!({"type": "string", "enum": ["view", "create", "str_replace", "insert", "undo_edit"]});
    let range = json!({"type": "array", "items": number(), "description": "first and last line"});
    let properties = json!({"command": commands, "path": text(), "file_text": text(), "old_str": text(),
        "new_str": text(), "insert_line": number(), "insert_text": text(), "view_range": range});
    object(properties, &["command", "path"])
}

fn memory() -> Value {
    let commands = ["view", "create", "str_replace", "insert", "delete", "rename"];
    let range = json!({"type": "array", "items": number(), "description": "first and last line"});
    let properties = json!({"command": {"type": "string", "enum": commands}, "path": text(), "view_range": range,
        "file_text": text(), "old_str": text(), "new_str": text(), "insert_line": number(),
        "insert_text": text(), "old_path": text(), "new_path": text()});
    object(properties, &["command"])
}

fn computer() -> Value {
    let actions = json!([
        "key",
        "type",
        "mouse_move",
        "left_click",
        "left_click_drag",
        "right_click",
        "middle_click",
        "double_click",
        "triple_click",
        "screenshot",
        "cursor_position",
        "left_mouse_down",
        "left_mouse_up",
        "scroll",
        "hold_key",
        "wait",
        "zoom"
    ]);
    let point = json!({"type": "array", "items": number(), "description": "x and y"});
    let ways = json!({"type": "string", "enum": ["up", "down", "left", "right"]});
    let properties = json!({"action": {"type": "string", "enum": actions}, "coordinate": point,
        "start_coordinate": point, "text": text(), "duration": {"type": "number"},
        "scroll_direction": ways, "scroll_amount": number(), "region": {"type": "array", "items": number()}});
    object(properties, &["action"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(tools: Value) -> Result<Vec<Value>, ApiError> {
        translate(&Fields::of(json!({"tools": tools}).as_object().unwrap()))
    }

    #[test]
    fn typed_tools_have_the_schemas_that_are_known() {
        for (kind, name, property) in [
            ("bash_20241022", "bash", "command"),
            ("bash_20250124", "bash", "command"),
            ("text_editor_20241022", "str_replace_editor", "view_range"),
            ("text_editor_20250728", "str_replace_based_edit_tool", "insert_text"),
            ("computer_20250124", "computer", "coordinate"),
            ("memory_20250818", "memory", "new_path"),
        ] {
            let tool = json!({"type": kind, "name": name, "display_width_px": 800, "display_height_px": 600});
            let function = &translated(json!([tool])).unwrap()[0]["function"];
            assert_eq!(function["name"], name);
            assert!(
                function["parameters"]["properties"][property].is_object(),
                "{kind} {property}"
            );
            let about = function["description"].as_str().unwrap();
            assert_eq!(about.contains("800 by 600"), name == "computer", "{about}");
        }
    }

    #[test]
    fn tools_that_run_elsewhere_are_refused_by_name() {
        for kind in [
            "web_search_20250305",
            "web_fetch_20250910",
            "code_execution_20250825",
            "tool_search_tool_bm25_20251119",
            "tool_search_tool_regex_20251119",
            "mcp_toolset",
        ] {
            let error = translated(json!([{"type": kind, "name": "x"}])).unwrap_err();
            let expected = format!(
                "`tools[0].type` is `{kind}`: that tool is run by Anthropic's servers, this server has none"
            );
            assert_eq!(error.to_string(), expected);
        }
        let error = translated(json!([{"type": "oracle_20990101", "name": "x"}])).unwrap_err();
        assert!(
            error.to_string().starts_with("`tools[0].type` is `oracle_20990101`, `custom`"),
            "{error}"
        );
        let servers = json!({"mcp_servers": [{"url": "x"}]});
        let error = translate(&Fields::of(servers.as_object().unwrap())).unwrap_err();
        assert_eq!(error.named(), "mcp_servers");
    }
}
