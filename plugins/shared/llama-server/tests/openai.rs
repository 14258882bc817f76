//! Streams of OpenAI's API: of a real server, and of endpoints that answer wrongly on purpose.
#![allow(clippy::unwrap_used)]

use backplane_endpoint::{Endpoint, begin_events, events, json as answer_json, piece};
use backplane_llama_server::http::{Client, HttpError};
use backplane_llama_server::openai::{self, Chunk, Usage};
use backplane_llama_server::server::{Options, Server};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NEVER: &dyn Fn() -> bool = &|| false;
const KEY: &str = "sk-the-secret-of-this-test";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn body(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

fn text_of(chunks: &[Chunk]) -> String {
    let text = |chunk: &Chunk| match chunk {
        Chunk::Text { text, .. } => text.clone(),
        _ => String::new(),
    };
    chunks.iter().map(text).collect()
}

/// Streams a chat to its end.
fn chat(client: &Client) -> (Vec<Chunk>, Result<(), HttpError>) {
    let mut chunks = vec![];
    let request = body(
        json!({"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 5}),
    );
    let result = openai::chat_completions(client, request, NEVER, &mut |chunk| {
        chunks.push(chunk);
        ControlFlow::Continue(())
    });
    (chunks, result)
}

#[test]
fn a_real_server_streams_texts_and_chats() {
    let program = root().join("cache/venv/bin/llama-server-vulkan");
    assert!(program.is_file(), "{} is missing", program.display());
    let models = std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| root().join("cache/models"), PathBuf::from);
    let server = Server::start(&Options {
        program,
        model: std::path::absolute(models.join("SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap(),
        gpu_layers: 0,
        context: 512,
        parallel: 1,
        threads: None,
        cache_type: None,
        extra_args: vec![],
        environment: vec![],
        ready_within: Duration::from_secs(60),
    })
    .unwrap();
    let client = server.client().below("/v1").unwrap();

    let listed = openai::models(&client, NEVER).unwrap();
    assert_eq!(listed.len(), 1);
    let facts = (
        listed[0].context,
        listed[0].trained_context,
        listed[0].vocabulary,
    );
    assert_eq!(facts, (Some(512), Some(8192), Some(49152)));

    let mut chunks = vec![];
    let request = body(
        json!({"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0,
        "logprobs": 2, "stream_options": openai::with_usage()}),
    );
    openai::completions(&client, request, NEVER, &mut |chunk| {
        chunks.push(chunk);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(text_of(&chunks), " Paris.");
    assert!(chunks.contains(&Chunk::Finish("length".into())));
    let usage = Usage {
        prompt_tokens: 5,
        cached_tokens: 0,
        completion_tokens: 2,
    };
    assert!(chunks.contains(&Chunk::Usage(usage)), "{chunks:?}");
    let Chunk::Text { tokens, .. } = &chunks[0] else {
        panic!("{chunks:?}")
    };
    assert_eq!((tokens[0].id, tokens[0].top.len()), (Some(7042), 2));

    let (chunks, result) = chat(&client);
    result.unwrap();
    assert!(text_of(&chunks).starts_with("Hello"), "{chunks:?}");
    assert!(
        matches!(chunks.last(), Some(Chunk::Finish(_))),
        "{chunks:?}"
    );

    // Not streamed, and refused.
    let request =
        body(json!({"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}));
    let whole = openai::completion(&client, request, NEVER).unwrap();
    assert_eq!(text_of(&whole), " Paris");
    let long = body(json!({"prompt": "stone ".repeat(600), "max_tokens": 1}));
    let error = openai::completion(&client, long, NEVER).unwrap_err();
    let HttpError::Refused { status, kind, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((status, &*kind), (400, "exceed_context_size_error"));
}

/// A client of a fake endpoint that asks for [`KEY`].
fn client(endpoint: &Endpoint) -> Client {
    Client::new(endpoint.address(), KEY.into()).unwrap()
}

const STREAM: &str = ": a comment\r\n\r\ndata: {\"choices\": [{\"delta\": {\"content\": \"Grüße 😊\"}}], \"error\": null}\r\n\r\n\
    event: message\ndata: {\"choices\": [{\"delta\": {\"content\": \" an\"}}]}\n\n\
    data: {\"choices\": [{\"delta\": {},\rdata: \"finish_reason\": \"stop\"}]}\r\rdata: [DONE]\n\n\
    data: after the end, this is never read\n\n";

#[test]
fn a_stream_may_be_cut_anywhere() {
    for size in [1, 2, 3, 7, 4096] {
        let endpoint = Endpoint::start(move |_, out| events(out, STREAM.as_bytes().chunks(size)));
        let (chunks, result) = chat(&client(&endpoint));
        result.unwrap();
        assert_eq!(text_of(&chunks), "Grüße 😊 an", "pieces of {size} bytes");
        assert_eq!(chunks.last(), Some(&Chunk::Finish("stop".into())));
        let request = &endpoint.requests()[0];
        assert_eq!(request.path, "/chat/completions");
        assert_eq!(request.headers["authorization"], format!("Bearer {KEY}"));
        let sent: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(sent["stream"], true);
    }
}

/// An answer and what the error says of it.
type Wrong = (
    &'static str,
    fn(&mut dyn Write) -> std::io::Result<()>,
    &'static str,
);

const TEXT: &[u8] = b"data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\n";

const WRONG: &[Wrong] = &[
    (
        "no answer at all",
        |_| Ok(()),
        "connection to the server failed",
    ),
    (
        "no HTTP",
        |out| out.write_all(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        "connection to the server failed",
    ),
    (
        "a page",
        |out| {
            out.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
            )
        },
        "text/html, expected text/event-stream",
    ),
    (
        "an answer that is not streamed",
        |out| answer_json(out, "200 OK", "", "{\"choices\": []}"),
        "application/json, expected text/event-stream",
    ),
    (
        "the end before the answer's",
        |out| events(out, [TEXT]),
        "the stream ended before the answer did",
    ),
    (
        "an end within an event",
        |out| events(out, [TEXT, b"data: {\"cho"]),
        "it ended within an event",
    ),
    (
        "a body that breaks off",
        |out| {
            begin_events(out)?;
            piece(out, TEXT)?;
            out.write_all(b"ff\r\ndata: ")
        },
        "connection to the server failed",
    ),
    (
        "no JSON",
        |out| events(out, [TEXT, b"data: {nonsense\n\n"]),
        "can't be read",
    ),
    (
        "no UTF-8",
        |out| events(out, [TEXT, b"data: \"\xff\"\n\n"]),
        "not UTF-8",
    ),
    (
        "an error in the stream",
        |out| {
            events(
                out,
                [
                    TEXT,
                    b"data: {\"error\": {\"message\": \"out of\\nmemory\", \"code\": 507}}\n\n",
                ],
            )
        },
        "out of memory",
    ),
    (
        "an event named error",
        |out| {
            events(
                out,
                [TEXT, b"event: error\ndata: {\"message\": \"gone\"}\n\n"],
            )
        },
        "gone",
    ),
    (
        "a redirection",
        |out| {
            answer_json(
                out,
                "302 Found",
                "location: http://elsewhere.example/\r\n",
                "",
            )
        },
        "a redirection to http://elsewhere.example/, which is not followed",
    ),
    (
        "an error without words",
        |out| answer_json(out, "502 Bad Gateway", "", ""),
        "Bad Gateway",
    ),
    (
        "a key repeated",
        |out| {
            let body = format!(
                "{{\"error\": {{\"message\": \"wrong key {KEY}\", \"code\": \"bad {KEY}\"}}}}"
            );
            answer_json(out, "401 Unauthorized", "", &body)
        },
        "wrong key (key)",
    ),
    (
        "an error without an end",
        |out| {
            let head = "HTTP/1.1 500 Oh\r\ncontent-type: text/plain\r\n\r\n";
            out.write_all(head.as_bytes())?;
            while out.write_all(&[b'x'; 4096]).is_ok() {}
            Ok(())
        },
        "xxx",
    ),
    (
        "an event without an end",
        |out| {
            begin_events(out)?;
            while piece(out, &[b'x'; 1 << 16]).is_ok() {}
            Ok(())
        },
        "an event of more than",
    ),
];

#[test]
fn wrong_answers_are_errors_in_one_line() {
    for (what, answer, expected) in WRONG {
        let endpoint = Endpoint::start(move |_, out| answer(out));
        let (chunks, result) = chat(&client(&endpoint));
        let error = result.expect_err(what);
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(expected), "{what}: {shown}");
        assert!(
            !error.to_string().contains('\n') && shown.len() < 2000,
            "{what}: {shown}"
        );
        assert!(!shown.contains(KEY), "{what}: {shown}");
        // What came before stands.
        assert!(text_of(&chunks).len() <= 1, "{what}: {chunks:?}");
    }
    let gone = Endpoint::start(|_, _| Ok(()));
    let refused = client(&gone);
    drop(gone);
    let error = chat(&refused).1.unwrap_err();
    assert!(matches!(&error, HttpError::Connection(_)), "{error}");
    assert!(!format!("{refused:?}").contains(KEY));
}

#[test]
fn times_to_wait_are_kept() {
    let endpoint = Endpoint::start(|_, out| {
        answer_json(
            out,
            "429 Too Many Requests",
            "retry-after: 7\r\n",
            "{\"error\": \"slow down\"}",
        )
    });
    let error = chat(&client(&endpoint)).1.unwrap_err();
    let HttpError::Refused {
        status,
        retry_after,
        message,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (status, retry_after.as_deref(), &*message),
        (429, Some("7"), "slow down")
    );
}

/// An endpoint that never ends its answer.
fn endless() -> Endpoint {
    Endpoint::start(|_, out| {
        begin_events(out)?;
        loop {
            piece(out, TEXT)?;
            std::thread::sleep(Duration::from_millis(2));
        }
    })
}

#[test]
fn leaving_closes_the_connection() {
    let limit = Duration::from_secs(20);
    let endpoint = endless();
    let mut heard = 0;
    let request = || body(json!({"prompt": "a"}));
    openai::completions(&client(&endpoint), request(), NEVER, &mut |_| {
        heard += 1;
        match heard {
            3 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })
    .unwrap();
    assert_eq!((heard, endpoint.left_within(limit)), (3, 1));

    // Also where nothing comes: asked within moments.
    let endpoint = Endpoint::start(|_, out| {
        begin_events(out)?;
        loop {
            out.write_all(b"")?;
            piece(out, b": still here\n\n")?;
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let start = Instant::now();
    let stop = || start.elapsed() > Duration::from_millis(50);
    let ignore = &mut |_| ControlFlow::Continue(());
    let error = openai::completions(&client(&endpoint), request(), &stop, ignore).unwrap_err();
    assert!(matches!(error, HttpError::Stopped), "{error}");
    assert_eq!(endpoint.left_within(limit), 1);
}

#[test]
fn lists_of_models_are_read_as_far_as_they_go() {
    let of = |text: &'static str| {
        let endpoint = Endpoint::start(move |_, out| answer_json(out, "200 OK", "", text));
        openai::models(&client(&endpoint), NEVER)
    };
    let ids = |text| {
        let listed = of(text).unwrap();
        listed
            .into_iter()
            .map(|model| (model.id, model.context))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        ids(
            "{\"data\": [{\"id\": \"a\", \"max_model_len\": 4096}, {\"id\": 7}, {\"id\": \"b\", \"context_length\": 0}]}"
        ),
        [("a".to_owned(), Some(4096)), ("b".to_owned(), None)]
    );
    assert_eq!(ids("[{\"id\": \"c\"}]"), [("c".to_owned(), None)]);
    for odd in ["{}", "3", "null", "{\"data\": \"x\"}", "{"] {
        let error = of(odd).unwrap_err();
        assert!(matches!(error, HttpError::Answer(_)), "{odd}: {error}");
    }
}
