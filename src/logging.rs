//! The log of `forerun serve`: lines on stderr, as text or as JSON, from a level on.

use anyhow::{Context, Result};
use clap::ValueEnum;
use server::Collector;
use std::io::stderr;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// What the log says where nobody asks for more or less.
const DEFAULT_LEVEL: &str = "info";

/// How the log is written.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogFlags {
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    log_format: Format,
    /// error, warn, info, debug, trace or off, also by part such as `warn,server=debug` [default: RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Send a trace of each request to the OpenTelemetry collector there, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl LogFlags {
    /// Lines go to stderr from now on.
    pub(crate) fn start(&self) -> Result<()> {
        let layer = match self.log_format {
            Format::Text => fmt::layer().with_writer(stderr).with_ansi(false).with_target(false).boxed(),
            Format::Json => {
                let json = fmt::layer().json().flatten_event(true).with_current_span(false);
                json.with_span_list(false).with_target(false).with_writer(stderr).boxed()
            }
        };
        registry().with(layer.with_filter(self.levels()?)).try_init()?;
        server::log_panics();
        Ok(())
    }

    /// Where traces are sent, with what OpenTelemetry's variables add.
    pub(crate) fn collector(&self) -> Result<Option<Collector>> {
        let variable = |name| std::env::var(name).ok();
        let (headers, service) = (variable("OTEL_EXPORTER_OTLP_HEADERS"), variable("OTEL_SERVICE_NAME"));
        let endpoint = self.otlp_endpoint.as_deref();
        let collector = endpoint.map(|url| Collector::new(url, headers.as_deref(), service.as_deref()));
        collector.transpose().context("`--otlp-endpoint`")
    }

    fn levels(&self) -> Result<Targets> {
        let (text, whence) = match (&self.log_level, std::env::var("RUST_LOG")) {
            (Some(text), _) => (text.clone(), "--log-level"),
            (None, Ok(text)) if !text.is_empty() => (text, "RUST_LOG"),
            (None, _) => (DEFAULT_LEVEL.to_owned(), "--log-level"),
        };
        text.parse().with_context(|| format!("`{whence}` is `{text}`"))
    }
}
