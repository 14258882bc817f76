//! Machines made of files.
#![allow(clippy::unwrap_used)]

use backplane_machine::{Gpu, Nvml, NvmlError, all, amd, find, intel, nvidia, preferred};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const GIB: u64 = 1 << 30;

struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn card(&self, number: u32, vendor: &str, pci: &str, driver: &str) -> String {
        let device = format!("sys/class/drm/card{number}/device");
        self.write(&format!("{device}/vendor"), format!("{vendor}\n"))
            .write(&format!("{device}/device"), "0x744c\n")
            .write(
                &format!("{device}/uevent"),
                format!("DRIVER={driver}\nPCI_SLOT_NAME={pci}\n"),
            );
        device
    }

    fn amd(&self, number: u32, pci: &str, total: u64, used: u64) {
        let device = self.card(number, "0x1002", pci, "amdgpu");
        self.write(
            &format!("{device}/mem_info_vram_total"),
            format!("{total}\n"),
        )
        .write(&format!("{device}/mem_info_vram_used"), format!("{used}\n"));
    }

    fn node(&self, number: u32, properties: &str) {
        self.write(
            &format!("sys/class/kfd/kfd/topology/nodes/{number}/properties"),
            properties,
        );
    }
}

fn pci(gpu: Option<&Gpu>) -> &str {
    &gpu.unwrap().pci
}

#[test]
fn a_discrete_one_beside_an_integrated_one_with_more_memory() {
    let machine = Machine::new();
    machine.amd(0, "0000:0e:00.0", 16 * GIB, GIB);
    machine.amd(1, "0000:03:00.0", 8 * GIB, 3 * GIB);
    // Node 0 is the processor alone; the integrated one has cores of it.
    machine.node(0, "cpu_cores_count 16\nsimd_count 0\n");
    machine.node(1, "cpu_cores_count 0\nsimd_count 120\nlocation_id 768\ndomain 0\nunique_id 6853467230947421040\ngfx_target_version 110001\n");
    machine.node(2, "cpu_cores_count 16\nsimd_count 4\nlocation_id 3584\ndomain 0\nunique_id 0\ngfx_target_version 100306\n");
    machine.write("sys/module/amdgpu/version", "6.8.5\n");
    let gpus = amd(machine.root());
    assert_eq!(gpus.len(), 2);
    let (discrete, integrated) = (&gpus[0], &gpus[1]);
    assert_eq!(preferred(&gpus), Some(discrete));
    assert_eq!(
        discrete.id(),
        format!("GPU-{:016x}", 6_853_467_230_947_421_040_u64)
    );
    assert_eq!((discrete.index, integrated.index), (Some(0), Some(1)));
    assert_eq!(discrete.memory_free(), Some(5 * GIB));
    assert_eq!(discrete.driver, "amdgpu 6.8.5");
    assert_eq!(discrete.details["architecture"], "gfx1101");
    assert!(integrated.integrated && !discrete.integrated);
    assert_eq!(integrated.id(), "0000:0e:00.0");
    // By any of its names, never by a number.
    for id in [
        "0000:03:00.0",
        "03:00.0",
        discrete.id(),
        &discrete.id().to_uppercase(),
    ] {
        assert_eq!(find(&gpus, id), Some(discrete), "{id}");
    }
    assert_eq!((find(&gpus, "0"), find(&gpus, "")), (None, None));
}

#[test]
fn the_largest_where_the_system_does_not_say_which_is_integrated() {
    let machine = Machine::new();
    machine.amd(0, "0000:0e:00.0", GIB / 2, 0);
    machine.amd(1, "0000:03:00.0", 24 * GIB, 0);
    assert_eq!(pci(preferred(&amd(machine.root()))), "0000:03:00.0");
    // Cards of another vendor and connectors are none of them.
    machine.card(2, "0x10de", "0000:04:00.0", "nvidia");
    machine.write("sys/class/drm/card1-DP-1/status", "connected");
    assert_eq!(amd(machine.root()).len(), 2);
}

#[test]
fn odd_files_make_fields_unknown() {
    let machine = Machine::new();
    assert_eq!(amd(machine.root()), []);
    assert_eq!(preferred(&[]), None);
    for odd in ["", "many\n", "-1\n", "99999999999999999999999\n", "\0\0\0"] {
        let machine = Machine::new();
        let device = machine.card(0, "0x1002", "0000:03:00.0", "amdgpu");
        machine.write(&format!("{device}/mem_info_vram_total"), odd);
        machine.write(&format!("{device}/mem_info_vram_used"), "5\n");
        machine.node(1, odd);
        let gpus = amd(machine.root());
        assert_eq!(gpus.len(), 1, "{odd:?}");
        assert_eq!(
            (gpus[0].memory_total, gpus[0].memory_free()),
            (None, None),
            "{odd:?}"
        );
    }
    let machine = Machine::new();
    // Read one after the other, use may have grown past the total that was read.
    machine.amd(0, "0000:03:00.0", GIB, 2 * GIB);
    assert_eq!(amd(machine.root())[0].memory_free(), Some(0));
    machine.write("sys/class/drm/card7/device/vendor", [0xff, 0xfe]);
    machine.write("sys/class/drm/card8/device/vendor", "0x1002\n");
    assert_eq!(amd(machine.root()).len(), 1);
}

#[test]
fn intel_counts_those_that_render() {
    let machine = Machine::new();
    let device = machine.card(0, "0x8086", "0000:00:02.0", "i915");
    machine.write(&format!("{device}/drm/renderD128/dev"), "226:128");
    let device = machine.card(1, "0x8086", "0000:03:00.0", "xe");
    machine.write(&format!("{device}/drm/renderD129/dev"), "226:129");
    machine.write(
        "sys/class/drm/card1/lmem_total_bytes",
        format!("{}\n", 16 * GIB),
    );
    machine.write(
        "sys/class/drm/card1/lmem_avail_bytes",
        format!("{}\n", 12 * GIB),
    );
    machine.card(2, "0x8086", "0000:05:00.0", "mgag200");
    let gpus = intel(machine.root());
    assert_eq!(gpus.len(), 2);
    assert_eq!(pci(preferred(&gpus)), "0000:03:00.0");
    assert!(gpus[0].integrated && !gpus[1].integrated);
    assert_eq!(gpus[1].memory_free(), Some(12 * GIB));
}

#[test]
fn every_vendor_on_one_machine() {
    let machine = Machine::new();
    assert_eq!(all(machine.root(), None), []);
    machine.amd(0, "0000:03:00.0", GIB, 0);
    let device = machine.card(1, "0x8086", "0000:00:02.0", "i915");
    machine.write(&format!("{device}/drm/renderD128/dev"), "226:128");
    machine.write(
        "proc/driver/nvidia/gpus/0000:17:00.0/information",
        INFORMATION,
    );
    let found = all(machine.root(), None);
    let places: Vec<_> = found.iter().map(|gpu| &*gpu.pci).collect();
    assert_eq!(places, ["0000:03:00.0", "0000:17:00.0", "0000:00:02.0"]);
}

/// Files of a running system change between two reads, and devices come and go: whatever is read, no field contradicts another.
#[test]
fn files_that_change_while_they_are_read() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let machine = Machine::new();
    machine.amd(0, "0000:03:00.0", 8 * GIB, 0);
    let device = "sys/class/drm/card0/device";
    let (done, root) = (AtomicBool::new(false), machine.root());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let path = |name: &str| root.join(device).join(name);
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                // Not at once: readers see the empty and the half-written file too.
                std::fs::write(
                    path("mem_info_vram_used"),
                    format!("{}\n", round % 17 * GIB),
                )
                .unwrap();
                if round % 3 == 0 {
                    let _ = std::fs::remove_file(path("mem_info_vram_total"));
                } else {
                    std::fs::write(path("mem_info_vram_total"), format!("{}\n", 8 * GIB)).unwrap();
                }
                if round % 5 == 0 {
                    std::fs::remove_file(path("vendor")).unwrap();
                    std::fs::write(path("vendor"), "0x1002\n").unwrap();
                }
            }
        });
        for _ in 0..2000 {
            for gpu in amd(root) {
                assert_eq!(gpu.pci, "0000:03:00.0");
                if let Some(free) = gpu.memory_free() {
                    assert!(free <= gpu.memory_total.unwrap());
                }
                assert!(gpu.memory_used.is_none() || gpu.memory_total.is_some());
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

const INFORMATION: &str = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t GPU-c0ffee00-1111-2222-3333-444455556666\nBus Type: \t PCIe\n";
const VERSION: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version: 12\n";

/// A management library that knows one device.
fn fake_nvml(folder: &Path) -> std::path::PathBuf {
    let source = folder.join("nvml.c");
    let library = folder.join("libnvidia-ml.so.1");
    let code = r#"
        #include <string.h>
        static int ready;
        struct memory { unsigned long long total, free, used; };
        int nvmlInit_v2(void) { ready = 1; return 0; }
        int nvmlShutdown(void) { ready = 0; return 0; }
        int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device) {
            if (!ready) return 1;
            if (strcmp(pci, "0000:17:00.0")) return 6;
            *device = &ready;
            return 0;
        }
        int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
            if (device != &ready) return 2;
            memory->total = 1000; memory->free = 400; memory->used = 600;
            return 0;
        }
    "#;
    std::fs::write(&source, code).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(built.unwrap().success());
    library
}

#[test]
fn nvidia_by_the_drivers_files_and_library() {
    let machine = Machine::new();
    assert_eq!(nvidia(machine.root(), None), []);
    machine
        .write("proc/driver/nvidia/version", VERSION)
        .write(
            "proc/driver/nvidia/gpus/0000:17:00.0/information",
            INFORMATION,
        )
        .write(
            "proc/driver/nvidia/gpus/0000:0A:00.0/information",
            "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????\n",
        );
    let gpus = nvidia(machine.root(), None);
    assert_eq!(
        gpus.iter().map(|gpu| &*gpu.pci).collect::<Vec<_>>(),
        ["0000:0a:00.0", "0000:17:00.0"]
    );
    assert_eq!(gpus[0].id(), "0000:0a:00.0");
    let gpu = &gpus[1];
    assert_eq!(gpu.id(), "GPU-c0ffee00-1111-2222-3333-444455556666");
    assert_eq!(
        (&*gpu.name, &*gpu.driver),
        ("NVIDIA H200", "nvidia 550.54.14")
    );
    assert_eq!(gpu.memory_total, None);

    let library = fake_nvml(machine.root());
    let nvml = Nvml::open(library.as_os_str()).unwrap();
    let gpus = nvidia(machine.root(), Some(&nvml));
    assert_eq!(
        (gpus[1].memory_total, gpus[1].memory_free()),
        (Some(1000), Some(400))
    );
    assert_eq!(gpus[0].memory_total, None);
    assert_eq!(nvml.memory("0000:0a:00.0"), Err(NvmlError::Code(6)));
    assert!(matches!(
        Nvml::open("libnowhere-ml.so.9".as_ref()),
        Err(NvmlError::Library(_))
    ));
}
