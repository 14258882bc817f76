//! A plugin in a worker, as a backend of this process; a new worker after a crash, within a budget.

use super::capability::{self, Home};
use super::link::{Link, StartError, crashed};
use super::message::{Answer, Call};
use super::model::{WorkerModel, take};
use super::quarantine::{Record, Subject, now, system_drivers};
use super::{Isolated, PAUSE, Spec};
use backplane_plugin_api::capability::AnyCapability;
use backplane_plugin_api::sdk::{Backend, Result, TextModel};
use backplane_plugin_api::types::{
    DeviceInfo, Error, ErrorCode, LoadOptions, ModelInfo, Verdict, VerdictState,
};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A plugin whose module is open in a worker.
#[derive(Debug)]
pub(super) struct WorkerBackend {
    name: String,
    version: String,
    contract_version: String,
    tally: Arc<Tally>,
    /// The worker; one that has ended is replaced.
    home: Arc<Home>,
}

/// What is counted of a plugin's workers, each end as it comes.
#[derive(Debug)]
struct Tally {
    spec: Spec,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What is known of its crashes.
    record: Record,
    /// Whether that is in the user's file too.
    kept: bool,
    /// How the last worker ended.
    last_end: Option<String>,
    /// Workers that ended, and when the next may be started.
    ends: u32,
    not_before: Option<Instant>,
}

/// What is known of a module before it tells its devices. Its hash is taken when it is needed.
fn subject(spec: &Spec) -> Subject {
    Subject {
        plugin: spec.plugin.clone(),
        module: spec.path.display().to_string(),
        sha256: String::new(),
        devices: Vec::new(),
        driver: system_drivers(),
    }
}

/// The verdict of an earlier host on a module that crashed before it could tell its devices.
pub(super) fn quarantined_before(spec: &Spec) -> Option<Verdict> {
    let subject = subject(spec);
    let record = held(spec, &subject)?;
    Some(record.verdict())
}

/// The record that has a module started no more. It is hashed only where its plugin has such a record.
fn held(spec: &Spec, subject: &Subject) -> Option<Record> {
    let records = spec.records.as_ref()?;
    let of_plugin = |record: &Record| record.quarantined && record.subject.plugin == spec.plugin;
    if !records.all().iter().any(of_plugin) {
        return None;
    }
    let sha256 = spec.identity.sha256()?;
    let subject = Subject {
        sha256,
        ..subject.clone()
    };
    records.quarantined(&subject)
}

/// Counts an end of a worker, in the user's file where there is one; also whether it is there.
fn count(spec: &Spec, mut record: Record, how: &str) -> (Record, bool) {
    let kept = spec.records.as_ref().zip(spec.identity.sha256());
    let kept = kept.and_then(|(records, sha256)| {
        record.subject.sha256 = sha256;
        records.count(&record.subject, how)
    });
    match kept {
        Some(kept) => (kept, true),
        None => {
            record.add(how, now());
            (record, false)
        }
    }
}

impl Tally {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, how: &str) {
        let mut state = self.state();
        let record = state.record.clone();
        (state.record, state.kept) = count(&self.spec, record, how);
        if state.record.quarantined {
            let why = state.record.verdict().message;
            tracing::warn!("plugin `{}` is quarantined: {why}", self.spec.plugin);
        }
        let pause = PAUSE * 4_u32.saturating_pow(state.ends).min(64);
        state.ends += 1;
        state.not_before = Some(Instant::now() + pause);
        state.last_end = Some(how.to_owned());
    }

    /// The verdict on what is started no more. Lifts a quarantine that somebody has cleared in the user's file.
    fn quarantined(&self) -> Option<Verdict> {
        let mut state = self.state();
        if !state.record.quarantined {
            return None;
        }
        if state.kept && held(&self.spec, &state.record.subject).is_none() {
            tracing::info!("plugin `{}` may be started again", self.spec.plugin);
            state.record = Record::of(state.record.subject.clone());
            (state.ends, state.not_before) = (0, None);
            return None;
        }
        Some(state.record.verdict())
    }

    /// Time until a worker may be started again.
    fn pause(&self) -> Duration {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        self.state().not_before.map_or(Duration::ZERO, left)
    }
}

/// Starts a worker whose end is counted.
fn start_link(tally: &Arc<Tally>) -> std::result::Result<Link, StartError> {
    let counter = tally.clone();
    let link = Link::start(&tally.spec, move |how| counter.count(how));
    if let Err(StartError::Crashed(how)) = &link {
        tally.count(how);
    }
    link
}

impl WorkerBackend {
    pub(super) fn start(spec: Spec) -> std::result::Result<Self, StartError> {
        let state = State {
            record: Record::of(subject(&spec)),
            kept: false,
            last_end: None,
            ends: 0,
            not_before: None,
        };
        let state = Mutex::new(state);
        let tally = Arc::new(Tally { spec, state });
        let link = start_link(&tally)?;
        let opened = link.opened.clone();
        Ok(Self {
            name: opened.name,
            version: opened.version,
            contract_version: opened.contract_version,
            tally,
            home: Home::of(link),
        })
    }

    fn spec(&self) -> &Spec {
        &self.tally.spec
    }

    /// The worker, unless it has ended.
    fn running(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.home.running()
    }

    /// The running worker; a new one where the last has ended, after a pause that grows.
    fn link(&self) -> Result<Arc<Link>> {
        loop {
            let mut running = self.running();
            if let Some(link) = &*running {
                return Ok(link.clone());
            }
            if let Some(verdict) = self.tally.quarantined() {
                return Err(error_of(verdict));
            }
            let pause = self.tally.pause();
            if !pause.is_zero() {
                drop(running);
                std::thread::sleep(pause);
                continue;
            }
            return match start_link(&self.tally) {
                Ok(link) => {
                    tracing::info!("plugin `{}` has a new worker", self.spec().plugin);
                    self.tally.state().last_end = None;
                    Ok(running.insert(Arc::new(link)).clone())
                }
                Err(StartError::Crashed(how)) => Err(error_of(crashed(self.spec(), &how))),
                Err(StartError::Refused(verdict)) => Err(error_of(verdict)),
                Err(StartError::Program(why)) => Err(Error::new(ErrorCode::Internal, why)),
            };
        }
    }
}

fn error_of(verdict: Verdict) -> Error {
    Error::new(ErrorCode::Device, verdict.message).with_action(verdict.action)
}

impl Isolated for WorkerBackend {
    fn contract_version(&self) -> String {
        self.contract_version.clone()
    }

    fn fallen(&self) -> Option<Verdict> {
        if let Some(verdict) = self.tally.quarantined() {
            return Some(verdict);
        }
        if self.running().is_some() {
            return None;
        }
        // One that came after it, and has ended in order, is no crash.
        let ended = self.tally.state().last_end.clone()?;
        Some(crashed(self.spec(), &ended))
    }

    fn quarantined(&self) -> Option<Verdict> {
        self.tally.quarantined()
    }

    fn runs_on(&self, devices: &[DeviceInfo]) -> Option<Verdict> {
        let subject = subject(self.spec()).on(devices);
        let held = held(self.spec(), &subject);
        let mut state = self.tally.state();
        match held {
            Some(record) => (state.record, state.kept) = (record, true),
            None => state.record.subject = subject,
        }
        let record = &state.record;
        record.quarantined.then(|| record.verdict())
    }
}

impl Backend for WorkerBackend {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn probe(&self) -> Verdict {
        let limit = self.spec().time_limit;
        let answer = self
            .link()
            .and_then(|link| link.call_within(Call::Probe, limit))
            .and_then(|answer| take!(answer, Answer::Verdict(verdict) => verdict));
        answer.unwrap_or_else(|error| {
            self.fallen().unwrap_or_else(|| {
                Verdict::unavailable(VerdictState::Crashed, error.message, error.action)
            })
        })
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let answer = self
            .link()?
            .call_within(Call::Devices, self.spec().time_limit)?;
        take!(answer, Answer::Devices(devices) => devices)
    }

    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
        let path = path.into();
        let answer = self.link()?.call(Call::Inspect { path })?;
        let info = take!(answer, Answer::Info(info) => info)?;
        Ok(info.map(|info| (*info).into()))
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        let link = self.link()?;
        let (path, options) = (path.into(), options.clone());
        let answer = link.call(Call::Load { path, options })?;
        let (model, info) =
            take!(answer, Answer::Loaded { model, info } => (model, (*info).into()))?;
        Ok(Arc::new(WorkerModel::new(
            link,
            self.home.clone(),
            model,
            info,
        )))
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        match self.link() {
            Ok(link) => capability::of_backend(&link, name),
            Err(error) => {
                tracing::warn!("{error}");
                None
            }
        }
    }
}
