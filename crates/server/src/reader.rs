//! Requests that are read and not answered: everything between a body and a job, without a model.
//! Fuzzing drives it.

use crate::error::ApiError;
use crate::handle::Handle;
use crate::metrics::Metrics;
use crate::models::{Abilities, About};
use crate::prompt::BEGINNINGS;
use crate::router::Shared;
use crate::settings::Limits;
use crate::{anthropic, chat, ollama, responses};
use engine::sampling::Sampling;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use text::{Beginnings, ChatTemplate, Tokenizer};
use tokio::sync::mpsc::unbounded_channel;

/// Reads bodies as a server with this tokenizer and template would.
pub struct Reader(pub(crate) Shared);

impl Reader {
    /// A reader for a context of 4096 tokens.
    pub fn new(tokenizer: Tokenizer, template: ChatTemplate) -> Self {
        let metrics = Arc::new(Metrics::new("none", 4096));
        let (asks, _) = unbounded_channel();
        let abandon = Arc::new(AtomicBool::new(false));
        let way = (0, Arc::default(), asks);
        let handle = Handle::new(way, 8, 8, None, abandon, Arc::clone(&metrics));
        let about = About {
            names: vec!["none".to_owned()],
            created: 0,
            context: 4096,
            trained_context: 4096,
            parameters: 0,
            vocab: tokenizer.len(),
            hidden: 0,
            can: Abilities::of(Some(&template)),
        };
        let (vocab, ends) = (tokenizer.len(), tokenizer.ends().to_vec());
        let limits = Limits {
            sampling: Sampling::default(),
            vocab,
            context: 4096,
            capacity: 8,
            ends,
            shares: None,
        };
        Self(Shared {
            handle,
            about,
            tokenizer: Arc::new(tokenizer),
            beginnings: Beginnings::new(BEGINNINGS),
            template: Ok(template),
            grammars: OnceLock::new(),
            limits,
            metrics,
            weights: ollama::About::default(),
            store: None,
        })
    }

    /// The tokens of the prompt of a chat request.
    pub fn chat(&self, body: &[u8]) -> Result<Vec<u32>, ApiError> {
        Ok(chat::read(&parsed(body)?, &self.0)?.job.prompt)
    }

    /// The same of a request of the Responses API.
    pub fn responses(&self, body: &[u8]) -> Result<Vec<u32>, ApiError> {
        Ok(responses::read(&parsed(body)?, &self.0)?.chat.job.prompt)
    }

    /// The same of a request to Ollama's `/api/chat`; none where nothing is asked.
    pub fn ollama(&self, body: &[u8]) -> Result<Option<Vec<u32>>, ApiError> {
        Ok(ollama::read_chat(&parsed(body)?, &self.0)?.map(|chat| chat.job.prompt))
    }

    /// The same of a request in Anthropic's form.
    pub fn messages(&self, body: &[u8]) -> Result<Vec<u32>, ApiError> {
        Ok(anthropic::read(&parsed(body)?, &self.0)?.job.prompt)
    }
}

fn parsed(body: &[u8]) -> Result<serde_json::Map<String, serde_json::Value>, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::Body(error.to_string()))
}
