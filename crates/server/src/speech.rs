//! Generated text taken apart: thinking, answer, tool calls. Streams and whole answers come from the same parts, so
//! that a streamed answer put together is the whole one.

use crate::job::Finish;
use crate::settings::random;
use serde_json::{Value, json};
use text::{CallEvent, Reasoning, ToolCalls};

/// A part of an answer, in the order it was said. Texts are never empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Reasoning(String),
    Content(String),
    CallBegins { index: usize, id: String, name: String },
    CallArguments { index: usize, text: String },
}

/// One answer while it is being said.
#[derive(Clone, Debug)]
pub(crate) struct Speech {
    reasoning: Reasoning,
    /// Nothing where no tools were on offer: then what looks like a call is text.
    calls: Option<ToolCalls>,
    /// Whether more than one call is wanted.
    parallel: bool,
    begun: usize,
    ended: usize,
}

impl Speech {
    /// For an answer to `prompt`.
    pub(crate) fn new(prompt: &str, tools: &[Value], parallel: bool) -> Self {
        let calls = (!tools.is_empty()).then(|| ToolCalls::new(tools));
        Self { reasoning: Reasoning::new(prompt), calls, parallel, begun: 0, ended: 0 }
    }

    /// What takes thinking and answer apart, as it was before any text.
    pub(crate) fn reasoning(&self) -> Reasoning {
        self.reasoning.clone()
    }

    /// Whether the answer is inside `<think>`.
    pub(crate) fn is_thinking(&self) -> bool {
        self.reasoning.is_thinking()
    }

    /// Takes more text.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        let parts = self.reasoning.push(text);
        self.take(parts, false)
    }

    /// The rest, when no more text comes.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let parts = self.reasoning.finish();
        self.take(parts, true)
    }

    /// Calls that were said to their end.
    pub(crate) fn whole_calls(&self) -> usize {
        self.ended
    }

    /// OpenAI's word for why the answer ended.
    pub(crate) fn finish_reason(&self, finish: Finish) -> &'static str {
        match finish {
            Finish::Length => "length",
            Finish::Stop if self.ended > 0 => "tool_calls",
            Finish::Stop => "stop",
        }
    }

    fn take(&mut self, parts: text::Parts, last: bool) -> Vec<Part> {
        let mut taken = Vec::new();
        if !parts.reasoning.is_empty() {
            taken.push(Part::Reasoning(parts.reasoning));
        }
        let mut events = Vec::new();
        match &mut self.calls {
            Some(calls) => {
                events.extend(calls.push(&parts.content));
                if last {
                    events.extend(calls.finish());
                }
            }
            None => events.push(CallEvent::Text(parts.content)),
        }
        taken.extend(events.into_iter().filter_map(|event| self.part(event)));
        taken
    }

    fn part(&mut self, event: CallEvent) -> Option<Part> {
        let wanted = |begun: usize| begun == 1 || self.parallel;
        match event {
            CallEvent::Text(text) => (!text.is_empty()).then_some(Part::Content(text)),
            CallEvent::Begin(name) => {
                self.begun += 1;
                let id = format!("call_{:016x}", random());
                wanted(self.begun).then(|| Part::CallBegins { index: self.begun - 1, id, name })
            }
            CallEvent::Arguments(text) => {
                let index = self.begun - 1;
                wanted(self.begun).then_some(Part::CallArguments { index, text })
            }
            CallEvent::End => {
                self.ended += usize::from(wanted(self.begun));
                None
            }
        }
    }
}

/// An answer put together again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Message {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    /// Id, name and arguments.
    pub(crate) calls: Vec<(String, String, String)>,
}

impl Message {
    pub(crate) fn add(&mut self, part: Part) {
        match part {
            Part::Reasoning(text) => self.reasoning += &text,
            Part::Content(text) => self.content += &text,
            Part::CallBegins { id, name, .. } => self.calls.push((id, name, String::new())),
            Part::CallArguments { text, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.2 += &text;
                }
            }
        }
    }

    /// OpenAI's message object.
    pub(crate) fn object(&self) -> Value {
        let silent = self.content.is_empty() && !self.calls.is_empty();
        let content = (!silent).then_some(&self.content);
        let mut message = json!({"role": "assistant", "content": content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        if !self.calls.is_empty() {
            let call = |(id, name, arguments): &(String, String, String)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

/// OpenAI's delta object of a part.
pub(crate) fn delta(part: Part) -> Value {
    match part {
        Part::Reasoning(text) => json!({"reasoning_content": text}),
        Part::Content(text) => json!({"content": text}),
        Part::CallBegins { index, id, name } => {
            let function = json!({"name": name, "arguments": ""});
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        }
        Part::CallArguments { index, text } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: &str = "hm\n</think>\n\nLet me see.\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n\
        </function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>";

    fn say(speech: &mut Speech, text: &str) -> Message {
        let mut message = Message::default();
        let letters = text.chars().flat_map(|c| speech.push(&c.to_string())).collect::<Vec<_>>();
        letters.into_iter().chain(speech.finish()).for_each(|part| message.add(part));
        message
    }

    #[test]
    fn thinking_answer_and_calls_part() {
        let tools =
            [json!({"function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}})];
        let mut speech = Speech::new("<think>\n", &tools, true);
        let message = say(&mut speech, CALLS).object();
        assert_eq!(
            (&message["reasoning_content"], &message["content"]),
            (&json!("hm"), &json!("Let me see."))
        );
        assert_eq!(message["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{\"a\":1}"}));
        assert_eq!(message["tool_calls"][1]["function"], json!({"name": "g", "arguments": "{}"}));
        assert_ne!(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
        assert_eq!(speech.finish_reason(Finish::Stop), "tool_calls");
        assert_eq!(speech.finish_reason(Finish::Length), "length");

        let mut one = Speech::new("<think>\n", &tools, false);
        assert_eq!(say(&mut one, CALLS).calls.len(), 1);
        let mut none = Speech::new("<think>\n", &[], true);
        let message = say(&mut none, CALLS);
        assert!(message.calls.is_empty() && message.content.contains("<tool_call>"));
        assert_eq!(none.finish_reason(Finish::Stop), "stop");
    }
}
