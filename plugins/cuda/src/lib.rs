//! Backplane plugin: NVIDIA graphics processors, by a supervised `llama-server` that was built for CUDA.
//!
//! Options in the manifest:
//!
//! | key | value |
//! |---|---|
//! | `mode` | `server`, the only mode of this build |
//! | `server` | path of `llama-server`; else the variable `CUDA_LLAMA_SERVER_PATH`, else `LLAMA_SERVER_PATH`, else the `PATH` |
//! | `device` | UUID or PCI address of the device; by default the discrete one with the most memory |
//! | `gpu_layers` | layers to keep on the device, 999 (all) by default |
//! | `extra_args` | further arguments for the server, a list of words |
//! | `start_timeout_s` | seconds until the server must be ready, 60 by default |
//!
//! Anything else makes the backend report itself as misconfigured.

use backplane_llama_server::{Bridge, Flavour, Gpus, machine_root};
use backplane_plugin_api::export_plugin;
use backplane_plugin_api::sdk::{Context, Result};

const NAME: &str = "cuda";

export_plugin! { name: NAME, backend: backend }

fn backend(context: Context) -> Result<Bridge> {
    let flavour = Flavour {
        name: NAME,
        version: env!("CARGO_PKG_VERSION"),
        variables: &["CUDA_LLAMA_SERVER_PATH", "LLAMA_SERVER_PATH"],
        gpus: Gpus::cuda(&machine_root()),
    };
    Ok(Bridge::new(flavour, &context.options))
}
