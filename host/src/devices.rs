//! What this machine could run models on, and which plugin would use it.
//!
//! The host looks at no device: it asks the plugins, those that can't be used as well.

use crate::error::Result;
use crate::registry::{ModelOptions, Plugin, PluginKind, Registry};
use crate::selection::CandidateTrace;
use backplane_plugin_api::types::{DeviceInfo, VerdictState};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A device, with what the plugins that know it say.
pub(crate) struct Found {
    pub(crate) device: DeviceInfo,
    /// In the order of preference.
    pub(crate) known_to: Vec<Known>,
}

/// A plugin that knows a device.
pub(crate) struct Known {
    pub(crate) plugin: CandidateTrace,
    /// When it uses the device, where that is not always.
    pub(crate) condition: Option<String>,
}

impl Known {
    /// Why it would not use the device, or only under a condition.
    pub(crate) fn objection(&self) -> Option<String> {
        let (name, verdict) = (&self.plugin.name, &self.plugin.verdict);
        if !verdict.is_available() {
            return Some(format!("{name}: {}: {}", verdict.state, verdict.message));
        }
        if self.plugin.rank.is_none() {
            return Some(format!("{name}: the order does not reach it"));
        }
        let condition = self.condition.as_ref()?;
        Some(format!("{name}: {condition}"))
    }
}

impl Found {
    pub(crate) fn used_by(&self) -> Option<&str> {
        let user = self
            .known_to
            .iter()
            .find(|known| known.objection().is_none())?;
        Some(&user.plugin.name)
    }

    /// Why no plugin uses it, or under which conditions; `None` where one does.
    pub(crate) fn reason(&self) -> Option<String> {
        if self.used_by().is_some() {
            return None;
        }
        let objections: Vec<String> = self.known_to.iter().filter_map(Known::objection).collect();
        Some(objections.join("; "))
    }

    pub(crate) fn kind(&self) -> &str {
        match &*self.device.kind {
            "gpu" => "discrete",
            "integrated_gpu" => "integrated",
            other => other,
        }
    }

    fn is_gpu(&self) -> bool {
        ["gpu", "integrated_gpu"].contains(&&*self.device.kind)
    }

    pub(crate) fn memory_used(&self) -> Option<u64> {
        let (total, free) = (self.device.memory_total?, self.device.memory_free?);
        Some(total.saturating_sub(free))
    }

    pub(crate) fn detail(&self, name: &str) -> Option<&str> {
        self.device.details.get(name).map(String::as_str)
    }

    fn json(&self) -> Value {
        let plugin = |known: &Known| {
            json!({
                "name": known.plugin.name,
                "verdict": known.plugin.verdict,
                "condition": known.condition,
            })
        };
        let device = &self.device;
        json!({
            "id": device.id,
            "name": device.name,
            "kind": self.kind(),
            "memory_total": device.memory_total,
            "memory_used": self.memory_used(),
            "memory_free": device.memory_free,
            "driver": self.detail("driver"),
            "details": device.details,
            "used_by": self.used_by(),
            "reason": self.reason(),
            "plugins": self.known_to.iter().map(plugin).collect::<Vec<_>>(),
        })
    }
}

/// What there is, as scripts and pages read it.
///
/// # Errors
/// The order of preference can't be followed.
pub(crate) fn report(registry: &Registry) -> Result<Value> {
    let (found, silent) = found(registry)?;
    let devices: Vec<Value> = found.iter().map(Found::json).collect();
    Ok(json!({ "devices": devices, "notice": nothing_found(&found, &silent) }))
}

/// Every device once, by its identity; and the plugins that know none, with the reason.
pub(crate) fn found(registry: &Registry) -> Result<(Vec<Found>, Vec<String>)> {
    let order = registry.explain(None, &ModelOptions::default())?;
    let plugins = registry.all();
    let (mut found, mut silent) = (Vec::<Found>::new(), Vec::new());
    for candidate in order.candidates {
        let plugin = plugins.iter().find(|plugin| plugin.name == candidate.name);
        let Some(plugin) = plugin.filter(|plugin| is_there(plugin)) else {
            continue;
        };
        let devices = match asked(plugin) {
            Ok(devices) => devices,
            Err(why) => {
                silent.push(format!("{}: {why}", plugin.name));
                continue;
            }
        };
        if devices.is_empty() {
            let verdict = &candidate.verdict;
            silent.push(match verdict.is_available() {
                true => format!("{}: {}", plugin.name, verdict.message),
                false => format!("{}: {}: {}", plugin.name, verdict.state, verdict.message),
            });
        }
        for device in devices {
            let known = Known {
                plugin: candidate.clone(),
                condition: device.details.get("use").cloned(),
            };
            match found.iter_mut().find(|found| found.device.id == device.id) {
                Some(found) => found.known_to.push(known),
                None => found.push(Found {
                    device,
                    known_to: vec![known],
                }),
            }
        }
    }
    // Graphics processors first, those with most memory before the others.
    found.sort_by_key(|found| {
        let memory = found.device.memory_total.unwrap_or(0);
        (
            !found.is_gpu(),
            found.kind() != "discrete",
            std::cmp::Reverse(memory),
        )
    });
    Ok((found, silent))
}

fn is_there(plugin: &Plugin) -> bool {
    plugin.kind != PluginKind::Missing && plugin.verdict.state != VerdictState::Disabled
}

/// The devices of a plugin, whether or not it can be used.
fn asked(plugin: &Plugin) -> std::result::Result<Vec<DeviceInfo>, String> {
    if plugin.verdict.is_available() {
        return Ok(plugin.devices.clone());
    }
    let Some(backend) = plugin.backend() else {
        return Err(plugin.verdict.to_string());
    };
    match catch_unwind(AssertUnwindSafe(|| backend.devices())) {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("panicked when it was asked for its devices".to_owned()),
    }
}

/// That there is no graphics processor, and who looked where.
pub(crate) fn nothing_found(found: &[Found], silent: &[String]) -> Option<String> {
    if found.iter().any(Found::is_gpu) {
        return None;
    }
    let asked = match silent {
        [] => "no plugin looks for one".to_owned(),
        silent => silent.join("; "),
    };
    Some(format!("no graphics processor was found; {asked}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::Outcome;
    use backplane_plugin_api::types::Verdict;

    fn known(name: &str, verdict: Verdict, rank: Option<usize>, condition: Option<&str>) -> Known {
        Known {
            plugin: CandidateTrace {
                name: name.into(),
                version: None,
                path: None,
                verdict,
                rank,
                outcome: Outcome::NotTried,
                reason: String::new(),
            },
            condition: condition.map(str::to_owned),
        }
    }

    fn gpu(known_to: Vec<Known>) -> Found {
        Found {
            device: DeviceInfo {
                id: "0000:03:00.0".into(),
                name: "Card\n\u{1b}[31m".into(),
                kind: "gpu".into(),
                memory_total: Some(8 << 30),
                memory_free: Some(9 << 30),
                details: [("driver".to_owned(), "amdgpu".to_owned())].into(),
            },
            known_to,
        }
    }

    #[test]
    fn the_first_that_would_uses_it_and_else_each_says_why_not() {
        let fine = || Verdict::available("fine");
        let broken = Verdict::unavailable(VerdictState::MissingLibrary, "no libx", "install it");
        let found = gpu(vec![
            known("rocm", broken, Some(1), None),
            known("llama_cpp", fine(), Some(2), Some("if it can")),
            known("other", fine(), None, None),
        ]);
        assert_eq!(found.used_by(), None);
        assert_eq!(
            found.reason().as_deref(),
            Some(
                "rocm: missing library: no libx; llama_cpp: if it can; other: the order does not reach it"
            )
        );
        // More free than there is: never less than nothing used.
        assert_eq!(found.memory_used(), Some(0));
        assert_eq!(nothing_found(&[found], &[]), None);
        let found = gpu(vec![known("cuda", fine(), Some(1), None)]);
        assert_eq!((found.used_by(), found.reason()), (Some("cuda"), None));
    }

    #[test]
    fn without_any_it_is_said_who_looked() {
        let silent = vec!["rocm: no device: /dev/kfd is missing".to_owned()];
        assert_eq!(
            nothing_found(&[], &silent).as_deref(),
            Some("no graphics processor was found; rocm: no device: /dev/kfd is missing")
        );
        let notice = nothing_found(&[], &[]).unwrap();
        assert!(notice.ends_with("no plugin looks for one"), "{notice}");
    }
}
