//! `serve`, and asking a server to reload.

use super::arguments::{Global, Reload, Serve};
use super::{output, registry};
use crate::error::Result;
use crate::serve::{Notice, Resolved, ask_to_reload, serve as run};
use std::process::ExitCode;
use std::sync::Arc;

pub(super) fn serve(global: &Global, verb: &Serve) -> Result<ExitCode> {
    let registry = registry(global)?;
    let manifest = registry.manifest();
    let resolved = Resolved::of(&manifest, registry.folders(), &verb.given.flags())?;
    for notice in &resolved.notices {
        output::notice(global, &output::visible(notice));
    }
    let quiet = global.quiet;
    let tell = move |notice: Notice| {
        if !quiet {
            output::error_line(&output::visible(&notice.to_string()));
        }
    };
    run(registry, resolved.options, Arc::new(tell))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reload(verb: &Reload) -> Result<ExitCode> {
    let reloaded = ask_to_reload(&verb.server)?;
    if verb.json {
        output::json(&reloaded)?;
    } else {
        output::line(&output::visible(&reloaded.to_string()))?;
    }
    // The answer stands; a script learns from the code that something was refused.
    Ok(ExitCode::from(if reloaded.has_refused() { 5 } else { 0 }))
}
