//! `devices`: what this machine could run models on, and which plugin would use it.

use super::arguments::{Devices, Global};
use super::values::Bytes;
use super::{output, registry};
use crate::devices::{Found, found, nothing_found, report};
use crate::error::Result;
use std::process::ExitCode;

pub(super) fn devices(global: &Global, verb: &Devices) -> Result<ExitCode> {
    let registry = registry(global)?;
    if verb.json {
        output::json(&report(&registry)?)?;
    } else {
        let (found, silent) = found(&registry)?;
        let notice = nothing_found(&found, &silent);
        output::line(&table(&found, notice.as_deref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(found: &[Found], notice: Option<&str>) -> String {
    let memory =
        |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
    let row = |found: &Found| {
        let device = &found.device;
        vec![
            output::one_line(&device.id),
            output::one_line(&device.name),
            found.kind().to_owned(),
            memory(device.memory_total),
            memory(found.memory_used()),
            memory(device.memory_free),
            output::one_line(found.detail("driver").unwrap_or("-")),
            found.used_by().unwrap_or("-").to_owned(),
        ]
    };
    let header = [
        "id", "name", "kind", "memory", "used", "free", "driver", "plugin",
    ];
    let mut lines = vec![output::table(&header, found.iter().map(row).collect())];
    for found in found {
        let user = found
            .known_to
            .iter()
            .find(|known| known.objection().is_none());
        let note = match (found.reason(), user) {
            (Some(reason), _) => reason,
            (None, Some(user)) => user.plugin.verdict.message.clone(),
            (None, None) => continue,
        };
        lines.push(output::one_line(&format!("{}: {note}", found.device.id)));
    }
    lines.extend(notice.map(output::one_line));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use backplane_plugin_api::types::DeviceInfo;

    #[test]
    fn what_a_driver_says_is_shown_without_its_controls() {
        let found = Found {
            device: DeviceInfo {
                id: "0000:03:00.0".into(),
                name: "Card\n\u{1b}[31m".into(),
                kind: "gpu".into(),
                memory_total: Some(8 << 30),
                memory_free: Some(1 << 30),
                details: [("driver".to_owned(), "amdgpu".to_owned())].into(),
            },
            known_to: Vec::new(),
        };
        let shown = table(&[found], None);
        assert!(
            shown.contains("discrete") && shown.contains("amdgpu"),
            "{shown}"
        );
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }
}
