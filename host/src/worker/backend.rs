//! A plugin in a worker, as a backend of this process; a new worker after a crash, within a budget.

use super::capability;
use super::link::{Link, StartError, crashed};
use super::message::{Answer, Call};
use super::model::{WorkerModel, take};
use super::{BUDGET, BUDGET_TIME, Isolated, Spec};
use backplane_plugin_api::capability::AnyCapability;
use backplane_plugin_api::sdk::{Backend, Result, TextModel};
use backplane_plugin_api::types::{
    DeviceInfo, Error, ErrorCode, LoadOptions, ModelInfo, Verdict, VerdictState,
};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A plugin whose module is open in a worker.
#[derive(Debug)]
pub(super) struct WorkerBackend {
    spec: Spec,
    name: String,
    version: String,
    contract_version: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    link: Option<Arc<Link>>,
    crashes: Vec<Instant>,
    /// How the last worker ended.
    last_end: Option<String>,
    /// Why no worker is started any more.
    quarantined: Option<String>,
}

impl WorkerBackend {
    pub(super) fn start(spec: Spec) -> std::result::Result<Self, StartError> {
        let link = Link::start(&spec)?;
        let opened = link.opened.clone();
        let state = State {
            link: Some(Arc::new(link)),
            ..State::default()
        };
        Ok(Self {
            spec,
            name: opened.name,
            version: opened.version,
            contract_version: opened.contract_version,
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the worker's end, once.
    fn notice(&self, state: &mut State) {
        let ended = state.link.as_ref().and_then(|link| link.ended());
        if let Some(ended) = ended {
            state.link = None;
            self.count(state, ended);
        }
    }

    fn count(&self, state: &mut State, how: String) {
        let now = Instant::now();
        state
            .crashes
            .retain(|crash| now.duration_since(*crash) < BUDGET_TIME);
        state.crashes.push(now);
        if state.crashes.len() >= BUDGET {
            let minutes = BUDGET_TIME.as_secs() / 60;
            let path = self.spec.path.display();
            let why =
                format!("{path}: {BUDGET} crashes within {minutes} minutes; its process {how}");
            tracing::warn!("plugin `{}` is quarantined: {why}", self.spec.plugin);
            state.quarantined = Some(why);
        }
        state.last_end = Some(how);
    }

    /// The running worker; a new one where the last has crashed.
    fn link(&self) -> Result<Arc<Link>> {
        let mut state = self.state();
        self.notice(&mut state);
        if let Some(link) = &state.link {
            return Ok(link.clone());
        }
        if let Some(why) = &state.quarantined {
            let verdict = quarantined(why);
            return Err(Error::new(ErrorCode::Device, verdict.message).with_action(verdict.action));
        }
        match Link::start(&self.spec) {
            Ok(link) => {
                tracing::info!("plugin `{}` has a new worker", self.spec.plugin);
                Ok(state.link.insert(Arc::new(link)).clone())
            }
            Err(StartError::Crashed(how)) => {
                let verdict = crashed(&self.spec, &how);
                self.count(&mut state, how);
                Err(Error::new(ErrorCode::Device, verdict.message).with_action(verdict.action))
            }
            Err(StartError::Refused(verdict)) => {
                Err(Error::new(ErrorCode::Device, verdict.message).with_action(verdict.action))
            }
            Err(StartError::Program(why)) => Err(Error::new(ErrorCode::Internal, why)),
        }
    }
}

fn quarantined(why: &str) -> Verdict {
    let action = "update the plugin, then start the program again";
    Verdict::unavailable(VerdictState::Quarantined, why, action)
}

impl Isolated for WorkerBackend {
    fn contract_version(&self) -> String {
        self.contract_version.clone()
    }

    fn fallen(&self) -> Option<Verdict> {
        let mut state = self.state();
        self.notice(&mut state);
        if let Some(why) = &state.quarantined {
            return Some(quarantined(why));
        }
        let ended = state.last_end.as_deref().filter(|_| state.link.is_none())?;
        Some(crashed(&self.spec, ended))
    }

    fn quarantined(&self) -> Option<Verdict> {
        let mut state = self.state();
        self.notice(&mut state);
        state.quarantined.as_deref().map(quarantined)
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
        let limit = self.spec.time_limit;
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
            .call_within(Call::Devices, self.spec.time_limit)?;
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
        Ok(Arc::new(WorkerModel::new(link, model, info)))
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
