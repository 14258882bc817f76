//! Servers that start, fail to, hang and crash: a real one, and scripts that misbehave on purpose.
#![allow(clippy::unwrap_used)]

use backplane_llama_server::server::{Options, Server, StartError};
use backplane_llama_server::{Bridge, Flavour, native};
use backplane_plugin_api::sdk::{Backend, TextModel};
use backplane_plugin_api::types::{
    Completion, Control, Error, ErrorCode, Event, FinishReason, GenerateOptions, GenerateRequest,
    LoadOptions, Prompt, Sampling,
};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn real_server() -> PathBuf {
    let server = root().join("cache/venv/bin/llama-server-vulkan");
    assert!(
        server.is_file(),
        "{}: `cargo verify` installs it",
        server.display()
    );
    server
}

fn smollm2() -> PathBuf {
    let folder = std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| root().join("cache/models"), PathBuf::from);
    let model = folder.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(
        model.is_file(),
        "{}: `cargo verify` gets it",
        model.display()
    );
    model
}

fn options(program: PathBuf) -> Options {
    Options {
        program,
        model: std::path::absolute(smollm2()).unwrap(),
        gpu_layers: 0,
        context: 512,
        parallel: 2,
        threads: None,
        cache_type: None,
        extra_args: vec![],
        environment: vec![],
        ready_within: Duration::from_secs(60),
    }
}

/// A program in a folder of its own.
fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("llama-server");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn lives(pid: u32) -> bool {
    let listed = Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output()
        .unwrap();
    let state = String::from_utf8_lossy(&listed.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

#[test]
fn a_server_starts_answers_and_stops() {
    let server = Server::start(&options(real_server())).unwrap();
    assert_eq!(server.context(), 512);
    let never = || false;
    let tokens = native::tokenize(
        server.client(),
        "The capital of France is",
        true,
        false,
        &never,
    )
    .unwrap();
    let body = json!({"prompt": tokens, "n_predict": 2, "temperature": 0});
    let Value::Object(body) = body else {
        unreachable!()
    };
    let mut chunks = vec![];
    native::completion(server.client(), body, &never, &mut |chunk| {
        chunks.push(chunk);
        ControlFlow::Continue(())
    })
    .unwrap();
    let ids: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| match chunk {
            native::Chunk::Token { token, .. } => *token,
            _ => None,
        })
        .collect();
    assert_eq!(ids, [7042, 30]);
    let pid = server.id();
    assert!(lives(pid));
    server.stop();
    assert!(!lives(pid));
    let error = native::tokenize(server.client(), "x", true, false, &never).unwrap_err();
    assert!(error.to_string().contains("connection"), "{error}");
}

#[test]
fn one_that_ends_at_once_is_tried_three_times_and_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("starts");
    let program = script(
        folder.path(),
        &format!(
            "echo $* >> {}; echo 'error: no such model'; exit 3",
            log.display()
        ),
    );
    let error = Server::start(&options(program.clone())).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} ended with exit status 3 before it was ready: error: no such model",
            program.display()
        )
    );
    let starts = std::fs::read_to_string(log).unwrap();
    let port = |line: &str| {
        line.split("--port ")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    let mut ports: Vec<String> = starts.lines().map(port).collect();
    assert_eq!(ports.len(), 3);
    ports.dedup();
    assert!(ports.len() > 1, "each try has a new port: {ports:?}");
}

#[test]
fn a_lost_port_is_not_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("second");
    let text = format!(
        "if [ ! -e {mark} ]; then touch {mark}; echo \"couldn't bind HTTP server socket\" >&2; exit 1; fi\nexec {} \"$@\"",
        real_server().display(),
        mark = mark.display(),
    );
    let server = Server::start(&options(script(folder.path(), &text))).unwrap();
    assert!(mark.exists() && lives(server.id()));
}

#[test]
fn a_port_that_another_program_took_is_given_up_for_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let (ports, holder) = (folder.path().join("ports"), folder.path().join("holder.py"));
    // Takes the port, says so, and leaves by itself.
    std::fs::write(
        &holder,
        "import socket, sys, time\ns = socket.socket()\ns.bind(('127.0.0.1', int(sys.argv[1])))\ns.listen()\n\
         print('taken', flush=True)\ntime.sleep(20)\n",
    )
    .unwrap();
    let text = format!(
        "port=; before=\nfor word in \"$@\"; do [ \"$before\" = --port ] && port=$word; before=$word; done\n\
         if [ ! -e {ports} ]; then\n  python3 {holder} $port > {ports}.taken 2>&1 &\n  \
         while [ ! -s {ports}.taken ]; do sleep 0.05; done\nfi\n\
         echo $port >> {ports}\nexec {server} \"$@\"",
        ports = ports.display(),
        holder = holder.display(),
        server = real_server().display(),
    );
    let server = Server::start(&options(script(folder.path(), &text))).unwrap();
    let tried = std::fs::read_to_string(&ports).unwrap();
    let tried: Vec<&str> = tried.lines().collect();
    assert_eq!(tried.len(), 2, "{tried:?}");
    assert_eq!(server.address().port().to_string(), tried[1]);
    assert_ne!(tried[0], tried[1]);
}

#[test]
fn one_that_hangs_is_given_up_once_and_killed() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("starts");
    let text = format!(
        "echo $$ >> {}; echo waiting for a device; trap '' TERM; while :; do sleep 0.1; done",
        log.display()
    );
    let mut options = options(script(folder.path(), &text));
    options.ready_within = Duration::from_millis(700);
    let error = Server::start(&options).unwrap_err();
    assert!(matches!(error, StartError::TimedOut { .. }), "{error}");
    assert!(
        error.to_string().contains("waiting for a device"),
        "{error}"
    );
    let starts = std::fs::read_to_string(log).unwrap();
    let pids: Vec<u32> = starts.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(pids.len(), 1);
    assert!(!lives(pids[0]));
}

#[test]
fn one_that_is_stopped_by_a_signal_is_given_up_in_time() {
    let folder = tempfile::tempdir().unwrap();
    // Takes connections, and never answers: the kernel does so for a process that is stopped.
    let holder = folder.path().join("holder.py");
    std::fs::write(
        &holder,
        "import os, signal, socket, sys\ns = socket.socket()\n\
         s.bind(('127.0.0.1', int(sys.argv[sys.argv.index('--port') + 1])))\ns.listen()\n\
         print('stopped', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n",
    )
    .unwrap();
    let text = format!("exec python3 {} \"$@\"", holder.display());
    let mut options = options(script(folder.path(), &text));
    options.ready_within = Duration::from_secs(3);
    let error = Server::start(&options).unwrap_err();
    assert!(matches!(error, StartError::TimedOut { .. }), "{error}");
}

fn bridge(server: &Path) -> Bridge {
    let options = json!({ "server": server, "gpu_layers": 0 });
    let Value::Object(options) = options else {
        unreachable!()
    };
    Bridge::new(
        Flavour::any("llama_cpp", "1.0.0", "/".as_ref()),
        &options.into_iter().collect(),
    )
}

fn load(context: u32) -> Arc<dyn TextModel> {
    let options = LoadOptions {
        context: Some(context),
        parallel: Some(2),
        ..LoadOptions::default()
    };
    bridge(&real_server()).load(&smollm2(), &options).unwrap()
}

fn request(prompt: &str, max_tokens: Option<u32>) -> GenerateRequest {
    GenerateRequest {
        prompt: Prompt::text(prompt),
        options: GenerateOptions {
            sampling: Sampling {
                temperature: Some(0.0),
                ..Sampling::default()
            },
            max_tokens,
            ignore_end: true,
            ..GenerateOptions::default()
        },
    }
}

fn process(model: &dyn TextModel) -> String {
    let details = model.info().details;
    let detail = details.into_iter().find(|(key, _)| key == "process");
    detail.expect("the process is told").1
}

#[test]
fn a_crash_in_mid_reply_is_an_error_of_that_reply_only() {
    let model = load(512);
    let peak = model.metrics()["process_peak_memory_bytes"];
    assert!(
        peak > 32e6,
        "the server's own, with a model of 98 MB: {peak}"
    );
    // <|im_start|> and <|im_end|> around a word.
    assert_eq!(model.detokenize(&[1, 7042, 2], false).unwrap(), b" Paris");
    assert_eq!(
        model.detokenize(&[1, 7042, 2], true).unwrap(),
        b"<|im_start|> Paris<|im_end|>"
    );
    // A character over several tokens keeps its bytes, wherever it is cut.
    let ids = model.tokenize("a😊", false, false).unwrap();
    assert!(ids.len() > 2, "{ids:?}");
    for cut in 0..=ids.len() {
        let (before, after) = ids.split_at(cut);
        let [before, after] = [before, after].map(|ids| model.detokenize(ids, false).unwrap());
        assert_eq!(
            [before, after].concat(),
            "a😊".as_bytes(),
            "{ids:?} at {cut}"
        );
    }
    let pid = process(&*model);
    let mut tokens = 0;
    let result = model.generate(&request("Once upon a time", None), &mut |event: Event<
        '_,
    >| {
        if matches!(event, Event::Token { .. }) {
            tokens += 1;
            if tokens == 3 {
                assert!(
                    Command::new("kill")
                        .args(["-KILL", &pid])
                        .status()
                        .unwrap()
                        .success()
                );
            }
        }
        Control::Continue
    });
    let error: Error = result.unwrap_err();
    assert_eq!(error.code, ErrorCode::Device);
    assert!(
        error.message.contains("ended by signal 9 (SIGKILL)"),
        "{error}"
    );
    assert!(!error.action.is_empty());
    // The next call has a new server.
    let mut text = String::new();
    let done = model
        .generate(
            &request("The capital of France is", Some(1)),
            &mut |event: Event<'_>| {
                if let Event::Token { text: new, .. } = event {
                    text += new;
                }
                Control::Continue
            },
        )
        .unwrap();
    assert_eq!(
        (text.as_str(), done.finish_reason),
        (" Paris", FinishReason::Length)
    );
    assert_eq!(model.metrics()["server_restarts_total"], 1.0);
    assert_eq!(model.metrics()["requests_failed_total"], 1.0);
}

#[test]
fn a_model_that_the_server_cannot_read_is_unusable() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("odd.gguf");
    let mut writer = backplane_weights::writer::GgufWriter::new();
    writer.add_meta("general.architecture", "unheard_of");
    writer.write_to(&model).unwrap();
    let error = bridge(&real_server())
        .load(&model, &LoadOptions::default())
        .err()
        .unwrap();
    assert_eq!(error.code, ErrorCode::ModelUnusable);
    assert!(
        error.message.contains("odd.gguf") && error.message.contains("unheard_of"),
        "{error}"
    );
    assert_eq!(error.message.lines().count(), 1);
}

#[test]
fn a_server_that_cannot_run_is_no_fault_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    for line in [
        "error: no device of that name",
        "llama_model_load: error loading model: unable to allocate Vulkan0 buffer",
    ] {
        let program = script(folder.path(), &format!("echo '{line}' >&2; exit 1"));
        let refused = bridge(&program).load(&smollm2(), &LoadOptions::default());
        let error = refused.err().unwrap();
        assert_eq!(error.code, ErrorCode::Device, "{error}");
        let named = error.message.contains(program.to_str().unwrap());
        assert!(named && error.message.ends_with(line), "{error}");
    }
}

/// The tokens told, and how it ended.
fn generate(model: &dyn TextModel, request: &GenerateRequest) -> (Vec<Option<u32>>, Completion) {
    let mut told = vec![];
    let done = model.generate(request, &mut |event: Event<'_>| {
        if let Event::Token { token, .. } = event {
            told.push(token);
        }
        Control::Continue
    });
    (told, done.unwrap())
}

#[test]
fn a_context_that_the_server_rounds_up_is_kept() {
    let model = load(64);
    assert_eq!(model.info().loaded_context, 64);
    let (told, done) = generate(&*model, &request("Once upon a time", None));
    assert_eq!(done.finish_reason, FinishReason::ContextFull);
    assert_eq!(done.prompt_tokens + done.completion_tokens, 64);
    assert_eq!(told.len() as u64, done.completion_tokens);
    // More than there is room for is asked for in vain.
    let (_, done) = generate(&*model, &request("Once upon a time", Some(200)));
    assert_eq!(done.finish_reason, FinishReason::ContextFull);
    assert_eq!(done.prompt_tokens + done.completion_tokens, 64);
    let long = "stone ".repeat(80);
    let length = model.tokenize(&long, true, false).unwrap().len();
    assert!((64..256).contains(&length), "{length}");
    let error = model
        .generate(&request(&long, Some(1)), &mut |_: Event<'_>| {
            Control::Continue
        })
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::ContextOverflow);
    assert!(
        error.message.contains(&format!("{length} tokens")) && error.message.contains("context 64"),
        "{error}"
    );
}

#[test]
fn the_end_token_is_neither_told_nor_counted() {
    const END: u32 = 2;
    let model = load(256);
    let asked = "<|im_start|>user\nSay: hi<|im_end|>\n<|im_start|>assistant\n";
    let mut asked = request(asked, Some(60));
    if let Prompt::Text { special, .. } = &mut asked.prompt {
        *special = true;
    }
    asked.options.ignore_end = false;
    asked.options.logprobs = Some(1);
    let (told, done) = generate(&*model, &asked);
    assert_eq!(done.finish_reason, FinishReason::Stop);
    assert!(!told.is_empty() && !told.contains(&Some(END)), "{told:?}");
    assert_eq!(told.len() as u64, done.completion_tokens);
    // A reply that ends at once, also where one token was asked for.
    asked.options.sampling.logit_bias = vec![(END, 100.0)];
    for most in [1, 60] {
        asked.options.max_tokens = Some(most);
        let (told, done) = generate(&*model, &asked);
        assert_eq!(done.finish_reason, FinishReason::Stop, "of {most}");
        assert_eq!((told.len(), done.completion_tokens), (0, 0), "of {most}");
    }
    // A special token that is no end is told: <|im_start|>.
    asked.options.sampling.logit_bias = vec![(1, 100.0)];
    asked.options.max_tokens = Some(3);
    let (told, done) = generate(&*model, &asked);
    assert_eq!(told, [Some(1); 3]);
    assert_eq!(
        (done.finish_reason, done.completion_tokens),
        (FinishReason::Length, 3)
    );
}

#[test]
fn load_options_are_checked_before_a_server_is_started() {
    let bridge = bridge(Path::new("/nowhere/llama-server"));
    let refused = |options: LoadOptions| bridge.load(&smollm2(), &options).err().unwrap();
    let extra = |key: &str, value: Value| LoadOptions {
        extra: [(key.to_owned(), value)].into(),
        ..LoadOptions::default()
    };
    for (field, options) in [
        (
            "context",
            LoadOptions {
                context: Some(0),
                ..LoadOptions::default()
            },
        ),
        (
            "context",
            LoadOptions {
                context: Some(1 << 20),
                ..LoadOptions::default()
            },
        ),
        (
            "parallel",
            LoadOptions {
                parallel: Some(0),
                ..LoadOptions::default()
            },
        ),
        (
            "threads",
            LoadOptions {
                threads: Some(0),
                ..LoadOptions::default()
            },
        ),
        (
            "device",
            LoadOptions {
                device: Some("gpu7".into()),
                ..LoadOptions::default()
            },
        ),
        ("cache_type", extra("cache_type", "q5".into())),
        ("quantize", extra("quantize", "q8_0".into())),
    ] {
        assert_eq!(refused(options).field, field);
    }
    let error = refused(LoadOptions::default());
    assert_eq!(error.code, ErrorCode::Device);
    assert!(error.message.contains("is not there"), "{error}");
}
