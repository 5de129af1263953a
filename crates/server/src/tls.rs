//! TLS: a certificate and its key, read from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// What connections are encrypted with.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// Why files cannot encrypt connections.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{}: {cause}", path.display())]
    Pem { path: PathBuf, cause: pem::Error },
    /// There is no certificate.
    #[error("{}: there is no certificate in it, `-----BEGIN CERTIFICATE-----` was expected", path.display())]
    NoCertificate { path: PathBuf },
    /// The certificate or the key is not usable, or they do not belong together.
    #[error("{} and {}: {cause}", certificate.display(), key.display())]
    Pair { certificate: PathBuf, key: PathBuf, cause: rustls::Error },
}

impl Tls {
    /// Reads a certificate, followed by those that vouch for it, and its private key.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let wrong = |path: &Path| {
            let path = path.to_owned();
            |cause| TlsError::Pem { path, cause }
        };
        let chain = CertificateDer::pem_file_iter(certificate).map_err(wrong(certificate))?;
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(wrong(certificate))?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate { path: certificate.to_owned() });
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(wrong(key))?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, private));
        let mut config = config.map_err(|cause| TlsError::Pair {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            cause,
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Agrees with the other side on how to speak.
    pub(crate) async fn accept<S>(
        &self,
        stream: S,
    ) -> std::io::Result<tokio_rustls::server::TlsStream<S>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        self.0.accept(stream).await
    }
}
