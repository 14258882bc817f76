//! TLS to a server: who is trusted, how this side proves who it is, and what is said where one does not take the other.

use super::Silent;
use crate::error::{Error, Result, plain};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, ClientConfig, RootCertStore};

/// Files of certificates, as PEM, by which a server and this side believe each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The authorities that are trusted; `None`: those that this system trusts.
    pub authority: Option<PathBuf>,
    /// This side's own certificate, with those that vouch for it, for servers that take no other clients.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

impl Trust {
    /// Each file, by the option that names it.
    fn options(&self) -> [(&'static str, Option<&Path>); 3] {
        [
            ("--server-ca", self.authority.as_deref()),
            ("--server-cert", self.certificate.as_deref()),
            ("--server-key", self.key.as_deref()),
        ]
    }

    /// The option of the first file that is named.
    pub(super) fn given(&self) -> Option<&'static str> {
        let named = self.options().into_iter().find(|(_, file)| file.is_some());
        named.map(|(option, _)| option)
    }

    /// This side's own certificate and its key.
    fn own(&self) -> Result<Option<(&Path, &Path)>> {
        let missing = |option: &str| {
            let message = format!("{option} is missing: a certificate is proved by its key");
            Error::usage(message, "name the files of both, or of none")
        };
        match (self.certificate.as_deref(), self.key.as_deref()) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (Some(_), None) => Err(missing("--server-key")),
            (None, Some(_)) => Err(missing("--server-cert")),
        }
    }
}

/// How a server proves who it is, and how this side does.
#[derive(Clone)]
pub(super) struct Secure {
    pub(super) connector: TlsConnector,
    pub(super) name: ServerName<'static>,
    /// Whether this side has a certificate.
    proves: bool,
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
    /// The host is no name, there is nobody to trust, or this side's own files are no use.
    pub(super) fn new(host: &str, trust: &Trust) -> Result<Self> {
        let own = trust.own()?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            let message = format!("{host:?} is no name that a certificate can be for");
            Error::usage(message, "name the server by its name or address")
        })?;
        let mut roots = RootCertStore::empty();
        match &trust.authority {
            Some(file) => {
                for certificate in certificates(file, "--server-ca")? {
                    roots
                        .add(certificate)
                        .map_err(|error| unusable(file, &error.to_string(), "--server-ca"))?;
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
            .with_root_certificates(roots);
        let config = match own {
            None => config.with_no_client_auth(),
            Some((certificate, file)) => {
                let chain = certificates(certificate, "--server-cert")?;
                let key = PrivateKeyDer::from_pem_file(file);
                let key = key.map_err(|error| unusable(file, &reason(&error), "--server-key"))?;
                let config = config.with_client_auth_cert(chain, key);
                config.map_err(|error| unusable(file, &error.to_string(), "--server-key"))?
            }
        };
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name,
            proves: own.is_some(),
        })
    }

    /// Why no TLS came about, and what would help.
    pub(super) fn said(&self, error: &std::io::Error) -> Silent {
        self.refused(error).unwrap_or_else(|| {
            let (why, action) = said(error);
            Silent { why, action }
        })
    }

    /// That the server takes no client without a certificate, or not with this one, where that is why something failed.
    pub(super) fn refused(&self, error: &(dyn std::error::Error + 'static)) -> Option<Silent> {
        let alert = alert(error)?;
        let by_authority = "name one that an authority of the server's clients has signed, by --server-cert and --server-key";
        let (why, action) = match alert {
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure
                if !self.proves =>
            {
                let action = "name this side's own and its key by --server-cert and --server-key";
                ("it takes only clients that have a certificate", action)
            }
            AlertDescription::CertificateExpired => (
                "it does not take the certificate of --server-cert: it has expired",
                "have it renewed",
            ),
            AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
                if self.proves =>
            {
                (
                    "it does not take the certificate of --server-cert",
                    by_authority,
                )
            }
            _ => return None,
        };
        Some(Silent {
            why: why.to_owned(),
            action,
        })
    }
}

/// What the other side has said to end the connection, wherever in an error that is.
fn alert(error: &(dyn std::error::Error + 'static)) -> Option<AlertDescription> {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<std::io::Error>();
        let inner = inner.and_then(std::io::Error::get_ref);
        let inner = inner.and_then(|error| error.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = inner {
            return Some(*alert);
        }
        next = error.source();
    }
    None
}

fn certificates(file: &Path, option: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let all = read.map_err(|error| unusable(file, &reason(&error), option))?;
    match all.is_empty() {
        true => Err(unusable(file, "there is no certificate in it", option)),
        false => Ok(all),
    }
}

fn reason(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => plain(error),
        pem::Error::NoItemsFound => "there is none of what is looked for in it".to_owned(),
        other => other.to_string(),
    }
}

fn unusable(file: &Path, why: &str, option: &str) -> Error {
    let message = format!("{}: {why}", file.display());
    let what = match option {
        "--server-key" => "the private key of --server-cert",
        _ => "certificates",
    };
    Error::usage(
        message,
        format!("name a file of {what}, as PEM, by {option}"),
    )
}

/// Why no TLS came about, and what would help.
fn said(error: &std::io::Error) -> (String, &'static str) {
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
