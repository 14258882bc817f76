//! The devices that a build of the server is for: which there are, which one is used, and how the server is told.

use crate::settings::Settings;
use backplane_machine::{Gpu, LOOKED_INTO, Nvml, all, amd, find, intel, nvidia, preferred};
use backplane_plugin_api::types::{DeviceInfo, Verdict, VerdictState};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The vendor's runtime that a build uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runtime {
    Rocm,
    Cuda,
    Sycl,
    /// Whichever a build was made for: that is not known here.
    Any,
}

/// The devices that a build may use, below a root folder (`/` but in tests).
#[derive(Clone, Debug)]
pub struct Gpus {
    runtime: Runtime,
    root: PathBuf,
}

type Environment = Vec<(OsString, Option<OsString>)>;

impl Gpus {
    /// AMD's, for ROCm.
    pub fn rocm(root: &Path) -> Self {
        Self::new(Runtime::Rocm, root)
    }

    /// NVIDIA's, for CUDA.
    pub fn cuda(root: &Path) -> Self {
        Self::new(Runtime::Cuda, root)
    }

    /// Intel's, for SYCL over Level Zero.
    pub fn sycl(root: &Path) -> Self {
        Self::new(Runtime::Sycl, root)
    }

    /// Those of every vendor, for any build of the server: which of them it uses is its own affair.
    pub fn any(root: &Path) -> Self {
        Self::new(Runtime::Any, root)
    }

    /// Whether the server is told which device to use.
    pub(crate) fn are_chosen(&self) -> bool {
        self.runtime != Runtime::Any
    }

    fn new(runtime: Runtime, root: &Path) -> Self {
        let root = root.to_owned();
        Self { runtime, root }
    }

    fn list(&self) -> Vec<Gpu> {
        // Without the library, memory is not known; all else is in the driver's files. Where those are not, it is not opened.
        let nvml = || match self.root.join("proc/driver/nvidia/gpus").is_dir() {
            true => Nvml::open("libnvidia-ml.so.1".as_ref()).ok(),
            false => None,
        };
        match self.runtime {
            Runtime::Rocm => amd(&self.root),
            Runtime::Cuda => nvidia(&self.root, nvml().as_ref()),
            Runtime::Sycl => intel(&self.root),
            Runtime::Any => all(&self.root, nvml().as_ref()),
        }
    }

    /// What is there, in a few words; for builds that choose by themselves.
    pub(crate) fn overview(&self) -> String {
        let list = self.list();
        match &*list {
            [] => format!("no graphics processor in {}", LOOKED_INTO.join(" or ")),
            gpus => {
                let names: Vec<&str> = gpus.iter().map(|gpu| &*gpu.name).collect();
                format!("beside {}", names.join(", "))
            }
        }
    }

    /// What is found, or why there is nothing to run on.
    pub(crate) fn probe(&self, settings: &Settings) -> Result<String, Verdict> {
        self.driver()?;
        let chosen = self.choose(settings.device.as_deref()).map_err(|message| {
            let (state, action) = match settings.device {
                Some(_) => (
                    VerdictState::Misconfigured,
                    "correct the option `device` in the manifest",
                ),
                None => (VerdictState::NoDevice, ""),
            };
            Verdict::unavailable(state, message, action)
        })?;
        Ok(describe(&chosen))
    }

    /// Whether the kernel's driver is there and may be used.
    fn driver(&self) -> Result<(), Verdict> {
        let (device, action) = match self.runtime {
            Runtime::Rocm => ("dev/kfd", "load the kernel's amdgpu driver"),
            Runtime::Cuda => ("dev/nvidiactl", "install NVIDIA's driver"),
            Runtime::Sycl => ("dev/dri", "load the kernel's xe or i915 driver"),
            Runtime::Any => return Ok(()),
        };
        let path = self.root.join(device);
        let none = |message: String, action: &str| {
            Verdict::unavailable(VerdictState::NoDevice, message, action)
        };
        match path.metadata() {
            Err(_) => Err(none(format!("no device: /{device} is missing"), action)),
            // A folder can be listed by all; what is in it, the runtime opens.
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => match std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
            {
                Ok(_) => Ok(()),
                Err(error) => Err(none(
                    format!("no device: /{device} can't be opened: {error}"),
                    "join the groups that may (mostly `render` and `video`), and log in again",
                )),
            },
        }
    }

    /// The device of that UUID or PCI address; where none is named, the discrete one with the most memory, never one that
    /// shares the processor's.
    ///
    /// # Errors
    /// One line: there is none, or not that one.
    pub(crate) fn choose(&self, id: Option<&str>) -> Result<Gpu, String> {
        let gpus = self.list();
        if let Some(id) = id {
            let known: Vec<&str> = gpus.iter().map(Gpu::id).collect();
            return find(&gpus, id)
                .cloned()
                .ok_or_else(|| match known.is_empty() {
                    true => format!("no device {id:?}: there is none at all"),
                    false => format!("no device {id:?}; there is {}", known.join(", ")),
                });
        }
        match preferred(&gpus) {
            None => Err(format!(
                "no device: no {} graphics processor",
                self.vendor()
            )),
            Some(gpu) if gpu.integrated => Err(format!(
                "no discrete device: {} shares the processor's memory, and is used only where option `device` names it",
                describe(gpu)
            )),
            Some(gpu) => Ok(gpu.clone()),
        }
    }

    fn vendor(&self) -> &'static str {
        match self.runtime {
            Runtime::Rocm => "AMD",
            Runtime::Cuda => "NVIDIA",
            Runtime::Sycl => "Intel",
            Runtime::Any => "known",
        }
    }

    /// Variables by which the server sees this device and no other, whatever the operator had set.
    pub(crate) fn environment(&self, gpu: &Gpu) -> Environment {
        let index = || gpu.index.map(|index| index.to_string());
        let set = |name: &str, value: &str| (name.into(), Some(value.into()));
        let unset = |name: &str| (name.into(), None);
        match self.runtime {
            Runtime::Rocm => vec![
                // By number, which every version of the runtime takes; the number counts the devices that `kfd` lists, so
                // nothing below may hide some of them.
                set(
                    "HIP_VISIBLE_DEVICES",
                    &index().unwrap_or_else(|| gpu.id().to_owned()),
                ),
                unset("ROCR_VISIBLE_DEVICES"),
                unset("GPU_DEVICE_ORDINAL"),
                unset("CUDA_VISIBLE_DEVICES"),
            ],
            Runtime::Cuda => vec![
                set("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                set(
                    "CUDA_VISIBLE_DEVICES",
                    &gpu.uuid.clone().or_else(index).unwrap_or_default(),
                ),
            ],
            Runtime::Any => vec![],
            Runtime::Sycl => vec![set(
                "ONEAPI_DEVICE_SELECTOR",
                &format!("level_zero:{}", index().unwrap_or_else(|| "gpu".into())),
            )],
        }
    }

    /// All of them, as the contract tells devices. The detail `use` says when one is used, where that is not always;
    /// `configured` is the device that the manifest names.
    pub(crate) fn devices(&self, configured: Option<&str>) -> Vec<DeviceInfo> {
        let chosen = self.choose(configured).ok().map(|gpu| gpu.pci);
        let condition = |gpu: &Gpu| match self.runtime {
            Runtime::Any => Some("if this build of llama-server is made for it"),
            _ if chosen.as_ref() == Some(&gpu.pci) => None,
            _ if gpu.integrated => {
                Some("only where the option `device` names it: it shares the processor's memory")
            }
            _ => Some("only where the option `device` names it: another one is used"),
        };
        let one = |gpu: Gpu| DeviceInfo {
            id: gpu.id().to_owned(),
            name: gpu.name.clone(),
            kind: if gpu.integrated {
                "integrated_gpu"
            } else {
                "gpu"
            }
            .into(),
            memory_total: gpu.memory_total,
            memory_free: gpu.memory_free(),
            details: {
                let mut details = gpu.details.clone();
                details.insert("pci".into(), gpu.pci.clone());
                details.insert("driver".into(), gpu.driver.clone());
                if let Some(condition) = condition(&gpu) {
                    details.insert("use".into(), condition.into());
                }
                details
            },
        };
        self.list().into_iter().map(one).collect()
    }
}

fn describe(gpu: &Gpu) -> String {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let memory = match (gpu.memory_total, gpu.memory_free()) {
        (Some(total), Some(free)) => format!(", {:.1} of {:.1} GiB free", gib(free), gib(total)),
        (Some(total), None) => format!(", {:.1} GiB", gib(total)),
        _ => String::new(),
    };
    format!("{} at {}{memory}", gpu.name, gpu.pci)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bridge, Flavour};
    use backplane_plugin_api::sdk::Backend;
    use backplane_plugin_api::types::LoadOptions;
    use serde_json::json;
    use std::collections::BTreeMap;

    const GIB: u64 = 1 << 30;

    /// A machine with AMD cards: number, PCI address, GiB, and whether it shares the processor's memory.
    fn machine(cards: &[(u32, &str, u64, bool)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: String| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("dev/kfd", String::new());
        for &(number, pci, gib, integrated) in cards {
            let device = format!("sys/class/drm/card{number}/device");
            write(&format!("{device}/vendor"), "0x1002\n".into());
            write(
                &format!("{device}/uevent"),
                format!("DRIVER=amdgpu\nPCI_SLOT_NAME={pci}\n"),
            );
            write(
                &format!("{device}/mem_info_vram_total"),
                (gib * GIB).to_string(),
            );
            write(&format!("{device}/mem_info_vram_used"), "0".into());
            let bus = u64::from_str_radix(&pci[5..7], 16).unwrap() << 8;
            let cores = u32::from(integrated) * 8;
            let node = format!("sys/class/kfd/kfd/topology/nodes/{number}/properties");
            write(
                &node,
                format!(
                    "cpu_cores_count {cores}\nsimd_count 8\nlocation_id {bus}\ndomain 0\nunique_id 0\n"
                ),
            );
        }
        folder
    }

    fn rocm(root: &Path, options: serde_json::Value) -> Bridge {
        let flavour = Flavour {
            name: "rocm",
            version: "1.0.0",
            variables: &["ROCM_LLAMA_SERVER_PATH", "LLAMA_SERVER_PATH"],
            gpus: Gpus::rocm(root),
        };
        let options: BTreeMap<_, _> = serde_json::from_value(options).unwrap();
        Bridge::new(flavour, &options)
    }

    const BOTH: &[(u32, &str, u64, bool)] =
        &[(1, "0000:0e:00.0", 16, true), (2, "0000:03:00.0", 8, false)];

    #[test]
    fn the_discrete_one_is_used_whatever_the_operator_had_set() {
        let machine = machine(BOTH);
        let gpus = Gpus::rocm(machine.path());
        let chosen = gpus.choose(None).unwrap();
        assert_eq!(chosen.pci, "0000:03:00.0");
        let environment = gpus.environment(&chosen);
        assert!(environment.contains(&("HIP_VISIBLE_DEVICES".into(), Some("1".into()))));
        assert!(environment.contains(&("ROCR_VISIBLE_DEVICES".into(), None)));
        // Only by its name is the integrated one chosen.
        assert_eq!(gpus.choose(Some("0000:0e:00.0")).unwrap().index, Some(0));
        let error = gpus.choose(Some("1")).unwrap_err();
        assert!(error.contains("0000:03:00.0"), "{error}");
    }

    #[test]
    fn probes_say_what_is_missing() {
        let state = |root: &Path, options| {
            let verdict = rocm(root, options).probe();
            (verdict.state, verdict.message)
        };
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(
            state(nothing.path(), json!({})),
            (
                VerdictState::NoDevice,
                "no device: /dev/kfd is missing".into()
            )
        );
        let empty = machine(&[]);
        assert_eq!(
            state(empty.path(), json!({})),
            (
                VerdictState::NoDevice,
                "no device: no AMD graphics processor".into()
            )
        );
        let integrated = machine(&BOTH[..1]);
        let (found, message) = state(integrated.path(), json!({}));
        assert!(
            found == VerdictState::NoDevice && message.contains("no discrete device"),
            "{message}"
        );
        let both = machine(BOTH);
        let (found, message) = state(both.path(), json!({"device": "0000:99:00.0"}));
        assert!(
            found == VerdictState::Misconfigured && message.contains("0000:0e:00.0"),
            "{message}"
        );
        let (found, message) = state(both.path(), json!({"server": "/nowhere/llama-server"}));
        assert!(
            found == VerdictState::MissingLibrary && message.contains("is not there"),
            "{message}"
        );
    }

    #[test]
    fn devices_are_listed_with_memory_and_driver() {
        let machine = machine(BOTH);
        let devices = rocm(machine.path(), json!({})).devices().unwrap();
        let found: Vec<_> = devices
            .iter()
            .map(|device| (&*device.id, &*device.kind, device.memory_total))
            .collect();
        assert_eq!(
            found,
            [
                ("0000:03:00.0", "gpu", Some(8 * GIB)),
                ("0000:0e:00.0", "integrated_gpu", Some(16 * GIB))
            ]
        );
        assert_eq!(devices[0].details["driver"], "amdgpu");
        // Which is used, and when.
        let used = |options| {
            let devices = rocm(machine.path(), options).devices().unwrap();
            let conditions = devices
                .into_iter()
                .map(|device| device.details.get("use").cloned());
            conditions.collect::<Vec<_>>()
        };
        let conditions = used(json!({}));
        assert_eq!(conditions[0], None);
        assert!(
            conditions[1]
                .as_ref()
                .unwrap()
                .contains("shares the processor's memory")
        );
        let conditions = used(json!({"device": "0000:0e:00.0"}));
        assert!(
            conditions[0]
                .as_ref()
                .unwrap()
                .contains("another one is used")
        );
        assert_eq!(conditions[1], None);
    }

    #[test]
    fn any_build_tells_of_all_and_chooses_none() {
        let any = |root: &Path| {
            let options = json!({ "server": "/nowhere/llama-server" });
            let options: BTreeMap<_, _> = serde_json::from_value(options).unwrap();
            Bridge::new(Flavour::any("llama_cpp", "1.0.0", root), &options)
        };
        let machine = machine(BOTH);
        let devices = any(machine.path()).devices().unwrap();
        assert_eq!(devices.len(), 2);
        assert!(devices[0].details["use"].contains("this build"));
        let verdict = any(machine.path()).probe();
        assert!(verdict.message.contains("beside AMD graphics"), "{verdict}");
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(any(nothing.path()).devices().unwrap(), []);
        let verdict = any(nothing.path()).probe();
        assert!(
            verdict
                .message
                .ends_with("; no graphics processor in /sys/class/drm or /proc/driver/nvidia/gpus"),
            "{verdict}"
        );
    }

    #[test]
    fn other_runtimes_are_told_in_their_own_words() {
        let gpu = Gpu {
            pci: "0000:17:00.0".into(),
            uuid: Some("GPU-c0ffee".into()),
            index: Some(3),
            ..Gpu::default()
        };
        let set = Gpus::cuda("/".as_ref()).environment(&gpu);
        assert!(set.contains(&("CUDA_VISIBLE_DEVICES".into(), Some("GPU-c0ffee".into()))));
        let set = Gpus::sycl("/".as_ref()).environment(&gpu);
        assert_eq!(
            set,
            [("ONEAPI_DEVICE_SELECTOR".into(), Some("level_zero:3".into()))]
        );
    }

    #[test]
    fn a_load_names_a_device_that_is_there() {
        let machine = machine(BOTH);
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("m.gguf");
        let mut writer = backplane_weights::writer::GgufWriter::new();
        writer.add_meta("general.architecture", "llama");
        writer.write_to(&model).unwrap();
        let options = LoadOptions {
            device: Some("GPU-1234".into()),
            ..LoadOptions::default()
        };
        let error = rocm(machine.path(), json!({}))
            .load(&model, &options)
            .err()
            .unwrap();
        assert_eq!(error.field, "device");
        let any = Flavour::any("llama_cpp", "1.0.0", machine.path());
        let any = Bridge::new(any, &BTreeMap::new());
        assert_eq!(any.load(&model, &options).err().unwrap().field, "device");
    }
}
