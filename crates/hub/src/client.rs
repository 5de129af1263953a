//! Asking the Hub over HTTP: redirects that do not carry the token to another host, failures that
//! are worth another try, and refusals in the words that a user needs.

use crate::Settings;
use anyhow::{Context, Error, Result, anyhow, bail};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Failures in a row, without a byte in between, after which one gives up.
const TRIES: u32 = 6;
/// Redirects of one request at most.
const REDIRECTS: usize = 8;
/// A server may ask for more patience than this; nobody has it.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// A connection that says nothing for so long is dead.
const SILENCE: Duration = Duration::from_secs(60);

/// The user wanted it to end.
#[derive(Clone, Copy, Debug)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped; what has come is kept, and the same command goes on from there")
    }
}

impl std::error::Error for Stopped {}

/// What went wrong.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another try may do better, after so long where the server says so.
    Again { why: Error, after: Option<Duration>, moved: bool },
    /// It would not.
    Final(Error),
}

impl Failure {
    /// Worth another try; `moved` where something came before it.
    pub(crate) fn again(why: Error, moved: bool) -> Self {
        Self::Again { why, after: None, moved }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// Who asks.
pub(crate) struct Client<'s> {
    agent: Agent,
    pub(crate) settings: &'s Settings,
    /// Set when the user wants it to end.
    pub(crate) stop: &'s AtomicBool,
}

impl<'s> Client<'s> {
    pub(crate) fn new(settings: &'s Settings, stop: &'s AtomicBool) -> Result<Self> {
        let endpoint: Uri = settings
            .endpoint
            .parse()
            .with_context(|| format!("`HF_ENDPOINT` is `{}`", settings.endpoint))?;
        let host = endpoint.host().unwrap_or_default();
        if !matches!(endpoint.scheme_str(), Some("http" | "https")) || host.is_empty() {
            bail!("`HF_ENDPOINT` is `{}`: an address was expected", settings.endpoint);
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("forerun/", env!("CARGO_PKG_VERSION")))
            // Lengths and ranges count the bytes of the file, not of what a server makes of them.
            .accept_encoding("identity")
            .timeout_connect(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .max_idle_connections_per_host(settings.connections);
        // A Hub on this machine is not behind a proxy.
        if matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
            config = config.proxy(None);
        }
        if let Some(path) = &settings.certificates {
            let pem = std::fs::read(path).with_context(|| format!("`{}`", path.display()))?;
            let certificates = parse_pem(&pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            });
            let roots = RootCerts::from(certificates.collect::<Vec<_>>());
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        Ok(Self { agent: config.build().new_agent(), settings, stop })
    }

    /// Whether the user wants it to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Tries until it works, until another try is no use, or until patience ends.
    pub(crate) fn patiently<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T> {
        let mut failures = 0;
        loop {
            if self.is_stopped() {
                return Err(Stopped.into());
            }
            let (why, after) = match attempt() {
                Ok(value) => return Ok(value),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again { why, after, moved }) => {
                    failures = if moved { 1 } else { failures + 1 };
                    (why, after)
                }
            };
            if failures >= TRIES {
                return Err(why.context(format!("given up after {TRIES} tries in a row")));
            }
            let growing = self.settings.patience * 2u32.pow(failures - 1);
            self.wait(after.unwrap_or(growing).min(LONGEST_WAIT));
        }
    }

    fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_stopped() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Asks once and follows redirects. `range` is the bytes from the first to the last.
    pub(crate) fn get(
        &self,
        url: &str,
        range: Option<(u64, u64)>,
    ) -> Result<Response<Body>, Failure> {
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS {
            let response = self.send(&url, range)?;
            match redirect(&url, &response)? {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        Err(anyhow!("{url}: more than {REDIRECTS} redirects").into())
    }

    /// Where a file of the Hub really lies: follows the Hub's own redirects, and stops at the first
    /// that leads to another host.
    pub(crate) fn locate(&self, url: &str) -> Result<String, Failure> {
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS {
            let request = self.authorised(self.agent.head(&url), &url);
            let response = request.call().map_err(|error| unreachable(&url, error))?;
            match redirect(&url, &response)? {
                Some(next) if !self.is_hub(&next) => return Ok(next),
                Some(next) => url = next,
                None if response.status().is_success() => return Ok(url),
                None => return Err(self.refusal(&url, &response)),
            }
        }
        Err(anyhow!("{url}: more than {REDIRECTS} redirects").into())
    }

    fn send(&self, url: &str, range: Option<(u64, u64)>) -> Result<Response<Body>, Failure> {
        let mut request = self.authorised(self.agent.get(url), url);
        if let Some((first, last)) = range {
            request = request.header("range", format!("bytes={first}-{last}"));
        }
        request.call().map_err(|error| unreachable(url, error))
    }

    /// The token is for the Hub alone: what it redirects to has its own signature.
    fn authorised<B>(
        &self,
        request: ureq::RequestBuilder<B>,
        url: &str,
    ) -> ureq::RequestBuilder<B> {
        match &self.settings.token {
            Some(token) if self.is_hub(url) => {
                request.header("authorization", format!("Bearer {token}"))
            }
            _ => request,
        }
    }

    /// Whether an address is the Hub's own.
    pub(crate) fn is_hub(&self, url: &str) -> bool {
        origin(url) == origin(&self.settings.endpoint)
    }

    /// What a status other than success means.
    pub(crate) fn refusal(&self, url: &str, response: &Response<Body>) -> Failure {
        let (status, headers) = (response.status(), response.headers());
        let code = header(headers, "x-error-code").unwrap_or_default();
        let endpoint = &self.settings.endpoint;
        let repository = repository(url.strip_prefix(endpoint.as_str()).unwrap_or(url));
        let token = match &self.settings.token {
            Some(_) => "the token that was sent has no access",
            None => "no token was sent: set `HF_TOKEN`, or run `hf auth login`",
        };
        match (status.as_u16(), code) {
            (401 | 403, "GatedRepo") => anyhow!(
                "`{repository}` is gated: accept its terms at {endpoint}/{repository} first; \
                 {token}"
            )
            .into(),
            (404, "RevisionNotFound") => {
                anyhow!("`{repository}` has no such revision ({url})").into()
            }
            (404, "EntryNotFound") => anyhow!("`{repository}` has no such file ({url})").into(),
            (401 | 404, _) => anyhow!(
                "{endpoint} has no `{repository}`, or it is private: check the spelling; {token}"
            )
            .into(),
            (403, _) => anyhow!("{endpoint} does not let `{repository}` be read; {token}").into(),
            (408 | 429 | 500 | 502 | 503 | 504, _) => Failure::Again {
                why: anyhow!("{url}: {status}"),
                after: header(headers, "retry-after")
                    .and_then(|seconds| seconds.trim().parse().ok())
                    .map(Duration::from_secs),
                moved: false,
            },
            _ => anyhow!("{url}: {status}").into(),
        }
    }
}

/// Where a response leads, if it leads elsewhere.
fn redirect(url: &str, response: &Response<Body>) -> Result<Option<String>, Failure> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = header(response.headers(), "location") else {
        return Err(anyhow!("{url}: {} without a place", response.status()).into());
    };
    let next = match location.starts_with('/') && !location.starts_with("//") {
        true => format!("{}{location}", origin(url)),
        false => location.to_owned(),
    };
    if url.starts_with("https:") && !next.starts_with("https:") {
        return Err(anyhow!("{url} leads to `{next}`, which is not encrypted: refused").into());
    }
    Ok(Some(next))
}

/// `https://host:port` of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    url[host..].find('/').map_or(url, |end| &url[..host + end])
}

/// The repository that a path of the Hub is about.
fn repository(path: &str) -> String {
    let path = path.trim_start_matches("/api/models/").trim_start_matches('/');
    path.split('/').take(2).collect::<Vec<_>>().join("/")
}

/// A header as text.
pub(crate) fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn unreachable(url: &str, error: ureq::Error) -> Failure {
    let host = origin(url).to_owned();
    // Certificates and addresses do not become better by waiting.
    let is_lasting = matches!(
        error,
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::BadUri(_) | ureq::Error::Pem(_)
    );
    let why = Error::new(error).context(host);
    if is_lasting { Failure::Final(why) } else { Failure::again(why, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(origin("https://a.b:8/c/d"), "https://a.b:8");
        assert_eq!(origin("https://a.b"), "https://a.b");
        assert_eq!(repository("/api/models/a/b/revision/main"), "a/b");
        assert_eq!(repository("/a/b/resolve/main/c"), "a/b");
    }
}
