//! Connections to the endpoint, with TLS by rustls where its URL says so.

use crate::options::Options;
use backplane_llama_server::http::{Connect, Connecting, HttpError, Stream, connection};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How the endpoint is reached.
pub(crate) struct Remote {
    host: String,
    port: u16,
    within: Duration,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Remote {
    /// # Errors
    /// One line: there is no certificate to trust, or `ca_file` can't be read.
    pub(crate) fn new(options: &Options) -> Result<Self, String> {
        let host = options.base.host.clone();
        let tls = match options.base.tls {
            false => None,
            true => {
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| format!("option `base_url`: {host:?} is no name of a server"))?;
                let config = trusting(options.ca_file.as_deref())?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
        };
        Ok(Self {
            host,
            port: options.base.port,
            within: options.connect,
            tls,
        })
    }
}

/// Trusts what the system trusts, and the certificates of a file.
fn trusting(file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = file {
        let place = format!("{} (option `ca_file`)", path.display());
        let wrong = |what: String| format!("{place}: {what}");
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| wrong(error.to_string()))?;
        if certificates.is_empty() {
            return Err(wrong("no certificate in it; expected PEM".into()));
        }
        for certificate in certificates {
            roots
                .add(certificate)
                .map_err(|error| wrong(error.to_string()))?;
        }
    }
    if roots.is_empty() {
        let why = system.errors.first().map(|error| format!(": {error}"));
        return Err(format!(
            "the system has no certificates to trust{}; name some by the option `ca_file`",
            why.unwrap_or_default()
        ));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

impl Connect for Remote {
    fn connect(&self) -> Connecting<'_> {
        let limit = self.within;
        Box::pin(async move {
            tokio::time::timeout(limit, self.open())
                .await
                .map_err(|_| HttpError::TimedOut(limit.as_secs_f64()))?
        })
    }
}

impl Remote {
    async fn open(&self) -> Result<Box<dyn Stream>, HttpError> {
        let stream = TcpStream::connect((&*self.host, self.port))
            .await
            .map_err(connection)?;
        // Small pieces are what a stream of tokens is.
        stream.set_nodelay(true).map_err(connection)?;
        let Some((connector, name)) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let stream = connector
            .connect(name.clone(), stream)
            .await
            .map_err(|error| HttpError::Tls(error.to_string()))?;
        Ok(Box::new(stream))
    }
}
