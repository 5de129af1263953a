//! An answer as items and the events that build them: thoughts, a message, calls of functions.

use super::recall::seal;
use super::store::Store;
use crate::error::ApiError;
use crate::job::{Finish, Outcome, Said};
use crate::settings::random;
use crate::speech::{Part, Speech};
use crate::sse::Chunks;
use serde_json::{Value, json};
use std::sync::Arc;

/// Events of one answer.
pub(super) struct ItemChunks {
    /// The response so far; whole items are in its `output`.
    response: Value,
    speech: Speech,
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
    /// In the summary, which is all that some clients show. It is the thinking itself: nobody sums it up.
    pub(super) summary: bool,
    /// Also sealed, for clients that send it back.
    pub(super) sealed: bool,
}

/// An item being said.
struct Item {
    kind: Kind,
    id: String,
    text: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Reasoning(Thinking),
    Message,
    Call { call_id: String, name: String },
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
                let (summary, content) = if thinking.summary { (parts, vec![]) } else { (vec![], parts) };
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
            Kind::Call { call_id, name } => json!({"type": "function_call", "id": id, "call_id": call_id,
                "name": name, "arguments": text, "status": status}),
        }
    }

    /// The one part of its content.
    fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning(Thinking { summary: true, .. }) => {
                json!({"type": "summary_text", "text": self.text})
            }
            Kind::Reasoning(_) => json!({"type": "reasoning_text", "text": self.text}),
            _ => json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}),
        }
    }
}

impl ItemChunks {
    pub(super) fn new(
        response: Value,
        speech: Speech,
        thinking: Thinking,
        keep: Option<(Arc<Store>, Vec<Value>)>,
    ) -> Self {
        Self { response, speech, thinking, keep, open: None, sequence: 0 }
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
            Kind::Call { .. } => "fc",
        };
        let item = Item { kind, id: format!("{prefix}_{:016x}", random()), text: String::new() };
        let output_index = self.index();
        let added = json!({"output_index": output_index, "item": item.object("in_progress")});
        events.push(self.event("response.output_item.added", added));
        if let Some(names) = item.kind.part_names() {
            let mut part = json!({"item_id": item.id, "output_index": output_index, "part": item.part()});
            part[names.index] = json!(0);
            events.push(self.event(names.added, part));
        }
        self.open = Some(item);
    }

    fn end(&mut self, status: &str, events: &mut Vec<Value>) {
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
            None => {
                let mut done = at;
                if let Kind::Call { name, .. } = &item.kind {
                    done["name"] = json!(name);
                }
                done["arguments"] = json!(item.text);
                events.push(self.event("response.function_call_arguments.done", done));
            }
        }
        let object = item.object(status);
        if let Some(output) = self.response["output"].as_array_mut() {
            output.push(object.clone());
        }
        events.push(
            self.event("response.output_item.done", json!({"output_index": output_index, "item": object})),
        );
    }

    fn part(&mut self, part: Part, events: &mut Vec<Value>) {
        let text = match part {
            Part::Reasoning(text) => {
                self.begin(Kind::Reasoning(self.thinking), events);
                text
            }
            Part::Content(text) => {
                self.begin(Kind::Message, events);
                text
            }
            Part::CallBegins { id, name, .. } => return self.begin(Kind::Call { call_id: id, name }, events),
            Part::CallArguments { text, .. } => text,
        };
        let output_index = self.index();
        let Some(item) = &mut self.open else { return };
        item.text += &text;
        let mut delta = json!({"item_id": item.id, "output_index": output_index, "delta": text});
        let kind = match item.kind.part_names() {
            Some(names) => {
                delta[names.index] = json!(0);
                names.delta
            }
            None => "response.function_call_arguments.delta",
        };
        if item.kind == Kind::Message {
            delta["logprobs"] = json!([]);
        }
        events.push(self.event(kind, delta));
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

    fn text(&mut self, _: usize, said: &Said) -> Vec<Value> {
        let mut events = Vec::new();
        self.speech.push(&said.text).into_iter().for_each(|part| self.part(part, &mut events));
        events
    }

    fn done(&mut self, _: usize, outcome: Outcome) -> Vec<Value> {
        let mut events = Vec::new();
        self.speech.finish().into_iter().for_each(|part| self.part(part, &mut events));
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

    fn failed(&mut self, error: &ApiError) -> Value {
        let object = &error.object()["error"];
        let event = json!({"code": object["code"], "message": object["message"], "param": object["param"]});
        self.event("error", event)
    }
}
