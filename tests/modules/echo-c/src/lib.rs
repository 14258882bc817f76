//! A third test plugin of the same type.

use backplane_echo_engine::EchoBackend;

backplane_plugin_api::export_plugin! { name: "echo_c", backend: |context| EchoBackend::new("echo_c", env!("CARGO_PKG_VERSION"), context) }
