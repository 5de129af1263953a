//! The embedded model, ready to be served.

use clap::Parser;
use server::{Facts, Served};
use std::sync::Arc;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    model: launch::ModelFlags,
}

/// The embedded model under two names. Its states can be kept on disk.
pub(crate) fn tiny() -> Served {
    let mut flags = Flags::parse_from(["test", "--device", "cpu", "--ctx", "4096"]);
    flags.model.identified = true;
    let running = flags.model.load().expect("the embedded model loads");
    let config = running.engine.model().config().clone();
    Served {
        names: vec!["tiny".to_owned(), "other".to_owned()],
        engine: Some(running.engine),
        load: Arc::new(|| Err("not here".to_owned())),
        mode: running.mode.name(),
        tokenizer: running.text.tokenizer,
        template: running.text.template,
        sampling: running.text.sampling,
        context: running.context,
        trained_context: config.context_length,
        vocab: config.vocab,
        hidden: config.hidden,
        kv: "f16".to_owned(),
        load_s: 0.0,
        facts: Facts::default(),
    }
}
