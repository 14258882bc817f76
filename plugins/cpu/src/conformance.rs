//! The contract's conformance suite, across the boundary, with a small model and a real one.

use backplane_plugin_api::sdk::{Backend, Context};
use backplane_plugin_api::{export, import};
use backplane_test_kit::{Options, run};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn check(model: &Path) {
    let backend = Arc::new(super::backend(Context::default()).unwrap());
    let crossed: Arc<dyn Backend> = import::backend(export::backend_object(
        super::NAME,
        env!("CARGO_PKG_VERSION"),
        backend,
    ));
    let report = run(&crossed, model, &Options::default());
    println!("{report}");
    assert!(report.passed(), "{report}");
}

pub(crate) fn fixtures() -> PathBuf {
    std::env::var_os("BACKPLANE_FIXTURES")
        .map_or_else(|| root().join("../shared/fixtures"), PathBuf::from)
}

#[test]
fn a_small_model_conforms() {
    check(&fixtures().join("tiny/llama3-gqa/model-f32.gguf"));
}

#[test]
fn a_small_directory_conforms() {
    check(&fixtures().join("tiny/llama3-gqa"));
}

#[test]
fn a_real_model_conforms() {
    let models = std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| root().join("cache/models"), PathBuf::from);
    check(&models.join("SmolLM2-135M-Instruct.Q4_1.gguf"));
}
