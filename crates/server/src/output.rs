//! Generated text taken apart: thinking, answer, tool calls. Streams and whole answers come from
//! the same parts, so that a streamed answer put together is the whole one. Stop strings end the
//! answer where a reader sees them: not in thinking, not in calls, and not in the line breaks
//! between.

use crate::job::Finish;
use crate::settings::random;
use serde_json::{Value, json};
use text::{CallEvent, Reasoning, Stops, ToolCalls};

/// A part of an answer, in the order it was said. Texts are never empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OutputPart {
    Reasoning(String),
    Content(String),
    CallBegins { index: usize, id: String, name: String },
    CallArguments { index: usize, text: String },
}

/// Takes one answer apart while it is written.
#[derive(Clone, Debug)]
pub(crate) struct OutputParser {
    reasoning: Reasoning,
    /// Nothing where no tools were on offer: then what looks like a call is text.
    calls: Option<ToolCalls>,
    /// Whether more than one call is wanted.
    parallel: bool,
    begun: usize,
    ended: usize,
    stops: Stops,
    /// The stop strings, where an answer ends with the one that ended it and not before it.
    told_stops: Vec<String>,
}

impl OutputParser {
    /// For an answer to `prompt`.
    pub(crate) fn new(prompt: &str, tools: &[Value], parallel: bool) -> Self {
        let calls = (!tools.is_empty()).then(|| ToolCalls::new(tools));
        let (reasoning, stops) = (Reasoning::new(prompt), Stops::default());
        Self { reasoning, calls, parallel, begun: 0, ended: 0, stops, told_stops: Vec::new() }
    }

    /// The answer goes on where the prompt's last message breaks off: inside its thinking, or
    /// inside what it says.
    pub(crate) fn goes_on(&mut self, thinking: bool) {
        self.reasoning = Reasoning::within(thinking);
    }

    /// What is said ends before the first of `stops`, or behind it where that is to be `told`.
    pub(crate) fn stop_at(&mut self, stops: Vec<String>, told: bool) {
        self.told_stops = if told { stops.clone() } else { Vec::new() };
        self.stops = Stops::new(stops);
    }

    /// The stop string that has occurred.
    pub(crate) fn stopped(&self) -> Option<usize> {
        self.stops.stopped()
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
    pub(crate) fn push(&mut self, text: &str) -> Vec<OutputPart> {
        let parts = self.reasoning.push(text);
        self.take(parts, false)
    }

    /// The rest, when no more text comes.
    pub(crate) fn finish(&mut self) -> Vec<OutputPart> {
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

    fn take(&mut self, parts: text::Parts, last: bool) -> Vec<OutputPart> {
        let mut taken = Vec::new();
        if self.stopped().is_some() {
            return taken;
        }
        if !parts.reasoning.is_empty() {
            taken.push(OutputPart::Reasoning(parts.reasoning));
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
        for event in events {
            let said = match &event {
                CallEvent::Text(text) => self.stops.push(text),
                // What is said before a call ends there; no stop string goes on behind it.
                _ => self.stops.finish(),
            };
            taken.extend((!said.is_empty()).then_some(OutputPart::Content(said)));
            if let Some(stop) = self.stopped() {
                taken.extend(
                    self.told_stops.get(stop).map(|stop| OutputPart::Content(stop.clone())),
                );
                return taken;
            }
            taken.extend(self.part(event));
        }
        if last {
            let said = self.stops.finish();
            taken.extend((!said.is_empty()).then_some(OutputPart::Content(said)));
        }
        taken
    }

    /// The part of a call.
    fn part(&mut self, event: CallEvent) -> Option<OutputPart> {
        let wanted = |begun: usize| begun == 1 || self.parallel;
        match event {
            CallEvent::Text(_) => None,
            CallEvent::Begin(name) => {
                self.begun += 1;
                let id = format!("call_{:016x}", random());
                wanted(self.begun).then(|| OutputPart::CallBegins {
                    index: self.begun - 1,
                    id,
                    name,
                })
            }
            CallEvent::Arguments(text) => {
                let index = self.begun - 1;
                wanted(self.begun).then_some(OutputPart::CallArguments { index, text })
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
    pub(crate) fn add(&mut self, part: OutputPart) {
        match part {
            OutputPart::Reasoning(text) => self.reasoning += &text,
            OutputPart::Content(text) => self.content += &text,
            OutputPart::CallBegins { id, name, .. } => self.calls.push((id, name, String::new())),
            OutputPart::CallArguments { text, .. } => {
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
pub(crate) fn openai_delta(part: OutputPart) -> Value {
    match part {
        OutputPart::Reasoning(text) => json!({"reasoning_content": text}),
        OutputPart::Content(text) => json!({"content": text}),
        OutputPart::CallBegins { index, id, name } => {
            let function = json!({"name": name, "arguments": ""});
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        }
        OutputPart::CallArguments { index, text } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: &str = "hm\n</think>\n\nLet me see.\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n\
        </function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>";

    fn say(parser: &mut OutputParser, text: &str) -> Message {
        let mut message = Message::default();
        let letters = text.chars().flat_map(|c| parser.push(&c.to_string())).collect::<Vec<_>>();
        letters.into_iter().chain(parser.finish()).for_each(|part| message.add(part));
        message
    }

    #[test]
    fn thinking_answer_and_calls_part() {
        let tools = [
            json!({"function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}),
        ];
        let mut parser = OutputParser::new("<think>\n", &tools, true);
        let message = say(&mut parser, CALLS).object();
        assert_eq!(
            (&message["reasoning_content"], &message["content"]),
            (&json!("hm"), &json!("Let me see."))
        );
        assert_eq!(
            message["tool_calls"][0]["function"],
            json!({"name": "f", "arguments": "{\"a\":1}"})
        );
        assert_eq!(message["tool_calls"][1]["function"], json!({"name": "g", "arguments": "{}"}));
        assert_ne!(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
        assert_eq!(parser.finish_reason(Finish::Stop), "tool_calls");
        assert_eq!(parser.finish_reason(Finish::Length), "length");

        let mut one = OutputParser::new("<think>\n", &tools, false);
        assert_eq!(say(&mut one, CALLS).calls.len(), 1);
        let mut none = OutputParser::new("<think>\n", &[], true);
        let message = say(&mut none, CALLS);
        assert!(message.calls.is_empty() && message.content.contains("<tool_call>"));
        assert_eq!(none.finish_reason(Finish::Stop), "stop");
    }

    #[test]
    fn stop_strings_end_what_is_said_and_nothing_else() {
        let tools = [
            json!({"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}),
        ];
        let call = "<tool_call>\n<function=f>\n<parameter=a>\nSTOP\n\nx\n</parameter>\n</function>\n</tool_call>";
        for (stop, text, reasoning, content, stopped) in [
            ("STOP", "a STOP b</think>\n\nc STOP d", "a STOP b", "c ", true),
            ("\n\n", "a\n\nb\n</think>\n\nc\n\nd", "a\n\nb", "c", true),
            ("</think>", "a</think>\n\nc", "a", "c", false),
            ("STOP", "a</think>\n\nc STO", "a", "c STO", false),
            ("\n\n", &format!("a</think>\n\nc\n\n{call}"), "a", "c", false),
            ("STOP", &format!("a</think>\n\n{call}"), "a", "", false),
        ] {
            let mut parser = OutputParser::new("<think>\n", &tools, true);
            parser.stop_at(vec![stop.to_owned()], false);
            let mut whole = parser.clone();
            let message = say(&mut parser, text);
            assert_eq!(
                (&*message.reasoning, &*message.content),
                (reasoning, content),
                "{stop} {text}"
            );
            assert_eq!(parser.stopped().is_some(), stopped, "{stop} {text}");
            assert_eq!(message.calls.len(), usize::from(text.contains("<tool_call>")));
            let mut at_once = Message::default();
            whole.push(text).into_iter().chain(whole.finish()).for_each(|part| at_once.add(part));
            assert_eq!((at_once.content, at_once.reasoning), (message.content, message.reasoning));
        }
    }

    #[test]
    fn an_answer_goes_on_where_it_broke_off() {
        let mut parser = OutputParser::new("<think>\n", &[], true);
        parser.goes_on(true);
        let message = say(&mut parser, "\nmore</think>\n\nc");
        assert_eq!((&*message.reasoning, &*message.content), ("\nmore", "c"));
        let mut parser = OutputParser::new("assistant\n", &[], true);
        parser.goes_on(false);
        assert_eq!(say(&mut parser, "\n and").content, "\n and");
    }
}
