//! Backplane plugin: llama.cpp's server, any build of it, started and supervised for each model.
//!
//! Options in the manifest:
//!
//! | key | value |
//! |---|---|
//! | `server` | path of `llama-server`; else the variable `LLAMA_SERVER_PATH`, else the `PATH` |
//! | `gpu_layers` | layers to keep on the GPU, 999 (all) by default |
//! | `extra_args` | further arguments for the server, a list of words |
//! | `start_timeout_s` | seconds until the server must be ready, 60 by default |
//!
//! Anything else makes the backend report itself as misconfigured. A load takes `cache_type` (`f32`, `f16`, `q8_0`) as an
//! option of its own.

#[cfg(test)]
mod conformance;

use backplane_llama_server::{Bridge, Flavour, machine_root};
use backplane_plugin_api::export_plugin;
use backplane_plugin_api::sdk::{Context, Result};

const NAME: &str = "llama_cpp";

export_plugin! { name: NAME, backend: backend }

fn backend(context: Context) -> Result<Bridge> {
    let flavour = Flavour::any(NAME, env!("CARGO_PKG_VERSION"), &machine_root());
    Ok(Bridge::new(flavour, &context.options))
}
