//! The log of `forerun serve`: lines on stderr, as text or as JSON, from a level on.

use anyhow::{Context, Result};
use clap::ValueEnum;
use server::Collector;
use std::io::stderr;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// What the log says where nobody asks for more or less.
const DEFAULT_LEVEL: LevelFilter = LevelFilter::INFO;

/// How the log is written.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogFlags {
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    log_format: Format,
    /// error, warn, info, debug, trace or off, also by part such as `warn,server=debug` [default:
    /// RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Send a trace of each request to the OpenTelemetry collector there, such as
    /// http://127.0.0.1:4318
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
            Format::Text => {
                fmt::layer().with_writer(stderr).with_ansi(false).with_target(false).boxed()
            }
            Format::Json => {
                let json = fmt::layer().json().flatten_event(true).with_current_span(false);
                json.with_span_list(false).with_target(false).with_writer(stderr).boxed()
            }
        };
        let (levels, complaint) = self.levels()?;
        registry().with(layer.with_filter(levels)).try_init()?;
        if let Some(complaint) = complaint {
            tracing::warn!(cause = complaint, "`RUST_LOG` is not understood");
        }
        server::log_panics();
        Ok(())
    }

    /// Where traces are sent, with what OpenTelemetry's variables add.
    pub(crate) fn collector(&self) -> Result<Option<Collector>> {
        let variable = |name| std::env::var(name).ok();
        let (headers, service) =
            (variable("OTEL_EXPORTER_OTLP_HEADERS"), variable("OTEL_SERVICE_NAME"));
        let endpoint = self.otlp_endpoint.as_deref();
        let collector =
            endpoint.map(|url| Collector::new(url, headers.as_deref(), service.as_deref()));
        collector.transpose().context("`--otlp-endpoint`")
    }

    /// What is said from which level on, and what was wrong with `RUST_LOG`, which may be meant for
    /// somebody else.
    fn levels(&self) -> Result<(Targets, Option<String>)> {
        if let Some(text) = &self.log_level {
            // A lone word that is no level would be taken for a part of the program.
            let is_level =
                |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
            let known = Some(text).filter(|text| text.split(',').all(is_level));
            let levels = known.and_then(|text| text.parse().ok());
            let wanted = "error, warn, info, debug, trace or off was expected";
            return Ok((
                levels.with_context(|| format!("`--log-level` is `{text}`, {wanted}"))?,
                None,
            ));
        }
        let text = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
        let default = || Targets::new().with_default(DEFAULT_LEVEL);
        Ok(match text.map(|text| text.parse()) {
            None => (default(), None),
            Some(Ok(levels)) => (levels, None),
            Some(Err(error)) => (default(), Some(error.to_string())),
        })
    }
}
