//! A test plugin that does on demand what plugins must not do.
//!
//! Left alone it is the echo engine. Its options say what it does where: `in` names the call (`new`, `probe`, `devices`,
//! `inspect`, `load`, `tokenize`, `close`, `generate`: at its begin, `decode`: at its third token), `does` an array of what it
//! does there, one after the other:
//!
//! | word | what |
//! |---|---|
//! | `panic`, `abort`, `fault`, `exit` | panics; ends the process by SIGABRT, by SIGSEGV, with status 0 |
//! | `hang` | never returns |
//! | `eat` | takes memory, 1 GiB at most, then never returns |
//! | `print` | writes a line to standard output and one to standard error |
//! | `fork` | starts a child in its group and one that leaves it; their process ids go to the file that `pids` names |
//! | `invalid_utf8` | tells a token that is no UTF-8 (where it generates) |
//! | `endless` | tells tokens for ever, whatever it is answered (where it generates) |
//! | `ignore_stop` | goes on when it is told to stop (where it generates) |
//!
//! All other options are the echo engine's. What happens before options are read is said by the environment variable
//! `BACKPLANE_HOSTILE`: `constructor:WORD` and `root:WORD` do a word while the library is opened and while it gives its root
//! module; `version:TEXT` and `contract:TEXT` have it state these versions.

mod export;
mod model;

use backplane_echo_engine::EchoBackend;
use backplane_plugin_api::{
    AnyCapability, Backend, Context, DeviceInfo, LoadOptions, ModelInfo, Result, TextModel, Verdict,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The environment variable.
const VARIABLE: &str = "BACKPLANE_HOSTILE";

/// What the environment variable says of `key`.
fn told(key: &str) -> Option<String> {
    let value = std::env::var(VARIABLE).ok()?;
    Some(value.strip_prefix(key)?.strip_prefix(':')?.to_owned())
}

/// What is done, and where.
#[derive(Debug, Default)]
struct Deed {
    place: String,
    words: Vec<String>,
    pids: Option<PathBuf>,
}

impl Deed {
    fn enter(&self, place: &str) {
        if self.place == place {
            for word in &self.words {
                act(word, self.pids.as_deref());
            }
        }
    }

    fn does(&self, place: &str, word: &str) -> bool {
        self.place == place && self.words.iter().any(|one| one == word)
    }
}

/// Does what a word says.
fn act(word: &str, pids: Option<&Path>) {
    match word {
        "panic" => panic!("told to panic"),
        "abort" => std::process::abort(),
        "fault" => fault(),
        "exit" => std::process::exit(0),
        "hang" => hang(),
        "eat" => eat(),
        "print" => {
            println!("{{\"noise\": \"on standard output\"}}");
            eprintln!("noise on standard error");
        }
        "fork" => fork(pids),
        _ => {}
    }
}

fn fault() {
    // SAFETY: none; the page is never mapped, and the fault is what is asked for.
    let byte = unsafe { std::ptr::read_volatile(std::hint::black_box(8) as *const u8) };
    println!("{byte}");
}

fn hang() {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn eat() {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for _ in 0..64 {
        kept.push(vec![1; 16 << 20]);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::hint::black_box(&kept);
    hang();
}

fn fork(pids: Option<&Path>) {
    use std::os::unix::process::CommandExt;
    let start = |leaves: bool| {
        let mut command = Command::new("sleep");
        command.arg("300").stdin(Stdio::null());
        if leaves {
            command.process_group(0);
        }
        command.spawn().map_or(0, |child| child.id())
    };
    let text = format!("{}\n{}\n", start(false), start(true));
    if let Some(path) = pids {
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, text)
            .and_then(|()| std::fs::rename(&fresh, path))
            .expect("the file is writable");
    }
}

struct Hostile {
    inner: EchoBackend,
    deed: Arc<Deed>,
}

fn backend(mut context: Context) -> Result<Hostile> {
    let text = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let place = context.options.remove("in").map(text).unwrap_or_default();
    let words = context.options.remove("does");
    let words = words
        .map(serde_json::from_value)
        .and_then(|words| words.ok());
    let pids = context.options.remove("pids").map(text).map(PathBuf::from);
    let deed = Deed {
        place,
        words: words.unwrap_or_default(),
        pids,
    };
    deed.enter("new");
    Ok(Hostile {
        inner: EchoBackend::new("hostile", env!("CARGO_PKG_VERSION"), context)?,
        deed: Arc::new(deed),
    })
}

impl Backend for Hostile {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn version(&self) -> String {
        self.inner.version()
    }

    fn probe(&self) -> Verdict {
        self.deed.enter("probe");
        self.inner.probe()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        self.deed.enter("devices");
        self.inner.devices()
    }

    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
        self.deed.enter("inspect");
        self.inner.inspect(path)
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        self.deed.enter("load");
        let inner = self.inner.load(path, options)?;
        let deed = self.deed.clone();
        Ok(Arc::new(model::HostileModel { inner, deed }))
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        self.inner.capability(name)
    }
}
