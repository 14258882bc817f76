//! Cases about the contract's optional capabilities. One that is not offered is not applicable.

use crate::bench::{Bench, ensure, expect_error, expect_refusal, fail, need, not_applicable};
use crate::{Outcome, Verdict};
use backplane_plugin_api::capability::{self, ATTENTION, CHECK, CONVERT, EMBED, PEAKS, SCORE};
use backplane_plugin_api::{
    Attention, AttentionRequest, AttentionState, Check, ClassifyRequest, Control, Convert,
    ConvertOptions, Embed, EmbedRequest, Embedding, ErrorCode, Peaks, PeaksRequest, Pooling,
    Progress, Prompt, Score, ScoreRequest, TextModel, Unwatched,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FIELD: &str = "no_such_field";

fn offered<T>(
    name: &str,
    taken: backplane_plugin_api::Result<Option<Arc<T>>>,
) -> Result<Arc<T>, Outcome>
where
    T: ?Sized,
{
    match taken {
        Ok(Some(object)) => Ok(object),
        Ok(None) => not_applicable(format!("`{name}` is not offered")),
        Err(error) => fail(format!("{error}")),
    }
}

fn embed_of(model: &dyn TextModel) -> Result<Arc<dyn Embed>, Outcome> {
    offered(EMBED, capability::embed(model))
}

fn score_of(model: &dyn TextModel) -> Result<Arc<dyn Score>, Outcome> {
    offered(SCORE, capability::score(model))
}

fn attention_of(model: &dyn TextModel) -> Result<Arc<dyn Attention>, Outcome> {
    offered(ATTENTION, capability::attention(model))
}

fn peaks_of(model: &dyn TextModel) -> Result<Arc<dyn Peaks>, Outcome> {
    offered(PEAKS, capability::peaks(model))
}

fn check_of(bench: &Bench) -> Result<Arc<dyn Check>, Outcome> {
    offered(CHECK, capability::check(&*bench.backend))
}

fn convert_of(bench: &Bench) -> Result<Arc<dyn Convert>, Outcome> {
    offered(CONVERT, capability::convert(&*bench.backend))
}

fn unknown() -> BTreeMap<String, serde_json::Value> {
    [(FIELD.to_owned(), serde_json::json!(true))].into()
}

fn embed_request(inputs: Vec<Prompt>, normalize: bool) -> EmbedRequest {
    EmbedRequest {
        inputs,
        pooling: Pooling::Mean,
        normalize,
        extra: BTreeMap::new(),
    }
}

fn attention_request(prompt: Prompt) -> AttentionRequest {
    AttentionRequest {
        prompt,
        layers: None,
        extra: BTreeMap::new(),
    }
}

/// The prompt's tokens, as the model begins a text.
fn tokens(bench: &Bench, model: &dyn TextModel) -> Result<Vec<u32>, Outcome> {
    need(
        "tokenize",
        model.tokenize(&bench.options.prompt, true, false),
    )
}

/// Whether two rows of numbers are the same but for rounding.
fn same(a: &[f32], b: &[f32]) -> bool {
    let largest = a.iter().fold(0_f32, |most, x| most.max(x.abs()));
    let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-3 * largest.max(1e-3);
    a.len() == b.len() && a.iter().zip(b).all(close)
}

fn finite(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_finite())
}

fn length(values: &[f32]) -> f64 {
    let squares = values.iter().map(|&value| f64::from(value).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Watches a call: progress must not fall, nor pass its total.
#[derive(Default)]
struct Watcher {
    steps: usize,
    last: u64,
    wrong: Option<String>,
}

impl Progress for Watcher {
    fn on_progress(&mut self, done: u64, total: u64, what: &str) -> Control {
        if done < self.last || (total > 0 && done > total) || what.contains('\n') {
            let last = self.last;
            self.wrong
                .get_or_insert_with(|| format!("{done} of {total} {what:?} after {last}"));
        }
        self.steps += 1;
        self.last = done;
        Control::Continue
    }
}

impl Watcher {
    fn judge(self, what: &str) -> Verdict {
        if let Some(wrong) = self.wrong {
            return fail(format!("{what}: progress of {wrong}"));
        }
        ensure!(self.steps > 0, "{what}: no progress was told");
        Ok(())
    }
}

fn embeddings(
    embed: &dyn Embed,
    request: &EmbedRequest,
) -> Result<Vec<backplane_plugin_api::Result<Embedding>>, Outcome> {
    let mut watcher = Watcher::default();
    let answers = need("embed", embed.embed(request, &mut watcher))?;
    watcher.judge("embed")?;
    let (asked, given) = (request.inputs.len(), answers.len());
    ensure!(given == asked, "{given} embeddings of {asked} inputs");
    Ok(answers)
}

/// The embeddings of inputs that are all fine.
fn vectors(embed: &dyn Embed, request: &EmbedRequest) -> Result<Vec<Embedding>, Outcome> {
    let answers = embeddings(embed, request)?;
    answers
        .into_iter()
        .map(|one| need("an input", one))
        .collect()
}

pub(super) fn embeds(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let embed = embed_of(&*model)?;
    let other = Prompt::text(format!("{} and seven mountains", bench.options.prompt));
    let texts = vec![bench.prompt(), other, bench.prompt()];
    let mut poolings = Vec::new();
    for (pooling, word) in Pooling::ALL {
        let request = EmbedRequest {
            pooling: *pooling,
            ..embed_request(texts.clone(), false)
        };
        let all = vectors(&*embed, &request)?;
        let width = all[0].values.len();
        ensure!(width > 0, "{word}: an embedding of no numbers");
        for one in &all {
            let found = one.values.len();
            ensure!(found == width, "{word}: {found} numbers, and {width}");
            ensure!(finite(&one.values), "{word}: a number that is none");
        }
        ensure!(
            same(&all[0].values, &all[2].values),
            "{word}: one text twice has two embeddings"
        );
        ensure!(
            *pooling == Pooling::Cls || !same(&all[0].values, &all[1].values),
            "{word}: two texts have one embedding"
        );
        if let Ok(tokens) = tokens(bench, &*model) {
            let (counted, expected) = (all[0].prompt_tokens, tokens.len() as u64);
            ensure!(
                counted == expected,
                "{word}: {counted} tokens; tokenize gives {expected}"
            );
        }
        poolings.push(all[0].values.clone());
    }
    ensure!(
        !same(&poolings[0], &poolings[1]) && !same(&poolings[1], &poolings[2]),
        "mean, last and cls are not told apart"
    );
    // Of one token all poolings are the same.
    let request = embed_request(vec![Prompt::Tokens(vec![1])], false);
    let mean = vectors(&*embed, &request)?;
    let pooling = Pooling::Last;
    let last = vectors(&*embed, &EmbedRequest { pooling, ..request })?;
    ensure!(
        same(&mean[0].values, &last[0].values),
        "of one token the mean differs from the last"
    );
    ensure!(
        vectors(&*embed, &embed_request(Vec::new(), true)).is_ok(),
        "no inputs are an error; expected no embeddings"
    );
    Ok(())
}

pub(super) fn embeddings_normalise(bench: &Bench) -> Verdict {
    let embed = embed_of(&*bench.model()?)?;
    let texts = vec![bench.prompt(), bench.numbered_prompt(1)];
    let plain = vectors(&*embed, &embed_request(texts.clone(), false))?;
    let unit = vectors(&*embed, &embed_request(texts, true))?;
    for (plain, unit) in plain.iter().zip(&unit) {
        let scale = length(&plain.values);
        ensure!(scale > 0.0, "an embedding of length 0");
        let found = length(&unit.values);
        ensure!((found - 1.0).abs() < 1e-3, "length {found}; expected 1");
        let scaled: Vec<f32> = plain
            .values
            .iter()
            .map(|&value| (f64::from(value) / scale) as f32)
            .collect();
        ensure!(
            same(&scaled, &unit.values),
            "the normalised embedding points elsewhere"
        );
    }
    Ok(())
}

pub(super) fn embed_keeps_errors_apart(bench: &Bench) -> Verdict {
    let embed = embed_of(&*bench.model()?)?;
    let bad = [Prompt::Tokens(vec![u32::MAX]), Prompt::Tokens(Vec::new())];
    for bad in bad {
        let inputs = vec![bench.prompt(), bad.clone(), bench.prompt()];
        let mut answers = embeddings(&*embed, &embed_request(inputs, true))?.into_iter();
        for what in ["before", "bad", "after"] {
            let answer = answers.next().unwrap_or_else(|| unreachable!("counted"));
            if what == "bad" {
                let codes = [ErrorCode::InvalidRequest, ErrorCode::UnsupportedField];
                expect_error(&format!("the input {bad:?}"), answer, &codes)?;
            } else if let Err(error) = answer {
                return fail(format!("the good input {what} {bad:?}: {error}"));
            }
        }
    }
    Ok(())
}

pub(super) fn scores(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let score = score_of(&*model)?;
    let tokens = tokens(bench, &*model)?;
    let ask = |tokens: &[u32], first: u32| {
        let request = ScoreRequest {
            tokens: tokens.to_vec(),
            first,
            extra: BTreeMap::new(),
        };
        let mut watcher = Watcher::default();
        let scores = need("score", score.score(&request, &mut watcher))?;
        let (asked, given) = (request.scored(), scores.len());
        ensure!(given == asked, "{given} scores of {asked} tokens");
        if let Some(wrong) = scores.iter().find(|one| one.is_nan() || **one > 1e-3) {
            return fail(format!("a log probability of {wrong}"));
        }
        if asked > 0 {
            watcher.judge("score")?;
        }
        Ok(scores)
    };
    let all = ask(&tokens, 0)?;
    ensure!(same(&all, &ask(&tokens, 1)?), "two scores of one text");
    let half = tokens.len() as u32 / 2;
    let later = ask(&tokens, half)?;
    ensure!(
        same(&all[all.len() - later.len()..], &later),
        "scores from token {half} on differ from those of all"
    );
    // What comes after a token has no part in its score.
    let cut = ask(&tokens[..tokens.len() - 1], 1)?;
    ensure!(
        same(&all[..cut.len()], &cut),
        "a later token changes scores"
    );
    ask(&tokens[..1], 0)?;
    ask(&[], 0)?;
    let bad = ScoreRequest {
        tokens: vec![tokens[0], u32::MAX],
        ..ScoreRequest::default()
    };
    expect_error(
        "a token outside the vocabulary",
        score.score(&bad, &mut Unwatched),
        &[ErrorCode::InvalidRequest],
    )?;
    let context = usize::try_from(model.info().loaded_context).unwrap_or(usize::MAX);
    if context < 1 << 20 {
        let long = ScoreRequest {
            tokens: vec![tokens[0]; context + 1],
            ..ScoreRequest::default()
        };
        expect_error(
            "more tokens than the context",
            score.score(&long, &mut Unwatched),
            &[ErrorCode::ContextOverflow],
        )?;
    }
    agrees_with_classify(&*model, &tokens, &*score)
}

/// The likeliest next token has the score that `classify` gives it.
fn agrees_with_classify(model: &dyn TextModel, tokens: &[u32], score: &dyn Score) -> Verdict {
    let request = ClassifyRequest {
        prompts: vec![Prompt::Tokens(tokens.to_vec())],
        top: 1,
        logits: false,
        extra: BTreeMap::new(),
    };
    let Ok(answers) = model.classify(&request) else {
        return Ok(());
    };
    let Some(Ok(answer)) = answers.into_iter().next() else {
        return Ok(());
    };
    let Some(top) = answer.top.first() else {
        return Ok(());
    };
    let mut tokens = tokens.to_vec();
    let first = tokens.len() as u32;
    tokens.push(top.token);
    let request = ScoreRequest {
        tokens,
        first,
        extra: BTreeMap::new(),
    };
    let scores = need("score", score.score(&request, &mut Unwatched))?;
    let (found, expected) = (scores[0], top.logprob);
    ensure!(
        (found - expected).abs() <= 1e-2 * expected.abs().max(1.0),
        "token {} scores {found}; classify gives it {expected}",
        top.token
    );
    Ok(())
}

/// The state of a prompt, its shapes checked.
fn state(attention: &dyn Attention, request: &AttentionRequest) -> Result<AttentionState, Outcome> {
    let mut watcher = Watcher::default();
    let state = need(
        "inspect_attention",
        attention.inspect_attention(request, &mut watcher),
    )?;
    watcher.judge("inspect_attention")?;
    let positions = state.tokens.len();
    for pair in state.layers.windows(2) {
        let (a, b) = (pair[0].layer, pair[1].layer);
        ensure!(a < b, "layer {b} comes after layer {a}");
    }
    for one in &state.layers {
        let layer = one.layer;
        let (heads, kv_heads) = (one.heads as usize, one.kv_heads as usize);
        ensure!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads) && heads > 0,
            "layer {layer}: {heads} heads over {kv_heads}"
        );
        for (what, heads, values) in [
            ("queries", heads, &one.queries),
            ("keys", kv_heads, &one.keys),
        ] {
            let expected = heads * positions * one.head_dim as usize;
            let found = values.len();
            ensure!(
                found == expected && found > 0,
                "layer {layer}: {found} numbers of {what}; expected {heads} heads of {positions} positions of {}",
                one.head_dim
            );
            ensure!(finite(values), "layer {layer}: {what} that are no numbers");
        }
    }
    Ok(state)
}

pub(super) fn attends(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let attention = attention_of(&*model)?;
    let whole = state(&*attention, &attention_request(bench.prompt()))?;
    ensure!(!whole.layers.is_empty(), "a model of no layers");
    if let Ok(tokens) = tokens(bench, &*model) {
        let found = &whole.tokens;
        ensure!(*found == tokens, "tokens {found:?}; tokenize: {tokens:?}");
    }
    // The last layer alone, of a part of the prompt: what comes later has no part in it.
    let most = whole.tokens.len().div_ceil(2);
    let layer = whole.layers.last().map_or(0, |last| last.layer);
    let request = AttentionRequest {
        layers: Some(vec![layer]),
        ..attention_request(Prompt::Tokens(whole.tokens[..most].to_vec()))
    };
    let part = state(&*attention, &request)?;
    ensure!(
        part.tokens == whole.tokens[..most],
        "tokens are not taken as they are"
    );
    ensure!(
        part.layers.len() == 1 && part.layers[0].layer == layer,
        "asked for layer {layer} alone, got {} layers",
        part.layers.len()
    );
    let (all, part) = (&whole.layers[whole.layers.len() - 1], &part.layers[0]);
    let dim = all.head_dim as usize;
    for (what, all, part) in [
        ("queries", &all.queries, &part.queries),
        ("keys", &all.keys, &part.keys),
    ] {
        let heads = all.chunks(whole.tokens.len() * dim);
        for (head, (all, part)) in heads.zip(part.chunks(most * dim)).enumerate() {
            ensure!(
                same(&all[..most * dim], part),
                "layer {layer}, head {head}: {what} differ when the prompt goes on"
            );
        }
    }
    let beyond = AttentionRequest {
        layers: Some(vec![u32::MAX]),
        ..attention_request(bench.prompt())
    };
    let codes = [ErrorCode::InvalidRequest];
    let asked = attention.inspect_attention(&beyond, &mut Unwatched);
    expect_error("a layer that is not there", asked, &codes)?;
    for (what, tokens) in [
        ("a prompt of no tokens", vec![]),
        ("a token outside the vocabulary", vec![u32::MAX]),
    ] {
        let request = attention_request(Prompt::Tokens(tokens));
        let asked = attention.inspect_attention(&request, &mut Unwatched);
        expect_error(what, asked, &codes)?;
    }
    Ok(())
}

pub(super) fn measures(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let peaks = peaks_of(&*model)?;
    let mut watcher = Watcher::default();
    let report = need(
        "measure_peaks",
        peaks.measure_peaks(&PeaksRequest::default(), &mut watcher),
    )?;
    watcher.judge("measure_peaks")?;
    ensure!(
        report.read_bytes_per_s > 0 && report.multiply_adds_per_s > 0,
        "{report:?}: a device that does nothing"
    );
    // What a token costs is of the model alone; a device may be busier at another time.
    let again = need(
        "measure_peaks",
        peaks.measure_peaks(&PeaksRequest::default(), &mut Unwatched),
    )?;
    let costs = [&report, &again].map(|it| (it.token_bytes, it.token_multiply_adds));
    ensure!(
        costs[0] == costs[1],
        "a token costs {costs:?} bytes and multiply-adds"
    );
    ensure!(
        !report.measured.is_empty() && !report.measured.contains('\n'),
        "how it was measured is {:?}, expected one line",
        report.measured
    );
    Ok(())
}

pub(super) fn checks(bench: &Bench) -> Verdict {
    let check = check_of(bench)?;
    let mut watcher = Watcher::default();
    let findings = need("check", check.check(&bench.path, &mut watcher))?;
    watcher.judge("check")?;
    for finding in &findings {
        let message = &finding.message;
        ensure!(
            !message.is_empty() && !message.contains('\n'),
            "the finding {message:?} is not one line"
        );
    }
    let again = need("check", check.check(&bench.path, &mut Unwatched))?;
    ensure!(findings == again, "two checks of one file differ");
    let nowhere = Path::new("no-such-folder/no-such-model.gguf");
    let error = expect_error(
        "check of a missing file",
        check.check(nowhere, &mut Unwatched),
        &[ErrorCode::ModelUnusable, ErrorCode::InvalidRequest],
    )?;
    ensure!(
        error.message.contains("no-such-model"),
        "{error}; expected a message that names the file"
    );
    Ok(())
}

/// A folder of the suite's own, and a file name in it that the backend takes.
fn target(bench: &Bench) -> Result<(tempfile::TempDir, PathBuf), Outcome> {
    let folder = tempfile::tempdir()
        .map_err(|error| Outcome::Failed(format!("no temporary folder: {error}")))?;
    let extension = bench.path.extension().filter(|_| bench.path.is_file());
    let mut path = folder.path().join("converted");
    path.set_extension(extension.unwrap_or("gguf".as_ref()));
    Ok((folder, path))
}

pub(super) fn converts(bench: &Bench) -> Verdict {
    let convert = convert_of(bench)?;
    let (_folder, target) = target(bench)?;
    let mut watcher = Watcher::default();
    let report = need(
        "convert",
        convert.convert(
            &bench.path,
            &target,
            &ConvertOptions::default(),
            &mut watcher,
        ),
    )?;
    watcher.judge("convert")?;
    let written = std::fs::metadata(&target).map_or(0, |metadata| metadata.len());
    ensure!(
        written == report.bytes && written > 0,
        "{written} bytes were written; {} told",
        report.bytes
    );
    ensure!(report.tensors > 0, "0 tensors were told");
    match bench.backend.inspect(&target) {
        Ok(Some(info)) => {
            let found = info.unsupported;
            ensure!(
                found.is_none(),
                "what was written is unsupported: {found:?}"
            );
        }
        Ok(None) => return fail("what was written is of no format of the backend"),
        Err(error) => return fail(format!("what was written can't be read: {error}")),
    }
    // What is there is kept.
    let before = std::fs::metadata(&target).and_then(|metadata| metadata.modified());
    let again = convert.convert(
        &bench.path,
        &target,
        &ConvertOptions::default(),
        &mut Unwatched,
    );
    expect_error(
        "a destination that is there",
        again,
        &[ErrorCode::InvalidRequest],
    )?;
    let after = std::fs::metadata(&target).and_then(|metadata| metadata.modified());
    ensure!(
        matches!((&before, &after), (Ok(before), Ok(after)) if before == after),
        "the file that was there is not what it was"
    );
    Ok(())
}

pub(super) fn convert_leaves_nothing(bench: &Bench) -> Verdict {
    let convert = convert_of(bench)?;
    let (folder, target) = target(bench)?;
    let left = || {
        let entries = std::fs::read_dir(folder.path());
        entries.map_or(0, |entries| entries.count())
    };
    let unknown_type = ConvertOptions {
        quantize: Some("no_such_type".to_owned()),
        ..ConvertOptions::default()
    };
    expect_error(
        "an unknown storage type",
        convert.convert(&bench.path, &target, &unknown_type, &mut Unwatched),
        &[ErrorCode::InvalidRequest, ErrorCode::UnsupportedField],
    )?;
    ensure!(left() == 0, "an unknown storage type leaves a file");
    // At the second step something may have been written.
    let mut steps = 0;
    let mut stop = |_: u64, _: u64, _: &str| {
        steps += 1;
        if steps > 1 {
            Control::Stop
        } else {
            Control::Continue
        }
    };
    let options = ConvertOptions::default();
    let result = convert.convert(&bench.path, &target, &options, &mut stop);
    expect_error(
        "a conversion that was stopped",
        result,
        &[ErrorCode::Cancelled],
    )?;
    ensure!(left() == 0, "a conversion that was stopped leaves a file");
    Ok(())
}

/// Calls each capability that is offered; gives its name and how that ended.
fn each(
    bench: &Bench,
    model: &dyn TextModel,
    extra: &BTreeMap<String, serde_json::Value>,
    progress: &mut dyn FnMut() -> Box<dyn Progress>,
) -> Result<Vec<(&'static str, backplane_plugin_api::Result<()>)>, Outcome> {
    let mut all = Vec::new();
    if let Ok(embed) = embed_of(model) {
        let request = EmbedRequest {
            extra: extra.clone(),
            ..embed_request(vec![bench.prompt(); 2], true)
        };
        let answers = embed.embed(&request, &mut *progress());
        let first = answers.and_then(|answers| answers.into_iter().next().transpose());
        all.push((EMBED, first.map(drop)));
    }
    if let Ok(score) = score_of(model) {
        let request = ScoreRequest {
            tokens: vec![0, 1, 2, 3],
            extra: extra.clone(),
            ..ScoreRequest::default()
        };
        all.push((SCORE, score.score(&request, &mut *progress()).map(drop)));
    }
    if let Ok(attention) = attention_of(model) {
        let request = AttentionRequest {
            extra: extra.clone(),
            ..attention_request(bench.prompt())
        };
        let state = attention.inspect_attention(&request, &mut *progress());
        all.push((ATTENTION, state.map(drop)));
    }
    if let Ok(peaks) = peaks_of(model) {
        let request = PeaksRequest {
            extra: extra.clone(),
        };
        let report = peaks.measure_peaks(&request, &mut *progress());
        all.push((PEAKS, report.map(drop)));
    }
    Ok(all)
}

pub(super) fn capability_fields_refused(bench: &Bench) -> Verdict {
    let mut all = each(bench, &*bench.model()?, &unknown(), &mut || {
        Box::new(Unwatched)
    })?;
    if let Ok(convert) = convert_of(bench) {
        let (_folder, target) = target(bench)?;
        let options = ConvertOptions {
            extra: unknown(),
            ..ConvertOptions::default()
        };
        let report = convert.convert(&bench.path, &target, &options, &mut Unwatched);
        all.push((CONVERT, report.map(drop)));
    }
    if all.is_empty() {
        return not_applicable("no capability of the contract is offered");
    }
    for (name, result) in all {
        expect_refusal(name, result, FIELD)?;
    }
    Ok(())
}

pub(super) fn capabilities_cancelled(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let stop = || -> Box<dyn Progress> { Box::new(|_: u64, _: u64, _: &str| Control::Stop) };
    let mut all = each(bench, &*model, &BTreeMap::new(), &mut { stop })?;
    if let Ok(check) = check_of(bench) {
        all.push((CHECK, check.check(&bench.path, &mut *stop()).map(drop)));
    }
    if all.is_empty() {
        return not_applicable("no capability of the contract is offered");
    }
    for (name, result) in all {
        expect_error(
            &format!("{name}, stopped at its first step"),
            result,
            &[ErrorCode::Cancelled],
        )?;
    }
    // The model is none the worse for it.
    for (name, result) in each(bench, &*model, &BTreeMap::new(), &mut || {
        Box::new(Unwatched)
    })? {
        need(name, result)?;
    }
    Ok(())
}

pub(super) fn capabilities_closed(bench: &Bench) -> Verdict {
    let model = bench.own_model(None)?;
    // Taken before the close, and after.
    let embed = embed_of(&*model).ok();
    need("close", model.close())?;
    let mut all = each(bench, &*model, &BTreeMap::new(), &mut || {
        Box::new(Unwatched)
    })?;
    if let Some(embed) = embed {
        let request = embed_request(vec![bench.prompt()], true);
        let answers = embed.embed(&request, &mut Unwatched);
        let first = answers.and_then(|answers| answers.into_iter().next().transpose());
        all.push((EMBED, first.map(drop)));
    }
    if all.is_empty() {
        return not_applicable("no capability of a model is offered");
    }
    for (name, result) in all {
        expect_error(&format!("{name} after close"), result, &[ErrorCode::Closed])?;
    }
    Ok(())
}
