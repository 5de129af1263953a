//! Chat templates: the Jinja that comes with a model, rendered to the byte as Python's jinja2 does
//! under transformers. A template is part of an untrusted file, so its size, its steps and its
//! depth are bounded; the memory that a step can take (`x ~ x`, over and over) is not.

mod manners;
mod python;
mod strings;

pub use manners::Manners;

use std::borrow::Cow;
use std::sync::LazyLock;
use std::thread;

use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value as Jinja};
use regex::Regex;
use serde_json::{Map, Value, json};

/// Bytes a template may have, several times what any in use has.
const MAX_SOURCE: usize = 128 << 10;

/// Instructions a rendering may take. A template like Qwen's takes about 100 a message.
const FUEL: u64 = 2_000_000;

/// The parser and the destructors recurse without a limit of their own. This holds any nesting that
/// `MAX_SOURCE` and `FUEL` leave possible; only what is used of it is ever backed by memory.
const STACK: usize = 256 << 20;

/// Why a template gave no text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template itself said no, through `raise_exception`.
    #[error("the chat template refuses: {0}")]
    Refused(String),
    /// The source is no template.
    #[error("the chat template does not parse: {0}")]
    Syntax(String),
    /// Rendering failed.
    #[error("the chat template fails: {0}")]
    Failed(String),
    /// The template runs for too long.
    #[error("the chat template takes more than {FUEL} steps")]
    OutOfFuel,
    /// The template is too long.
    #[error("the chat template has {0} bytes, more than {MAX_SOURCE}")]
    TooLong(usize),
    /// No thread could be started to work in.
    #[error("no thread for the chat template")]
    Thread(#[source] std::io::Error),
}

/// What a template is rendered from.
#[derive(Clone, Debug)]
pub struct Prompt<'a> {
    /// Messages as in the chat API: `role`, `content` (text or parts), `tool_calls` (arguments as
    /// an object), ...
    pub messages: &'a [Value],
    /// Descriptions of the tools on offer; an empty list is none.
    pub tools: &'a [Value],
    /// Whether to open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// Not defined for the template if `None`.
    pub enable_thinking: Option<bool>,
    /// Further variables, such as `bos_token` or what a request has under `chat_template_kwargs`.
    pub extra: Map<String, Value>,
}

impl Default for Prompt<'_> {
    fn default() -> Self {
        let (messages, tools) = (&[], &[]);
        Self {
            messages,
            tools,
            add_generation_prompt: true,
            enable_thinking: None,
            extra: Map::new(),
        }
    }
}

/// A parsed chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    manners: Manners,
}

impl ChatTemplate {
    /// Parses `tokenizer.chat_template` or `chat_template.jinja`.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        Self::with_clock(source, Zoned::now)
    }

    fn with_clock(source: &str, now: fn() -> Zoned) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::TooLong(source.len()));
        }
        let mut template = deep(move || {
            let mut environment = Environment::new();
            environment
                .set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
            environment.set_fuel(Some(FUEL));
            environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
            environment.set_unknown_method_callback(strings::method);
            environment.set_formatter(python::write_value);
            environment.add_filter("float", python::as_float_or);
            environment.add_filter("int", python::as_int_or);
            environment.add_filter("length", python::length);
            environment.add_filter("count", python::length);
            environment.add_filter("string", python::string);
            environment.add_filter("tojson", python::to_json);
            environment.add_test("iterable", python::is_iterable);
            environment.add_test("number", python::is_number);
            environment.add_test("sequence", python::is_sequence);
            environment.add_function("raise_exception", raise_exception);
            environment.add_function("strftime_now", move |format: &str| strftime(&now(), format));
            environment.add_template_owned("chat", without_generation(source).into_owned())?;
            Ok(Self { environment, manners: Manners::default() })
        })?;
        template.manners = Manners::of(&template);
        Ok(template)
    }

    /// Which conversations it takes.
    pub fn manners(&self) -> Manners {
        self.manners
    }

    /// What it was parsed from.
    pub fn source(&self) -> Option<String> {
        self.environment.get_template("chat").ok().map(|template| template.source().to_owned())
    }

    /// The text of a conversation.
    pub fn render(&self, prompt: &Prompt) -> Result<String, TemplateError> {
        let Prompt { messages, tools, add_generation_prompt, enable_thinking, extra } = prompt;
        let mut variables = extra.clone();
        variables.insert("messages".into(), json!(messages));
        variables.insert("tools".into(), if tools.is_empty() { Value::Null } else { json!(tools) });
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), json!(add_generation_prompt));
        if let Some(enable_thinking) = enable_thinking {
            variables.insert("enable_thinking".into(), json!(enable_thinking));
        }
        deep(|| self.environment.get_template("chat")?.render(Jinja::from(Serde(&variables))))
    }
}

/// `{% generation %}` marks what the assistant says, for training; here it is a scope and nothing
/// else.
fn without_generation(source: &str) -> Cow<'_, str> {
    static TAG: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").ok());
    match &*TAG {
        Some(tag) => tag.replace_all(source, "${1}${2}with${3}"),
        None => Cow::Borrowed(source),
    }
}

/// Runs `work` on a stack of its own and gives its error a type.
fn deep<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat template".into()).stack_size(STACK);
        let worker = builder.spawn_scoped(scope, || work().map_err(|error| typed(&error)));
        let result = worker.map_err(TemplateError::Thread)?.join();
        result.unwrap_or_else(|_| Err(TemplateError::Failed("the template engine panicked".into())))
    })
}

fn typed(error: &Error) -> TemplateError {
    let mut causes =
        std::iter::successors(Some(error as &dyn std::error::Error), |&error| error.source());
    if let Some(Refusal(message)) = causes.find_map(|error| error.downcast_ref()) {
        return TemplateError::Refused(message.clone());
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::OutOfFuel,
        ErrorKind::SyntaxError => TemplateError::Syntax(error.to_string()),
        _ => TemplateError::Failed(error.to_string()),
    }
}

/// The message of a `raise_exception`, carried as the cause of the error that stops the rendering.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: String) -> Result<Jinja, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(message)))
}

fn strftime(now: &Zoned, format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_written_as_by_python() {
        let now = || "2026-03-04T05:06:07[UTC]".parse().expect("a time");
        // datetime(2026, 3, 4, 5, 6, 7).strftime(...)
        for (format, text) in [
            ("%d %b %Y", "04 Mar 2026"),
            ("%Y-%m-%d", "2026-03-04"),
            ("%A, %B %d, %H:%M:%S", "Wednesday, March 04, 05:06:07"),
            ("%I %p %j %y %%", "05 AM 063 26 %"),
        ] {
            let template =
                ChatTemplate::with_clock(&format!("{{{{ strftime_now('{format}') }}}}"), now);
            let rendered = template.and_then(|template| template.render(&Prompt::default()));
            assert_eq!(rendered.expect("renders"), text);
        }
        let template = ChatTemplate::with_clock("{{ strftime_now('%!') }}", now).expect("parses");
        assert!(matches!(template.render(&Prompt::default()), Err(TemplateError::Failed(_))));
    }
}
