//! TLS: a certificate with its key, and an authority whose clients alone are taken, where the operator wants that.

use super::Options;
use crate::error::{Error, Result, plain};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// What a client that speaks plain HTTP is told.
pub(super) const PLAIN: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\
    Content-Length: 62\r\n\r\n{\"error\":{\"message\":\"this port speaks TLS: ask by https://\"}}\n";
/// The first byte of what a client of TLS says.
pub(super) const HELLO: u8 = 22;

/// The files, as PEM.
#[derive(Clone, Debug)]
struct Files {
    /// The server's certificate first, then those that vouch for it.
    certificate: PathBuf,
    key: PathBuf,
    /// Certificates of the authorities whose clients alone are taken.
    client_authority: Option<PathBuf>,
}

impl Files {
    /// Those of the settings, where there are any.
    fn of(options: &Options) -> Result<Option<Self>> {
        let authority = &options.tls_client_authority;
        match (&options.tls_certificate, &options.tls_key, authority) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), authority) => Ok(Some(Self {
                certificate: certificate.clone(),
                key: key.clone(),
                client_authority: authority.clone(),
            })),
            (certificate, ..) => {
                let missing = match certificate {
                    Some(_) => "tls_key",
                    None => "tls_certificate",
                };
                let message =
                    format!("`{missing}` is missing: TLS wants a certificate and its key");
                Err(Error::usage(
                    message,
                    "set both, or none of the settings of TLS",
                ))
            }
        }
    }
}

/// The files, and what was read of them.
pub(super) struct Tls {
    files: Files,
    now: RwLock<Now>,
}

struct Now {
    acceptor: TlsAcceptor,
    read: Read,
}

/// What the files hold.
#[derive(PartialEq)]
struct Read {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Vec<CertificateDer<'static>>,
}

impl Tls {
    /// Reads the files of the settings; `None` where there are none.
    ///
    /// # Errors
    /// One is missing, can't be read, or the key is not the certificate's.
    pub(super) fn open(options: &Options) -> Result<Option<Self>> {
        let Some(files) = Files::of(options)? else {
            return Ok(None);
        };
        let now = RwLock::new(now(&files)?);
        Ok(Some(Self { files, now }))
    }

    /// Reads the files again, for connections from now on; whether something has changed. On an error all stays as it was.
    ///
    /// # Errors
    /// As [`Tls::open`].
    pub(super) fn reread(&self) -> Result<bool> {
        let fresh = now(&self.files)?;
        let now = self.now.write();
        let mut now = now.unwrap_or_else(PoisonError::into_inner);
        let changed = now.read != fresh.read;
        *now = fresh;
        Ok(changed)
    }

    /// What takes the next connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.acceptor.clone()
    }
}

fn now(files: &Files) -> Result<Now> {
    let read = Read {
        chain: certificates(&files.certificate)?,
        key: PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| failed(&files.key, &said(&error, "private key")))?,
        clients: files
            .client_authority
            .as_deref()
            .map_or(Ok(Vec::new()), certificates)?,
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&files.certificate, &error.to_string()))?;
    let builder = match &files.client_authority {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in &read.clients {
                roots
                    .add(certificate.clone())
                    .map_err(|error| failed(file, &error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| failed(file, &error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(read.chain.clone(), read.key.clone_key())
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let (key, certificate) = (files.key.display(), files.certificate.display());
                let message = format!("{key} is not the private key of {certificate}");
                Error::usage(
                    message,
                    "the first certificate in the file is the server's own",
                )
            }
            error => failed(&files.certificate, &error.to_string()),
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Now {
        acceptor: TlsAcceptor::from(Arc::new(config)),
        read,
    })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let wrong = |error: pem::Error| failed(file, &said(&error, "certificate"));
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_file_iter(file)
        .map_err(wrong)?
        .collect();
    let all = all.map_err(wrong)?;
    if all.is_empty() {
        return Err(failed(file, "there is no certificate in it"));
    }
    Ok(all)
}

fn said(error: &pem::Error, what: &str) -> String {
    match error {
        pem::Error::Io(error) => plain(error),
        pem::Error::NoItemsFound => format!("there is no {what} in it"),
        other => other.to_string(),
    }
}

fn failed(file: &Path, why: &str) -> Error {
    let message = format!("{}: {why}", file.display());
    let action = "certificate (the server's own first, then those that vouch for it) and private key are PEM files";
    Error::usage(message, action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_answer_is_as_long_as_it_says() {
        let text = std::str::from_utf8(PLAIN).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
    }

    #[test]
    fn what_is_wrong_with_files_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        let nothing = write("nothing.pem", "text\n");
        let broken = write(
            "broken.pem",
            "-----BEGIN CERTIFICATE-----\n%\n-----END CERTIFICATE-----\n",
        );
        let wrong = write(
            "wrong.pem",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        );
        let key = write(
            "key.pem",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        );
        for (certificate, key, said) in [
            (&folder.path().join("nowhere"), &key, "nowhere"),
            (&nothing, &key, "no certificate in it"),
            (&broken, &key, "broken.pem"),
            (&wrong, &nothing, "no private key in it"),
            (&wrong, &key, "wrong.pem"),
        ] {
            let options = Options {
                tls_certificate: Some(certificate.clone()),
                tls_key: Some(key.clone()),
                ..Options::default()
            };
            let error = Tls::open(&options).err().unwrap().line();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
    }
}
