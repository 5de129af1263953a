//! Tools of a Responses request as functions, and calls of them as the items that the API has for
//! each kind of tool. Tools that OpenAI runs itself are not there to be called: they are not
//! offered, and that is told.

use crate::arguments;
use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// What is offered to the model.
#[derive(Debug, Default)]
pub(super) struct Offer {
    /// In OpenAI's form for chats.
    pub(super) functions: Vec<Value>,
    /// How calls come back, by the name under which a function is offered.
    pub(super) forms: Forms,
    /// Tools that are not offered.
    pub(super) ignored: Vec<String>,
}

/// Functions that are not called as they are offered.
pub(crate) type Forms = HashMap<String, Form>;

/// What a call comes back as.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// `function_call`, under this name.
    Function { name: String, namespace: Option<String> },
    /// `custom_tool_call`, whose input is plain text.
    Custom { name: String, namespace: Option<String> },
    /// `local_shell_call`.
    LocalShell,
    /// `shell_call`.
    Shell,
    /// `apply_patch_call`.
    ApplyPatch,
}

impl Offer {
    /// Reads `tools`, and those that came with the input.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let mut offer = Self::default();
        offer.add_all(fields, None)?;
        let items =
            fields.get("input").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for (i, item) in
            items.iter().enumerate().filter(|(_, item)| item["type"] == "additional_tools")
        {
            offer.add_all(&Fields::within(item, format!("input[{i}]"))?, None)?;
        }
        Ok(offer)
    }

    fn add_all(&mut self, fields: &Fields<'_>, namespace: Option<&str>) -> Result<(), ApiError> {
        for (i, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
            self.add(&Fields::within(tool, format!("{}[{i}]", fields.path("tools")))?, namespace)?;
        }
        Ok(())
    }

    fn add(&mut self, tool: &Fields<'_>, namespace: Option<&str>) -> Result<(), ApiError> {
        tool.required("type")?;
        let kind = tool.string("type")?.unwrap_or_default();
        match kind {
            "function" => {
                let name = self
                    .name(tool, namespace, |name, namespace| Form::Function { name, namespace })?;
                let mut function = json!({"name": name});
                for name in ["description", "parameters", "strict"] {
                    if let Some(value) = tool.get(name) {
                        function[name] = value.clone();
                    }
                }
                self.functions.push(json!({"type": "function", "function": function}));
            }
            "custom" => {
                let name =
                    self.name(tool, namespace, |name, namespace| Form::Custom { name, namespace })?;
                let about = self.about_custom(tool)?;
                let input =
                    json!({"type": "string", "description": "the whole input, as plain text"});
                self.offer(&name, &about, object(json!({"input": input}), &["input"]));
            }
            "namespace" if namespace.is_none() => {
                tool.required("name")?;
                let (name, before) = (tool.string("name")?, self.functions.len());
                self.add_all(tool, name)?;
                // What is said of all of them is said with the first.
                let about = tool.string("description")?.unwrap_or_default();
                if let Some(first) = self.functions.get_mut(before).filter(|_| !about.is_empty()) {
                    let own = first["function"]["description"].as_str().unwrap_or_default();
                    first["function"]["description"] =
                        json!(format!("{about}\n\n{own}").trim_end());
                }
            }
            "local_shell" => {
                let environment =
                    json!({"type": "object", "additionalProperties": {"type": "string"}});
                let properties = json!({"command": texts(), "working_directory": {"type": "string"},
                    "timeout_ms": {"type": "integer"}, "env": environment});
                let about = "Runs a command on the user's machine; the program and its arguments are apart.";
                self.offer(kind, about, object(properties, &["command"]));
                self.forms.insert(kind.to_owned(), Form::LocalShell);
            }
            "shell" if is_local(tool)? => {
                let properties = json!({"commands": texts(), "timeout_ms": {"type": "integer"},
                    "max_output_length": {"type": "integer"}});
                let about = "Runs commands in a shell on the user's machine.";
                self.offer(kind, about, object(properties, &["commands"]));
                self.forms.insert(kind.to_owned(), Form::Shell);
            }
            "apply_patch" => {
                let kinds = json!({"type": "string", "enum": ["create_file", "update_file", "delete_file"]});
                let diff =
                    json!({"type": "string", "description": "in the V4A format; none to delete"});
                let properties = json!({"type": kinds, "path": {"type": "string"}, "diff": diff});
                let about = "Creates, changes or deletes a file on the user's machine.";
                self.offer(kind, about, object(properties, &["type", "path"]));
                self.forms.insert(kind.to_owned(), Form::ApplyPatch);
            }
            _ => self.ignored.push(format!("{}: {}", tool.whole_path(), crate::parts::short(kind))),
        }
        Ok(())
    }

    fn offer(&mut self, name: &str, about: &str, parameters: Value) {
        let function = json!({"name": name, "description": about, "parameters": parameters});
        self.functions.push(json!({"type": "function", "function": function}));
    }

    /// The name under which a tool is offered, and what its calls come back as.
    fn name(
        &mut self,
        tool: &Fields<'_>,
        namespace: Option<&str>,
        form: impl Fn(String, Option<String>) -> Form,
    ) -> Result<String, ApiError> {
        tool.required("name")?;
        let name = tool.string("name")?.unwrap_or_default();
        let offered = qualified(namespace, name);
        self.forms.insert(offered.clone(), form(name.to_owned(), namespace.map(str::to_owned)));
        Ok(offered)
    }

    /// What a custom tool is for, with the grammar of its input: the model is told of it, and not
    /// held to it.
    fn about_custom(&mut self, tool: &Fields<'_>) -> Result<String, ApiError> {
        let mut about = tool.string("description")?.unwrap_or_default().to_owned();
        let Some(format) = tool.object("format")? else { return Ok(about) };
        match format.string("type")? {
            Some("grammar") => {
                let (syntax, definition) = (format.string("syntax")?, format.string("definition")?);
                let (syntax, definition) =
                    (syntax.unwrap_or("lark"), definition.unwrap_or_default());
                about += &format!("\n\nThe input follows this {syntax} grammar:\n{definition}");
                self.ignored
                    .push(format!("{}: told to the model, not enforced", tool.path("format")));
            }
            None | Some("text") => {}
            Some(_) => return Err(format.unlisted("type", "`text` or `grammar`")),
        }
        Ok(about)
    }

    /// `tool_choice` in the form of a chat.
    pub(super) fn choice(&self, fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
        let choice = match fields.get("tool_choice") {
            Some(Value::Object(_)) => fields.object("tool_choice")?,
            other => return Ok(other.cloned()),
        };
        let Some(choice) = choice else { return Ok(None) };
        if choice.string("type")? != Some("allowed_tools") {
            return self.named(&choice).map(Some);
        }
        let mode = choice.required("mode")?;
        let tools = choice.array("tools")?.unwrap_or_default().iter().enumerate();
        let tools =
            tools.map(|(i, tool)| Fields::within(tool, format!("{}[{i}]", choice.path("tools"))));
        let tools = tools.collect::<Result<Vec<_>, _>>()?;
        // Those that are not offered cannot be called anyhow.
        let offered = tools.iter().filter(|tool| is_offered_kind(tool));
        let tools = offered.map(|tool| self.named(tool)).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})))
    }

    /// A tool that a choice names.
    fn named(&self, choice: &Fields<'_>) -> Result<Value, ApiError> {
        choice.required("type")?;
        let kind = choice.string("type")?.unwrap_or_default();
        let name = match kind {
            "function" | "custom" => {
                choice.required("name")?;
                let name = choice.string("name")?.unwrap_or_default();
                match choice.string("namespace")? {
                    Some(namespace) => qualified(Some(namespace), name),
                    None => self.offered_as(name),
                }
            }
            "local_shell" | "shell" | "apply_patch" => kind.to_owned(),
            _ => {
                let (path, kind) = (choice.path("type"), crate::parts::short(kind));
                let message = format!(
                    "`{path}` is `{kind}`: that tool is run by OpenAI's servers, this server has none"
                );
                return Err(ApiError::field(path, message));
            }
        };
        Ok(json!({"type": "function", "function": {"name": name}}))
    }

    /// The name under which a tool is offered; one of a namespace may be named alone.
    fn offered_as(&self, name: &str) -> String {
        let own = |form: &Form| matches!(form, Form::Function { name: own, .. } | Form::Custom { name: own, .. } if own == name);
        match self.forms.get(name) {
            Some(_) => name.to_owned(),
            None => self
                .forms
                .iter()
                .find(|(_, form)| own(form))
                .map_or(name, |(offered, _)| offered)
                .to_owned(),
        }
    }
}

/// A name with its namespace before it.
pub(super) fn qualified(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{}__{name}", namespace.trim_end_matches('_')),
        None => name.to_owned(),
    }
}

fn is_offered_kind(tool: &Fields<'_>) -> bool {
    let kinds = ["function", "custom", "local_shell", "shell", "apply_patch"];
    tool.get("type").and_then(Value::as_str).is_some_and(|kind| kinds.contains(&kind))
}

/// Whether a shell is the client's own; there are some that OpenAI has.
fn is_local(tool: &Fields<'_>) -> Result<bool, ApiError> {
    match tool.object("environment")? {
        Some(environment) => Ok(environment.string("type")? == Some("local")),
        None => Ok(true),
    }
}

fn texts() -> Value {
    json!({"type": "array", "items": {"type": "string"}})
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// The action of a `local_shell_call` or a `shell_call`, or the operation of an `apply_patch_call`,
/// from the arguments so far.
pub(super) fn action(form: &Form, text: &str) -> Value {
    let mut said = arguments::read(text);
    let mut take = |name: &str, absent: Value| said.remove(name).unwrap_or(absent);
    match form {
        Form::LocalShell => json!({"type": "exec", "command": take("command", json!([])),
            "env": take("env", json!({})), "timeout_ms": take("timeout_ms", Value::Null),
            "user": null, "working_directory": take("working_directory", Value::Null)}),
        Form::Shell => json!({"commands": take("commands", json!([])),
            "timeout_ms": take("timeout_ms", Value::Null),
            "max_output_length": take("max_output_length", Value::Null)}),
        _ => {
            let mut operation = json!({"type": take("type", json!("update_file")), "path": take("path", json!(""))});
            if operation["type"] != "delete_file" {
                operation["diff"] = take("diff", json!(""));
            }
            operation
        }
    }
}

/// The arguments again, of an action or an operation that comes back with the conversation.
pub(super) fn arguments_of(action: &Value) -> Value {
    let Value::Object(action) = action else { return json!({}) };
    let said = action.iter().filter(|(name, value)| {
        let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        !(empty || *name == "type" && *value == "exec")
    });
    Value::Object(said.map(|(name, value)| (name.clone(), value.clone())).collect())
}
