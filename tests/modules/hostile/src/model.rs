//! The model: the echo engine's, and what it was told to do in it.

use crate::Deed;
use backplane_plugin_api::{
    AnyCapability, BatchSink, ChatRequest, Classification, ClassifyRequest, Completion, Control,
    Event, GenerateRequest, Metrics, ModelInfo, Result, Sink, TextModel,
};
use std::sync::Arc;

/// The token at which `decode` is.
const AT: u32 = 3;

pub(crate) struct HostileModel {
    pub(crate) inner: Arc<dyn TextModel>,
    pub(crate) deed: Arc<Deed>,
}

/// A sink between the engine and the caller.
struct Between<'a> {
    sink: &'a mut dyn Sink,
    deed: &'a Deed,
    tokens: u32,
}

impl Sink for Between<'_> {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        if matches!(event, Event::Token { .. }) {
            self.tokens += 1;
            if self.tokens == AT {
                self.deed.enter("decode");
            }
        }
        let answer = self.sink.on_event(event);
        let ignores = self.deed.does("decode", "ignore_stop");
        if ignores { Control::Continue } else { answer }
    }

    fn should_stop(&self) -> bool {
        self.sink.should_stop() && !self.deed.does("decode", "ignore_stop")
    }
}

impl HostileModel {
    fn begin(&self, sink: &mut dyn Sink) {
        self.deed.enter("generate");
        let mut tell = |text: &str| {
            let _ = sink.on_event(Event::Token {
                token: Some(1),
                text,
                logprobs: &[],
            });
        };
        if self.deed.does("generate", "invalid_utf8") {
            // SAFETY: none; that it is no UTF-8 is what is asked for.
            tell(unsafe {
                std::str::from_utf8_unchecked(std::hint::black_box(&[b'a', 0xff, 0xc3]))
            });
        }
        while self.deed.does("generate", "endless") {
            tell("x");
        }
    }
}

impl TextModel for HostileModel {
    fn info(&self) -> ModelInfo {
        self.inner.info()
    }

    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        self.begin(sink);
        let (deed, tokens) = (&*self.deed, 0);
        self.inner
            .generate(request, &mut Between { sink, deed, tokens })
    }

    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion> {
        self.begin(sink);
        let (deed, tokens) = (&*self.deed, 0);
        self.inner
            .chat(request, &mut Between { sink, deed, tokens })
    }

    fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        self.inner.render_chat(request)
    }

    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        self.inner.classify(request)
    }

    fn batch_generate(
        &self,
        requests: &[GenerateRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        self.inner.batch_generate(requests, sink)
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        self.deed.enter("tokenize");
        self.inner.tokenize(text, add_special, parse_special)
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        self.inner.detokenize(tokens, special)
    }

    fn metrics(&self) -> Metrics {
        self.inner.metrics()
    }

    fn close(&self) -> Result<()> {
        self.deed.enter("close");
        self.inner.close()
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        self.inner.capability(name)
    }
}
