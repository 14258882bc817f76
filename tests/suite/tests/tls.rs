//! The server over TLS, asked by a client that knows nothing of ours: Python's.
#![cfg(unix)]

use backplane_tests::server::Server;
use backplane_tests::{command, modules, run};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

fn authority(folder: &Path, name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("a certificate");
    write(folder, name, &authority.pem());
    authority
}

/// Writes a certificate and its key; their paths.
fn leaf(folder: &Path, name: &str, authority: &Authority) -> (String, String) {
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let params = CertificateParams::new(names).expect("parameters");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, authority).expect("a certificate");
    (
        write(folder, &format!("{name}.pem"), &certificate.pem()),
        write(folder, &format!("{name}.key"), &key.serialize_pem()),
    )
}

/// What Python's client says of a path, with this authority and these files of its own: the status, or the error's name.
fn python(server: &Server, path: &str, authority: &Path, own: Option<&(String, String)>) -> String {
    const PROGRAM: &str = "
import ssl, sys, urllib.error, urllib.request
method, url, authority, *own = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
if own: context.load_cert_chain(*own)
try:
    answer = urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20, context=context)
    print(answer.status)
except urllib.error.HTTPError as error:
    print(error.code)
except (urllib.error.URLError, OSError) as error:
    print(type(getattr(error, 'reason', error)).__name__, error)
";
    let method = if path.starts_with("/admin") {
        "POST"
    } else {
        "GET"
    };
    let mut command = backplane_tests::python();
    command
        .args(["-c", PROGRAM, method])
        .arg(format!("https://{}{path}", server.address))
        .arg(authority);
    if let Some((certificate, key)) = own {
        command.args([certificate, key]);
    }
    let output = command.output().expect("Python");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The command line asks it by https, and says what is wrong with who is not trusted.
fn by_the_command_line(server: &Server, home: &Path) {
    let url = format!("https://{}", server.address);
    let file = |name: &str| home.join(name).to_str().expect("UTF-8").to_owned();
    let ask = |arguments: &[&str]| {
        let output = command(home, arguments).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            said,
        )
    };
    let (known, unknown) = (file("ours"), file("theirs"));
    let (code, said, errors) = ask(&["ps", "--json", "--server", &url, "--server-ca", &known]);
    assert!(
        code == Some(0) && said.contains("model.echo"),
        "{said}{errors}"
    );
    let (_, _, errors) = ask(&["ps", "--server", &url.replace("https", "http")]);
    assert!(errors.contains("this port speaks TLS"), "{errors}");
    let (code, said, errors) = ask(&["plugins", "reload", "--server", &url, "--server-ca", &known]);
    assert_eq!(code, Some(0), "{said}{errors}");
    let prompt = [
        "run",
        "model.echo",
        "Hello",
        "--temperature",
        "0",
        "--server",
        &url,
        "--server-ca",
        &known,
    ];
    let (code, said, errors) = ask(&prompt);
    assert!(code == Some(0) && said.contains("Hello"), "{said}{errors}");
    let plain = url.replace("https", "http");
    for (arguments, why) in [
        (
            &["ps", "--server", &url, "--server-ca", &unknown][..],
            "nobody who is trusted has signed its certificate",
        ),
        (
            &["ps", "--server", &url, "--server-ca", "nowhere.pem"],
            "nowhere.pem",
        ),
        (
            &["ps", "--server", &plain, "--server-ca", &known],
            "without TLS",
        ),
    ] {
        let (code, _, errors) = ask(arguments);
        assert!(
            code == Some(2) && errors.contains(why),
            "{arguments:?}: {errors}"
        );
    }
}

/// The command line asks a server that takes only clients with a certificate.
fn clients_with_certificates(
    server: &Server,
    home: &Path,
    own: &(String, String),
    stranger: &(String, String),
) {
    let url = format!("https://{}", server.address);
    let base = ["--server", &url, "--server-ca", "ours"];
    let own = ["--server-cert", &own.0, "--server-key", &own.1];
    let with = |verb: &[&str], more: &[&str]| {
        let arguments = [verb, &base, more].concat();
        let output = command(home, &arguments).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let verbs = [
        &["ps"][..],
        &["plugins", "reload"],
        &["run", "model.echo", "Hello"],
        &["stop", "model.echo"],
    ];
    let required = "it takes only clients that have a certificate (name this side's own and its key by --server-cert and --server-key)";
    for verb in verbs {
        let (code, said) = with(verb, &own);
        assert_eq!(code, Some(0), "{verb:?}: {said}");
        let (code, said) = with(verb, &[]);
        assert!(
            code == Some(2) && said.contains(required),
            "{verb:?}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for (more, why) in [
        (
            &["--server-cert", &stranger.0, "--server-key", &stranger.1][..],
            "it does not take the certificate of --server-cert",
        ),
        (&own[..2], "--server-key is missing"),
        (&own[2..], "--server-cert is missing"),
        (
            &["--server-cert", own[1], "--server-key", &stranger.1],
            "stranger.key: ",
        ),
        (
            &["--server-cert", own[1], "--server-key", own[1]],
            "the private key of --server-cert",
        ),
        (
            &["--server-cert", "nowhere", "--server-key", own[3]],
            "nowhere: ",
        ),
    ] {
        let (code, said) = with(&["ps"], more);
        assert!(code == Some(2) && said.contains(why), "{more:?}: {said}");
    }
    let output = command(home, &["ps", "--server", &url])
        .env("BACKPLANE_SERVER_CA", "ours")
        .env("BACKPLANE_SERVER_CERT", own[1])
        .env("BACKPLANE_SERVER_KEY", own[3])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
}

#[test]
fn python_is_content_with_certificates_and_others_are_not() {
    let (home, manifest) = modules::home(&["echo-a"], "");
    let ours = authority(home.path(), "ours");
    let theirs = authority(home.path(), "theirs");
    let (certificate, key) = leaf(home.path(), "server", &ours);
    let client = leaf(home.path(), "client", &ours);
    let stranger = leaf(home.path(), "stranger", &theirs);
    let (known, unknown) = (home.path().join("ours"), home.path().join("theirs"));

    let tls = ["--tls-certificate", &certificate, "--tls-key", &key];
    let arguments = [&["model.echo"][..], &tls].concat();
    let server = Server::start(home.path(), Some(&manifest), &arguments);
    server.hears("model.echo is ready");
    assert_eq!(python(&server, "/v1/models", &known, None), "200");
    let refused = python(&server, "/v1/models", &unknown, None);
    assert!(refused.starts_with("SSLCertVerificationError"), "{refused}");
    by_the_command_line(&server, home.path());
    // Plain HTTP gets a plain answer.
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).expect("a limit");
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"),
        "{answer}"
    );
    // What is neither does no harm.
    for said in [&b"\x16\x03\x01\xff\xff"[..], b"\x16", b"\x00\x01\x02"] {
        let mut stream = TcpStream::connect(&server.address).expect("it listens");
        stream.write_all(said).expect("sent");
    }
    // A new certificate takes its place while it runs; a broken one does not.
    let (fresh, fresh_key) = leaf(home.path(), "fresh", &theirs);
    std::fs::rename(fresh, &certificate).expect("moved");
    std::fs::rename(fresh_key, &key).expect("moved");
    assert_eq!(python(&server, "/admin/reload", &known, None), "200");
    server.hears("new certificate");
    assert_eq!(python(&server, "/v1/models", &unknown, None), "200");
    write(home.path(), "server.pem", "broken");
    assert_eq!(python(&server, "/admin/reload", &unknown, None), "500");
    assert_eq!(python(&server, "/v1/models", &unknown, None), "200");

    // Clients with a certificate alone.
    let (certificate, key) = leaf(home.path(), "mutual", &ours);
    let known_text = known.to_str().expect("UTF-8");
    let tls = ["--tls-certificate", &certificate, "--tls-key", &key];
    let tls = [&tls[..], &["--tls-client-authority", known_text]].concat();
    let arguments = [&["model.echo"][..], &tls].concat();
    let server = Server::start(home.path(), Some(&manifest), &arguments);
    server.hears("model.echo is ready");
    assert_eq!(python(&server, "/v1/models", &known, Some(&client)), "200");
    for other in [None, Some(&stranger)] {
        let refused = python(&server, "/v1/models", &known, other);
        assert!(refused.parse::<u16>().is_err(), "{refused}");
    }

    clients_with_certificates(&server, home.path(), &client, &stranger);

    // What can't be used is said at the start.
    for (arguments, said) in [
        (vec!["--tls-certificate", &certificate], "tls_key"),
        (
            vec!["--tls-client-authority", known_text],
            "tls_certificate",
        ),
        (
            vec!["--tls-certificate", &certificate, "--tls-key", &client.1],
            "is not the private key of ",
        ),
        (
            vec!["--tls-certificate", "nowhere", "--tls-key", &key],
            "nowhere",
        ),
    ] {
        let all = [
            "--manifest",
            &manifest,
            "serve",
            "model.echo",
            "--port",
            "0",
        ];
        let ran = run(home.path(), &[&all[..], &arguments].concat());
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{arguments:?}: {}", ran.err);
    }
}
