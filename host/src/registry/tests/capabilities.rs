//! Capabilities through the registry and its models.

use super::*;
use backplane_plugin_api::{
    AnyCapability, Check, Convert, ConvertOptions, ConvertReport, Embed, EmbedRequest, Embedding,
    Finding, Pooling, Progress, ScoreRequest, Unwatched, capability,
};

/// [`Echo`], offering capabilities by their names.
struct Offering(Arc<Echo>, &'static [&'static str]);

struct Tool(&'static str);

impl Check for Tool {
    fn check(&self, path: &Path, progress: &mut dyn Progress) -> SdkResult<Vec<Finding>> {
        if progress.on_progress(0, 1, "w") == Control::Stop {
            return Err(types::Error::cancelled("check"));
        }
        let message = format!("{}: found by {}", path.display(), self.0);
        let tensor = "w".to_owned();
        Ok(vec![Finding { tensor, message }])
    }
}

impl Convert for Tool {
    fn convert(
        &self,
        _: &Path,
        destination: &Path,
        options: &ConvertOptions,
        _: &mut dyn Progress,
    ) -> SdkResult<ConvertReport> {
        if options.quantize.is_some() {
            return Err(types::Error::unsupported_field("quantize", self.0));
        }
        std::fs::write(destination, self.0).unwrap();
        Ok(ConvertReport::default())
    }
}

impl Embed for Tool {
    fn embed(
        &self,
        request: &EmbedRequest,
        _: &mut dyn Progress,
    ) -> SdkResult<Vec<SdkResult<Embedding>>> {
        let one = |prompt: &Prompt| match prompt {
            Prompt::Text { .. } => Ok(Embedding {
                values: vec![1.0],
                prompt_tokens: 1,
            }),
            Prompt::Tokens(_) => none(),
        };
        Ok(request.inputs.iter().map(one).collect())
    }
}

impl Backend for Offering {
    fn name(&self) -> String {
        self.0.name()
    }
    fn version(&self) -> String {
        self.0.version()
    }
    fn probe(&self) -> Verdict {
        self.0.probe()
    }
    fn devices(&self) -> SdkResult<Vec<DeviceInfo>> {
        self.0.devices()
    }
    fn inspect(&self, path: &Path) -> SdkResult<Option<ModelInfo>> {
        self.0.inspect(path)
    }
    fn load(&self, path: &Path, options: &LoadOptions) -> SdkResult<Arc<dyn TextModel>> {
        let words = self.0.load(path, options)?;
        Ok(Arc::new(OfferingModel(words, self.1)))
    }
    fn capability(&self, name: &str) -> Option<AnyCapability> {
        match name {
            _ if !self.1.contains(&name) => None,
            capability::CHECK => Some(AnyCapability::check(Arc::new(Tool(self.0.name)))),
            capability::CONVERT => Some(AnyCapability::convert(Arc::new(Tool(self.0.name)))),
            _ => None,
        }
    }
}

struct OfferingModel(Arc<dyn TextModel>, &'static [&'static str]);

impl TextModel for OfferingModel {
    fn info(&self) -> ModelInfo {
        self.0.info()
    }
    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> SdkResult<Completion> {
        self.0.generate(request, sink)
    }
    fn chat(&self, _: &ChatRequest, _: &mut dyn Sink) -> SdkResult<Completion> {
        none()
    }
    fn render_chat(&self, _: &ChatRequest) -> SdkResult<String> {
        none()
    }
    fn classify(&self, _: &ClassifyRequest) -> SdkResult<Vec<SdkResult<Classification>>> {
        none()
    }
    fn batch_generate(
        &self,
        _: &[GenerateRequest],
        _: &mut dyn BatchSink,
    ) -> SdkResult<Vec<SdkResult<Completion>>> {
        none()
    }
    fn tokenize(&self, _: &str, _: bool, _: bool) -> SdkResult<Vec<u32>> {
        none()
    }
    fn detokenize(&self, _: &[u32], _: bool) -> SdkResult<Vec<u8>> {
        none()
    }
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
    fn close(&self) -> SdkResult<()> {
        Ok(())
    }
    fn capability(&self, name: &str) -> Option<AnyCapability> {
        let offered = name == capability::EMBED && self.1.contains(&name);
        offered.then(|| AnyCapability::embed(Arc::new(Tool("embed"))))
    }
}

const BOTH: &[&str] = &[capability::CHECK, capability::CONVERT];

fn offering(registry: &Registry, name: &'static str, offers: &'static [&'static str]) {
    let backend = Offering(echo(name, ready()), offers);
    registry.register(Arc::new(backend)).unwrap();
}

#[test]
fn the_first_that_offers_it_and_takes_the_model_does_it() {
    let root = tempfile::tempdir().unwrap();
    let registry = registry(root.path(), "order = [\"none\", \"other\", \"*\"]");
    let path = model(root.path());
    offering(&registry, "none", &[]);
    let mut other = echo("other", ready());
    Arc::get_mut(&mut other).unwrap().takes = false;
    registry.register(Arc::new(Offering(other, BOTH))).unwrap();
    offering(&registry, "right", BOTH);
    offering(&registry, "second", BOTH);
    let options = ModelOptions::default();
    let checked = registry.check(&path, &options, &mut Unwatched).unwrap();
    assert_eq!(
        (
            checked.backend.as_str(),
            checked.findings[0].message.clone()
        ),
        ("right", format!("{path}: found by right"))
    );
    let reasons: Vec<_> = checked
        .trace
        .candidates
        .iter()
        .map(|one| format!("{}: {}", one.name, one.reason))
        .collect();
    assert_eq!(
        reasons,
        [
            "none: does not offer `check/1`",
            "other: does not take this format",
            "right: first in the order that offers `check/1` for it",
            "second: `right` comes before it",
        ]
    );
    assert_eq!(checked.trace.notice, None, "that is no fall");

    let target = root.path().join("out.echo");
    let pinned = ModelOptions {
        backend: Some("second".into()),
        ..ModelOptions::default()
    };
    let convert = ConvertOptions::default();
    let converted = registry
        .convert(&path, &target, &convert, &pinned, &mut Unwatched)
        .unwrap();
    assert_eq!(converted.backend, "second");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "second");
    // What it refuses is told as its refusal, and not tried elsewhere.
    let quantize = ConvertOptions {
        quantize: Some("q8_0".into()),
        ..ConvertOptions::default()
    };
    let error = registry
        .convert(&path, &target, &quantize, &options, &mut Unwatched)
        .unwrap_err();
    assert!(error.to_string().starts_with("right: "), "{error}");
    assert_eq!(error.exit_code(), 2);
    // Stopped by the caller.
    let mut stop = |_: u64, _: u64, _: &str| Control::Stop;
    let error = registry.check(&path, &options, &mut stop).unwrap_err();
    assert_eq!((error.exit_code(), error.action()), (130, ""));
}

#[test]
fn who_does_not_offer_it_is_named() {
    let root = tempfile::tempdir().unwrap();
    let registry = registry(root.path(), "");
    let path = model(root.path());
    offering(&registry, "a", &[]);
    offering(&registry, "b", &[]);
    let verdict = Verdict::unavailable(VerdictState::NoDevice, "no GPU", "fit one");
    let gpu = Offering(echo("gpu", verdict), BOTH);
    registry.register(Arc::new(gpu)).unwrap();
    let check = |backend: Option<&str>| {
        let options = ModelOptions {
            backend: backend.map(str::to_owned),
            ..ModelOptions::default()
        };
        registry.check(&path, &options, &mut Unwatched).unwrap_err()
    };
    let error = check(None);
    assert_eq!(
        error.to_string(),
        "no available backend offers `check/1`, asked: `a`, `b`; `gpu`: no device: no GPU (fit one)"
    );
    assert!(error.exit_code() == 3 && error.trace().is_some());
    let error = check(Some("b"));
    assert_eq!(
        error.to_string(),
        "the pinned backend `b` does not offer `check/1`"
    );
}

#[test]
fn a_models_capabilities_and_those_it_lacks() {
    let root = tempfile::tempdir().unwrap();
    let registry = registry(root.path(), "");
    offering(&registry, "words", &[capability::EMBED]);
    let model = registry
        .load(&model(root.path()), &ModelOptions::default())
        .unwrap();
    let request = EmbedRequest {
        inputs: vec![Prompt::text("a"), Prompt::Tokens(vec![1])],
        pooling: Pooling::Mean,
        normalize: true,
        extra: Default::default(),
    };
    let answers = model.embed(&request, &mut Unwatched).unwrap();
    assert_eq!(answers[0].as_ref().unwrap().values, [1.0]);
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!(error.to_string(), "words: not here", "its own error");
    let error = model
        .score(&ScoreRequest::default(), &mut Unwatched)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "words: does not offer `score/1` for this model"
    );
    assert_eq!(error.exit_code(), 2);
}
