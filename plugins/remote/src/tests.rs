//! The plugin over endpoints that answer as a test says, over TLS, and over a real server.

mod conformance;
mod replies;

use super::*;
use backplane_endpoint::{Endpoint as Fake, events, json};
use backplane_plugin_api::types::{
    ChatMessage, ChatRequest, Completion, Control, Event, GenerateOptions, GenerateRequest, Prompt,
};
use serde_json::{Value, json};
use std::io::Write;

const KEY: &str = "sk-the-secret-of-this-test";
const MODEL: &str = "remote:small";

fn with(options: Value) -> RemoteBackend {
    let context = Context {
        options: serde_json::from_value(options).unwrap(),
        ..Context::default()
    };
    backend(context).unwrap()
}

/// A fake endpoint's answer to everything but the list of models.
type Talk = fn(&mut dyn Write) -> std::io::Result<()>;

const LIST: &str = "{\"data\": [{\"id\": \"small\", \"meta\": {\"n_ctx\": 512, \"n_ctx_train\": 8192}}, {\"id\": \"other\"}]}";

fn fake(talk: Talk) -> Fake {
    Fake::start(move |request, out| match &*request.method {
        "GET" => json(out, "200 OK", "", LIST),
        _ => talk(out),
    })
}

/// Options for a fake endpoint, with further ones.
fn options(endpoint: &Fake, more: Value) -> Value {
    let mut options = json!({ "base_url": format!("{}/v1", endpoint.url()) });
    for (name, value) in more.as_object().unwrap() {
        options[name] = value.clone();
    }
    options
}

fn load(endpoint: &Fake, more: Value) -> Result<Arc<dyn TextModel>> {
    with(options(endpoint, more)).load(Path::new(MODEL), &LoadOptions::default())
}

/// The text of a chat, its completion, and the number of tokens told.
fn chat(model: &dyn TextModel, options: GenerateOptions) -> Result<(String, Completion, usize)> {
    let request = ChatRequest {
        messages: vec![ChatMessage::new("user", "Hi")],
        options,
        ..ChatRequest::default()
    };
    let (mut text, mut tokens) = (String::new(), 0);
    let done = model.chat(&request, &mut |event: Event<'_>| {
        match event {
            Event::Token { text: new, .. } => {
                tokens += 1;
                text += new;
            }
            Event::Text { text: new } => text += new,
            Event::Prefill { .. } => {}
        }
        Control::Continue
    })?;
    Ok((text, done, tokens))
}

const HELLO: &[&[u8]] = &[
    b"data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\n\n",
    b"data: {\"choices\": [{\"delta\": {\"content\": \"Hel\"}}]}\n\n",
    b"data: {\"choices\": [{\"delta\": {\"content\": \"lo!\"}}]}\n\n",
    b"data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n",
    b"data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 3, \"prompt_tokens_details\": {\"cached_tokens\": 4}}}\n\n",
    b"data: [DONE]\n\n",
];

fn hello(out: &mut dyn Write) -> std::io::Result<()> {
    events(out, HELLO.iter().copied())
}

#[test]
fn without_a_base_url_it_is_absent() {
    let verdict = with(json!({})).probe();
    assert_eq!(verdict.state, VerdictState::Absent);
    assert_eq!(verdict.message, "no base_url configured");
    assert!(verdict.action.contains("base_url"));
    assert_eq!(with(json!({})).devices().unwrap(), []);
    let load = with(json!({})).load(Path::new(MODEL), &LoadOptions::default());
    assert!(
        load.err()
            .unwrap()
            .message
            .contains("no base_url configured")
    );
}

#[test]
fn wrong_options_are_told_without_what_may_be_a_key() {
    let url = "http://127.0.0.1:1/v1";
    for (options, told) in [
        (json!({"base_url": ""}), "base_url"),
        (json!({"base_url": 7}), "base_url"),
        (
            json!({"base_url": "api.example.com/v1"}),
            "neither https:// nor http://",
        ),
        (
            json!({"base_url": "ftp://api.example.com"}),
            "neither https:// nor http://",
        ),
        (
            json!({"base_url": format!("https://{KEY}@api.example.com/v1")}),
            "a user name or a key",
        ),
        (
            json!({"base_url": format!("https://api.example.com/v1?key={KEY}")}),
            "a query",
        ),
        (
            json!({"base_url": "https://api.example.com:99999/v1"}),
            "`base_url`",
        ),
        (
            json!({"base_url": "https://api.example.com:0/v1"}),
            "no port number",
        ),
        (json!({"base_url": "https:///v1"}), "`base_url`"),
        (json!({"base_url": url, "api_key": KEY}), "`api_key`"),
        (
            json!({"base_url": url, "key": KEY}),
            "does not belong into the manifest",
        ),
        (
            json!({"base_url": url, "secret": KEY}),
            "unknown option `secret`",
        ),
        (json!({"base_url": url, "key_env": KEY}), "`key_env`"),
        (
            json!({"base_url": url, "key_env": "A", "key_file": "/b"}),
            "both `key_env` and `key_file`",
        ),
        (
            json!({"base_url": url, "key_file": "relative"}),
            "absolute path",
        ),
        (json!({"base_url": url, "ca_file": 3}), "absolute path"),
        (json!({"base_url": url, "models": [""]}), "`models`"),
        (json!({"base_url": url, "models": "m"}), "`models`"),
        (json!({"base_url": url, "context": 0}), "`context`"),
        (
            json!({"base_url": url, "fields": ["temprature"]}),
            "temprature",
        ),
        (json!({"base_url": url, "timeout_s": 0}), "`timeout_s`"),
        (
            json!({"base_url": url, "connect_timeout_s": 1e9}),
            "`connect_timeout_s`",
        ),
    ] {
        let backend = with(options.clone());
        let verdict = backend.probe();
        assert_eq!(
            verdict.state,
            VerdictState::Misconfigured,
            "{options}: {verdict}"
        );
        assert!(verdict.message.contains(told), "{options}: {verdict}");
        let error = backend
            .load(Path::new(MODEL), &LoadOptions::default())
            .err()
            .unwrap();
        let shown = format!("{verdict} {error} {error:?} {backend:?}");
        assert!(
            !shown.contains(KEY) && !verdict.message.contains('\n'),
            "{shown}"
        );
    }
}

#[test]
fn keys_come_from_their_place_and_are_shown_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let url = "https://127.0.0.1:1/v1";
    let of_file = || with(json!({ "base_url": url, "key_file": file.to_str() }));
    for (content, told) in [
        (None, "No such file"),
        (Some(String::new()), "holds no key"),
        (Some(format!("{KEY}\nand more")), "holds no key"),
        (Some("é".into()), "holds no key"),
        (Some("x".repeat(20 << 10)), "more than 16384 bytes"),
    ] {
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let verdict = of_file().probe();
        assert_eq!(verdict.state, VerdictState::Misconfigured, "{verdict}");
        assert!(
            verdict.message.contains(told) && !verdict.message.contains(KEY),
            "{verdict}"
        );
    }
    std::fs::write(&file, format!("{KEY}\n")).unwrap();
    assert!(of_file().probe().is_available());
    let unset = with(json!({ "base_url": url, "key_env": "BACKPLANE_NO_SUCH_KEY" }));
    let verdict = unset.probe();
    assert!(
        verdict.message.contains("BACKPLANE_NO_SUCH_KEY") && verdict.message.contains("not set"),
        "{verdict}"
    );

    // The endpoint gets it, and repeats it in an error.
    let endpoint = Fake::start(|_, out| {
        let body =
            format!("{{\"error\": {{\"message\": \"Incorrect API key provided: {KEY}.\"}}}}");
        json(out, "401 Unauthorized", "", &body)
    });
    let error = load(&endpoint, json!({ "key_file": file.to_str() }))
        .err()
        .unwrap();
    assert_eq!(
        endpoint.requests()[0].headers["authorization"],
        format!("Bearer {KEY}")
    );
    assert_eq!(error.code, ErrorCode::Device);
    assert!(
        error.message.contains("the key is refused (401)"),
        "{error}"
    );
    assert!(!format!("{error:?}").contains(KEY), "{error:?}");
    let error = load(&endpoint, json!({})).err().unwrap();
    assert!(error.message.contains("a key is asked for"), "{error}");
    // Wherever it repeats it.
    let given = || json!({ "key_file": file.to_str() });
    for talk in [
        |out: &mut dyn Write| {
            let list = format!("{{\"data\": [{{\"id\": \"{KEY}\"}}]}}");
            json(out, "200 OK", "", &list)
        },
        |out: &mut dyn Write| {
            let header = format!("retry-after: {KEY}\r\n");
            json(out, "429 Too Many Requests", &header, "{}")
        },
        |out: &mut dyn Write| {
            let header = format!("location: /{KEY}\r\n");
            json(out, "307 Temporary Redirect", &header, "")
        },
        |out: &mut dyn Write| write!(out, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{KEY}"),
    ] {
        let endpoint = Fake::start(move |_, out| talk(out));
        let error = load(&endpoint, given()).err().unwrap();
        assert!(!format!("{error:?}").contains(KEY), "{error:?}");
    }
    let endpoint = fake(|out| write!(out, "HTTP/1.1 200 OK\r\ncontent-type: {KEY}\r\n\r\n"));
    let model = load(&endpoint, given()).unwrap();
    let error = chat(&*model, GenerateOptions::default()).unwrap_err();
    assert!(
        error.message.contains("(key), expected text/event-stream"),
        "{error}"
    );
}

#[test]
fn files_are_never_taken() {
    let backend = with(json!({ "base_url": "https://127.0.0.1:1/v1" }));
    for path in [
        "model.gguf",
        "remote",
        "remote:",
        "",
        "/models/remote:x",
        "other:small",
    ] {
        assert_eq!(backend.inspect(Path::new(path)), Ok(None), "{path}");
        let error = backend
            .load(Path::new(path), &LoadOptions::default())
            .err()
            .unwrap();
        assert_eq!(error.code, ErrorCode::ModelUnusable, "{path}");
    }
    let info = backend.inspect(Path::new("remote:a/b:c")).unwrap().unwrap();
    assert_eq!((&*info.name, &*info.format), ("a/b:c", "openai"));
    let some = with(json!({ "base_url": "https://127.0.0.1:1/v1", "models": ["a", "b"] }));
    let error = some.inspect(Path::new("remote:c")).unwrap_err();
    assert!(error.message.ends_with("has a, b"), "{error}");
}

#[test]
fn loading_asks_for_the_model() {
    let endpoint = fake(hello);
    let info = load(&endpoint, json!({})).unwrap().info();
    assert_eq!((info.loaded_context, info.context_length), (512, 8192));
    assert_eq!(endpoint.requests()[0].path, "/v1/models");
    let nowhere = Path::new("remote:large");
    let error = |more| {
        let backend = with(options(&endpoint, more));
        backend.load(nowhere, &LoadOptions::default()).err()
    };
    let found = error(json!({})).unwrap();
    assert_eq!(found.code, ErrorCode::ModelUnusable);
    assert!(found.message.contains("it has small, other"), "{found}");
    // The manifest vouches for a name that is not listed, and for its context.
    assert!(error(json!({ "models": ["large"], "context": 100 })).is_none());

    // Without a list, nothing is known.
    let bare = Fake::start(|_, out| json(out, "404 Not Found", "", "{}"));
    let info = load(&bare, json!({})).unwrap().info();
    assert_eq!(info.loaded_context, 0);
    let info = load(&bare, json!({ "context": 100 })).unwrap().info();
    assert_eq!((info.loaded_context, info.context_length), (100, 100));

    let backend = with(options(&endpoint, json!({})));
    for (field, load) in [
        (
            "context",
            LoadOptions {
                context: Some(5),
                ..LoadOptions::default()
            },
        ),
        (
            "threads",
            LoadOptions {
                threads: Some(5),
                ..LoadOptions::default()
            },
        ),
        (
            "parallel",
            LoadOptions {
                parallel: Some(5),
                ..LoadOptions::default()
            },
        ),
        (
            "device",
            LoadOptions {
                device: Some("cpu".into()),
                ..LoadOptions::default()
            },
        ),
    ] {
        let error = backend.load(Path::new(MODEL), &load).err().unwrap();
        assert_eq!(
            (error.code, &*error.field),
            (ErrorCode::UnsupportedField, field)
        );
    }
}

#[test]
fn tls_trusts_whom_it_is_told_to() {
    let endpoint = Fake::start_tls(|request, out| match &*request.method {
        "GET" => json(out, "200 OK", "", LIST),
        _ => hello(out),
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let trusting = || json!({ "ca_file": file.to_str() });
    let refused = |more| load(&endpoint, more).err().unwrap();
    for (content, told) in [
        ("", "no certificate in it"),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "ca_file",
        ),
        ("-----BEGIN CERTIFICATE-----\nno base64!\n", "ca_file"),
    ] {
        std::fs::write(&file, content).unwrap();
        let error = refused(trusting());
        assert!(error.message.contains(told), "{content:?}: {error}");
    }
    std::fs::write(&file, endpoint.certificate().unwrap()).unwrap();
    let model = load(&endpoint, trusting()).unwrap();
    let (text, done, _) = chat(&*model, GenerateOptions::default()).unwrap();
    assert_eq!((&*text, done.prompt_tokens), ("Hello!", 9));

    // Nobody vouches for it; it is somebody else's; it does not speak TLS at all.
    let other = Fake::start_tls(|_, out| json(out, "200 OK", "", LIST));
    std::fs::write(&file, other.certificate().unwrap()).unwrap();
    let error = refused(trusting());
    assert_eq!(error.code, ErrorCode::Device);
    assert!(error.message.contains("TLS failed"), "{error}");
    assert!(error.action.contains("ca_file"), "{error:?}");
    let plain = fake(hello);
    let url = plain.url().replace("http://", "https://");
    let backend = with(json!({ "base_url": url, "ca_file": file.to_str() }));
    let error = backend
        .load(Path::new(MODEL), &LoadOptions::default())
        .err()
        .unwrap();
    assert!(error.message.contains("TLS failed"), "{error}");
}

#[test]
fn unencrypted_keys_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, KEY).unwrap();
    let endpoint = fake(hello);
    let info = load(&endpoint, json!({ "key_file": file.to_str() }))
        .unwrap()
        .info();
    assert_eq!(info.warnings, [""; 0], "not on this very machine");
    for (host, loopback) in [
        ("localhost", true),
        ("127.3.0.1", true),
        ("[::1]", true),
        ("example.com", false),
    ] {
        let options = Options::read(
            &serde_json::from_value(json!({"base_url": format!("http://{host}/")})).unwrap(),
        );
        let base = options.unwrap().base;
        assert_eq!((base.is_loopback(), base.port), (loopback, 80), "{host}");
    }
}
