//! `devices` through the staged program, on machines made of files.
#![cfg(target_os = "linux")]

use backplane_tests::{Ran, command, host};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const GIB: u64 = 1 << 30;

/// A user, and the machine below their folder.
struct User(TempDir);

impl User {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join("machine").join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// An AMD card with its compute node: number, PCI address, memory as the kernel tells it, whether it is one with the processor.
    fn amd(&self, number: u32, pci: &str, total: &str, used: &str, integrated: bool) {
        let device = format!("sys/class/drm/card{number}/device");
        self.write(&format!("{device}/vendor"), "0x1002\n");
        self.write(
            &format!("{device}/uevent"),
            format!("DRIVER=amdgpu\nPCI_SLOT_NAME={pci}\n"),
        );
        self.write(&format!("{device}/mem_info_vram_total"), total);
        self.write(&format!("{device}/mem_info_vram_used"), used);
        let bus = u64::from_str_radix(&pci[5..7], 16).expect("a bus") << 8;
        let cores = if integrated { 16 } else { 0 };
        self.write(
            &format!("sys/class/kfd/kfd/topology/nodes/{number}/properties"),
            format!("cpu_cores_count {cores}\nsimd_count 8\nlocation_id {bus}\ndomain 0\nunique_id {}\n", number * 17),
        );
    }

    /// Runs `devices`, with all plugins of the distribution, those for certain hardware too.
    fn devices(&self, server: Option<&Path>, arguments: &[&str]) -> Ran {
        let home = self.0.path();
        std::fs::create_dir_all(home.join("machine")).expect("a folder");
        let (plugins, extra) = (
            host().with_file_name("plugins"),
            host().with_file_name("extra"),
        );
        let manifest = home.join("plugins.toml");
        let text = format!("directories = [{plugins:?}, {extra:?}]\n");
        std::fs::write(&manifest, text).expect("a manifest");
        let manifest = manifest.to_str().expect("a UTF-8 path").to_owned();
        let all = [&["--manifest", &manifest, "devices"][..], arguments].concat();
        let mut command = command(home, &all);
        command
            .env("PATH", "/usr/bin:/bin")
            .env("BACKPLANE_MACHINE_ROOT", home.join("machine"))
            .env_remove("LLAMA_SERVER_PATH");
        if let Some(server) = server {
            command.env("LLAMA_SERVER_PATH", server);
        }
        command.output().expect("the program starts").into()
    }

    /// A program that only tells its version, as probes ask for it.
    fn server(&self) -> PathBuf {
        let path = self.write("llama-server", "#!/bin/sh\necho 'version: 7 (abc)'\n");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
        path
    }
}

fn devices(found: &Value) -> &Vec<Value> {
    found["devices"].as_array().expect("devices")
}

#[test]
fn a_machine_without_a_gpu_has_its_processor_and_says_who_looked_where() {
    let user = User::new();
    let found = user.devices(None, &["--json"]).json();
    assert_eq!(devices(&found).len(), 1);
    let cpu = &devices(&found)[0];
    assert_eq!(
        (&cpu["id"], &cpu["kind"], &cpu["used_by"]),
        (&"cpu".into(), &"cpu".into(), &"cpu".into())
    );
    let number = |key: &str| cpu[key].as_u64().expect("a number");
    assert!(number("memory_total") > GIB / 4);
    assert_eq!(
        number("memory_total"),
        number("memory_used") + number("memory_free")
    );
    assert!(
        cpu["details"]["features"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    let notice = found["notice"].as_str().expect("a notice");
    for told in [
        "no graphics processor was found",
        "rocm: no device: /dev/kfd is missing",
        "cuda: no device: /dev/nvidiactl is missing",
        "sycl: no device: /dev/dri is missing",
        "no graphics processor in /sys/class/drm or /proc/driver/nvidia/gpus",
    ] {
        assert!(notice.contains(told), "{told}: {notice}");
    }
    let ran = user.devices(None, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 4, "{}", ran.out);
    assert!(
        lines[0].trim_start().starts_with("ID ") && lines[1].trim_start().starts_with("cpu "),
        "{}",
        ran.out
    );
    // Which kernels it has, and where nothing was found.
    assert!(lines[2].starts_with("cpu: "), "{}", ran.out);
    assert!(
        lines[3].starts_with("no graphics processor was found; "),
        "{}",
        ran.out
    );
}

#[test]
fn an_integrated_one_beside_a_discrete_one() {
    let user = User::new();
    user.write("dev/kfd", "");
    user.amd(1, "0000:0e:00.0", &format!("{}\n", 16 * GIB), "0\n", true);
    user.amd(
        2,
        "0000:03:00.0",
        &format!("{}\n", 8 * GIB),
        &format!("{}\n", 3 * GIB),
        false,
    );
    let server = user.server();
    let found = user.devices(Some(&server), &["--json"]).json();
    assert_eq!(found["notice"], Value::Null);
    assert_eq!(devices(&found).len(), 3);
    let (discrete, integrated) = (&devices(&found)[0], &devices(&found)[1]);
    assert_eq!(discrete["id"], format!("GPU-{:016x}", 34));
    assert_eq!(discrete["details"]["pci"], "0000:03:00.0");
    assert_eq!(
        (&discrete["kind"], &discrete["used_by"]),
        (&"discrete".into(), &"rocm".into())
    );
    let memory = ["memory_total", "memory_used", "memory_free"].map(|key| discrete[key].as_u64());
    assert_eq!(memory, [Some(8 * GIB), Some(3 * GIB), Some(5 * GIB)]);
    assert_eq!(
        (&discrete["driver"], &discrete["reason"]),
        (&"amdgpu".into(), &Value::Null)
    );
    assert_eq!(
        (&integrated["kind"], &integrated["used_by"]),
        (&"integrated".into(), &Value::Null)
    );
    let reason = integrated["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("rocm: only where the option `device` names it"),
        "{reason}"
    );
    assert!(reason.contains("llama_cpp: if this build"), "{reason}");
    let names: Vec<_> = discrete["plugins"]
        .as_array()
        .expect("plugins")
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["rocm", "llama_cpp"]);

    // The table has them, and why the integrated one is left alone.
    let shown = user.devices(Some(&server), &[]).out;
    assert!(
        shown.contains("discrete") && shown.contains("8.0 GiB"),
        "{shown}"
    );
    assert!(shown.contains("shares the processor's memory"), "{shown}");
}

#[test]
fn what_can_not_be_used_says_why() {
    let user = User::new();
    user.write("dev/kfd", "");
    // The second one's files are odd: its memory is not known, and it is a device all the same.
    user.amd(
        1,
        "0000:03:00.0",
        &format!("{}\n", 8 * GIB),
        &format!("{}\n", 9 * GIB),
        false,
    );
    user.amd(2, "0000:04:00.0", "-1\n", "99999999999999999999\n", false);
    user.write(
        "proc/driver/nvidia/gpus/0000:17:00.0/information",
        "Model: \t\t NVIDIA Fake\nGPU UUID: \t GPU-c0ffee00\n",
    );
    let found = user.devices(None, &["--json"]).json();
    let by = |id: &str| {
        let found = devices(&found).iter().find(|device| device["id"] == id);
        found.unwrap_or_else(|| panic!("{id} is not listed: {found:?}"))
    };
    let full = by(&format!("GPU-{:016x}", 17));
    assert_eq!(
        (&full["memory_free"], &full["memory_used"]),
        (&0.into(), &(8 * GIB).into())
    );
    assert_eq!(full["used_by"], Value::Null);
    let reason = full["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("rocm: absent: no llama-server on the PATH"),
        "{reason}"
    );
    let odd = by(&format!("GPU-{:016x}", 34));
    assert_eq!(
        (&odd["memory_total"], &odd["memory_free"]),
        (&Value::Null, &Value::Null)
    );
    let nvidia = by("GPU-c0ffee00");
    let reason = nvidia["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("cuda: no device: /dev/nvidiactl is missing"),
        "{reason}"
    );
}
