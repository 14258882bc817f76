//! TLS to a server: who is trusted, and what is said of who is not.

use crate::error::{Error, Result, plain};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};

/// How a server proves who it is.
#[derive(Clone)]
pub(super) struct Secure {
    pub(super) connector: TlsConnector,
    pub(super) name: ServerName<'static>,
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Secure").field(&self.name).finish()
    }
}

impl Secure {
    /// Trusts the certificates of a file alone, or what this system trusts.
    ///
    /// # Errors
    /// The host is no name, or there is nobody to trust.
    pub(super) fn new(host: &str, authority: Option<&Path>) -> Result<Self> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            let message = format!("{host:?} is no name that a certificate can be for");
            Error::usage(message, "name the server by its name or address")
        })?;
        let mut roots = RootCertStore::empty();
        match authority {
            Some(file) => {
                for certificate in certificates(file)? {
                    roots
                        .add(certificate)
                        .map_err(|error| unusable(file, &error.to_string()))?;
                }
            }
            None => {
                let system = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(system.certs);
                if roots.is_empty() {
                    return Err(Error::usage(
                        "this system has no certificates to trust",
                        "name the file of the server's authority by --server-ca",
                    ));
                }
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::usage(error.to_string(), ""))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name,
        })
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let all = read.map_err(|error| unusable(file, &error.to_string()))?;
    match all.is_empty() {
        true => Err(unusable(file, "there is no certificate in it")),
        false => Ok(all),
    }
}

fn unusable(file: &Path, why: &str) -> Error {
    let message = format!("{}: {why}", file.display());
    Error::usage(
        message,
        "name a file of certificates, as PEM, by --server-ca",
    )
}

/// Why no TLS came about, and what would help.
pub(super) fn said(error: &std::io::Error) -> (String, &'static str) {
    let inner = error.get_ref();
    let inner = inner.and_then(|error| error.downcast_ref::<rustls::Error>());
    let authority = "name the file of its authority by --server-ca";
    let (why, action) = match inner {
        Some(rustls::Error::InvalidCertificate(fault)) => match fault {
            CertificateError::UnknownIssuer => (
                "nobody who is trusted has signed its certificate",
                authority,
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                ("its certificate has expired", "have its operator renew it")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
                "its certificate is not valid yet",
                "look at the clocks of both machines",
            ),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                (
                    "its certificate is for another name",
                    "ask it by the name that its certificate is for",
                )
            }
            CertificateError::Other(other)
                if format!("{other:?}").contains("CaUsedAsEndEntity") =>
            {
                (
                    "its certificate is that of an authority, which no server may use as its own",
                    "have one made that is for a server (basicConstraints=CA:FALSE)",
                )
            }
            other => {
                // Its name; what else there is of it is for who writes libraries.
                let name = format!("{other:?}");
                let name = name.split(|c: char| !c.is_alphanumeric()).next();
                let name = name.unwrap_or_default();
                return (
                    format!("its certificate is not trusted ({name})"),
                    authority,
                );
            }
        },
        Some(rustls::Error::InvalidMessage(_)) => ("it does not speak TLS", "ask it by http://"),
        Some(other) => return (other.to_string(), ""),
        None => return (plain(error), ""),
    };
    (why.to_owned(), action)
}
