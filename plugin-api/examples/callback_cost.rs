//! Measures what a token costs across the contract: from a plugin's sink to the host's, through both adapters.
//!
//! `cargo run --release -p backplane-plugin-api --example callback_cost`

use backplane_plugin_api::*;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const TOKENS: u32 = 5_000_000;

/// Gives out `max_tokens` tokens, as fast as it can.
struct Machine;

fn unsupported<T>() -> Result<T> {
    Err(Error::new(ErrorCode::Unsupported, "only generates"))
}

fn info(path: &Path) -> ModelInfo {
    ModelInfo {
        name: "machine".into(),
        path: path.into(),
        format: "none".into(),
        architecture: "none".into(),
        quantization: "none".into(),
        parameters: 0,
        file_bytes: 0,
        context_length: 0,
        loaded_context: 0,
        vocabulary: 0,
        chat_template: None,
        unsupported: None,
        details: Vec::new(),
        metadata: Vec::new(),
        tensors: Vec::new(),
        warnings: Vec::new(),
    }
}

impl Backend for Machine {
    fn name(&self) -> String {
        "machine".into()
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
        Ok(Arc::new(Machine))
    }
}

impl TextModel for Machine {
    fn info(&self) -> ModelInfo {
        info(Path::new("machine"))
    }
    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let most = request.options.max_tokens.unwrap_or(0);
        let logprobs: Vec<_> = (0..request.options.logprobs.unwrap_or(0))
            .map(|token| TokenLogprob {
                token,
                text: "token".into(),
                logprob: -1.0,
            })
            .collect();
        for token in 0..most {
            let event = Event::Token {
                token: Some(token),
                text: black_box(" word"),
                logprobs: &logprobs,
            };
            if sink.should_stop() || sink.on_event(event) == Control::Stop {
                break;
            }
        }
        Ok(Completion {
            finish_reason: FinishReason::Length,
            stop_string: None,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: u64::from(most),
            seed: 0,
            queue_s: 0.0,
            prefill_s: 0.0,
            decode_s: 0.0,
        })
    }
    fn chat(&self, _: &ChatRequest, _: &mut dyn Sink) -> Result<Completion> {
        unsupported()
    }
    fn render_chat(&self, _: &ChatRequest) -> Result<String> {
        unsupported()
    }
    fn classify(&self, _: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        unsupported()
    }
    fn batch_generate(
        &self,
        _: &[GenerateRequest],
        _: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        unsupported()
    }
    fn tokenize(&self, _: &str, _: bool, _: bool) -> Result<Vec<u32>> {
        unsupported()
    }
    fn detokenize(&self, _: &[u32], _: bool) -> Result<Vec<u8>> {
        unsupported()
    }
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

fn nanoseconds_per_token(model: &dyn TextModel, tokens: u32, logprobs: Option<u32>) -> f64 {
    let options = GenerateOptions {
        max_tokens: Some(tokens),
        logprobs,
        ..GenerateOptions::default()
    };
    let request = GenerateRequest {
        prompt: Prompt::Tokens(Vec::new()),
        options,
    };
    let mut bytes = 0;
    let start = Instant::now();
    let done = model.generate(&request, &mut |event: Event<'_>| {
        if let Event::Token { text, .. } = event {
            bytes += text.len();
        }
        Control::Continue
    });
    let seconds = start.elapsed().as_secs_f64();
    assert!(
        done.is_ok() && bytes == 5 * tokens as usize,
        "every token must arrive"
    );
    seconds * 1e9 / f64::from(tokens)
}

fn main() {
    let here: Arc<dyn TextModel> = Arc::new(Machine);
    // Both adapters, in one program: what crosses is the same.
    let object = export::backend_object("machine", "1.0.0", Arc::new(Machine));
    let across = import::backend(object)
        .load(Path::new("machine"), &LoadOptions::default())
        .expect("it always loads");
    for (name, model) in [
        ("without the boundary", &here),
        ("across the boundary", &across),
    ] {
        println!(
            "{name}: {:.1} ns a token (should_stop and on_event)",
            nanoseconds_per_token(&**model, TOKENS, None)
        );
    }
    let with_logprobs = nanoseconds_per_token(&*across, TOKENS / 10, Some(5));
    println!("across the boundary, 5 log probabilities: {with_logprobs:.1} ns a token");
}
