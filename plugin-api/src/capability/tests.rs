//! The capabilities through the objects that cross.

use super::*;
use crate::abi::capabilities as data;
use crate::abi::codes;
use crate::sdk::*;
use crate::types::*;
use abi_stable::std_types::RString;
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Keeps what it was asked and tells three steps of progress; `panic` makes it panic after the first.
#[derive(Default)]
struct Engine {
    asked: Mutex<String>,
    panic: bool,
}

impl Engine {
    fn enter(&self, asked: String, progress: &mut dyn Progress) -> Result<()> {
        *self.asked.lock().unwrap() = asked;
        for done in 0..3 {
            if progress.on_progress(done, 3, "steps") == Control::Stop {
                return Err(Error::cancelled("the call"));
            }
            assert!(!self.panic, "told to");
        }
        Ok(())
    }
}

impl Embed for Engine {
    fn embed(
        &self,
        request: &EmbedRequest,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Result<Embedding>>> {
        self.enter(format!("{request:?}"), progress)?;
        Ok(vec![
            Ok(Embedding {
                values: vec![1.0, f32::NEG_INFINITY],
                prompt_tokens: 7,
            }),
            Err(Error::invalid_field("inputs", "no tokens")),
        ])
    }
}

impl Score for Engine {
    fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
        self.enter(format!("{request:?}"), progress)?;
        Ok(vec![-0.5; request.scored()])
    }
}

impl Attention for Engine {
    fn inspect_attention(
        &self,
        request: &AttentionRequest,
        progress: &mut dyn Progress,
    ) -> Result<AttentionState> {
        self.enter(format!("{request:?}"), progress)?;
        Ok(state())
    }
}

impl Peaks for Engine {
    fn measure_peaks(
        &self,
        request: &PeaksRequest,
        progress: &mut dyn Progress,
    ) -> Result<PeaksReport> {
        self.enter(format!("{request:?}"), progress)?;
        Ok(peaks_report())
    }
}

impl Check for Engine {
    fn check(&self, path: &Path, progress: &mut dyn Progress) -> Result<Vec<Finding>> {
        self.enter(format!("{path:?}"), progress)?;
        Ok(vec![finding()])
    }
}

impl Convert for Engine {
    fn convert(
        &self,
        source: &Path,
        destination: &Path,
        options: &ConvertOptions,
        progress: &mut dyn Progress,
    ) -> Result<ConvertReport> {
        self.enter(format!("{source:?} {destination:?} {options:?}"), progress)?;
        Ok(report())
    }
}

fn state() -> AttentionState {
    AttentionState {
        tokens: vec![3, 4],
        layers: vec![LayerAttention {
            layer: 5,
            heads: 2,
            kv_heads: 1,
            head_dim: 1,
            queries: vec![1.0, 2.0, 3.0, 4.0],
            keys: vec![5.0, 6.0],
        }],
    }
}

fn peaks_report() -> PeaksReport {
    PeaksReport {
        read_bytes_per_s: u64::MAX,
        multiply_adds_per_s: 2,
        token_bytes: 3,
        token_multiply_adds: 4,
        measured: "é".into(),
    }
}

fn finding() -> Finding {
    Finding {
        tensor: "blk.0.attn_q.weight".into(),
        message: "3 numbers that are none".into(),
    }
}

fn report() -> ConvertReport {
    ConvertReport {
        tensors: 2,
        bytes: 3,
        notes: vec!["norms keep their type".into()],
    }
}

struct Offers {
    engine: Arc<Engine>,
    /// Offers a number in place of each.
    wrong: bool,
}

impl Offers {
    fn new(engine: Engine) -> (Arc<Engine>, Self) {
        let engine = Arc::new(engine);
        let offers = Self {
            engine: engine.clone(),
            wrong: false,
        };
        (engine, offers)
    }

    fn offer(&self, name: &str) -> Option<AnyCapability> {
        let engine = self.engine.clone();
        let offered = match name {
            EMBED => AnyCapability::embed(engine),
            SCORE => AnyCapability::score(engine),
            ATTENTION => AnyCapability::attention(engine),
            PEAKS => AnyCapability::peaks(engine),
            CHECK => AnyCapability::check(engine),
            CONVERT => AnyCapability::convert(engine),
            _ => return None,
        };
        Some(if self.wrong {
            AnyCapability::new(7_u32)
        } else {
            offered
        })
    }
}

impl Backend for Offers {
    fn name(&self) -> String {
        "offers".into()
    }
    fn version(&self) -> String {
        "1.0.0".into()
    }
    fn probe(&self) -> Verdict {
        Verdict::available("always")
    }
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(Vec::new())
    }
    fn inspect(&self, _: &Path) -> Result<Option<ModelInfo>> {
        Ok(None)
    }
    fn load(&self, _: &Path, _: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        Err(Error::new(ErrorCode::Unsupported, "no models"))
    }
    fn capability(&self, name: &str) -> Option<AnyCapability> {
        self.offer(name)
    }
}

fn none<T>() -> Result<T> {
    Err(Error::new(ErrorCode::Unsupported, "none"))
}

impl TextModel for Offers {
    fn info(&self) -> ModelInfo {
        unreachable!("not asked here")
    }
    fn generate(&self, _: &GenerateRequest, _: &mut dyn Sink) -> Result<Completion> {
        none()
    }
    fn chat(&self, _: &ChatRequest, _: &mut dyn Sink) -> Result<Completion> {
        none()
    }
    fn render_chat(&self, _: &ChatRequest) -> Result<String> {
        none()
    }
    fn classify(&self, _: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        none()
    }
    fn batch_generate(
        &self,
        _: &[GenerateRequest],
        _: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        none()
    }
    fn tokenize(&self, _: &str, _: bool, _: bool) -> Result<Vec<u32>> {
        none()
    }
    fn detokenize(&self, _: &[u32], _: bool) -> Result<Vec<u8>> {
        none()
    }
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self, name: &str) -> Option<AnyCapability> {
        self.offer(name)
    }
}

fn extra() -> std::collections::BTreeMap<String, serde_json::Value> {
    [("k".to_owned(), json!([1, null]))].into()
}

fn embed_request() -> EmbedRequest {
    EmbedRequest {
        inputs: vec![Prompt::text("é"), Prompt::Tokens(vec![1, u32::MAX])],
        pooling: Pooling::Cls,
        normalize: true,
        extra: extra(),
    }
}

fn attention_request() -> AttentionRequest {
    AttentionRequest {
        prompt: Prompt::text("a"),
        layers: Some(vec![]),
        extra: extra(),
    }
}

fn score_request() -> ScoreRequest {
    ScoreRequest {
        tokens: vec![5, 6, 7, 8],
        first: 2,
        extra: extra(),
    }
}

/// Calls each capability with a watcher; gives its name, what was asked, and how it ended.
fn each(
    offers: &Offers,
    progress: &mut dyn Progress,
) -> Vec<(&'static str, String, Result<String>)> {
    let mut all = Vec::new();
    let mut add = |name, result: Result<String>| {
        all.push((name, offers.engine.asked.lock().unwrap().clone(), result));
    };
    let embed = embed(offers).unwrap().unwrap();
    add(
        EMBED,
        embed
            .embed(&embed_request(), progress)
            .map(|answer| format!("{answer:?}")),
    );
    let score = score(offers).unwrap().unwrap();
    add(
        SCORE,
        score
            .score(&score_request(), progress)
            .map(|answer| format!("{answer:?}")),
    );
    let attention = attention(offers).unwrap().unwrap();
    add(
        ATTENTION,
        attention
            .inspect_attention(&attention_request(), progress)
            .map(|answer| format!("{answer:?}")),
    );
    let peaks = peaks(offers).unwrap().unwrap();
    add(
        PEAKS,
        peaks
            .measure_peaks(&PeaksRequest { extra: extra() }, progress)
            .map(|answer| format!("{answer:?}")),
    );
    let check = check(offers).unwrap().unwrap();
    add(
        CHECK,
        check
            .check(Path::new("/a b/é"), progress)
            .map(|answer| format!("{answer:?}")),
    );
    let options = ConvertOptions {
        quantize: Some("q8_0".into()),
        extra: extra(),
    };
    let convert = convert(offers).unwrap().unwrap();
    add(
        CONVERT,
        convert
            .convert(Path::new("a"), Path::new("b"), &options, progress)
            .map(|answer| format!("{answer:?}")),
    );
    all
}

#[test]
fn all_crosses_and_comes_back_the_same() {
    let (_, offers) = Offers::new(Engine::default());
    let mut steps = Vec::new();
    let mut watch = |done: u64, total: u64, what: &str| {
        steps.push((done, total, what.to_owned()));
        Control::Continue
    };
    let options = ConvertOptions {
        quantize: Some("q8_0".into()),
        extra: extra(),
    };
    let embeddings: [Result<Embedding>; 2] = [
        Ok(Embedding {
            values: vec![1.0, f32::NEG_INFINITY],
            prompt_tokens: 7,
        }),
        Err(Error::invalid_field("inputs", "no tokens")),
    ];
    let expected = [
        (
            EMBED,
            format!("{:?}", embed_request()),
            format!("{embeddings:?}"),
        ),
        (
            SCORE,
            format!("{:?}", score_request()),
            "[-0.5, -0.5]".to_owned(),
        ),
        (
            ATTENTION,
            format!("{:?}", attention_request()),
            format!("{:?}", state()),
        ),
        (
            PEAKS,
            format!("{:?}", PeaksRequest { extra: extra() }),
            format!("{:?}", peaks_report()),
        ),
        (CHECK, "\"/a b/é\"".to_owned(), format!("{:?}", [finding()])),
        (
            CONVERT,
            format!("\"a\" \"b\" {options:?}"),
            format!("{:?}", report()),
        ),
    ];
    let found = each(&offers, &mut watch);
    for ((name, asked, answer), (found_name, found_asked, found)) in expected.into_iter().zip(found)
    {
        assert_eq!((name, asked), (found_name, found_asked));
        assert_eq!(found, Ok(answer), "{name}");
    }
    let six_times: Vec<_> = (0..18)
        .map(|step| (step % 3, 3, "steps".to_owned()))
        .collect();
    assert_eq!(steps, six_times);
}

#[test]
fn stop_cancels_and_nothing_is_asked_after_it() {
    /// Goes on after it was told to stop.
    struct Deaf;
    impl Score for Deaf {
        fn score(&self, _: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
            let told: Vec<_> = (0..3)
                .map(|done| progress.on_progress(done, 3, "steps"))
                .collect();
            assert_eq!(told, [Control::Continue, Control::Stop, Control::Stop]);
            Err(Error::cancelled("score"))
        }
    }
    let mut asked = 0;
    let mut stop = |done: u64, _: u64, _: &str| {
        asked += 1;
        if done == 1 {
            Control::Stop
        } else {
            Control::Continue
        }
    };
    let (_, offers) = Offers::new(Engine::default());
    for (name, _, result) in each(&offers, &mut stop) {
        assert_eq!(result.unwrap_err().code, ErrorCode::Cancelled, "{name}");
    }
    assert_eq!(asked, 12);
    asked = 0;
    let mut stop = |done: u64, _: u64, _: &str| {
        asked += 1;
        if done == 1 {
            Control::Stop
        } else {
            Control::Continue
        }
    };
    let object = AnyCapability::score(Arc::new(Deaf));
    let object = object.take::<data::ScoreObject>().unwrap();
    let error = import::imported_score(object)
        .score(&ScoreRequest::default(), &mut stop)
        .unwrap_err();
    assert_eq!((error.code, asked), (ErrorCode::Cancelled, 2));
}

#[test]
fn panics_stay_on_their_side() {
    crate::guard::install_hook();
    let (_, offers) = Offers::new(Engine {
        panic: true,
        ..Engine::default()
    });
    for (name, _, result) in each(&offers, &mut Unwatched) {
        let error = result.unwrap_err();
        assert_eq!(error.code, ErrorCode::Panicked, "{name}");
        assert!(error.message.contains("told to"), "{error}");
    }
    let (_, offers) = Offers::new(Engine::default());
    let mut watch = |done: u64, _: u64, _: &str| -> Control { panic!("at {done}") };
    for (name, _, result) in each(&offers, &mut watch) {
        let error = result.unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal, "{name}");
        assert_eq!(error.message, "the caller's progress panicked: at 0");
    }
    assert!(
        each(&offers, &mut Unwatched)
            .iter()
            .all(|one| one.2.is_ok()),
        "the next call works"
    );
}

#[test]
fn another_layout_costs_that_capability_and_an_absent_one_nothing() {
    let (_, mut offers) = Offers::new(Engine::default());
    offers.wrong = true;
    let errors = [
        embed(&offers).err(),
        score(&offers).err(),
        attention(&offers).err(),
        peaks(&offers).err(),
        check(&offers).err(),
        convert(&offers).err(),
    ];
    for (error, name) in errors
        .into_iter()
        .zip([EMBED, SCORE, ATTENTION, PEAKS, CHECK, CONVERT])
    {
        let error = error.expect("a number is no such object");
        assert_eq!(error.code, ErrorCode::Unsupported, "{error}");
        assert!(error.message.starts_with(name), "{error}");
        assert!(!error.message.contains('\n') && error.message.len() < 600);
    }
    // The contract's own default offers nothing.
    struct Plain(Offers);
    impl Backend for Plain {
        fn name(&self) -> String {
            Backend::name(&self.0)
        }
        fn version(&self) -> String {
            self.0.version()
        }
        fn probe(&self) -> Verdict {
            self.0.probe()
        }
        fn devices(&self) -> Result<Vec<DeviceInfo>> {
            self.0.devices()
        }
        fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
            self.0.inspect(path)
        }
        fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>> {
            self.0.load(path, options)
        }
    }
    let plain = Plain(offers);
    assert!(matches!(check(&plain), Ok(None)) && matches!(convert(&plain), Ok(None)));
}

#[test]
fn what_a_later_version_asks_is_refused_by_name() {
    let mut request = data::EmbedRequest::from(&embed_request());
    request.pooling = codes::Pooling(99);
    let error = EmbedRequest::try_from(&request).unwrap_err();
    assert_eq!(
        (error.code, error.field.as_str()),
        (ErrorCode::UnsupportedField, "pooling")
    );
    assert!(error.message.contains("99"), "{error}");
    for (extra, code, field) in [
        ("{\"depth\":2}", ErrorCode::UnsupportedField, "depth"),
        ("[1]", ErrorCode::InvalidRequest, "extra"),
    ] {
        let options = data::CheckOptions {
            extra: RString::from(extra),
        };
        let error = crossing::check_options_in(&options).unwrap_err();
        assert_eq!((error.code, error.field.as_str()), (code, field));
    }
}

#[test]
fn the_first_token_is_never_scored() {
    let scored = |count: usize, first| {
        let tokens = vec![0; count];
        ScoreRequest {
            tokens,
            first,
            ..ScoreRequest::default()
        }
        .scored()
    };
    assert_eq!((scored(0, 0), scored(1, 0), scored(4, 0)), (0, 0, 3));
    assert_eq!((scored(4, 1), scored(4, 3), scored(4, u32::MAX)), (3, 1, 0));
}
