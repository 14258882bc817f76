//! Backplane plugin: the CPU.
//!
//! Options in the manifest:
//!
//! | key | value |
//! |---|---|
//! | `threads` | threads of a model for which the caller names none, 1 to 1024; by default one for each core |
//! | `isa` | which kernels: `auto` (the default), `scalar`, `avx2` or `avx512` |
//! | `cache_type` | how keys and values are kept: `f32`, `f16` (the default) or `q8_0` |
//! | `quantize` | a type that matrices are quantised to while a model is loaded, such as `q8_0`; by default `none` |
//! | `speculation` | whether what a text repeats is drafted and verified in one step, where that is faster: `auto` (the default) or `off` |
//! | `cache_tokens` | tokens that the cache has room for, of all sequences together; by default as many as `parallel` whole contexts; where that is not given 4, in a quarter of the memory at most |
//!
//! The last four are options of a load too, which come before the manifest's; `speculation` is one of a request as well.
//!
//! Anything else makes the backend report itself as misconfigured.

#[cfg(test)]
mod conformance;
mod machine;
mod options;

use backplane_cpu_device::{CpuDevice, CpuOptions, Peaks};
use backplane_plugin_api::export_plugin;
use backplane_plugin_api::sdk::{Context, Result};
use backplane_plugin_api::types::{Error, ErrorCode, LoadOptions, Verdict, VerdictState};
use backplane_program::Device;
use backplane_text_engine::{DevicePeaks, LoadExtras, TextBackend};
use options::Options;
use std::sync::Arc;

const NAME: &str = "cpu";

export_plugin! { name: NAME, backend: backend }

/// The backend for a manifest's options. Wrong options are told by its probe and refuse every load.
fn backend(context: Context) -> Result<TextBackend> {
    let options = Options::read(&context.options);
    let (for_loads, for_peaks) = (options.clone(), options.clone());
    Ok(TextBackend::new(
        NAME,
        env!("CARGO_PKG_VERSION"),
        move |load: &LoadOptions| {
            let device: Arc<dyn Device> = Arc::new(device(for_loads.as_ref(), load.threads)?);
            Ok(device)
        },
    )
    .with_defaults(
        options
            .as_ref()
            .map_or_else(|_| LoadExtras::default(), |it| it.load),
    )
    .with_probe(move || probe(options.as_ref()))
    .with_devices(|| Ok(vec![machine::device()]))
    .with_peaks(move |load, bytes, progress| {
        let device = device(for_peaks.as_ref(), load.threads)?;
        let peaks = device
            .peaks(0, bytes, progress)
            .map_err(|error| Error::new(ErrorCode::Device, error.to_string()))?;
        Ok(peaks.map(measured))
    }))
}

/// As the contract has it.
fn measured(peaks: Peaks) -> DevicePeaks {
    let Peaks {
        buffer,
        threads,
        isa,
        ..
    } = peaks;
    let plural = if threads == 1 { "" } else { "s" };
    DevicePeaks {
        read_bytes_per_s: peaks.read_bytes_per_s,
        multiply_adds_per_s: peaks.multiply_adds_per_s,
        measured: format!(
            "{} instructions, {threads} thread{plural}, a buffer of {:.1} MiB",
            isa.label(),
            buffer as f64 / 1048576.0
        ),
    }
}

/// The device; a load's threads come before the manifest's.
fn device(
    options: std::result::Result<&Options, &String>,
    threads: Option<u32>,
) -> Result<CpuDevice> {
    let options =
        options.map_err(|problem| Error::new(ErrorCode::InvalidRequest, problem.clone()))?;
    let threads = threads.map(|threads| threads as usize).or(options.threads);
    CpuDevice::with_options(CpuOptions {
        threads,
        isa: options.isa,
    })
    .map_err(|error| Error::new(ErrorCode::Device, error.to_string()))
}

fn probe(options: std::result::Result<&Options, &String>) -> Verdict {
    match device(options, None) {
        Ok(device) => Verdict::available(format!("{}; {}", device.name(), CpuDevice::features())),
        Err(error) => Verdict::unavailable(
            VerdictState::Misconfigured,
            error.message,
            "correct the options of `cpu` in the manifest",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backplane_plugin_api::sdk::Backend;
    use serde_json::json;
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn with(options: serde_json::Value) -> TextBackend {
        let options = serde_json::from_value(options).unwrap();
        backend(Context {
            options,
            ..Context::default()
        })
        .unwrap()
    }

    #[test]
    fn it_is_available_at_once() {
        let started = Instant::now();
        let backend = with(json!({ "threads": 2, "isa": "auto" }));
        let verdict = backend.probe();
        assert!(
            started.elapsed() < Duration::from_millis(500),
            "{:?}",
            started.elapsed()
        );
        assert!(
            verdict.is_available() && !verdict.message.is_empty(),
            "{verdict}"
        );
        assert_eq!(
            (backend.name(), backend.version()),
            ("cpu".into(), env!("CARGO_PKG_VERSION").into())
        );
        let devices = backend.devices().unwrap();
        assert_eq!(
            (
                devices.len(),
                devices[0].id.as_str(),
                devices[0].kind.as_str()
            ),
            (1, "cpu", "cpu")
        );
    }

    fn small() -> std::path::PathBuf {
        crate::conformance::fixtures().join("tiny/llama-256-quant/model-f16.gguf")
    }

    #[test]
    fn options_of_loads_have_defaults_in_the_manifest() {
        let backend = with(json!({
            "cache_type": "F16", "quantize": "q8_0", "speculation": "off", "cache_tokens": 640,
        }));
        let pages = |extra: serde_json::Value| {
            let options = LoadOptions {
                extra: serde_json::from_value(extra).unwrap(),
                ..LoadOptions::default()
            };
            let model = backend.load(&small(), &options).unwrap();
            model.metrics()["kv_pages_total"]
        };
        assert_eq!(pages(json!({})), 40.0);
        assert_eq!(pages(json!({ "cache_tokens": 100 })), 7.0);
        let details = |extra: serde_json::Value| {
            let options = LoadOptions {
                extra: serde_json::from_value(extra).unwrap(),
                ..LoadOptions::default()
            };
            let info = backend.load(&small(), &options).unwrap().info();
            let of = |name: &str| {
                let found = info.details.iter().find(|(known, _)| known == name);
                found.map(|(_, value)| value.clone())
            };
            (of("cache"), of("quantized"), of("speculation"))
        };
        let (cache, quantized, speculation) = details(json!({}));
        assert_eq!(speculation.as_deref(), Some("off"));
        assert_eq!(cache.as_deref(), Some("f16"));
        assert!(quantized.is_some_and(|text| text.contains("Q8_0")));
        let (cache, quantized, speculation) = details(json!({
            "cache_type": "q8_0", "quantize": "none", "speculation": "auto",
        }));
        assert_eq!((cache.as_deref(), quantized), (Some("q8_0"), None));
        assert_eq!(speculation.as_deref(), Some("auto"));
    }

    #[test]
    fn wrong_options_are_told() {
        for (options, key) in [
            (json!({ "thread": 2 }), "thread"),
            (json!({ "threads": 0 }), "threads"),
            (json!({ "threads": "two" }), "threads"),
            (json!({ "isa": "sse9" }), "isa"),
            (json!({ "isa": 3 }), "isa"),
            (json!({ "cache_type": "f8" }), "cache_type"),
            (json!({ "cache_type": 8 }), "cache_type"),
            (json!({ "quantize": "q9_0" }), "quantize"),
            (json!({ "quantize": true }), "quantize"),
            (json!({ "speculation": "on" }), "speculation"),
            (json!({ "speculation": false }), "speculation"),
            (json!({ "cache_tokens": 0 }), "cache_tokens"),
            (json!({ "cache_tokens": "all" }), "cache_tokens"),
        ] {
            let backend = with(options);
            let verdict = backend.probe();
            assert_eq!(verdict.state, VerdictState::Misconfigured);
            assert!(verdict.message.contains(&format!("`{key}`")), "{verdict}");
            assert!(
                backend
                    .load(Path::new("nowhere.gguf"), &LoadOptions::default())
                    .is_err()
            );
        }
        assert!(
            with(json!({ "thread": 2 }))
                .probe()
                .message
                .contains("threads, isa, cache_type, quantize, speculation, cache_tokens")
        );
    }
}
