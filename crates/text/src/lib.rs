//! TEXT <-> TOKENS: the tokenizer of Qwen3.5/3.6/3.8, the chat template that comes with a model,
//! the stream that turns generated tokens back into text, and the grammars that it can be held to.
//! Knows no tensors and no files but `tokenizer.json`.
//!
//! ```
//! use serde_json::json;
//! use text::{ChatTemplate, Controls, Prompt, Specials, Stream, Tokenizer};
//!
//! let tokenizer = Tokenizer::from_json("tests/fixtures/tokenizer.json")?;
//! let template = ChatTemplate::new(include_str!("../tests/fixtures/chat_template.jinja"))?;
//!
//! let messages = [json!({"role": "user", "content": "Grüße, 世界 👋"})];
//! let prompt = template.render(&Prompt { messages: &messages, ..Prompt::default() })?;
//! let ids = tokenizer.encode(&prompt, Specials::Parse);
//! assert_eq!(tokenizer.decode(&ids, Controls::Show), prompt);
//!
//! // One token at a time; a character whose bytes span several tokens comes out whole.
//! let mut stream = Stream::new(&tokenizer, Controls::Hide, []);
//! let mut answer = String::new();
//! for id in tokenizer.encode("👋 hi", Specials::Literal) {
//!     answer += &stream.push(id);
//! }
//! answer += &stream.finish();
//! assert_eq!(answer, "👋 hi");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod droppable;
mod grammar;
mod reasoning;
mod stops;
mod stream;
mod template;
mod tokenizer;
mod tool_calls;

pub use droppable::Droppable;
pub use grammar::{Form, Grammar, GrammarError, Grammars, Shape};
pub use reasoning::{Parts, Reasoning};
pub use stops::Stops;
pub use stream::Stream;
pub use template::{ChatTemplate, Manners, Prompt, TemplateError};
pub use tokenizer::{Beginnings, Controls, Kind, Specials, Tokenizer, TokenizerError, Vocabulary};
pub use tool_calls::{CallEvent, ToolCalls};
