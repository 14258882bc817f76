//! The plugin's options in the manifest.

use backplane_cpu_device::Isa;
use backplane_text_engine::LoadExtras;
use serde_json::Value;
use std::collections::BTreeMap;

/// Most threads.
const MAX_THREADS: u64 = 1024;

/// Options that are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// `None`: one for each core.
    pub(crate) threads: Option<usize>,
    /// `None`: the best that this machine runs.
    pub(crate) isa: Option<Isa>,
    /// What loads say that don't say otherwise.
    pub(crate) load: LoadExtras,
}

impl Options {
    /// Reads the table.
    ///
    /// # Errors
    /// One line that names the key: it is unknown, or has another value than expected.
    pub(crate) fn read(table: &BTreeMap<String, Value>) -> Result<Self, String> {
        let mut options = Self {
            threads: None,
            isa: None,
            load: LoadExtras::default(),
        };
        for (key, value) in table {
            match key.as_str() {
                "threads" => {
                    let threads = value
                        .as_u64()
                        .filter(|threads| (1..=MAX_THREADS).contains(threads));
                    let Some(threads) = threads else {
                        return Err(format!(
                            "option `threads` is {value}; expected a number from 1 to {MAX_THREADS}"
                        ));
                    };
                    options.threads = Some(threads as usize);
                }
                "isa" => {
                    let name = value.as_str();
                    options.isa = Isa::ALL.into_iter().find(|isa| Some(isa.name()) == name);
                    if options.isa.is_none() && name != Some("auto") {
                        let names: Vec<&str> = Isa::ALL.into_iter().map(Isa::name).collect();
                        return Err(format!(
                            "option `isa` is {value}; expected auto, {}",
                            names.join(", ")
                        ));
                    }
                }
                _ => match options.load.set(key, value) {
                    Ok(true) => {}
                    Ok(false) => {
                        let known = LoadExtras::NAMES.join(", ");
                        return Err(format!(
                            "unknown option `{key}`; known options: threads, isa, {known}"
                        ));
                    }
                    Err(message) => return Err(format!("option `{key}`: {message}")),
                },
            }
        }
        Ok(options)
    }
}
