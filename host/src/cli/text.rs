//! `classify`, `tokenize`, `detokenize`: texts and tokens in, numbers out.

use super::arguments::{Classify, Detokenize, Global, Tokenize};
use super::run::{likeliest, text_of};
use super::values::Tokens;
use super::{output, registry};
use crate::error::{Error, Result};
use crate::registry::{Model, ModelOptions};
use backplane_plugin_api::types::{ClassifyRequest, Prompt};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::ExitCode;

pub(super) fn classify(global: &Global, verb: &Classify) -> Result<ExitCode> {
    let mut prompts: Vec<Prompt> = verb.prompts.iter().map(Prompt::text).collect();
    prompts.extend(
        verb.tokens
            .iter()
            .map(|Tokens(ids)| Prompt::Tokens(ids.clone())),
    );
    if prompts.is_empty() {
        prompts.push(Prompt::text(text_of(None, "PROMPT")?));
    }
    let model = load(global, &verb.model, &verb.loading.options())?;
    let request = ClassifyRequest {
        prompts,
        top: verb.top,
        logits: verb.logits,
        extra: BTreeMap::new(),
    };
    let mut failed: Option<Error> = None;
    let mut results = Vec::new();
    let mut tables = Vec::new();
    for answer in model.classify(&request)? {
        match answer {
            Ok(answer) => {
                tables.push(output::table(
                    &["token", "text", "logprob", "probability"],
                    answer
                        .top
                        .iter()
                        .map(|token| {
                            let logprob = format!("{:.4}", token.logprob);
                            vec![
                                token.id().map_or("-".to_owned(), |id| id.to_string()),
                                format!("{:?}", token.text),
                                logprob,
                                format!("{:.2} %", token.logprob.exp() * 100.0),
                            ]
                        })
                        .collect(),
                ));
                let mut result =
                    json!({ "prompt_tokens": answer.prompt_tokens, "top": likeliest(&answer.top) });
                if let Some(logits) = answer.logits {
                    result["logits"] = json!(logits);
                }
                results.push(result);
            }
            Err(error) => {
                results.push(json!({ "error": error.to_string() }));
                // Standard output keeps a place for each prompt.
                tables.push("-".to_owned());
                if let Some(first) = failed.replace(error) {
                    output::error(global, &first);
                }
            }
        }
    }
    if verb.json {
        output::json(&json!({ "backend": model.backend(), "results": results }))?;
    } else {
        output::line(&tables.join("\n\n"))?;
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

pub(super) fn tokenize(global: &Global, verb: &Tokenize) -> Result<ExitCode> {
    let text = text_of(verb.text.as_deref(), "TEXT")?;
    let model = load(global, &verb.model, &backend(verb.backend.as_ref()))?;
    let tokens = model.tokenize(&text, !verb.no_bos, verb.special)?;
    let mut pieces = Vec::with_capacity(tokens.len());
    for token in &tokens {
        pieces.push(String::from_utf8_lossy(&model.detokenize(&[*token], true)?).into_owned());
    }
    if verb.json {
        output::json(&json!({ "tokens": tokens, "pieces": pieces }))?;
    } else {
        let lines: Vec<String> = tokens
            .iter()
            .zip(&pieces)
            .map(|(token, piece)| format!("{token}\t{piece:?}"))
            .collect();
        if !lines.is_empty() {
            output::line(&lines.join("\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn detokenize(global: &Global, verb: &Detokenize) -> Result<ExitCode> {
    let tokens: Vec<u32> = verb
        .tokens
        .iter()
        .flat_map(|Tokens(ids)| ids.iter().copied())
        .collect();
    let model = load(global, &verb.model, &backend(verb.backend.as_ref()))?;
    let bytes = model.detokenize(&tokens, verb.special)?;
    let text = String::from_utf8_lossy(&bytes);
    if verb.json {
        // Ids that cut a character leave bytes that no text can hold: they are told apart.
        let whole = std::str::from_utf8(&bytes).is_ok();
        output::json(&json!({ "text": text, "whole_characters": whole }))?;
    } else {
        output::line(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn backend(name: Option<&String>) -> ModelOptions {
    ModelOptions {
        backend: name.cloned(),
        ..ModelOptions::default()
    }
}

fn load(global: &Global, name: &str, options: &ModelOptions) -> Result<Model> {
    registry(global)?.load(name, options)
}
