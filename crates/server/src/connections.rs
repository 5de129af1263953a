//! Connections: taken in, given so long to ask and so long to listen, and told when it is over.
//! Whoever is slow or gone holds a socket for a while and nothing else.

use crate::framing::Framing;
use crate::log::Peer;
use crate::tls::Tls;
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};

/// The head of a request must have come by then; an idle connection is closed after as long.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);

/// Somebody who takes nothing of an answer for so long is gone.
const READER_PATIENCE: Duration = Duration::from_secs(60);

/// Where no connection can be taken in (too many files are open), the next try.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Serves `app` until `over`, then lets connections finish what they are at.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    app: Router,
    over: impl Future<Output = ()>,
) {
    let connections = GracefulShutdown::new();
    tokio::pin!(over);
    let mut crowded = false;
    loop {
        let stream = tokio::select! {
            stream = listener.accept() => stream,
            () = &mut over => break,
        };
        let (stream, peer) = match stream {
            Ok(taken) => taken,
            Err(error) => {
                if !std::mem::replace(&mut crowded, true) {
                    tracing::warn!(cause = %error, "no connection could be taken in");
                }
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        crowded = false;
        prepare(&stream);
        let (tls, app, watcher) = (tls.clone(), app.clone(), connections.watcher());
        tokio::spawn(async move {
            let Some(tls) = tls else { return hold(stream, peer, app, watcher).await };
            match tokio::time::timeout(HEAD_PATIENCE, tls.accept(stream)).await {
                Ok(Ok(stream)) => hold(stream, peer, app, watcher).await,
                Ok(Err(error)) => {
                    tracing::debug!(client = %peer, cause = %error, "no TLS connection")
                }
                Err(_) => tracing::debug!(client = %peer, "no TLS connection in time"),
            }
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// Serves one connection to its end.
async fn hold<S>(stream: S, peer: SocketAddr, app: Router, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        app.call(request)
    });
    let stream = TokioIo::new(Patient::new(stream, READER_PATIENCE));
    let connection = builder.serve_connection(stream, service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(client = %peer, cause = %error, "a connection broke");
    }
}

/// Small pieces go out at once, and a peer that has vanished is noticed. None of it is vital.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(READER_PATIENCE));
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(READER_PATIENCE));
}

/// Ends a head so that it is refused as malformed, with a 400 and the end of the connection.
const REFUSAL: &[u8] = b"transfer-encoding: refused\r\n\r\n";

/// A stream whose writes fail when the other side takes nothing for too long, and whose reads end
/// in a refusal where a request tells its length twice.
struct Patient<T> {
    inner: T,
    framing: Framing,
    /// What is left to say of a refusal, once there is one.
    refusal: Option<&'static [u8]>,
    patience: Duration,
    /// Runs while a write waits.
    timer: Pin<Box<Sleep>>,
    waits: bool,
}

impl<T> Patient<T> {
    fn new(inner: T, patience: Duration) -> Self {
        let timer = Box::pin(tokio::time::sleep(patience));
        Self { inner, framing: Framing::new(), refusal: None, patience, timer, waits: false }
    }

    /// Passes a result on; a wait that has lasted too long becomes an error.
    fn watch<R>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if poll.is_ready() {
            self.waits = false;
            return poll;
        }
        if !self.waits {
            self.waits = true;
            self.timer.as_mut().reset(Instant::now() + self.patience);
        }
        match self.timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        if this.refusal.is_none() {
            ready!(Pin::new(&mut this.inner).poll_read(cx, buffer))?;
            let Some(kept) = this.framing.take(&buffer.filled()[before..]) else {
                return Poll::Ready(Ok(()));
            };
            buffer.set_filled(before + kept);
            this.refusal = Some(REFUSAL);
        }
        let left = this.refusal.unwrap_or_default();
        let (now, later) = left.split_at(left.len().min(buffer.remaining()));
        buffer.put_slice(now);
        this.refusal = Some(later);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.watch(cx, poll)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.inner).poll_write_vectored(cx, slices);
        this.watch(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.inner).poll_flush(cx);
        this.watch(cx, poll)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_given_up() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut patient = Patient::new(stream, Duration::from_millis(100));
        let bytes = vec![0; 1 << 16];
        let error = loop {
            if let Err(error) = poll_fn(|cx| Pin::new(&mut patient).poll_write(cx, &bytes)).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }
}
