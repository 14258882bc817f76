//! The conformance suite against the built `cpu` module, opened as a host opens it.

#![allow(clippy::unwrap_used)] // Here an unwrap is an assertion.

use backplane::loader::{LoadRequest, TracingServices, open};
use backplane_contract_tests::{module_path, workspace_root};
use backplane_plugin_api::Context;
use backplane_test_kit::{Options, run};
use std::path::PathBuf;
use std::sync::Arc;

#[test]
fn the_built_cpu_module_conforms() {
    let fixtures = std::env::var_os("BACKPLANE_FIXTURES").map_or_else(
        || workspace_root().join("../shared/fixtures"),
        PathBuf::from,
    );
    let model = fixtures.join("tiny/llama3-gqa/model-f32.gguf");
    assert!(model.exists(), "{} is missing", model.display());
    let module = module_path("backplane-cpu");
    let request = LoadRequest {
        path: &module,
        context: Context::default(),
        sha256: None,
    };
    let plugin = open(
        &request,
        Arc::new(TracingServices {
            plugin: "cpu".into(),
        }),
    )
    .unwrap();
    assert_eq!(plugin.name, "cpu");
    let report = run(&plugin.backend, &model, &Options::default());
    println!("{report}");
    assert!(report.passed(), "{report}");
}
