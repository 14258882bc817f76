//! Cases about the backend itself.

use crate::bench::{Bench, ensure, expect_error, expect_refusal};
use crate::{Outcome, Verdict};
use backplane_plugin_api::{ErrorCode, LoadOptions};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

const NOWHERE: &str = "no-such-folder/no-such-model.gguf";

pub(super) fn probe_answers(bench: &Bench) -> Verdict {
    let start = Instant::now();
    let verdict = bench.backend.probe();
    let took = start.elapsed();
    ensure!(
        verdict.is_available(),
        "the verdict is {verdict}; expected available"
    );
    ensure!(
        !verdict.message.is_empty() && !verdict.message.contains('\n'),
        "the message {:?} is not one line",
        verdict.message
    );
    ensure!(
        took < Duration::from_secs(5),
        "the probe took {took:?}; expected a second or so"
    );
    Ok(())
}

pub(super) fn names_itself(bench: &Bench) -> Verdict {
    let (name, version) = (bench.backend.name(), bench.backend.version());
    let right = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    ensure!(
        !name.is_empty() && name.chars().all(right),
        "name {name:?}; expected lower case, digits and _"
    );
    let core = version.split(['-', '+']).next().unwrap_or_default();
    let parts: Vec<_> = core.split('.').collect();
    let semver = parts.len() == 3 && parts.iter().all(|part| part.parse::<u64>().is_ok());
    ensure!(
        semver,
        "version {version:?}; expected semver, such as 1.2.3"
    );
    Ok(())
}

pub(super) fn devices_have_identity(bench: &Bench) -> Verdict {
    let devices = bench
        .backend
        .devices()
        .map_err(|error| Outcome::Failed(format!("devices: {error}")))?;
    let mut seen = BTreeSet::new();
    for device in devices {
        ensure!(!device.id.is_empty(), "device {:?} has no id", device.name);
        ensure!(
            device.id.parse::<u64>().is_err(),
            "device id {:?} is an ordinal",
            device.id
        );
        ensure!(
            seen.insert(device.id.clone()),
            "two devices have the id {:?}",
            device.id
        );
        ensure!(
            !device.kind.is_empty(),
            "device {:?} has no kind",
            device.id
        );
        if let (Some(total), Some(free)) = (device.memory_total, device.memory_free) {
            ensure!(
                free <= total,
                "device {:?} has {free} bytes free of {total}",
                device.id
            );
        }
    }
    Ok(())
}

pub(super) fn inspect_answers(bench: &Bench) -> Verdict {
    let info = bench
        .backend
        .inspect(&bench.path)
        .map_err(|error| Outcome::Failed(format!("inspect: {error}")))?;
    let Some(info) = info else {
        return Err(Outcome::Failed(
            "the model is not of this backend's formats".to_owned(),
        ));
    };
    ensure!(
        info.unsupported.is_none(),
        "the model is unsupported: {:?}",
        info.unsupported
    );
    ensure!(!info.name.is_empty(), "the model has no name");
    ensure!(
        !info.format.is_empty() && !info.architecture.is_empty(),
        "format or architecture is empty"
    );
    ensure!(
        info.path == bench.path,
        "path {}; expected {}",
        info.path.display(),
        bench.path.display()
    );
    ensure!(
        info.loaded_context == 0,
        "loaded context {} of a model that is not loaded",
        info.loaded_context
    );
    Ok(())
}

pub(super) fn inspect_leaves_others(bench: &Bench) -> Verdict {
    // The suite's own program is a file of no model format.
    let program = std::env::current_exe().unwrap_or_else(|_| "/".into());
    for path in [program.as_path(), Path::new(NOWHERE), Path::new("")] {
        if let Ok(Some(info)) = bench.backend.inspect(path) {
            return Err(Outcome::Failed(format!(
                "{} is claimed to be a model of format {}",
                path.display(),
                info.format
            )));
        }
    }
    Ok(())
}

pub(super) fn load_refuses_missing_file(bench: &Bench) -> Verdict {
    let error = expect_error(
        "load of a missing file",
        bench
            .backend
            .load(Path::new(NOWHERE), &LoadOptions::default()),
        &[ErrorCode::ModelUnusable, ErrorCode::InvalidRequest],
    )?;
    ensure!(
        error.message.contains("no-such-model"),
        "{error}; expected a message that names the file"
    );
    Ok(())
}

pub(super) fn load_refuses_unknown_option(bench: &Bench) -> Verdict {
    let extra = [("no_such_option".to_owned(), serde_json::json!(1))].into();
    let options = LoadOptions {
        extra,
        ..bench.options.load.clone()
    };
    expect_refusal(
        "load",
        bench.backend.load(&bench.path, &options),
        "no_such_option",
    )
}

pub(super) fn absent_capability_answered(bench: &Bench) -> Verdict {
    ensure!(
        bench.backend.capability("no_such_capability/1").is_none(),
        "the backend has `no_such_capability/1`"
    );
    ensure!(
        bench.backend.capability("").is_none(),
        "the backend has a capability without a name"
    );
    ensure!(
        bench.model()?.capability("no_such_capability/1").is_none(),
        "the model has `no_such_capability/1`"
    );
    Ok(())
}

pub(super) fn loads(bench: &Bench) -> Verdict {
    let info = bench.model()?.info();
    ensure!(
        info.path == bench.path,
        "path {}; expected {}",
        info.path.display(),
        bench.path.display()
    );
    ensure!(info.loaded_context > 0, "the loaded context is 0");
    if let Some(context) = bench.options.load.context {
        ensure!(
            info.loaded_context <= u64::from(context).max(1),
            "context {}; asked for {context}",
            info.loaded_context
        );
    }
    Ok(())
}
