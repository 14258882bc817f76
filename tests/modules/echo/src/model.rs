//! The model.

use crate::text::TextStream;
use crate::{BEGIN, Behaviour, END, VOCABULARY, capability};
use backplane_plugin_api::capability::{ATTENTION, EMBED, PEAKS, SCORE};
use backplane_plugin_api::{
    AnyCapability, BatchSink, ChatRequest, Classification, ClassifyRequest, Completion, Control,
    Error, ErrorCode, Event, FinishReason, GenerateOptions, GenerateRequest, Metrics, ModelInfo,
    Prompt, Result, Sink, TextModel, TokenLogprob,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Tokens of the prompt that are read between two looks at whether to stop.
const BATCH: usize = 16;

/// A model that says its prompt again.
pub struct EchoModel {
    shared: Arc<Shared>,
    generated: AtomicU64,
    cache_tokens: u64,
}

/// What the model and its capabilities share.
pub(crate) struct Shared {
    pub(crate) behaviour: Arc<Behaviour>,
    info: ModelInfo,
    closed: AtomicBool,
}

impl EchoModel {
    pub(crate) fn new(behaviour: Arc<Behaviour>, info: ModelInfo, cache_tokens: u64) -> Self {
        let closed = AtomicBool::new(false);
        Self {
            shared: Arc::new(Shared {
                behaviour,
                info,
                closed,
            }),
            generated: AtomicU64::new(0),
            cache_tokens,
        }
    }
}

impl Shared {
    pub(crate) fn open(&self, call: &str) -> Result<()> {
        self.behaviour.enter(call);
        self.still_open()
    }

    pub(crate) fn still_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorCode::Closed,
                format!("{}: the model was closed", self.info.name),
            ));
        }
        Ok(())
    }

    pub(crate) fn refuse(&self, field: &str) -> Error {
        Error::unsupported_field(field, &self.behaviour.name)
    }

    fn check(&self, options: &GenerateOptions) -> Result<()> {
        let sampling = &options.sampling;
        let unsupported = [
            ("top_k", sampling.top_k.is_some()),
            ("top_p", sampling.top_p.is_some()),
            ("min_p", sampling.min_p.is_some()),
            ("repeat_penalty", sampling.repeat_penalty.is_some()),
            ("repeat_last_n", sampling.repeat_last_n.is_some()),
            ("presence_penalty", sampling.presence_penalty.is_some()),
            ("frequency_penalty", sampling.frequency_penalty.is_some()),
            ("logit_bias", !sampling.logit_bias.is_empty()),
            ("logprobs", options.logprobs.is_some()),
            ("grammar", options.grammar.is_some()),
        ];
        if let Some((field, _)) = unsupported.iter().find(|(_, asked)| *asked) {
            return Err(self.refuse(field));
        }
        if let Some(field) = options.extra.keys().next() {
            return Err(self.refuse(field));
        }
        if options.stop.iter().any(String::is_empty) {
            return Err(Error::invalid_field(
                "stop",
                "stop: expected texts, got an empty one",
            ));
        }
        match sampling.temperature {
            Some(temperature) if !(temperature >= 0.0 && temperature.is_finite()) => {
                Err(Error::invalid_field(
                    "temperature",
                    format!("temperature {temperature}: expected a number of at least 0"),
                ))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn prompt_tokens(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        let tokens = match prompt {
            Prompt::Text { text, special } => tokens_of(text, true, *special),
            Prompt::Tokens(tokens) => tokens.clone(),
        };
        self.in_vocabulary(&tokens, "prompt")?;
        self.in_context(tokens.len())?;
        Ok(tokens)
    }

    pub(crate) fn in_vocabulary(&self, tokens: &[u32], field: &str) -> Result<()> {
        match tokens.iter().find(|&&token| token >= VOCABULARY) {
            Some(token) => Err(Error::invalid_field(
                field,
                format!("token {token}: expected less than {VOCABULARY}"),
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn in_context(&self, tokens: usize) -> Result<()> {
        let context = self.info.loaded_context;
        if tokens as u64 >= context {
            let message = format!("the prompt has {tokens} tokens, the context {context}");
            return Err(Error::new(ErrorCode::ContextOverflow, message));
        }
        Ok(())
    }
}

impl EchoModel {
    fn run(
        &self,
        tokens: &[u32],
        options: &GenerateOptions,
        sink: &mut dyn Sink,
    ) -> Result<Completion> {
        let seed = options.sampling.seed.unwrap_or(7);
        let mut done = Completion {
            finish_reason: FinishReason::Cancelled,
            stop_string: None,
            prompt_tokens: tokens.len() as u64,
            cached_tokens: 0,
            completion_tokens: 0,
            seed,
            queue_s: 0.0,
            prefill_s: 0.0,
            decode_s: 0.0,
        };
        let start = Instant::now();
        let mut read = 0;
        for batch in tokens.chunks(BATCH) {
            self.shared.still_open()?;
            if sink.should_stop() {
                return Ok(done);
            }
            read += batch.len() as u64;
            if sink.on_event(Event::Prefill {
                done: read,
                total: tokens.len() as u64,
            }) == Control::Stop
            {
                return Ok(done);
            }
        }
        done.prefill_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let mut choose = Choose::new(tokens, options, seed);
        let room = self.shared.info.loaded_context - tokens.len() as u64;
        let (most, at_most) = match options
            .max_tokens
            .map(u64::from)
            .filter(|&most| most <= room)
        {
            Some(most) => (most, FinishReason::Length),
            None => (room, FinishReason::ContextFull),
        };
        let mut stream = TextStream::new(&options.stop);
        done.finish_reason = loop {
            self.shared.still_open()?;
            if sink.should_stop() {
                break FinishReason::Cancelled;
            }
            if done.completion_tokens == most {
                break at_most;
            }
            self.shared.behaviour.enter("decode");
            std::thread::sleep(self.shared.behaviour.token_delay);
            let token = choose.next();
            if options.stop_tokens.contains(&token) || (token == END && !options.ignore_end) {
                break FinishReason::Stop;
            }
            done.completion_tokens += 1;
            self.generated.fetch_add(1, Ordering::Relaxed);
            let text = u8::try_from(token).map_or_else(|_| String::new(), |byte| stream.push(byte));
            if sink.on_event(Event::Token {
                token: Some(token),
                text: &text,
                logprobs: &[],
            }) == Control::Stop
            {
                break FinishReason::Cancelled;
            }
            if let Some(stop) = &stream.stopped {
                done.stop_string = Some(stop.clone());
                break FinishReason::StopString;
            }
        };
        let rest = stream.finish();
        if !rest.is_empty() && done.finish_reason != FinishReason::Cancelled {
            sink.on_event(Event::Text { text: &rest });
        }
        done.decode_s = start.elapsed().as_secs_f64();
        Ok(done)
    }
}

/// The tokens that follow: the prompt in order when greedy, at random from it otherwise, then the end; over and over
/// when the end is ignored.
struct Choose<'a> {
    tokens: Vec<u32>,
    at: usize,
    random: Option<u64>,
    options: &'a GenerateOptions,
}

impl<'a> Choose<'a> {
    fn new(prompt: &[u32], options: &'a GenerateOptions, seed: u64) -> Self {
        let tokens = prompt
            .iter()
            .copied()
            .filter(|&token| token < 256)
            .collect();
        let random = (options.sampling.temperature.unwrap_or(0.8) > 0.0).then_some(seed);
        Self {
            tokens,
            at: 0,
            random,
            options,
        }
    }

    fn next(&mut self) -> u32 {
        if self.tokens.is_empty() || (self.at == self.tokens.len() && !self.options.ignore_end) {
            return END;
        }
        let at = self.at % self.tokens.len();
        self.at += 1;
        match &mut self.random {
            None => self.tokens[at],
            Some(state) => {
                // SplitMix64.
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = *state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                self.tokens[((z ^ (z >> 31)) % self.tokens.len() as u64) as usize]
            }
        }
    }
}

fn tokens_of(text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
    let mut tokens = Vec::new();
    if add_special {
        tokens.push(BEGIN);
    }
    let mut rest = text;
    while !rest.is_empty() {
        let special = [("<begin>", BEGIN), ("<end>", END)]
            .into_iter()
            .find(|(name, _)| parse_special && rest.starts_with(name));
        if let Some((name, token)) = special {
            tokens.push(token);
            rest = &rest[name.len()..];
        } else {
            let length = rest.chars().next().map_or(1, char::len_utf8);
            tokens.extend(rest[..length].bytes().map(u32::from));
            rest = &rest[length..];
        }
    }
    tokens
}

impl TextModel for EchoModel {
    fn info(&self) -> ModelInfo {
        self.shared.behaviour.enter("info");
        self.shared.info.clone()
    }

    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        self.shared.open("generate")?;
        self.shared.check(&request.options)?;
        self.run(
            &self.shared.prompt_tokens(&request.prompt)?,
            &request.options,
            sink,
        )
    }

    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion> {
        self.shared.open("chat")?;
        self.shared.check(&request.options)?;
        let text = self.render_chat(request)?;
        self.run(
            &self.shared.prompt_tokens(&Prompt::Text {
                text,
                special: true,
            })?,
            &request.options,
            sink,
        )
    }

    fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        self.shared.still_open()?;
        if request.messages.is_empty() {
            return Err(Error::new(
                ErrorCode::TemplateRefused,
                "echo: expected at least one message",
            ));
        }
        if self.shared.behaviour.last_message {
            let last = request.messages.last();
            let text = last.and_then(|last| last.content.clone());
            return Ok(text.unwrap_or_default());
        }
        if request.tools.is_some() {
            return Err(self.shared.refuse("tools"));
        }
        if let Some(name) = request.template_options.keys().next() {
            return Err(self.shared.refuse(name));
        }
        let mut text = String::new();
        for message in &request.messages {
            if !["system", "user", "assistant"].contains(&message.role.as_str()) {
                return Err(Error::new(
                    ErrorCode::TemplateRefused,
                    format!("echo: no role `{}`", message.role),
                ));
            }
            text += &format!(
                "{}: {}\n",
                message.role,
                message.content.as_deref().unwrap_or_default()
            );
        }
        Ok(text)
    }

    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        self.shared.open("classify")?;
        if let Some(field) = request.extra.keys().next() {
            return Err(self.shared.refuse(field));
        }
        Ok(request
            .prompts
            .iter()
            .map(|prompt| self.classify_one(prompt, request))
            .collect())
    }

    fn batch_generate(
        &self,
        requests: &[GenerateRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        self.shared.open("batch")?;
        Ok(requests
            .iter()
            .enumerate()
            .map(|(index, request)| {
                self.shared.check(&request.options)?;
                self.run(
                    &self.shared.prompt_tokens(&request.prompt)?,
                    &request.options,
                    &mut OneOf {
                        index,
                        sink: &mut *sink,
                    },
                )
            })
            .collect())
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        self.shared.open("tokenize")?;
        Ok(tokens_of(text, add_special, parse_special))
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        self.shared.still_open()?;
        let mut bytes = Vec::new();
        for &token in tokens {
            match token {
                BEGIN if special => bytes.extend(b"<begin>"),
                END if special => bytes.extend(b"<end>"),
                BEGIN | END => {}
                _ => bytes.push(u8::try_from(token).map_err(|_| {
                    Error::invalid_field(
                        "tokens",
                        format!("token {token}: expected less than {VOCABULARY}"),
                    )
                })?),
            }
        }
        Ok(bytes)
    }

    fn metrics(&self) -> Metrics {
        self.shared.behaviour.enter("metrics");
        let generated = self.generated.load(Ordering::Relaxed);
        let mut all = vec![("tokens_generated_total", generated)];
        if let Some(bytes) = self.shared.behaviour.cache_token_bytes {
            all.push(("kv_bytes_limit", bytes * self.cache_tokens));
            all.push(("kv_tokens_limit", self.cache_tokens));
            all.push(("kv_pages_total", self.cache_tokens));
        }
        if let Some(bytes) = self.shared.behaviour.grows {
            all.push(("memory_bytes", bytes * generated));
        }
        let named = |(name, number): (&str, u64)| (name.to_owned(), number as f64);
        all.into_iter().map(named).collect()
    }

    fn close(&self) -> Result<()> {
        self.shared.behaviour.enter("close");
        self.shared.closed.store(true, Ordering::Release);
        Ok(())
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        let shared = self.shared.clone();
        match name {
            EMBED if self.shared.behaviour.offers(name) => Some(AnyCapability::embed(shared)),
            SCORE if self.shared.behaviour.offers(name) => Some(AnyCapability::score(shared)),
            ATTENTION if self.shared.behaviour.offers(name) => {
                Some(AnyCapability::attention(shared))
            }
            PEAKS if self.shared.behaviour.offers(name) => Some(AnyCapability::peaks(shared)),
            _ => capability(name),
        }
    }
}

/// Logits of the token after others, and the logarithm of the sum of their exponentials: the likeliest is the first of the
/// prompt; the others are equally unlikely.
pub(crate) fn next_logits(tokens: &[u32]) -> (Vec<f32>, f64) {
    let first = likeliest(tokens);
    let others = f64::from(VOCABULARY - 1);
    let logit = |token| if token == first { 10.0 } else { 0.0 };
    let logits = (0..VOCABULARY).map(logit).collect();
    (logits, (10_f64.exp() + others).ln())
}

fn likeliest(tokens: &[u32]) -> u32 {
    tokens
        .iter()
        .copied()
        .find(|&token| token < 256)
        .unwrap_or(END)
}

impl EchoModel {
    fn classify_one(&self, prompt: &Prompt, request: &ClassifyRequest) -> Result<Classification> {
        let tokens = self.shared.prompt_tokens(prompt)?;
        if tokens.is_empty() {
            return Err(Error::invalid_field(
                "prompts",
                "a prompt without tokens: expected at least one",
            ));
        }
        let first = likeliest(&tokens);
        let (logits, total) = next_logits(&tokens);
        let mut order: Vec<u32> = (0..VOCABULARY).collect();
        order.sort_by_key(|&token| token != first);
        let top = order
            .into_iter()
            .take(request.top as usize)
            .map(|token| TokenLogprob {
                token,
                text: u8::try_from(token).map_or_else(
                    |_| String::new(),
                    |byte| String::from_utf8_lossy(&[byte]).into_owned(),
                ),
                logprob: (f64::from(logits[token as usize]) - total) as f32,
            });
        Ok(Classification {
            prompt_tokens: tokens.len() as u64,
            top: top.collect(),
            logits: request.logits.then_some(logits),
        })
    }
}

/// One request's share of a batch's sink.
struct OneOf<'a> {
    index: usize,
    sink: &'a mut dyn BatchSink,
}

impl Sink for OneOf<'_> {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        self.sink.on_event(self.index, event)
    }

    fn should_stop(&self) -> bool {
        self.sink.should_stop(self.index)
    }
}
