//! Which modules crash too often: counted per module, devices and driver, in a file that outlives the host.
//!
//! The file is `crashes.json` in the folder of the user's state: `{ "version": 1, "records": [...] }`, replaced as a whole,
//! under a lock that other hosts take too. One that can't be understood is left alone and not heeded, and a warning says so.

use super::{BUDGET, BUDGET_TIME};
use backplane_plugin_api::types::{DeviceInfo, Verdict, VerdictState};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Version of the file.
const VERSION: u32 = 1;
/// Longest file that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// Most records; those whose last crash is longest ago give way.
const MOST_RECORDS: usize = 256;
/// Longest account of an end that is kept, in characters.
const MOST_HOW: usize = 1000;
/// Time to wait for another host's change.
const LOCK_TIME: Duration = Duration::from_secs(2);

/// A module on certain devices with a certain driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The plugin's name.
    pub plugin: String,
    /// The module's path, for people.
    pub module: String,
    /// SHA-256 of the module, lower-case hexadecimal.
    pub sha256: String,
    /// Identities of its devices; empty where it crashed before it could tell any.
    pub devices: Vec<String>,
    /// Their driver as the plugin tells it, else those of the system's graphics processors.
    pub driver: String,
}

impl Subject {
    fn is(&self, other: &Self) -> bool {
        (&self.sha256, &self.devices, &self.driver)
            == (&other.sha256, &other.devices, &other.driver)
    }

    /// The same once its devices are known.
    pub(crate) fn on(mut self, devices: &[DeviceInfo]) -> Self {
        let drivers: Vec<&str> = devices
            .iter()
            .filter_map(|device| device.details.get("driver"))
            .map(String::as_str)
            .filter(|driver| !driver.is_empty())
            .collect();
        self.devices = devices.iter().map(|device| device.id.clone()).collect();
        if !drivers.is_empty() {
            self.driver = drivers.join(", ");
        }
        self
    }
}

/// One end of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// Seconds since 1970.
    pub at: u64,
    /// How its process ended.
    pub how: String,
}

/// What is known of a subject's crashes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What crashed.
    #[serde(flatten)]
    pub subject: Subject,
    /// The last ends of its workers, the latest last.
    pub crashes: Vec<Crash>,
    /// Whether it is started no more.
    pub quarantined: bool,
}

impl Record {
    /// One without crashes.
    pub(crate) fn of(subject: Subject) -> Self {
        Self {
            subject,
            ..Self::default()
        }
    }

    /// Counts an end.
    pub(crate) fn add(&mut self, how: &str, now: u64) {
        self.forget_old(now);
        let how = how.chars().take(MOST_HOW).collect();
        self.crashes.push(Crash { at: now, how });
        let spare = self.crashes.len().saturating_sub(BUDGET);
        self.crashes.drain(..spare);
        self.quarantined |= self.crashes.len() >= BUDGET;
    }

    fn forget_old(&mut self, now: u64) {
        let window = BUDGET_TIME.as_secs();
        // One in the future was written before the clock was set back.
        self.crashes
            .retain(|crash| crash.at <= now && now - crash.at < window);
    }

    /// The verdict on what is started no more.
    pub(crate) fn verdict(&self) -> Verdict {
        let Subject { plugin, module, .. } = &self.subject;
        let minutes = BUDGET_TIME.as_secs() / 60;
        let (when, how) = self
            .crashes
            .last()
            .map_or((0, "crashed"), |last| (last.at, last.how.as_str()));
        let message = format!(
            "{module}: {BUDGET} crashes within {minutes} minutes, the last on {}: its process {how}",
            date(when)
        );
        let action = format!(
            "`backplane plugins clear {plugin}` has it tried again; so does another module or driver"
        );
        Verdict::unavailable(VerdictState::Quarantined, message, action)
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A time for people, such as `2026-11-30 13:05:07 UTC`.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, in eras of 400 years, so that the day that some years have more comes last.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    records: Vec<Record>,
}

/// The file of a user's records.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    folder: PathBuf,
}

impl Records {
    /// Those in a folder of state.
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            folder: state.to_path_buf(),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("crashes.json")
    }

    /// What is in the file; nothing where there is none, or it can't be understood.
    pub(crate) fn all(&self) -> Vec<Record> {
        self.read().unwrap_or_else(|problem| {
            self.warn(&problem);
            Vec::new()
        })
    }

    /// The record that has a subject started no more.
    pub(crate) fn quarantined(&self, subject: &Subject) -> Option<Record> {
        let all = self.all().into_iter();
        let mut held = all.filter(|record| record.quarantined);
        held.find(|record| record.subject.is(subject))
    }

    /// Counts an end of a worker; gives all that is known of its subject, or `None` where it can't be kept.
    pub(crate) fn count(&self, subject: &Subject, how: &str) -> Option<Record> {
        let counted = self.change(|records| {
            let now = now();
            let mut record = records
                .iter()
                .position(|record| record.subject.is(subject))
                .map_or_else(|| Record::of(subject.clone()), |at| records.remove(at));
            record.subject = subject.clone();
            record.add(how, now);
            records.push(record.clone());
            for record in records.iter_mut().filter(|record| !record.quarantined) {
                record.forget_old(now);
            }
            records.retain(|record| record.quarantined || !record.crashes.is_empty());
            let spare = records.len().saturating_sub(MOST_RECORDS);
            records.drain(..spare);
            record
        });
        counted.map_err(|problem| self.warn(&problem)).ok()
    }

    /// Forgets a plugin; gives what was known of it.
    ///
    /// # Errors
    /// The file can't be understood or written.
    pub(crate) fn clear(&self, plugin: &str) -> Result<Vec<Record>, String> {
        if !self.file().exists() {
            return Ok(Vec::new());
        }
        self.change(|records| {
            let of_plugin = |record: &mut Record| record.subject.plugin == plugin;
            records.extract_if(.., of_plugin).collect()
        })
    }

    fn read(&self) -> Result<Vec<Record>, String> {
        let path = self.file();
        let problem = |what: String| format!("{}: {what}", path.display());
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(file) => file
                .take(MOST_BYTES + 1)
                .read_to_end(&mut bytes)
                .map_err(|error| problem(error.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(problem(error.to_string())),
        };
        if bytes.len() as u64 > MOST_BYTES {
            return Err(problem(format!("longer than {MOST_BYTES} bytes")));
        }
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let parsed = |error: serde_json::Error| problem(format!("no record of crashes: {error}"));
        let Versioned { version } = serde_json::from_slice(&bytes).map_err(parsed)?;
        if version != VERSION {
            let what = format!("has version {version}; this program knows {VERSION}");
            return Err(problem(what));
        }
        let contents: Contents = serde_json::from_slice(&bytes).map_err(parsed)?;
        Ok(contents.records)
    }

    /// Reads, changes and replaces the file while no other host does.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Record>) -> T) -> Result<T, String> {
        let io = |error: io::Error| format!("{}: {error}", self.folder.display());
        std::fs::create_dir_all(&self.folder).map_err(io)?;
        let _lock = self.lock().map_err(io)?;
        let mut records = self.read()?;
        let result = change(&mut records);
        let contents = Contents {
            version: VERSION,
            records,
        };
        let text = serde_json::to_vec_pretty(&contents).map_err(|error| error.to_string())?;
        let fresh = self.folder.join("crashes.json.new");
        let written = File::create(&fresh).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        written
            .and_then(|()| std::fs::rename(&fresh, self.file()))
            .map_err(|error| format!("{}: {error}", fresh.display()))?;
        Ok(result)
    }

    fn lock(&self) -> io::Result<File> {
        let path = self.folder.join("crashes.lock");
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_TIME => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(io::Error::other("crashes.lock is held by another process"));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Says once a process and file that it is not heeded.
    fn warn(&self, problem: &str) {
        static TOLD: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
        let mut told = TOLD
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if !told.contains(&self.folder) {
            told.push(self.folder.clone());
            let advice =
                "crashes of plugins are not remembered; remove the file or mend its permissions";
            tracing::warn!("{problem} ({advice})");
        }
    }
}

/// The drivers of the system's graphics processors, as its files tell them; empty where it has none.
pub(crate) fn system_drivers() -> String {
    let read = |path: String| {
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let driver = |name: &&str| {
        let folder = format!("/sys/module/{name}");
        Path::new(&folder).is_dir().then(|| {
            let version = read(format!("{folder}/version"))
                .or_else(|| read("/proc/sys/kernel/osrelease".to_owned()));
            format!("{name} {}", version.unwrap_or_default())
        })
    };
    let known = ["amdgpu", "nvidia", "i915", "xe"];
    known
        .iter()
        .filter_map(driver)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(plugin: &str) -> Subject {
        Subject {
            plugin: plugin.into(),
            module: format!("/m/{plugin}.so"),
            sha256: plugin.repeat(32),
            devices: vec!["0000:03:00.0".into()],
            driver: "amdgpu 6.1".into(),
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_796_043_907, "2026-11-30 13:05:07 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn only_crashes_of_late_count() {
        let mut record = Record::of(subject("a"));
        let window = BUDGET_TIME.as_secs();
        for at in [1000, 1000 + window, 1001 + window] {
            record.add("ended", at);
            assert!(!record.quarantined, "{at}");
        }
        assert_eq!(record.crashes.len(), 2);
        // A clock that was set back.
        record.add("ended", 500);
        assert_eq!(record.crashes.len(), 1);
        record.add("ended", 501);
        record.add("ended twice", 502);
        assert!(record.quarantined);
        let verdict = record.verdict().to_string();
        assert!(
            verdict.contains("1970-01-01 00:08:22 UTC: its process ended twice"),
            "{verdict}"
        );
        assert!(verdict.contains("plugins clear a"), "{verdict}");
    }

    #[test]
    fn a_quarantine_outlives_the_host_and_is_of_module_devices_and_driver() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::new(&folder.path().join("made/when/needed"));
        let one = subject("a");
        for crash in 1..=BUDGET {
            assert_eq!(records.quarantined(&one), None);
            let record = records.count(&one, "ended by signal 11 (SIGSEGV)").unwrap();
            assert_eq!(record.crashes.len(), crash);
        }
        let again = Records::new(&folder.path().join("made/when/needed"));
        let held = again.quarantined(&one).unwrap();
        assert_eq!(held.crashes.len(), BUDGET);
        let others = [
            Subject {
                sha256: "11".repeat(32),
                ..one.clone()
            },
            Subject {
                devices: Vec::new(),
                ..one.clone()
            },
            Subject {
                driver: "amdgpu 6.2".into(),
                ..one.clone()
            },
        ];
        for other in &others {
            assert_eq!(again.quarantined(other), None, "{other:?}");
        }
        again.count(&subject("b"), "ended").unwrap();
        assert_eq!(again.clear("c").unwrap(), []);
        assert_eq!(again.clear("a").unwrap(), [held]);
        assert_eq!(again.quarantined(&one), None);
        assert_eq!(again.all().len(), 1, "another plugin's record stays");
    }

    #[test]
    fn what_is_no_record_is_left_alone_and_not_heeded() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::new(folder.path());
        let long = format!("{{\"version\": 1, \"records\": [{}]}}", " ".repeat(1 << 20));
        for (text, expected) in [
            ("", "EOF"),
            ("nonsense", "expected"),
            ("{}", "version"),
            (
                "{\"version\": 2, \"records\": []}",
                "has version 2; this program knows 1",
            ),
            ("{\"version\": 1, \"records\": [{}]}", "missing field"),
            ("\u{feff}{}", "expected value"),
            (long.as_str(), "longer than"),
        ] {
            std::fs::write(folder.path().join("crashes.json"), text).unwrap();
            let problem = records.read().unwrap_err();
            assert!(problem.contains(expected), "{problem}");
            assert_eq!(problem.lines().count(), 1, "{problem}");
            assert_eq!(records.all(), []);
            assert_eq!(records.count(&subject("a"), "ended"), None);
            assert!(records.clear("a").is_err());
            let kept = std::fs::read_to_string(folder.path().join("crashes.json")).unwrap();
            assert_eq!(kept, text);
        }
    }

    #[test]
    fn hosts_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for host in 0..4 {
                let records = Records::new(folder.path());
                scope.spawn(move || {
                    for round in 0..8 {
                        let subject = subject(&format!("p{host}"));
                        let subject = Subject {
                            driver: round.to_string(),
                            ..subject
                        };
                        assert!(records.count(&subject, "ended").is_some());
                    }
                });
            }
        });
        let all = Records::new(folder.path()).all();
        assert_eq!(all.len(), 32);
        assert!(all.iter().all(|record| record.crashes.len() == 1));
    }

    #[test]
    fn the_file_does_not_grow_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::new(folder.path());
        let full: Vec<Record> = (0..MOST_RECORDS)
            .map(|at| Record {
                subject: Subject {
                    driver: at.to_string(),
                    ..subject("a")
                },
                crashes: vec![Crash {
                    at: now(),
                    how: "ended".into(),
                }],
                quarantined: true,
            })
            .collect();
        let contents = Contents {
            version: VERSION,
            records: full,
        };
        let text = serde_json::to_string(&contents).unwrap();
        std::fs::write(records.file(), text).unwrap();
        records.count(&subject("b"), &"long ".repeat(1000)).unwrap();
        let all = records.all();
        assert_eq!(all.len(), MOST_RECORDS);
        assert_eq!(all.last().unwrap().subject.plugin, "b");
        assert_eq!(all[0].subject.driver, "1", "the oldest gave way");
    }
}
