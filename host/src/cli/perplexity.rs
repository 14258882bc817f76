//! `perplexity`: how well a model foretells a text.

use super::arguments::{Global, Perplexity};
use super::progress::Bar;
use super::run::standard_input;
use super::{output, registry};
use crate::error::{Error, Result};
use crate::registry::Model;
use backplane_plugin_api::capability::ScoreRequest;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Context where none is asked for, as llama-perplexity has it.
const DEFAULT_CONTEXT: u32 = 512;
/// Fewest tokens of a piece: one is read, one is scored, and the first half is not scored.
const MIN_CONTEXT: u32 = 4;

/// Cuts the text's tokens into pieces of the context's length (the rest is dropped), each evaluated alone after the model's
/// beginning-of-sequence token, which takes the place of the first token. The second half of each piece is scored.
pub(super) fn perplexity(global: &Global, verb: &Perplexity) -> Result<ExitCode> {
    let context = verb.loading.context.unwrap_or(DEFAULT_CONTEXT);
    if context < MIN_CONTEXT {
        return Err(Error::usage(
            format!("--context {context}: expected at least {MIN_CONTEXT} tokens"),
            "give a longer context",
        ));
    }
    let registry = registry(global)?;
    let text = text(&registry.folders().expand(&verb.file))?;
    let mut bar = Bar::new(global)?;
    let mut options = verb
        .loading
        .options_for(backplane_plugin_api::capability::SCORE);
    options.load.context = Some(context);
    let model = registry.load(&verb.model, &options)?;
    let tokens = model.tokenize(&text, true, false)?;
    let length = context as usize;
    let pieces = tokens.len() / length;
    if pieces == 0 {
        return Err(Error::usage(
            format!(
                "{}: {} tokens, and one piece takes {context}",
                verb.file.display(),
                tokens.len()
            ),
            "give a longer text, or a smaller --context",
        ));
    }
    let bos = beginning(&model)?;
    let started = Instant::now();
    let mut score_all = || {
        let mut likelihoods = Vec::new();
        for (number, piece) in tokens.chunks_exact(length).enumerate() {
            let mut request = ScoreRequest {
                tokens: piece.to_vec(),
                first: context / 2 + 1,
                extra: BTreeMap::new(),
            };
            if let Some(bos) = bos {
                request.tokens[0] = bos;
            }
            bar.part((number * length) as u64, (pieces * length) as u64);
            likelihoods.extend(model.score(&request, &mut bar)?);
        }
        Ok(likelihoods)
    };
    let scored = score_all();
    let likelihoods = bar.end(scored)?;
    let seconds = started.elapsed().as_secs_f64();
    let Some(found) = Figures::of(&likelihoods) else {
        let message = format!(
            "{}: a token of the text has no probability, so that the perplexity is no number",
            verb.file.display()
        );
        return Err(Error::usage(message, "see `backplane show --check MODEL`"));
    };
    if verb.json {
        output::json(&json!({
            "model": model.path().display().to_string(),
            "backend": model.backend(),
            "perplexity": found.perplexity,
            "standard_error": found.standard_error,
            "mean_log_likelihood": found.mean,
            "tokens": tokens.len(),
            "context": context,
            "chunks": pieces,
            "scored": likelihoods.len(),
            "seconds": seconds,
            "tokens_per_s": (pieces * length) as f64 / seconds.max(1e-9),
        }))?;
    } else {
        let (perplexity, error) = (found.perplexity, found.standard_error);
        let scored = likelihoods.len();
        output::line(&format!(
            "perplexity       {perplexity:.4} ± {error:.4}\n\
             tokens           {} in the text, {scored} scored in {pieces} pieces of {context}",
            tokens.len()
        ))?;
    }
    tracing::info!(
        "{:.0} tokens/s",
        (pieces * length) as f64 / seconds.max(1e-9)
    );
    Ok(ExitCode::SUCCESS)
}

/// The text of a file; `-` is standard input.
fn text(file: &Path) -> Result<String> {
    let text = if file == Path::new("-") {
        standard_input()?
    } else {
        let bytes = std::fs::read(file).map_err(|error| Error::file(file, &error))?;
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let file = file.display();
            Error::usage(
                format!("{file}: not UTF-8 text: byte {at}"),
                "give a text file, or convert it to UTF-8",
            )
        })?
    };
    if text.is_empty() {
        let file = file.display();
        return Err(Error::usage(
            format!("{file}: an empty text"),
            "give a text of at least one piece of --context tokens",
        ));
    }
    Ok(text)
}

/// The token that the model wants at the beginning of a text.
fn beginning(model: &Model) -> Result<Option<u32>> {
    let [with, without] = [true, false].map(|special| model.tokenize("a", special, false));
    let (with, without) = (with?, without?);
    Ok(match with.split_first() {
        Some((first, rest)) if rest.starts_with(&without) && !without.is_empty() => Some(*first),
        _ => None,
    })
}

/// What the log likelihoods come to.
#[derive(Debug, PartialEq)]
struct Figures {
    mean: f64,
    perplexity: f64,
    /// Of the perplexity, from the spread of the log likelihoods.
    standard_error: f64,
}

impl Figures {
    /// `None` where they are no numbers.
    fn of(likelihoods: &[f32]) -> Option<Self> {
        let count = likelihoods.len() as f64;
        let mean = likelihoods.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let squares = likelihoods.iter().map(|&x| (f64::from(x) - mean).powi(2));
        let variance = squares.sum::<f64>() / count;
        let perplexity = (-mean).exp();
        let standard_error = perplexity * (variance / (count - 1.0).max(1.0)).sqrt();
        perplexity.is_finite().then_some(Self {
            mean,
            perplexity,
            standard_error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_definition() {
        let even = Figures::of(&[-2.0_f32.ln(); 10]).unwrap();
        assert!((even.perplexity - 2.0).abs() < 1e-6 && even.standard_error < 1e-6);
        // Two values: mean -1, variance 1; the mean's standard error is sqrt(1 / (2 - 1)).
        let two = Figures::of(&[0.0, -2.0]).unwrap();
        assert!((two.mean + 1.0).abs() < 1e-12);
        assert!(
            (two.standard_error - 1.0_f64.exp()).abs() < 1e-12,
            "{two:?}"
        );
        assert_eq!(Figures::of(&[]), None);
        assert_eq!(Figures::of(&[f32::NEG_INFINITY]), None);
        assert_eq!(Figures::of(&[f32::NAN]), None);
    }
}
