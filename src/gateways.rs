//! Flags of `serve` for gateways that tokenise themselves.

use anyhow::{Context, Result, bail};
use server::Beside;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

/// How gateways are answered.
#[derive(clap::Args)]
#[command(next_help_heading = "Gateways")]
pub(crate) struct GatewayFlags {
    /// Where to speak vLLM's gRPC engine protocol, such as `127.0.0.1:9000`
    #[arg(long, value_name = "ADDRESS", requires = "tokenizer_dir")]
    gateway: Option<SocketAddr>,
    /// Where to publish what the prefix cache keeps, for routers; prompts' tokens can be read there
    #[arg(long, value_name = "ADDRESS", requires = "gateway")]
    kv_events: Option<SocketAddr>,
    /// Tokens of a block, as routers count them
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    kv_block: u32,
    /// A folder that gateways read the tokenizer from: the model's own, or one that `forerun
    /// tokenizer` has written
    #[arg(long, value_name = "DIR", requires = "gateway")]
    tokenizer_dir: Option<PathBuf>,
}

impl GatewayFlags {
    /// Nobody is asked for a key here, so who listens beyond this machine has to say that.
    pub(crate) fn check(&self, no_auth: bool) -> Result<()> {
        for (flag, address) in [("gateway", self.gateway), ("kv-events", self.kv_events)] {
            if let Some(address) = address
                && !address.ip().is_loopback()
                && !no_auth
            {
                bail!(
                    "`--{flag} {address}` is open to other machines, and no keys are asked for there: say `--no-auth` to let anybody in"
                );
            }
        }
        if let Some(folder) = &self.tokenizer_dir
            && !folder.join("tokenizer.json").is_file()
        {
            bail!(
                "`--tokenizer-dir {}` has no tokenizer.json: `forerun tokenizer MODEL --out DIR` writes one",
                folder.display()
            );
        }
        Ok(())
    }

    /// Listens, where that is asked for.
    pub(crate) async fn open(&self) -> Result<Option<Beside>> {
        let (Some(address), Some(folder)) = (self.gateway, &self.tokenizer_dir) else {
            return Ok(None);
        };
        // Gateways may have been started elsewhere.
        let folder = std::path::absolute(folder)?;
        let (events, block) = (self.kv_events, self.kv_block);
        let model = folder.display().to_string();
        let options = gateway::Options { address, events, block, model };
        let (beside, address, events) = gateway::open(options)
            .await
            .with_context(|| format!("listening for gateways on {address}"))?;
        let mut out = std::io::stdout();
        let _ = writeln!(out, "gateways on {address}");
        if let Some(events) = events {
            let _ = writeln!(out, "events on tcp://{events}");
        }
        Ok(Some(beside))
    }
}
