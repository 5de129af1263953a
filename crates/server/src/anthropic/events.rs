//! An answer as the events that build its content blocks.

use super::{error_object, reason, usage};
use crate::error::ApiError;
use crate::job::{Delta, Outcome};
use crate::output::{OutputParser, OutputPart};
use crate::sse::Chunks;
use serde_json::{Value, json};

/// Events of a streamed answer.
pub(super) struct BlockChunks {
    id: String,
    model: String,
    prompt_tokens: usize,
    parser: OutputParser,
    stops: Vec<String>,
    /// The kind of the block that is open.
    open: Option<&'static str>,
    /// Blocks begun so far.
    blocks: usize,
}

impl BlockChunks {
    pub(super) fn new(
        id: String,
        model: String,
        prompt_tokens: usize,
        parser: OutputParser,
        stops: Vec<String>,
    ) -> Self {
        Self { id, model, prompt_tokens, parser, stops, open: None, blocks: 0 }
    }

    /// Opens a block of this kind, unless it is open and can go on.
    fn begin(&mut self, kind: &'static str, block: Value, events: &mut Vec<Value>) {
        if self.open == Some(kind) && kind != "tool_use" {
            return;
        }
        self.end(events);
        events.push(
            json!({"type": "content_block_start", "index": self.blocks, "content_block": block}),
        );
        self.open = Some(kind);
        self.blocks += 1;
    }

    fn end(&mut self, events: &mut Vec<Value>) {
        if self.open.take().is_some() {
            events.push(json!({"type": "content_block_stop", "index": self.blocks - 1}));
        }
    }

    fn part(&mut self, part: OutputPart, events: &mut Vec<Value>) {
        let delta = match part {
            OutputPart::Reasoning(text) => {
                let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                self.begin("thinking", block, events);
                json!({"type": "thinking_delta", "thinking": text})
            }
            OutputPart::Content(text) => {
                self.begin("text", json!({"type": "text", "text": ""}), events);
                json!({"type": "text_delta", "text": text})
            }
            OutputPart::CallBegins { id, name, .. } => {
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                return self.begin("tool_use", block, events);
            }
            OutputPart::CallArguments { text, .. } => {
                json!({"type": "input_json_delta", "partial_json": text})
            }
        };
        events
            .push(json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta}));
    }
}

impl Chunks for BlockChunks {
    const NAMED: bool = true;

    fn open(&mut self) -> Vec<Value> {
        let usage = json!({"input_tokens": self.prompt_tokens, "output_tokens": 0});
        let message = json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage});
        vec![json!({"type": "message_start", "message": message})]
    }

    fn text(&mut self, _: usize, delta: &Delta) -> Vec<Value> {
        let mut events = Vec::new();
        self.parser.push(&delta.text).into_iter().for_each(|part| self.part(part, &mut events));
        events
    }

    fn done(&mut self, _: usize, outcome: Outcome) -> Vec<Value> {
        let mut events = Vec::new();
        self.parser.finish().into_iter().for_each(|part| self.part(part, &mut events));
        self.end(&mut events);
        let (stop_reason, stop_sequence) = reason(&self.parser, &outcome, &self.stops);
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        events.push(json!({"type": "message_delta", "delta": delta, "usage": usage(&outcome),
            "forerun": outcome.report}));
        events
    }

    fn close(&mut self) -> Vec<Value> {
        vec![json!({"type": "message_stop"})]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error_object(error)]
    }
}
