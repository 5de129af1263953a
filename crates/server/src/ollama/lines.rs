//! An answer as Ollama's lines: one object for each piece of text, thinking or whole call, and a
//! last one with figures.

use super::error_object;
use crate::error::ApiError;
use crate::job::{Delta, Finish, Outcome};
use crate::logprobs;
use crate::output::{Message, OutputParser, OutputPart};
use crate::sse::Chunks;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use text::Tokenizer;

/// Which of the two requests is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Chat,
    Generate,
}

/// Lines of one answer.
pub(super) struct Lines {
    form: Form,
    model: String,
    parser: OutputParser,
    tokenizer: Arc<Tokenizer>,
    /// Calls are told whole: the one that is being said, how many have begun, and how many were
    /// told.
    call: Message,
    begun: usize,
    calls: usize,
    ignored: Vec<String>,
}

impl Lines {
    pub(super) fn new(
        form: Form,
        model: String,
        parser: OutputParser,
        tokenizer: Arc<Tokenizer>,
        ignored: Vec<String>,
    ) -> Self {
        Self {
            form,
            model,
            parser,
            tokenizer,
            call: Message::default(),
            begun: 0,
            calls: 0,
            ignored,
        }
    }

    /// The answer to a request that is not streamed.
    pub(super) fn whole(&mut self, delta: &Delta, outcome: Outcome) -> Value {
        let mut message = Message::default();
        self.parser.push(&delta.text).into_iter().for_each(|part| message.add(part));
        let whole = self.parser.whole_calls();
        self.parser.finish().into_iter().for_each(|part| message.add(part));
        if outcome.finish == Finish::Length {
            message.calls.truncate(whole);
        }
        let mut line = line(self.form, &self.model, &message, &mut self.calls);
        self.tell_likelihoods(delta, &mut line);
        self.finish(&outcome, &mut line);
        line
    }

    /// A line with a piece of the answer.
    fn piece(&self, part: OutputPart) -> Value {
        let mut message = Message::default();
        message.add(part);
        line(self.form, &self.model, &message, &mut 0)
    }

    fn take(&mut self, part: OutputPart, lines: &mut Vec<Value>) {
        match part {
            OutputPart::Reasoning(_) | OutputPart::Content(_) => {
                self.tell_call(lines);
                lines.push(self.piece(part));
            }
            OutputPart::CallBegins { .. } => {
                self.tell_call(lines);
                self.begun += 1;
                self.call.add(part);
            }
            OutputPart::CallArguments { .. } => self.call.add(part),
        }
    }

    /// Tells the call that has ended.
    fn tell_call(&mut self, lines: &mut Vec<Value>) {
        let call = std::mem::take(&mut self.call);
        let before = self.calls;
        let line = line(self.form, &self.model, &call, &mut self.calls);
        if self.calls > before {
            lines.push(line);
        }
    }

    fn tell_likelihoods(&self, delta: &Delta, line: &mut Value) {
        if !delta.likelihoods.is_empty() {
            line["logprobs"] =
                logprobs::of_chat(&delta.likelihoods, &self.tokenizer)["content"].take();
        }
    }

    /// Makes a line the last one.
    fn finish(&self, outcome: &Outcome, line: &mut Value) {
        let timing = &outcome.report.timing;
        line["done"] = json!(true);
        line["done_reason"] = json!(match outcome.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
        });
        line["total_duration"] = nanoseconds(timing.queue_s + timing.prefill_s + timing.decode_s);
        // The model was there before the request was.
        line["load_duration"] = json!(0);
        line["prompt_eval_count"] = json!(outcome.prompt_tokens);
        line["prompt_eval_duration"] = nanoseconds(timing.prefill_s);
        line["eval_count"] = json!(outcome.completion_tokens);
        line["eval_duration"] = nanoseconds(timing.decode_s);
        line["forerun"] = json!(outcome.report);
        if !self.ignored.is_empty() {
            line["forerun"]["ignored"] = json!(self.ignored);
        }
    }
}

/// At least one: clients divide by it.
fn nanoseconds(seconds: f64) -> Value {
    json!(((seconds * 1e9) as u64).max(1))
}

/// The answer to a request that asks nothing.
pub(super) fn nothing(form: Form, model: &str, reason: &str) -> Value {
    let mut line = line(form, model, &Message::default(), &mut 0);
    line["done"] = json!(true);
    line["done_reason"] = json!(reason);
    line
}

/// A line with a message, or a piece of one; `calls` were told before it.
fn line(form: Form, model: &str, message: &Message, calls: &mut usize) -> Value {
    let mut line = json!({"model": model, "created_at": Timestamp::now().to_string()});
    let thinking = (!message.reasoning.is_empty()).then_some(&message.reasoning);
    match form {
        Form::Chat => {
            let mut said = json!({"role": "assistant", "content": message.content});
            if let Some(thinking) = thinking {
                said["thinking"] = json!(thinking);
            }
            let whole: Vec<Value> =
                message.calls.iter().filter_map(|call| whole_call(call, calls)).collect();
            if !whole.is_empty() {
                said["tool_calls"] = json!(whole);
            }
            line["message"] = said;
        }
        Form::Generate => {
            line["response"] = json!(message.content);
            if let Some(thinking) = thinking {
                line["thinking"] = json!(thinking);
            }
        }
    }
    line["done"] = json!(false);
    line
}

/// A call whose arguments are whole. One that the limit cut is not told: whoever made it would make
/// it without them, and the reason why the answer ended tells.
fn whole_call(
    (id, name, arguments): &(String, String, String),
    calls: &mut usize,
) -> Option<Value> {
    let arguments: Map<String, Value> = serde_json::from_str(arguments).ok()?;
    let index = *calls;
    *calls += 1;
    Some(json!({"id": id, "function": {"index": index, "name": name, "arguments": arguments}}))
}

impl Chunks for Lines {
    fn open(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn text(&mut self, _: usize, delta: &Delta) -> Vec<Value> {
        let mut lines = Vec::new();
        self.parser.push(&delta.text).into_iter().for_each(|part| self.take(part, &mut lines));
        if !delta.likelihoods.is_empty() {
            // Tokens whose text is held back are told on their own.
            if lines.is_empty() {
                lines.push(line(self.form, &self.model, &Message::default(), &mut 0));
            }
            self.tell_likelihoods(delta, &mut lines[0]);
        }
        lines
    }

    fn done(&mut self, _: usize, outcome: Outcome) -> Vec<Value> {
        let mut lines = Vec::new();
        let whole = self.parser.whole_calls();
        self.parser.finish().into_iter().for_each(|part| self.take(part, &mut lines));
        if outcome.finish == Finish::Stop || self.begun <= whole {
            self.tell_call(&mut lines);
        }
        let mut last = line(self.form, &self.model, &Message::default(), &mut 0);
        self.finish(&outcome, &mut last);
        lines.push(last);
        lines
    }

    fn close(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error_object(error)]
    }
}
