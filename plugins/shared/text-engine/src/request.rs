//! Requests, checked: from what the contract carries to what the engine runs.

use crate::engine::{Config, Generation};
use crate::grammar::Grammars;
use crate::options::Speculation;
use crate::sampling::{Sampler, Settings};
use crate::stream::TextStream;
use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{
    ChatRequest, ClassifyRequest, Error, ErrorCode, FinishReason, GenerateOptions, Prompt,
};
use backplane_tokenizer::{
    DecodeOptions, EncodeOptions, Message, RenderOptions, StreamDecoder, Tokenizer,
};
use std::hash::{BuildHasher, Hasher};

/// Most log probabilities beside the chosen token's.
pub(crate) const MAX_LOGPROBS: u32 = 100;
/// Most stop strings, and most bytes of one.
pub(crate) const MAX_STOPS: usize = 64;
pub(crate) const MAX_STOP_BYTES: usize = 4096;

/// What requests are checked against.
pub(crate) struct Checker<'a> {
    pub(crate) backend: &'a str,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) config: &'a Config,
    pub(crate) grammars: &'a Grammars,
}

/// A generation that may run.
pub(crate) struct Prepared {
    pub(crate) prompt: Vec<u32>,
    pub(crate) seed: u64,
    /// `None` when no token is asked for.
    pub(crate) generation: Option<Box<Generation>>,
}

impl Checker<'_> {
    /// Tokens of a prompt, with the beginning-of-sequence token as the model wants it, if they leave room for an answer.
    pub(crate) fn prompt(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        self.check_prompt(self.tokens(prompt)?)
    }

    /// As [`Checker::prompt`], where nothing is answered: the prompt may fill the context.
    pub(crate) fn whole_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        let tokens = self.tokens(prompt)?;
        self.check_whole("prompt", &tokens)?;
        Ok(tokens)
    }

    /// Tokens of a prompt. Nothing is put behind.
    fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        Ok(match prompt {
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Text {
                text,
                special: true,
            } => self.tokenizer.encode_prompt(text).map_err(invalid_prompt)?,
            Prompt::Text {
                text,
                special: false,
            } => {
                let plain = EncodeOptions {
                    add_special: false,
                    parse_special: false,
                };
                let mut tokens = self.tokenizer.encode(text, plain).map_err(invalid_prompt)?;
                if let Some(bos) = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos()) {
                    tokens.insert(0, bos);
                }
                tokens
            }
        })
    }

    /// That tokens are in the vocabulary and, all of them, in the context.
    pub(crate) fn check_whole(&self, field: &str, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::invalid_field(
                field,
                format!("empty {field}: expected at least one token"),
            ));
        }
        self.check_vocabulary(field, tokens)?;
        let longest = self.config.longest();
        if tokens.len() > longest {
            let what = if longest < self.config.context {
                "cache"
            } else {
                "context"
            };
            let message = format!(
                "{field}: {} tokens, and the {what} has room for {longest}",
                tokens.len()
            );
            return Err(Error {
                field: field.into(),
                ..Error::new(ErrorCode::ContextOverflow, message)
            }
            .with_action("give fewer tokens, or load the model with a longer context"));
        }
        Ok(())
    }

    fn check_vocabulary(&self, field: &str, tokens: &[u32]) -> Result<()> {
        let vocabulary = self.config.vocabulary;
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(token) => {
                let message =
                    format!("{field}: token {token} is outside the vocabulary of {vocabulary}");
                Err(Error::invalid_field(field, message))
            }
            None => Ok(()),
        }
    }

    /// The tokens, if they are in the vocabulary and leave room in the context.
    pub(crate) fn check_prompt(&self, tokens: Vec<u32>) -> Result<Vec<u32>> {
        let context = self.config.context;
        if tokens.is_empty() {
            return Err(Error::invalid_field(
                "prompt",
                "empty prompt: expected at least one token",
            ));
        }
        self.check_vocabulary("prompt", &tokens)?;
        if tokens.len() >= context {
            let message = format!(
                "the prompt has {} tokens and the context {context}: at least one must be left for the answer",
                tokens.len()
            );
            return Err(Error {
                field: "prompt".into(),
                ..Error::new(ErrorCode::ContextOverflow, message)
            }
            .with_action("shorten the prompt or load the model with a longer context"));
        }
        self.check_pages(tokens.len(), 1, "prompt")?;
        Ok(tokens)
    }

    /// That a sequence fits into the cache when nothing else does.
    fn check_pages(&self, prompt: usize, asked: usize, field: &str) -> Result<()> {
        let Config {
            context,
            page_size,
            pages,
            ..
        } = *self.config;
        let needed = (prompt + asked).div_ceil(page_size);
        if needed <= pages {
            return Ok(());
        }
        let message = format!(
            "{field}: a prompt of {prompt} tokens and {asked} to generate take {needed} cache pages of {page_size}, and the \
             cache has {pages} (context {context})"
        );
        Err(Error {
            field: field.into(),
            ..Error::new(ErrorCode::ContextOverflow, message)
        }
        .with_action("ask for less, or load the model with more cache_tokens"))
    }

    /// Whether a generation is drafted; every other extra field is refused.
    fn speculation(&self, options: &GenerateOptions) -> Result<Speculation> {
        let own = Speculation::OPTION;
        self.check_extra(options.extra.keys().filter(|name| *name != own))?;
        let asked = options.extra.get(own).map(Speculation::read).transpose();
        let asked =
            asked.map_err(|message| Error::invalid_field(own, format!("{own}: {message}")))?;
        Ok(asked.unwrap_or(self.config.speculation))
    }

    /// The generation of a checked prompt.
    pub(crate) fn generation(
        &self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
    ) -> Result<Prepared> {
        let vocabulary = self.config.vocabulary;
        let speculation = self.speculation(options)?;
        if options.stop.len() > MAX_STOPS {
            let message = format!(
                "stop: {} stop strings; expected at most {MAX_STOPS}",
                options.stop.len()
            );
            return Err(Error::invalid_field("stop", message));
        }
        if let Some(stop) = options
            .stop
            .iter()
            .find(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES)
        {
            let message = format!(
                "stop: a stop string of {} bytes; expected 1 to {MAX_STOP_BYTES}",
                stop.len()
            );
            return Err(Error::invalid_field("stop", message));
        }
        if let Some(token) = options
            .stop_tokens
            .iter()
            .find(|&&token| token as usize >= vocabulary)
        {
            let message =
                format!("stop_tokens: token {token} is outside the vocabulary of {vocabulary}");
            return Err(Error::invalid_field("stop_tokens", message));
        }
        if let Some(logprobs) = options.logprobs.filter(|&logprobs| logprobs > MAX_LOGPROBS) {
            let message = format!("logprobs: {logprobs}; expected at most {MAX_LOGPROBS}");
            return Err(Error::invalid_field("logprobs", message));
        }
        let settings = Settings::new(&options.sampling, vocabulary)?;
        let seed = options.sampling.seed.unwrap_or_else(fresh_seed);
        let room = self.config.context - prompt.len();
        let asked = options.max_tokens.map(|tokens| tokens as usize);
        if let Some(asked) = asked {
            self.check_pages(prompt.len(), asked.min(room), "max_tokens")?;
        }
        // Nothing said is up to the end of what there is.
        let room = room.min(self.config.positions() - prompt.len());
        let grammar = options.grammar.as_ref();
        let constraint = grammar.map(|grammar| self.grammars.compile(grammar));
        let constraint = constraint.transpose()?.map(Box::new);
        // A grammar is about the bytes of the tokens, so these are given as they are.
        let decoding = DecodeOptions {
            clean_spaces: constraint.is_none(),
            ..DecodeOptions::default()
        };
        let generation = (asked != Some(0)).then(|| {
            let within = asked.filter(|&tokens| tokens <= room);
            Box::new(Generation {
                sampler: Sampler::new(settings, seed),
                decoder: Some(StreamDecoder::continuing(self.tokenizer, decoding)),
                stream: TextStream::new(options.stop.clone()),
                stop_tokens: options.stop_tokens.clone(),
                ignore_end: options.ignore_end,
                logprobs: options.logprobs.map(|count| count as usize),
                limit: within.unwrap_or(room),
                at_limit: within.map_or(FinishReason::ContextFull, |_| FinishReason::Length),
                seed,
                generated: 0,
                speculation,
                constraint,
            })
        });
        Ok(Prepared {
            prompt,
            seed,
            generation,
        })
    }

    /// What a chat's template is given. The answer's beginning is added unless `template_options` says
    /// `add_generation_prompt: false`.
    pub(crate) fn conversation(
        &self,
        request: &ChatRequest,
    ) -> Result<(Vec<Message>, RenderOptions)> {
        let mut extra = request.template_options.clone();
        if let Some(name) = ["messages", "tools"]
            .into_iter()
            .find(|&name| extra.contains_key(name))
        {
            let message = format!(
                "template_options: `{name}` is a field of the request, not a template option"
            );
            return Err(Error::invalid_field("template_options", message));
        }
        let add_generation_prompt = match extra.remove("add_generation_prompt") {
            None => true,
            Some(serde_json::Value::Bool(add)) => add,
            Some(other) => {
                let message = format!(
                    "template_options: add_generation_prompt is {other}; expected true or false"
                );
                return Err(Error::invalid_field("template_options", message));
            }
        };
        let messages = request
            .messages
            .iter()
            .map(|message| Message {
                role: message.role.clone(),
                content: message.content.clone(),
                extra: message.extra.clone(),
            })
            .collect();
        Ok((
            messages,
            RenderOptions {
                add_generation_prompt,
                tools: request.tools.clone(),
                extra,
            },
        ))
    }

    /// Checks what belongs to a classification as a whole.
    pub(crate) fn classification(&self, request: &ClassifyRequest) -> Result<()> {
        self.check_extra(request.extra.keys())?;
        let vocabulary = self.config.vocabulary;
        if request.top as usize > vocabulary {
            let message = format!(
                "top: {}; the vocabulary has {vocabulary} tokens",
                request.top
            );
            return Err(Error::invalid_field("top", message));
        }
        Ok(())
    }

    pub(crate) fn check_extra<'k>(
        &self,
        mut names: impl Iterator<Item = &'k String>,
    ) -> Result<()> {
        match names.next() {
            Some(name) => Err(Error::unsupported_field(name.clone(), self.backend)),
            None => Ok(()),
        }
    }
}

fn invalid_prompt(error: backplane_tokenizer::Error) -> Error {
    Error::invalid_field("prompt", format!("prompt: {error}"))
}

/// A seed from the randomness that the standard library keeps for its hash maps: of 53 bits, as programs that take every
/// number for a float are to give it back as it was told.
fn fresh_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish() >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_seeds_are_whole_as_floats() {
        let drawn: Vec<u64> = (0..64).map(|_| fresh_seed()).collect();
        assert!(drawn.iter().all(|&seed| seed < 1 << 53), "{drawn:?}");
        assert!(drawn.iter().any(|&seed| seed > u64::from(u32::MAX)));
    }
}
