//! What is wrong with the settings, as far as it can be told before anything is listened on or loaded: `serve` does not start with it,
//! and `config` tells it.

use super::Options;
use super::keys::Keys;
use super::tls::Tls;
use crate::error::{Error, Result, plain};
use crate::nearest::suggestion;
use crate::registry::Registry;
use std::net::{IpAddr, TcpListener};

/// How engines of this project keep keys and values.
pub const CACHE_TYPES: [&str; 3] = ["f32", "f16", "q8_0"];

/// Types in which the engine of this project stores matrices while loading; `none` leaves them as they are.
#[rustfmt::skip]
pub const QUANTIZE_TYPES: [&str; 19] = [
    "none", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs",
    "mxfp4", "tq1_0", "tq2_0",
];

/// Backends of this project; others may have names of their own for types.
const OURS: [&str; 6] = ["cpu", "cuda", "llama_cpp", "metal", "rocm", "sycl"];

/// All that is wrong; each is a reason not to start.
pub fn faults(registry: &Registry, options: &Options) -> Vec<Error> {
    let mut all = Vec::new();
    let mut take = |fault: Result<()>| all.extend(fault.err());
    take(host(&options.host));
    options.origins.iter().for_each(|text| take(origin(text)));
    options.hosts.iter().for_each(|text| take(name(text)));
    take(Tls::open(options).map(|_| ()));
    let keys = options.api_keys.as_deref().map(Keys::open);
    take(keys.transpose().map(|_| ()));
    take(folder(registry, options));
    for named in options
        .models
        .iter()
        .filter(|name| !has_entry(options, name))
    {
        take(registry.meant(named, &options.loading()).map(|_| ()));
    }
    let entries = options.entries.iter();
    let entries = entries.map(|(id, entry)| (format!("model.{id}."), options.loading_of(entry)));
    for (of, model) in std::iter::once((String::new(), options.loading())).chain(entries) {
        let backend = model.backend.as_deref();
        take(backend.map_or(Ok(()), |name| registry.get(name).map(|_| ())));
        if backend.is_some_and(|name| !OURS.contains(&name.to_lowercase().as_str())) {
            continue;
        }
        for (setting, known) in [
            ("cache_type", &CACHE_TYPES[..]),
            ("quantize", &QUANTIZE_TYPES[..]),
        ] {
            let given = model.load.extra.get(setting).and_then(|it| it.as_str());
            take(given.map_or(Ok(()), |given| {
                one_of(&format!("{of}{setting}"), given, known)
            }));
        }
    }
    // What is said of all models is said of each.
    let mut seen = std::collections::HashSet::new();
    all.retain(|fault| seen.insert(fault.to_string()));
    all
}

/// Whether a name is that of a model that the manifest describes: what that is, is found when it is loaded.
fn has_entry(options: &Options, name: &str) -> bool {
    options.entries.iter().any(|(id, entry)| {
        let mut names = std::iter::once(id).chain(&entry.aliases);
        names.any(|known| known.eq_ignore_ascii_case(name))
    })
}

fn wrong(setting: &str, found: &str, expected: &str, action: impl Into<String>) -> Error {
    Error::usage(
        format!("`{setting}`: found {found:?}, expected {expected}"),
        action,
    )
}

fn one_of(setting: &str, given: &str, known: &[&str]) -> Result<()> {
    let normal = given.trim().to_lowercase().replace('-', "_");
    if known.contains(&normal.as_str()) {
        return Ok(());
    }
    let expected = format!("one of {}", known.join(", "));
    let action = suggestion(given, known.iter().copied(), "");
    // The names stand there already.
    let action = match action.starts_with("did you mean") {
        true => action,
        false => "a backend with other names is to be named by `backend`".to_owned(),
    };
    Err(wrong(setting, given, &expected, action))
}

/// That it can be listened on.
fn host(text: &str) -> Result<()> {
    let expected = "an address or a name";
    let address = text.parse::<IpAddr>().is_ok();
    if !address && text.contains(['/', ':', '[', ']', ' ']) {
        let action = "write it without scheme, brackets, port and path: the port is `port`";
        return Err(wrong("host", text, expected, action));
    }
    // Any port: whether that of the settings is free is another question.
    let bound = TcpListener::bind((text, 0));
    bound.map(|_| ()).map_err(|error| {
        let message = format!("can't listen on {text}: {}", plain(&error));
        Error::usage(message, "choose another --host")
    })
}

/// That a browser may send it as its page's origin.
fn origin(text: &str) -> Result<()> {
    let expected = "`*`, or a scheme and a host such as https://chat.example";
    let wrong = |action: &str| Err(wrong("origins", text, expected, action));
    if matches!(text, "*" | "null") {
        return Ok(());
    }
    let Some((scheme, authority)) = text.split_once("://") else {
        return wrong(&format!("write it as https://{text} or http://{text}"));
    };
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if scheme.is_empty() || !scheme.bytes().all(letters) {
        return wrong("begin it with a scheme, such as https://");
    }
    let web = scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http");
    if let Some((host, _)) = authority.split_once(['/', '?', '#']) {
        return wrong(&format!(
            "browsers send it without a path: write it as {scheme}://{host}"
        ));
    }
    let unreadable = authority.contains(['@', ' ', '\\']) || (web && authority.is_empty());
    if unreadable || authority.contains('*') {
        return wrong("name each host by itself, without `*`, or all by `*` alone");
    }
    let usual = [("https", ":443"), ("http", ":80")];
    let usual = usual.into_iter().find_map(|(known, port)| {
        let host = authority.strip_suffix(port)?;
        scheme.eq_ignore_ascii_case(known).then_some(host)
    });
    match usual {
        Some(host) => wrong(&format!(
            "browsers leave that port out: write it as {scheme}://{host}"
        )),
        None => Ok(()),
    }
}

/// That a request may have it as its `Host`, the port left out.
fn name(text: &str) -> Result<()> {
    let address = text.parse::<IpAddr>().is_ok();
    let plain = !text.contains(['/', ':', '[', ']', '@', '?', '#', ' ']);
    match text == "*" || address || (plain && !text.contains('*')) {
        true => Ok(()),
        false => Err(wrong(
            "hosts",
            text,
            "`*`, or a name such as models.example",
            "write it without scheme, port and path",
        )),
    }
}

/// That the model folder is there, where somebody has named it and its models are served.
fn folder(registry: &Registry, options: &Options) -> Result<()> {
    let on_demand = options.on_demand.unwrap_or(options.models.is_empty());
    let named = registry.folders().models.is_some();
    let catalog = registry.catalog();
    let folder = catalog.folder().filter(|_| on_demand && named);
    let Some(missing) = folder.filter(|folder| !folder.is_dir()) else {
        return Ok(());
    };
    let message = format!(
        "the model folder {} is not there, or is no folder",
        missing.display()
    );
    let action = "make it, or have BACKPLANE_MODELS name another";
    Err(Error::usage(message, action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_send_them() {
        for right in [
            "*",
            "null",
            "https://chat.example",
            "http://localhost:3000",
            "app://friend",
            "file://",
            "chrome-extension://abc",
            "http://[::1]:3000",
            "https://chat.example:8443",
        ] {
            assert!(origin(right).is_ok(), "{right}");
        }
        for (text, said) in [
            (
                "chat.example",
                "write it as https://chat.example or http://chat.example",
            ),
            ("localhost:3000", "write it as https://localhost:3000"),
            (
                "https://chat.example/",
                "without a path: write it as https://chat.example",
            ),
            (
                "https://chat.example/app",
                "write it as https://chat.example",
            ),
            ("https://chat.example?x", "write it as https://chat.example"),
            ("https://*.example", "name each host by itself"),
            ("https://", "name each host"),
            ("https://me@chat.example", "name each host"),
            (
                "https://chat.example:443",
                "leave that port out: write it as https://chat.example",
            ),
            ("http://chat.example:80", "write it as http://chat.example"),
            ("://x", "begin it with a scheme"),
            ("", "write it as"),
        ] {
            let line = origin(text).unwrap_err().line();
            let begins = format!("`origins`: found {text:?}, expected `*`, or a scheme and a host");
            assert!(line.starts_with(&begins) && line.contains(said), "{line}");
        }
    }

    #[test]
    fn hosts_and_names_of_hosts() {
        for right in ["*", "models.example", "localhost", "::1", "10.0.0.1"] {
            assert!(name(right).is_ok(), "{right}");
        }
        for wrong in ["http://a", "a:80", "a/", "[::1]", "*.example", "a b"] {
            let line = name(wrong).unwrap_err().line();
            assert!(line.contains("without scheme, port and path"), "{line}");
        }
        for right in ["127.0.0.1", "localhost", "0.0.0.0"] {
            assert!(host(right).is_ok(), "{right}");
        }
        for (wrong, said) in [
            ("http://127.0.0.1", "without scheme"),
            ("127.0.0.1:80", "the port is `port`"),
            ("[::1]", "brackets"),
            ("192.0.2.1", "can't listen on 192.0.2.1: "),
        ] {
            let line = host(wrong).unwrap_err().line();
            assert!(line.contains(said) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn names_of_types() {
        for right in ["q8_0", "Q8_0", "q8-0"] {
            assert!(one_of("cache_type", right, &CACHE_TYPES).is_ok(), "{right}");
        }
        let said = |given: &str| {
            one_of("cache_type", given, &CACHE_TYPES)
                .unwrap_err()
                .line()
        };
        assert_eq!(
            said("q8"),
            "`cache_type`: found \"q8\", expected one of f32, f16, q8_0 (did you mean `q8_0`?)"
        );
        assert!(said("int4").ends_with("(a backend with other names is to be named by `backend`)"));
    }
}
