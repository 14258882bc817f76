//! A module of the C door in a worker.

use super::{spec, worker};
use backplane_contract_tests::c_sample;
use backplane_plugin_api::sdk::Backend;
use backplane_test_kit::{Options, run};
use std::sync::Arc;

#[test]
fn the_sample_of_the_c_door_conforms_through_a_worker() {
    let mut spec = spec("backplane-module-echo-a", &[]);
    spec.path = c_sample();
    let backend: Arc<dyn Backend> = worker(spec);
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.dice");
    std::fs::write(&model, "anything").unwrap();
    let report = run(&backend, &model, &Options::default());
    assert!(report.passed(), "{report}");
}
