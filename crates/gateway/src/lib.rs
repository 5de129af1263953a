//! For gateways that tokenise themselves: vLLM's gRPC engine protocol over the scheduler, and what
//! the prefix cache keeps, told in vLLM's words on a ZeroMQ publisher.
//!
//! A request's life: `service` takes it in, `ask` says it as `/v1/completions` would have it (so
//! that every check and every refusal is the same), `server::Door` answers with tokens, `tell` makes
//! messages of them. A change of the cache becomes blocks in `blocks`, bytes in `events` and frames
//! in `zmtp`.
#![forbid(unsafe_code)]

mod ask;
mod blocks;
mod events;
mod messages;
mod service;
mod tell;
mod zmtp;

use server::Beside;
use service::{Facts, Service};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

/// How gateways are answered.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the engine protocol is spoken.
    pub address: SocketAddr,
    /// Where changes of the prefix cache are published, if they are.
    pub events: Option<SocketAddr>,
    /// Tokens of a block, as gateways count them.
    pub block: u32,
    /// A folder with tokenizer and template that gateways can read.
    pub model: String,
}

/// Listens at both addresses; what is returned runs beside the HTTP server. Also says where that
/// is, should ports have been left to the system.
pub async fn open(options: Options) -> io::Result<(Beside, SocketAddr, Option<SocketAddr>)> {
    let listener = TcpListener::bind(options.address).await?;
    let address = listener.local_addr()?;
    let (mut publisher, mut events, mut changes) = (None, None, None);
    if let Some(wanted) = options.events {
        let listener = TcpListener::bind(wanted).await?;
        events = Some(listener.local_addr()?);
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        (publisher, changes) = (Some((listener, receiver)), Some(sender));
    }
    let facts = Facts { model: options.model, block: options.block, events };
    let serve = move |door: server::Door| {
        let block = facts.block as usize;
        let service = Arc::new(Service::new(door.clone(), facts));
        let future = async move {
            let told = publisher
                .map(|(listener, changes)| tokio::spawn(events::publish(listener, block, changes)));
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let server = tonic::transport::Server::builder().add_routes(service::routes(service));
            let closed = async move { door.closed().await };
            if let Err(error) = server.serve_with_incoming_shutdown(incoming, closed).await {
                tracing::error!(cause = %error, "the gateway's server ended");
            }
            if let Some(told) = told {
                told.abort();
            }
        };
        Box::pin(future) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    };
    Ok((Beside { serve: Box::new(serve), listener: changes }, address, events))
}
