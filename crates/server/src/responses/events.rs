//! An answer as items and the events that build them: thoughts, a message, calls of functions.

use super::plain::PlainText;
use super::recall::seal;
use super::store::Store;
use super::tools::{Form, Forms, action};
use crate::error::ApiError;
use crate::job::{Delta, Finish, Outcome};
use crate::output::{OutputParser, OutputPart};
use crate::settings::random;
use crate::sse::Chunks;
use serde_json::{Value, json};
use std::sync::Arc;

/// Events of one answer.
pub(super) struct ItemChunks {
    /// The response so far; whole items are in its `output`.
    response: Value,
    parser: OutputParser,
    forms: Forms,
    thinking: Thinking,
    /// Where the response is kept, and the items that it was made from.
    keep: Option<(Arc<Store>, Vec<Value>)>,
    open: Option<Item>,
    /// Events so far.
    sequence: usize,
}

/// How thinking is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Thinking {
    /// In the summary, which is all that some clients show. It is the thinking itself: nobody sums
    /// it up.
    pub(super) summary: bool,
    /// Also sealed, for clients that send it back.
    pub(super) sealed: bool,
}

/// An item being said.
struct Item {
    kind: Kind,
    id: String,
    text: String,
    /// Takes the text out of the arguments of a custom tool.
    plain: PlainText,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Reasoning(Thinking),
    Message,
    Call { call_id: String, form: Form },
}

/// What events about a part of an item are called.
struct PartNames {
    index: &'static str,
    added: &'static str,
    delta: &'static str,
    text_done: &'static str,
    done: &'static str,
}

impl Kind {
    /// Calls have no parts.
    fn part_names(&self) -> Option<PartNames> {
        let (added, done) = ("response.content_part.added", "response.content_part.done");
        match self {
            Self::Reasoning(Thinking { summary: true, .. }) => Some(PartNames {
                index: "summary_index",
                added: "response.reasoning_summary_part.added",
                delta: "response.reasoning_summary_text.delta",
                text_done: "response.reasoning_summary_text.done",
                done: "response.reasoning_summary_part.done",
            }),
            Self::Reasoning(_) => Some(PartNames {
                index: "content_index",
                added,
                delta: "response.reasoning_text.delta",
                text_done: "response.reasoning_text.done",
                done,
            }),
            Self::Message => Some(PartNames {
                index: "content_index",
                added,
                delta: "response.output_text.delta",
                text_done: "response.output_text.done",
                done,
            }),
            Self::Call { .. } => None,
        }
    }
}

impl Item {
    /// The item as far as it has come.
    fn object(&self, status: &str) -> Value {
        let Self { id, text, .. } = self;
        let begun = !text.is_empty();
        match &self.kind {
            Kind::Reasoning(thinking) => {
                let parts: Vec<Value> = begun.then(|| self.part()).into_iter().collect();
                let (summary, content) =
                    if thinking.summary { (parts, vec![]) } else { (vec![], parts) };
                let mut item = json!({"type": "reasoning", "id": id, "summary": summary, "content": content,
                    "status": status});
                if thinking.sealed {
                    item["encrypted_content"] = json!(begun.then(|| seal(text)));
                }
                item
            }
            Kind::Message => {
                let content: Vec<Value> = begun.then(|| self.part()).into_iter().collect();
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
            }
            Kind::Call { call_id, form } => {
                let kind = match form {
                    Form::Function { .. } => "function_call",
                    Form::Custom { .. } => "custom_tool_call",
                    Form::LocalShell => "local_shell_call",
                    Form::Shell => "shell_call",
                    Form::ApplyPatch => "apply_patch_call",
                };
                let mut call =
                    json!({"type": kind, "id": id, "call_id": call_id, "status": status});
                match form {
                    Form::Function { name, namespace } | Form::Custom { name, namespace } => {
                        call["name"] = json!(name);
                        if let Some(namespace) = namespace {
                            call["namespace"] = json!(namespace);
                        }
                        call[form.text_name()] = json!(text);
                    }
                    Form::LocalShell => call["action"] = action(form, text),
                    Form::Shell => {
                        call["action"] = action(form, text);
                        call["environment"] = json!({"type": "local"});
                    }
                    Form::ApplyPatch => call["operation"] = action(form, text),
                }
                call
            }
        }
    }

    /// The one part of its content.
    fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning(Thinking { summary: true, .. }) => {
                json!({"type": "summary_text", "text": self.text})
            }
            Kind::Reasoning(_) => json!({"type": "reasoning_text", "text": self.text}),
            _ => {
                json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []})
            }
        }
    }
}

impl Form {
    /// What the text of a call is called.
    fn text_name(&self) -> &'static str {
        if matches!(self, Self::Custom { .. }) { "input" } else { "arguments" }
    }

    /// What the events that bring it are called.
    fn event_name(&self) -> &'static str {
        match self {
            Self::Custom { .. } => "response.custom_tool_call_input",
            _ => "response.function_call_arguments",
        }
    }
}

impl ItemChunks {
    pub(super) fn new(
        response: Value,
        parser: OutputParser,
        forms: Forms,
        thinking: Thinking,
        keep: Option<(Arc<Store>, Vec<Value>)>,
    ) -> Self {
        Self { response, parser, forms, thinking, keep, open: None, sequence: 0 }
    }

    fn event(&mut self, kind: &str, mut event: Value) -> Value {
        event["type"] = json!(kind);
        event["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        event
    }

    /// An event about the whole response.
    fn about(&mut self, kind: &str) -> Value {
        let response = self.response.clone();
        self.event(kind, json!({"response": response}))
    }

    /// The place of the item that is open, or would be next.
    fn index(&self) -> usize {
        self.response["output"].as_array().map_or(0, Vec::len)
    }

    fn begin(&mut self, kind: Kind, events: &mut Vec<Value>) {
        if self.open.as_ref().is_some_and(|item| item.kind == kind) {
            return;
        }
        self.end("completed", events);
        let prefix = match kind {
            Kind::Reasoning(_) => "rs",
            Kind::Message => "msg",
            Kind::Call { form: Form::Function { .. }, .. } => "fc",
            Kind::Call { .. } => "ctc",
        };
        let id = format!("{prefix}_{:016x}", random());
        let item = Item { kind, id, text: String::new(), plain: PlainText::default() };
        let output_index = self.index();
        let added = json!({"output_index": output_index, "item": item.object("in_progress")});
        events.push(self.event("response.output_item.added", added));
        if let Some(names) = item.kind.part_names() {
            let mut part =
                json!({"item_id": item.id, "output_index": output_index, "part": item.part()});
            part[names.index] = json!(0);
            events.push(self.event(names.added, part));
        }
        self.open = Some(item);
    }

    fn end(&mut self, status: &str, events: &mut Vec<Value>) {
        let rest = self.open.as_mut().map(|item| item.plain.finish()).unwrap_or_default();
        self.add_text(&rest, events);
        let Some(item) = self.open.take() else { return };
        let output_index = self.index();
        let at = json!({"item_id": item.id, "output_index": output_index});
        match item.kind.part_names() {
            Some(names) => {
                let (mut text, mut part) = (at.clone(), at);
                text[names.index] = json!(0);
                text["text"] = json!(item.text);
                if item.kind == Kind::Message {
                    text["logprobs"] = json!([]);
                }
                part[names.index] = json!(0);
                part["part"] = item.part();
                events.push(self.event(names.text_done, text));
                events.push(self.event(names.done, part));
            }
            None => self.end_call(&item, at, events),
        }
        let object = item.object(status);
        if let Some(output) = self.response["output"].as_array_mut() {
            output.push(object.clone());
        }
        events.push(self.event(
            "response.output_item.done",
            json!({"output_index": output_index, "item": object}),
        ));
    }

    /// The last of what a call says; actions come with their item alone.
    fn end_call(&mut self, item: &Item, mut done: Value, events: &mut Vec<Value>) {
        let Kind::Call {
            form: form @ (Form::Function { name, .. } | Form::Custom { name, .. }),
            ..
        } = &item.kind
        else {
            return;
        };
        done[form.text_name()] = json!(item.text);
        if matches!(form, Form::Function { .. }) {
            done["name"] = json!(name);
        }
        events.push(self.event(&format!("{}.done", form.event_name()), done));
    }

    fn part(&mut self, part: OutputPart, events: &mut Vec<Value>) {
        let text = match part {
            OutputPart::Reasoning(text) => {
                self.begin(Kind::Reasoning(self.thinking), events);
                text
            }
            OutputPart::Content(text) => {
                self.begin(Kind::Message, events);
                text
            }
            OutputPart::CallBegins { id, name, .. } => {
                let form = self.forms.get(&name).cloned();
                let form = form.unwrap_or(Form::Function { name, namespace: None });
                return self.begin(Kind::Call { call_id: id, form }, events);
            }
            OutputPart::CallArguments { text, .. } => match &mut self.open {
                Some(Item {
                    kind: Kind::Call { form: Form::Custom { .. }, .. }, plain, ..
                }) => plain.push(&text),
                _ => text,
            },
        };
        self.add_text(&text, events);
    }

    /// More text of the item that is open.
    fn add_text(&mut self, text: &str, events: &mut Vec<Value>) {
        let output_index = self.index();
        let Some(item) = self.open.as_mut().filter(|_| !text.is_empty()) else { return };
        item.text += text;
        let mut delta = json!({"item_id": item.id, "output_index": output_index, "delta": text});
        let kind = match (item.kind.part_names(), &item.kind) {
            (Some(names), _) => {
                delta[names.index] = json!(0);
                names.delta.to_owned()
            }
            (_, Kind::Call { form: form @ (Form::Function { .. } | Form::Custom { .. }), .. }) => {
                format!("{}.delta", form.event_name())
            }
            // Their actions come whole, at the end.
            _ => return,
        };
        if item.kind == Kind::Message {
            delta["logprobs"] = json!([]);
        }
        events.push(self.event(&kind, delta));
    }
}

fn usage(outcome: &Outcome) -> Value {
    let Outcome { prompt_tokens, completion_tokens, reasoning_tokens, cached_tokens, .. } = outcome;
    json!({"input_tokens": prompt_tokens, "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion_tokens, "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt_tokens + completion_tokens})
}

impl Chunks for ItemChunks {
    const NAMED: bool = true;

    fn open(&mut self) -> Vec<Value> {
        vec![self.about("response.created"), self.about("response.in_progress")]
    }

    fn text(&mut self, _: usize, delta: &Delta) -> Vec<Value> {
        let mut events = Vec::new();
        self.parser.push(&delta.text).into_iter().for_each(|part| self.part(part, &mut events));
        events
    }

    fn done(&mut self, _: usize, outcome: Outcome) -> Vec<Value> {
        let mut events = Vec::new();
        self.parser.finish().into_iter().for_each(|part| self.part(part, &mut events));
        let cut = outcome.finish == Finish::Length;
        self.end(if cut { "incomplete" } else { "completed" }, &mut events);
        let status = if cut { "incomplete" } else { "completed" };
        self.response["status"] = json!(status);
        if cut {
            self.response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        self.response["usage"] = usage(&outcome);
        self.response["forerun"] = json!(outcome.report);
        if let Some((store, input)) = &self.keep {
            store.keep(&self.response, input);
        }
        events.push(self.about(&format!("response.{status}")));
        events
    }

    fn close(&mut self) -> Vec<Value> {
        Vec::new()
    }

    /// Some clients wait for the one event, some for the other.
    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        let object = &error.object()["error"];
        let (code, message) = (&object["code"], &object["message"]);
        let event = json!({"code": code, "message": message, "param": object["param"]});
        self.response["status"] = json!("failed");
        self.response["error"] = json!({"code": code, "message": message});
        vec![self.event("error", event), self.about("response.failed")]
    }
}
