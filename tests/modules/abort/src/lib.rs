//! A test plugin that tests build with panics that abort.

use backplane_echo_engine::EchoBackend;

backplane_plugin_api::export_plugin! { name: "abort", backend: |context| EchoBackend::new("abort", env!("CARGO_PKG_VERSION"), context) }
