//! What a bench found, for people and for scripts.

use super::super::arguments::Bench;
use super::super::output;
use super::super::values::Bytes;
use super::Row;
use super::figures::{Samples, share};
use super::speculation::TEXTS;
use crate::manifest::Isolation;
use serde_json::{Value, json};
use std::path::Path;

/// As manifests and `--isolation` write it.
pub(super) fn word(isolation: Isolation) -> &'static str {
    let known = Isolation::ALL.iter().find(|(one, _)| *one == isolation);
    known.map_or("", |(_, word)| word)
}

impl Row {
    /// Multiply-adds per second while reading prompts, of those that the device reaches.
    fn prefill_share(&self) -> Option<f64> {
        let limits = self.limits.as_ref()?;
        let used = self.prefill.median() * limits.token_multiply_adds as f64;
        Some(share(used, limits.multiply_adds_per_s as f64))
    }

    /// Bytes of weights read per second while so many sequences generate, of those that the device reaches.
    fn decode_share(&self, sequences: u32, rate: &Samples) -> Option<f64> {
        let limits = self.limits.as_ref()?;
        let steps = rate.median() / f64::from(sequences.max(1));
        let used = steps * limits.token_bytes as f64;
        Some(share(used, limits.read_bytes_per_s as f64))
    }

    fn as_json(&self) -> Value {
        let decode = |(sequences, rate): &(u32, Samples)| {
            json!({
                "sequences": sequences,
                "tokens_per_s": rate.as_json(),
                "share_of_read_bandwidth": self.decode_share(*sequences, rate),
            })
        };
        json!({
            "isolation": word(self.isolation),
            "threads": self.threads,
            "device": self.device,
            "runs": self.runs,
            "load_s": self.load_s,
            "prefill": {
                "tokens_per_s": self.prefill.as_json(),
                "share_of_integer_throughput": self.prefill_share(),
            },
            "first_token_s": self.first_token.as_json(),
            "decode": self.decode.iter().map(decode).collect::<Vec<_>>(),
            "speculation": TEXTS
                .iter()
                .zip(&self.drafting)
                .map(|(text, drafting)| drafting.as_json(text))
                .collect::<Vec<_>>(),
            "peak_memory_bytes": self.peak_memory,
            "limits": self.limits,
        })
    }
}

/// In a worker over in this process, of each number of threads where both ran.
fn pairs(rows: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    rows.iter().filter_map(|row| {
        let here = row.isolation == Isolation::InProcess;
        let other = rows
            .iter()
            .find(|other| other.isolation == Isolation::Process && other.threads == row.threads)?;
        here.then_some((row, other))
    })
}

pub(super) fn as_json(verb: &Bench, model: &Path, backend: &str, rows: &[Row]) -> Value {
    let isolation = |(here, worker): (&Row, &Row)| {
        let decode: Vec<Value> = here
            .decode
            .iter()
            .zip(&worker.decode)
            .map(|((sequences, here), (_, worker))| {
                json!({ "sequences": sequences, "tokens_per_s": worker.ratio(here).as_json() })
            })
            .collect();
        json!({
            "threads": here.threads,
            "prefill": worker.prefill.ratio(&here.prefill).as_json(),
            "decode": decode,
        })
    };
    json!({
        "model": model.display().to_string(),
        "backend": backend,
        "prompt": verb.prompt,
        "generate": verb.generate,
        "repeat": verb.repeat,
        "runs": rows.iter().map(Row::as_json).collect::<Vec<_>>(),
        "worker_over_in_process": pairs(rows).map(isolation).collect::<Vec<_>>(),
    })
}

pub(super) fn as_text(verb: &Bench, model: &Path, backend: &str, rows: &[Row]) -> String {
    let (prompt, generate, repeat) = (verb.prompt, verb.generate, verb.repeat);
    let mut table = Vec::new();
    for row in rows {
        let name = |figure: String| {
            let threads = row.threads.map_or("auto".to_owned(), |it| it.to_string());
            vec![threads, word(row.isolation).to_owned(), figure]
        };
        let part = |share: Option<f64>, of: &str| {
            share.map_or(String::new(), |share| percent(share, 0) + of)
        };
        let mut line = name(format!("read {prompt}"));
        line.extend(rate(&row.prefill));
        line.push(part(row.prefill_share(), " of integer throughput"));
        table.push(line);
        for (sequences, samples) in &row.decode {
            let together = match sequences {
                1 => String::new(),
                many => format!(" x {many}"),
            };
            let mut line = name(format!("generate {generate}{together}"));
            line.extend(rate(samples));
            line.push(part(
                row.decode_share(*sequences, samples),
                " of read bandwidth",
            ));
            table.push(line);
        }
        for (text, drafting) in TEXTS.iter().zip(&row.drafting) {
            let mut line = name(format!("{} {generate}", text.name));
            line.extend(rate(&drafting.off));
            line.push("without drafts".to_owned());
            table.push(line);
            let mut line = name(format!("{} {generate}", text.name));
            line.extend(rate(&drafting.auto));
            let gain = drafting.gain();
            let (median, spread) = (gain.median(), gain.spread() * gain.median());
            let (tried, acceptance) = (drafting.tried(), percent(drafting.acceptance(), 0));
            line.push(format!(
                "{median:.2} ± {spread:.2} times with drafts: {tried:.2} a token, {acceptance} came true"
            ));
            table.push(line);
        }
    }
    let header = [
        "threads",
        "isolation",
        "what",
        "tokens/s",
        "spread",
        "share",
    ];
    let mut lines = vec![
        format!(
            "model            {}",
            output::visible(&model.display().to_string())
        ),
        format!(
            "backend          {backend}, {repeat} runs of each; medians, and half of the middle half's range"
        ),
        String::new(),
        output::table(&header, table),
        String::new(),
    ];
    for row in rows {
        lines.push(about(row));
    }
    for (here, worker) in pairs(rows) {
        let threads = threads(here);
        for ((sequences, here), (_, worker)) in here.decode.iter().zip(&worker.decode) {
            let ratio = worker.ratio(here);
            let (median, spread) = (ratio.median(), ratio.spread() * ratio.median());
            lines.push(format!(
                "{threads}: a worker generates {sequences} at once {median:.3} ± {spread:.3} times as fast as this process"
            ));
        }
    }
    lines.join("\n")
}

/// Threads in words.
fn threads(row: &Row) -> String {
    match row.threads {
        None => "the backend's choice of threads".to_owned(),
        Some(1) => "1 thread".to_owned(),
        Some(many) => format!("{many} threads"),
    }
}

/// What there is to say of a row beside its rates.
fn about(row: &Row) -> String {
    let mut facts = vec![
        format!(
            "first token {:.1} ms ± {}",
            row.first_token.median() * 1e3,
            percent(row.first_token.spread(), 1)
        ),
        format!("loaded in {:.0} ms", row.load_s * 1e3),
    ];
    if let Some(bytes) = row.peak_memory {
        facts.push(format!("peak memory {}", Bytes(bytes)));
    }
    if let Some(limits) = &row.limits {
        facts.push(format!(
            "limits {:.1} GB/s and {:.0} G multiply-adds/s ({})",
            limits.read_bytes_per_s as f64 / 1e9,
            limits.multiply_adds_per_s as f64 / 1e9,
            output::visible(&limits.measured)
        ));
    }
    if let Some(runs) = &row.runs {
        facts.push(format!("runs {}", output::visible(runs)));
    }
    let (threads, isolation) = (threads(row), word(row.isolation));
    format!("{threads}, {isolation}: {}", facts.join("; "))
}

fn rate(samples: &Samples) -> [String; 2] {
    let digits = usize::from(samples.median() < 100.0);
    let median = format!("{:.digits$}", samples.median());
    [median, format!("±{}", percent(samples.spread(), 1))]
}

fn percent(share: f64, digits: usize) -> String {
    format!("{:.digits$} %", share * 100.0)
}
