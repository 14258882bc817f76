//! The contract's conformance suite over a real llama.cpp server as an endpoint, across the boundary.

use super::*;
use backplane_llama_server::server::{Options as ServerOptions, Server};
use backplane_plugin_api::{export, import};
use backplane_test_kit::{Options as KitOptions, Outcome, run};
use std::path::PathBuf;
use std::time::Duration;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Cases that ask for what no endpoint has a call for, or tells.
const NOT_APPLICABLE: &[&str] = &[
    "stop_token_ends",
    "chats",
    "classifies",
    "classify_keeps_errors_apart",
    "tokens_round_trip",
    "cancelled_in_prefill",
    "polled_in_prefill",
    "overflow_refused",
    "context_bounds",
];

#[test]
fn a_real_server_conforms() {
    let program = root().join("cache/venv/bin/llama-server-vulkan");
    assert!(
        program.is_file(),
        "{}: `cargo verify` installs it",
        program.display()
    );
    let models = std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| root().join("cache/models"), PathBuf::from);
    let file = std::path::absolute(models.join("SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap();
    let server = Server::start(&ServerOptions {
        program,
        model: file.clone(),
        gpu_layers: 0,
        context: 1024,
        parallel: 4,
        threads: None,
        cache_type: None,
        extra_args: vec![],
        environment: vec![],
        ready_within: Duration::from_secs(60),
    })
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, server.key().expose()).unwrap();
    let backend = with(json!({
        "base_url": format!("http://{}/v1", server.address()),
        "key_file": key.to_str(),
        "fields": ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
            "frequency_penalty", "seed", "logit_bias", "logprobs", "grammar", "stream_options", "ignore_end"],
    }));
    let crossed: Arc<dyn Backend> = import::backend(export::backend_object(
        NAME,
        env!("CARGO_PKG_VERSION"),
        Arc::new(backend),
    ));
    let options = KitOptions {
        load: LoadOptions::default(),
        tokens: 6,
        ..KitOptions::default()
    };
    let model = format!("remote:{}", file.display());
    let report = run(&crossed, Path::new(&model), &options);
    println!("{report}");
    assert!(report.passed(), "{report}");
    let unexpected = |outcome: &Outcome| match outcome {
        Outcome::NotApplicable(why) => !why.contains(" offered"),
        _ => false,
    };
    let results = report.results.iter();
    let other: Vec<_> = results
        .filter(|result| unexpected(&result.outcome) && !NOT_APPLICABLE.contains(&result.name))
        .map(|result| result.name)
        .collect();
    assert!(
        other.is_empty(),
        "not applicable, but should be: {other:?}\n{report}"
    );
}
