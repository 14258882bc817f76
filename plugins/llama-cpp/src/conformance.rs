//! The contract's conformance suite over a real server, across the boundary. With a real model: builds of the server end
//! generations whose text is not UTF-8, which is all that models of random weights say.

use backplane_plugin_api::sdk::{Backend, Context};
use backplane_plugin_api::{export, import};
use backplane_test_kit::{Options, run};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn check(model: &Path) {
    let server = root().join("cache/venv/bin/llama-server-vulkan");
    assert!(server.is_file(), "{} is missing", server.display());
    let options = json!({ "server": server, "gpu_layers": 0 });
    let context = Context {
        options: serde_json::from_value(options).unwrap(),
        ..Context::default()
    };
    let backend = Arc::new(super::backend(context).unwrap());
    let crossed: Arc<dyn Backend> = import::backend(export::backend_object(
        super::NAME,
        env!("CARGO_PKG_VERSION"),
        backend,
    ));
    let report = run(&crossed, model, &Options::default());
    println!("{report}");
    assert!(report.passed(), "{report}");
}

#[test]
fn a_real_model_conforms() {
    let models = std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| root().join("cache/models"), PathBuf::from);
    check(&models.join("SmolLM2-135M-Instruct.Q4_1.gguf"));
}
