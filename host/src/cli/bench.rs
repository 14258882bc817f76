//! `bench`: how fast a model runs here, through the whole stack, and what this machine could do at most.
//!
//! Every configuration (where the backend runs, how many threads) reads a prompt of token ids, and generates from one token,
//! alone and several sequences together; configurations of the same number of threads take turns, so that the machine's
//! moods meet all of them. Times are taken where the events arrive: whatever lies between the engine and the caller counts.

mod figures;
mod measure;
mod report;
mod speculation;

use super::arguments::{Bench, Global};
use super::interrupt::Interrupt;
use super::progress::Bar;
use super::{output, registry};
use crate::error::{Error, Result};
use crate::manifest::{Isolation, PluginEntry};
use crate::registry::{Model, ModelOptions, Registry};
use backplane_plugin_api::capability::Progress;
use backplane_plugin_api::types::{Control, LoadOptions};
use figures::Samples;
use measure::{Clock, Ids, decode, prefill};
use speculation::{Drafting, TEXTS};
use std::process::ExitCode;

/// Most repetitions.
const MAX_REPEAT: u32 = 1000;
/// Most sequences together: as many as any engine of this repository takes.
const MAX_SEQUENCES: u32 = 256;
/// Most threads.
const MAX_THREADS: u32 = 1024;

/// What one configuration showed.
struct Row {
    isolation: Isolation,
    /// `None`: the backend's choice.
    threads: Option<u32>,
    load_s: f64,
    /// The kernels that ran, as the backend says.
    runs: Option<String>,
    device: Option<String>,
    /// Prompt tokens per second.
    prefill: Samples,
    /// Seconds from the call to the first token's arrival.
    first_token: Samples,
    /// Of so many sequences together: tokens per second, all of them counted.
    decode: Vec<(u32, Samples)>,
    /// Of each of the texts, where they were asked for.
    drafting: Vec<Drafting>,
    /// Of the process that ran it, up to its last run.
    peak_memory: Option<u64>,
    limits: Option<backplane_plugin_api::PeaksReport>,
}

pub(super) fn bench(global: &Global, verb: &Bench) -> Result<ExitCode> {
    check(verb)?;
    let interrupt = Interrupt::catch(true)?;
    let mut bar = Bar::new(global)?;
    let registry = registry(global)?;
    let backend = fitting(&registry, verb)?;
    let isolations = match verb.isolation.as_slice() {
        [] => vec![of_manifest(&registry, &backend)],
        given => given.to_vec(),
    };
    let registries: Vec<Registry> = isolations
        .iter()
        .map(|isolation| isolated(&registry, &backend, *isolation))
        .collect();
    let threads: Vec<Option<u32>> = match verb.threads.as_slice() {
        [] => vec![None],
        given => given.iter().copied().map(Some).collect(),
    };
    let mut session = Session {
        verb,
        backend: &backend,
        clock: Clock::new(interrupt),
        ids: Ids::default(),
        done: 0,
        total: threads.len() as u64
            * isolations.len() as u64
            * u64::from(verb.repeat)
            * (1 + verb.batch.len() + texts(verb).len()) as u64,
    };
    let mut rows = Vec::new();
    for &threads in &threads {
        let measured = session.measure(&registries, &isolations, threads, &mut bar);
        rows.extend(bar.end(measured)?);
    }
    // Last: the buffer that is read is as large as the model, and would count as its memory.
    for row in &mut rows {
        let at = isolations.iter().position(|one| *one == row.isolation);
        let Some(registry) = at.and_then(|at| registries.get(at)) else {
            continue;
        };
        let model = session.load(registry, row.threads)?;
        let limits = model.peaks(&mut bar);
        row.limits = bar.end(limits)?;
    }
    let model = registry.catalog().resolve(&verb.model)?;
    if verb.json {
        output::json(&report::as_json(verb, &model, &backend, &rows))?;
    } else {
        output::line(&report::as_text(verb, &model, &backend, &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses what can't be measured.
fn check(verb: &Bench) -> Result<()> {
    let lists = [
        ("--threads", &verb.threads, MAX_THREADS),
        ("--batch", &verb.batch, MAX_SEQUENCES),
        ("--repeat", &vec![verb.repeat], MAX_REPEAT),
    ];
    for (option, values, most) in lists {
        if let Some(value) = values.iter().find(|value| **value > most) {
            let message = format!("{option} {value}: expected 1 to {most}");
            return Err(Error::usage(message, "give a smaller number"));
        }
        once(option, values, u32::to_string)?;
    }
    once("--isolation", &verb.isolation, |isolation| {
        report::word(*isolation).to_owned()
    })
}

fn once<T: PartialEq>(option: &str, values: &[T], name: impl Fn(&T) -> String) -> Result<()> {
    let twice = values
        .iter()
        .enumerate()
        .find(|(at, value)| values[..*at].contains(value));
    twice.map_or(Ok(()), |(_, value)| {
        let message = format!("{option}: {} is there twice", name(value));
        Err(Error::usage(message, "name each once"))
    })
}

/// Tokens that a sequence of either kind may take: the prompt and what comes after it; a decode begins with one token and
/// ends with one that is not read.
fn context(verb: &Bench) -> u64 {
    let (prompt, generate) = (u64::from(verb.prompt), u64::from(verb.generate));
    let read = match texts(verb) {
        [] => 2,
        _ => speculation::PROMPT,
    };
    (prompt + generate).max(generate + read)
}

/// The texts that are generated with and without drafts.
fn texts(verb: &Bench) -> &'static [speculation::Text] {
    if verb.speculate { &TEXTS } else { &[] }
}

/// The backend that will run the model, whose context must fit.
fn fitting(registry: &Registry, verb: &Bench) -> Result<String> {
    let options = ModelOptions {
        backend: verb.backend.clone(),
        ..ModelOptions::default()
    };
    let path = registry.catalog().resolve(&verb.model)?;
    let trace = registry.explain(Some(&verb.model), &options)?;
    let Some(chosen) = trace.chosen else {
        // Loading fails for the same reason, and says it as every verb does.
        return registry
            .load(&verb.model, &options)
            .map(|model| model.backend().to_owned());
    };
    let plugin = registry.get(&chosen)?;
    let inspected = plugin
        .backend()
        .and_then(|backend| backend.inspect(&path).ok().flatten());
    let longest = inspected.map_or(0, |info| info.context_length);
    let needed = context(verb);
    if needed > u64::from(u32::MAX) || (longest > 0 && needed > longest) {
        let (prompt, generate) = (verb.prompt, verb.generate);
        let message = format!(
            "--prompt {prompt} and --generate {generate} take a context of {needed} tokens, and the model was made for \
             {longest}"
        );
        return Err(Error::usage(message, "give smaller numbers"));
    }
    Ok(chosen)
}

/// Where the backend runs where nothing else is asked for.
fn of_manifest(registry: &Registry, backend: &str) -> Isolation {
    let plugin = registry.get(backend).ok();
    plugin
        .and_then(|plugin| plugin.isolation)
        .unwrap_or_default()
}

/// The same registry with the backend run there.
fn isolated(registry: &Registry, backend: &str, isolation: Isolation) -> Registry {
    let mut manifest = crate::manifest::Manifest::clone(&registry.manifest());
    let entry = manifest
        .plugins
        .entry(backend.to_owned())
        .or_insert_with(|| PluginEntry::new(backend));
    entry.isolation = Some(isolation);
    Registry::new(manifest, registry.folders().clone())
}

/// The run as a whole.
struct Session<'a> {
    verb: &'a Bench,
    backend: &'a str,
    clock: Clock,
    ids: Ids,
    /// Runs done, and of how many.
    done: u64,
    total: u64,
}

impl Session<'_> {
    fn load(&self, registry: &Registry, threads: Option<u32>) -> Result<Model> {
        let most = self.verb.batch.iter().copied().max().unwrap_or(1);
        let options = ModelOptions {
            backend: Some(self.backend.to_owned()),
            load: LoadOptions {
                context: u32::try_from(context(self.verb)).ok(),
                threads,
                parallel: Some(most),
                ..LoadOptions::default()
            },
            ..ModelOptions::default()
        };
        registry.load(&self.verb.model, &options)
    }

    /// One row for each isolation; their runs take turns.
    fn measure(
        &mut self,
        registries: &[Registry],
        isolations: &[Isolation],
        threads: Option<u32>,
        bar: &mut Bar,
    ) -> Result<Vec<Row>> {
        let models = registries
            .iter()
            .map(|registry| self.load(registry, threads))
            .collect::<Result<Vec<Model>>>()?;
        let mut rows: Vec<Row> = models
            .iter()
            .zip(isolations)
            .map(|(model, isolation)| self.row(model, *isolation, threads))
            .collect();
        for model in &models {
            if self.verb.speculate {
                speculation::check(model)?;
            }
            self.warm_up(model, bar)?;
        }
        for round in 0..self.verb.repeat {
            for (model, row) in models.iter().zip(&mut rows) {
                self.step(bar, "prompts")?;
                let prompt = self.ids.prompt(model, self.verb.prompt);
                let read = prefill(model, prompt, &mut self.clock)?;
                row.prefill.add(read.tokens_per_s);
                row.first_token.add(read.first_token_s);
            }
            for at in 0..self.verb.batch.len() {
                for (model, row) in models.iter().zip(&mut rows) {
                    self.step(bar, "generations")?;
                    let (sequences, samples) = &mut row.decode[at];
                    let prompts = (0..*sequences).map(|_| self.ids.prompt(model, 1)).collect();
                    let rate = decode(model, prompts, self.verb.generate, &mut self.clock)?;
                    samples.add(rate);
                }
            }
            for (at, text) in texts(self.verb).iter().enumerate() {
                for (model, row) in models.iter().zip(&mut rows) {
                    self.step(bar, "texts")?;
                    let tokens = self.verb.generate;
                    row.drafting[at].measure(model, text, tokens, round, &mut self.clock)?;
                }
            }
        }
        for (model, row) in models.iter().zip(&mut rows) {
            row.peak_memory = model.peak_memory();
        }
        Ok(rows)
    }

    fn row(&self, model: &Model, isolation: Isolation, threads: Option<u32>) -> Row {
        let details = model.info().details;
        let detail = |name: &str| {
            let found = details.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        };
        Row {
            isolation,
            threads,
            load_s: model.load_s(),
            runs: detail("runs"),
            device: detail("device"),
            prefill: Samples::default(),
            first_token: Samples::default(),
            decode: self
                .verb
                .batch
                .iter()
                .map(|&sequences| (sequences, Samples::default()))
                .collect(),
            drafting: texts(self.verb)
                .iter()
                .map(|_| Drafting::default())
                .collect(),
            peak_memory: None,
            limits: None,
        }
    }

    /// Reads every weight once and wakes the threads, unmeasured.
    fn warm_up(&mut self, model: &Model, bar: &mut Bar) -> Result<()> {
        if bar.on_progress(self.done, self.total, "warming up") == Control::Stop {
            return Err(Error::Interrupted);
        }
        let prompt = self.ids.prompt(model, self.verb.prompt.min(64));
        prefill(model, prompt, &mut self.clock)?;
        let prompt = self.ids.prompt(model, 1);
        let few = self.verb.generate.min(4);
        decode(model, vec![prompt], few, &mut self.clock).map(drop)
    }

    /// One run more.
    fn step(&mut self, bar: &mut Bar, what: &str) -> Result<()> {
        let control = bar.on_progress(self.done, self.total, what);
        self.done += 1;
        match control {
            Control::Continue => Ok(()),
            Control::Stop => Err(Error::Interrupted),
        }
    }
}
