//! A well-behaved test plugin.

use backplane_echo_engine::EchoBackend;

backplane_plugin_api::export_plugin! { name: "echo_a", backend: |context| EchoBackend::new("echo_a", env!("CARGO_PKG_VERSION"), context) }
