//! Tools that come up in the middle of a conversation: those that wait until they are looked up
//! (`defer_loading`), and those that come and go (`tool_addition`, `tool_removal`). The model is
//! told of them where they come up, so that what was said before is not read again.

use super::tools;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::parts;
use crate::shape::Changes;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// A tool in OpenAI's form.
struct Tool {
    function: Value,
    /// Whether it is not told of at the beginning.
    is_deferred: bool,
    /// Whether it has been told of.
    is_told: bool,
    /// Whether it was taken away.
    is_gone: bool,
}

/// Tools in the order in which they came up, and which of them is of a name: a conversation may
/// tell of very many.
#[derive(Default)]
struct Tools {
    all: Vec<Tool>,
    by_name: HashMap<String, usize>,
}

impl Tools {
    /// One more, of equal names the first.
    fn add(&mut self, tool: Tool) {
        if let Some(name) = tool.function["function"]["name"].as_str() {
            self.by_name.entry(name.to_owned()).or_insert(self.all.len());
        }
        self.all.push(tool);
    }

    /// A tool that comes up now, in the place of one of that name.
    fn replace(&mut self, function: Value) {
        let former = function["function"]["name"].as_str().and_then(|n| self.by_name.remove(n));
        if let Some(former) = former {
            (self.all[former].is_deferred, self.all[former].is_told) = (true, false);
        }
        self.add(Tool { function, is_deferred: true, is_told: true, is_gone: false });
    }

    /// What messages have told of them.
    fn changes(&self) -> Changes {
        let names = |which: fn(&Tool) -> bool| -> HashSet<String> {
            let tools = self.all.iter().filter(|tool| tool.is_told && which(tool));
            let names = tools.filter_map(|tool| tool.function["function"]["name"].as_str());
            names.map(str::to_owned).collect()
        };
        // Where there is nothing to call at the beginning nothing says how to call.
        let is_first = self.all.iter().any(|tool| !tool.is_deferred);
        let told = if is_first { names(|tool| tool.is_deferred) } else { HashSet::new() };
        Changes { told, gone: names(|tool| tool.is_gone) }
    }

    fn named(&mut self, name: &Value) -> Option<&mut Tool> {
        Some(&mut self.all[*self.by_name.get(name.as_str()?)?])
    }
}

/// A conversation with tools told of where they come up.
pub(super) struct Told<'a> {
    pub(super) messages: Cow<'a, [Value]>,
    /// What can be called in it, in OpenAI's form.
    pub(super) tools: Vec<Value>,
    pub(super) changes: Changes,
}

/// Reads the tools and tells of them. What the system said for a turn that is `past` changes
/// nothing.
pub(super) fn tell<'a>(
    fields: &Fields<'_>,
    messages: &'a [Value],
    past: impl Fn(usize) -> bool,
) -> Result<Told<'a>, ApiError> {
    let declared = fields.array("tools")?.unwrap_or_default();
    let choice = fields.object("tool_choice")?;
    let asked_for = choice.as_ref().and_then(|choice| choice.get("name"));
    let functions = tools::translate(fields)?;
    let mut known = Tools::default();
    for (i, (function, tool)) in functions.into_iter().zip(declared).enumerate() {
        let tool = Fields::within(tool, format!("tools[{i}]"))?;
        let waits = tool.bool("defer_loading")?.unwrap_or(false);
        let is_deferred = waits && asked_for != Some(&function["function"]["name"]);
        known.add(Tool { function, is_deferred, is_told: !is_deferred, is_gone: false });
    }
    let is_change =
        |block: &Value| matches!(block["type"].as_str(), Some("tool_addition" | "tool_removal"));
    let content = |message: &'a Value| message["content"].as_array().map(Vec::as_slice);
    let changes = messages.iter().filter_map(content).flatten().any(is_change);
    let mut told = Cow::Borrowed(messages);
    if changes || known.all.iter().any(|tool| tool.is_deferred) {
        for (i, message) in told.to_mut().iter_mut().enumerate().filter(|(i, _)| !past(*i)) {
            rewrite(message, &format!("messages[{i}]"), &mut known)?;
        }
    }
    let changes = known.changes();
    let tools = known.all.into_iter().filter(|tool| tool.is_told).map(|tool| tool.function);
    Ok(Told { messages: told, tools: tools.collect(), changes })
}

/// Puts words in the place of what tells of tools in a message, also in results of tools.
fn rewrite(message: &mut Value, path: &str, known: &mut Tools) -> Result<(), ApiError> {
    let content = message.get_mut("content").and_then(Value::as_array_mut);
    for (i, block) in content.into_iter().flatten().enumerate() {
        let path = format!("{path}.content[{i}]");
        let words = match block["type"].as_str() {
            Some("tool_reference") => found(&block["tool_name"], known),
            Some("tool_addition") => added(&block["tool"], &format!("{path}.tool"), known)?,
            Some("tool_removal") => {
                let name = &block["tool"]["name"];
                known.named(name).into_iter().for_each(|tool| tool.is_gone = true);
                let name = parts::short(name.as_str().unwrap_or_default());
                format!("[the tool {name} can no longer be called]\n")
            }
            Some("tool_result") => {
                rewrite(block, &path, known)?;
                continue;
            }
            _ => continue,
        };
        *block = json!({"type": "text", "text": words});
    }
    Ok(())
}

/// A tool that was looked up; one that is known already is not told of again.
fn found(name: &Value, known: &mut Tools) -> String {
    match known.named(name) {
        Some(tool) if !tool.is_told => {
            (tool.is_told, tool.is_gone) = (true, false);
            defined(&tool.function)
        }
        tool => {
            let is_back = tool.is_some_and(|tool| std::mem::take(&mut tool.is_gone));
            let name = parts::short(name.as_str().unwrap_or_default());
            let what = if is_back { "can be called again" } else { "was found" };
            format!("[the tool {name} {what}]\n")
        }
    }
}

/// A tool that is there from now on.
fn added(tool: &Value, path: &str, known: &mut Tools) -> Result<String, ApiError> {
    let fields = Fields::within(tool, path.to_owned())?;
    match fields.string("type")? {
        Some("tool_reference") => Ok(found(&tool["name"], known)),
        Some("tool_definition") => {
            let definition = fields.required("definition")?;
            let function = tools::one(&Fields::within(definition, fields.path("definition"))?)?;
            let words = defined(&function);
            known.replace(function);
            Ok(words)
        }
        _ => Err(fields.unlisted("type", "`tool_reference` or `tool_definition`")),
    }
}

/// The words that define a tool, in the form in which templates list tools.
fn defined(function: &Value) -> String {
    format!("From now on this tool can be called as well:\n<tools>\n{function}\n</tools>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages, tools, and the names of those that messages tell of and that are gone.
    fn told(body: &Value) -> (Value, Value, [Vec<String>; 2]) {
        let messages = body["messages"].as_array().unwrap();
        let fields = Fields::of(body.as_object().unwrap());
        // The seventh is of a turn that is over.
        let Told { messages, tools, changes } = tell(&fields, messages, |i| i == 6).unwrap();
        let Changes { told: later, gone } = changes;
        let sorted = |names: HashSet<String>| {
            let mut names: Vec<String> = names.into_iter().collect();
            names.sort();
            names
        };
        (json!(messages), json!(tools), [later, gone].map(sorted))
    }

    fn tool(name: &str, waits: bool) -> Value {
        json!({"name": name, "input_schema": {"type": "object"}, "defer_loading": waits})
    }

    fn names(offered: &Value) -> Vec<&str> {
        let tools = offered.as_array().unwrap().iter();
        tools.map(|tool| tool["function"]["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_tool_that_waits_is_told_of_where_it_is_found() {
        let reference = |name: &str| json!({"type": "tool_reference", "tool_name": name});
        let found = json!({"type": "tool_result", "tool_use_id": "t",
            "content": [reference("b"), reference("x")]});
        let turn = json!({"role": "user", "content": [found]});
        let messages = json!([{"role": "user", "content": "go"}, turn, turn]);
        let tools = json!([tool("a", false), tool("b", true), tool("c", true)]);
        let (before, offered, _) = told(&json!({"tools": tools, "messages": [messages[0]]}));
        assert_eq!((before, names(&offered)), (json!([messages[0]]), vec!["a"]));
        let (after, offered, changes) = told(&json!({"tools": tools, "messages": messages}));
        assert_eq!(names(&offered), ["a", "b"]);
        assert_eq!(changes, [vec!["b".to_owned()], vec![]]);
        let first = &after[1]["content"][0]["content"];
        let words = first[0]["text"].as_str().unwrap();
        assert!(words.contains("<tools>\n{") && words.contains("\"name\":\"b\""), "{words}");
        assert_eq!(first[1]["text"], "[the tool x was found]\n");
        // What was told once is not told again.
        assert_eq!(after[2]["content"][0]["content"][0]["text"], "[the tool b was found]\n");
    }

    #[test]
    fn tools_come_and_go() {
        let change = |kind: &str, tool: Value| {
            let block = json!({"type": kind, "tool": tool});
            json!({"role": "system", "content": [block]})
        };
        let reference = |name: &str| json!({"type": "tool_reference", "name": name});
        let defined = json!({"type": "tool_definition", "definition": tool("d", false)});
        let messages = json!([
            change("tool_addition", reference("b")),
            change("tool_addition", defined),
            change("tool_removal", reference("a")),
            change("tool_addition", reference("d")),
            change("tool_removal", reference("d")),
            change("tool_removal", reference("b")),
            change("tool_addition", reference("b")),
            change("tool_addition", reference("d")),
        ]);
        let tools = json!([tool("a", false), tool("b", true)]);
        let (after, offered, changes) = told(&json!({"tools": tools, "messages": messages}));
        assert_eq!(names(&offered), ["a", "b", "d"]);
        assert_eq!(changes.map(|names| names.join(" ")), ["b d", "a b"]);
        let words = |i: usize| after[i]["content"][0]["text"].as_str().unwrap().to_owned();
        assert!(words(0).contains("\"name\":\"b\"") && words(1).contains("\"name\":\"d\""));
        assert_eq!(words(2), "[the tool a can no longer be called]\n");
        assert_eq!(words(3), "[the tool d was found]\n");
        assert_eq!(words(7), "[the tool d can be called again]\n");
        assert_eq!(after[6], messages[6]);
        // Another one of a name takes the place of the former.
        let other = json!({"type": "tool_definition", "definition": tool("a", false)});
        let messages =
            json!([change("tool_addition", other.clone()), change("tool_addition", other)]);
        let (_, offered, _) = told(&json!({"tools": tools, "messages": messages}));
        assert_eq!(names(&offered), ["a"]);
        let toolset = json!({"type": "mcp_toolset_reference", "server_name": "s"});
        let body = json!({"messages": [change("tool_addition", toolset)]});
        let messages = body["messages"].as_array().unwrap();
        let refused = tell(&Fields::of(body.as_object().unwrap()), messages, |_| false);
        assert_eq!(refused.err().unwrap().named(), "messages[0].content[0].tool.type");
    }

    #[test]
    fn tools_are_told_of_at_the_beginning_where_one_must_be_called_or_all_wait() {
        let tools = json!([tool("a", false), tool("b", true)]);
        let choice = json!({"type": "tool", "name": "b"});
        let body = json!({"tools": tools, "tool_choice": choice, "messages": []});
        let (_, offered, [later, _]) = told(&body);
        assert_eq!((names(&offered), later), (vec!["a", "b"], vec![]));
        let found = json!({"type": "tool_reference", "tool_name": "b"});
        let found = json!([{"role": "user", "content": [found]}]);
        let (_, offered, [later, _]) =
            told(&json!({"tools": [tool("b", true)], "messages": found}));
        assert_eq!((names(&offered), later), (vec!["b"], vec![]));
    }
}
