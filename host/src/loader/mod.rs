//! Opens a plugin module: one file in, one [`LoadedPlugin`] or one [`Verdict`] out.
//!
//! The steps, in order; the first that fails gives the verdict, in one line:
//!
//! 1. the file is there;
//! 2. it, and its folder, can't be written by everyone; its SHA-256 is the pinned one (`trust`);
//! 3. its headers are those of a whole module for this machine (`preflight`), since the system's own loader ends the
//!    process on some that are not;
//! 4. the system loads it with all symbols bound; it has a root module of the same major version of the contract, with
//!    the same layout, that unwinds its panics, and makes a backend (`module`); or it has the function of the C door
//!    (`c_door`).
//!
//! A file that was refused in steps 1 to 3 was not opened as a module: none of its code ran. Modules are never unloaded.

mod c_door;
mod elf;
mod macho;
mod module;
mod preflight;
mod services;
mod trust;

pub use services::TracingServices;
pub(crate) use trust::sha256_hex;

use backplane_plugin_api::import::HostServices;
use backplane_plugin_api::{Backend, Context, Verdict, VerdictState};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to open, and how.
#[derive(Clone, Debug)]
pub struct LoadRequest<'a> {
    /// The module file.
    pub path: &'a Path,
    /// What its backend is made with.
    pub context: Context,
    /// The SHA-256 that the file must have, in hexadecimal.
    pub sha256: Option<&'a str>,
}

/// An open plugin.
#[derive(Clone)]
pub struct LoadedPlugin {
    /// Its name, as the module states it.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Version of the contract that it was built against.
    pub contract_version: String,
    /// The compiler that built it.
    pub rustc: String,
    /// Where it was opened from, links resolved.
    pub path: PathBuf,
    /// Its backend.
    pub backend: Arc<dyn Backend>,
}

impl fmt::Debug for LoadedPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedPlugin")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("contract_version", &self.contract_version)
            .field("rustc", &self.rustc)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Opens a module.
///
/// # Errors
/// The verdict says in one line what was found, and what would mend it.
pub fn open(
    request: &LoadRequest<'_>,
    services: Arc<dyn HostServices>,
) -> Result<LoadedPlugin, Verdict> {
    let real = trust::check(request.path, request.sha256)?;
    preflight::check(&real)?;
    module::open(&real, &real, &request.context, services)
}

/// Opens a module from a copy of it, which later changes of the file don't reach. The copy is what is hashed and looked at; where
/// the file is, must be right too, and messages name it.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_copy(
    request: &LoadRequest<'_>,
    copy: &Path,
    services: Arc<dyn HostServices>,
) -> Result<LoadedPlugin, Verdict> {
    let real = trust::check(request.path, None)?;
    let opened = request
        .sha256
        .map_or(Ok(()), |pin| trust::check_hash(copy, pin))
        .and_then(|()| preflight::check(copy))
        .and_then(|()| module::open(&real, copy, &request.context, services));
    opened.map_err(|mut verdict| {
        let (copy, real) = (copy.to_string_lossy(), real.to_string_lossy());
        verdict.message = verdict.message.replace(&*copy, &real);
        verdict
    })
}

/// Whether a module file is there and can't be written by everyone; gives its path with links resolved.
#[cfg(all(unix, feature = "cli"))]
pub(crate) fn check_trust(path: &Path) -> Result<PathBuf, Verdict> {
    trust::check(path, None)
}

/// Whether a file's headers are those of a whole module for this machine.
#[cfg(all(unix, feature = "cli"))]
pub(crate) fn check_format(path: &Path) -> Result<(), Verdict> {
    preflight::check(path)
}

/// A verdict about a file.
fn refuse(state: VerdictState, path: &Path, what: impl fmt::Display, action: &str) -> Verdict {
    let line = format!("{}: {what}", path.display());
    Verdict::unavailable(
        state,
        line.split_whitespace().collect::<Vec<_>>().join(" "),
        action,
    )
}
