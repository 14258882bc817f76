//! A test plugin for panics and crashes on demand.

use backplane_echo_engine::EchoBackend;

backplane_plugin_api::export_plugin! { name: "panics", backend: |context| EchoBackend::new("panics", env!("CARGO_PKG_VERSION"), context) }
