//! One generation: from a row of logits to the next token, its text, and whether that was the end.

use crate::grammar::Constraint;
use crate::options::Speculation;
use crate::sampling::{LogProbabilities, Sampler, SamplingError, likeliest};
use crate::stream::TextStream;
use backplane_plugin_api::types::{Error, FinishReason, TokenLogprob};
use backplane_tokenizer::{StreamDecoder, Tokenizer};

/// A generation's own state: sampler, text stream and limits.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) sampler: Sampler,
    /// `None` once it has ended.
    pub(crate) decoder: Option<StreamDecoder>,
    pub(crate) stream: TextStream,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) ignore_end: bool,
    /// How many log probabilities of others to give with each token.
    pub(crate) logprobs: Option<usize>,
    /// Most tokens; at least 1.
    pub(crate) limit: usize,
    /// What it is called when the limit is reached.
    pub(crate) at_limit: FinishReason,
    pub(crate) seed: u64,
    /// Tokens generated so far, an end token not counted.
    pub(crate) generated: usize,
    /// Whether what may follow is drafted.
    pub(crate) speculation: Speculation,
    /// What the text is held to.
    pub(crate) constraint: Option<Box<Constraint>>,
}

/// Why no token could be chosen.
#[derive(Debug)]
pub(crate) enum Stuck {
    Sampling(SamplingError),
    Grammar(Error),
}

impl From<SamplingError> for Stuck {
    fn from(error: SamplingError) -> Self {
        Self::Sampling(error)
    }
}

impl From<Error> for Stuck {
    fn from(error: Error) -> Self {
        Self::Grammar(error)
    }
}

/// What one row of logits led to.
#[derive(Debug, Default)]
pub(crate) struct Advance {
    /// The token with its text and log probabilities; `None` for an end token.
    pub(crate) token: Option<(u32, String, Vec<TokenLogprob>)>,
    /// Text that was held back until the end.
    pub(crate) tail: String,
    /// Why it ended, and at which stop string.
    pub(crate) end: Option<(FinishReason, Option<String>)>,
}

impl Generation {
    /// Chooses the token after `history` from `logits`, which are changed in place.
    ///
    /// # Errors
    /// The logits are not numbers, or leave nothing to choose, or the grammar takes more than it may.
    pub(crate) fn advance(
        &mut self,
        tokenizer: &Tokenizer,
        logits: &mut [f32],
        history: &[u32],
    ) -> Result<Advance, Stuck> {
        if self.is_complete() {
            return Ok(self.ended(None, FinishReason::Stop));
        }
        let told = self.logprobs.map(|count| {
            (
                LogProbabilities::new(logits),
                likeliest(logits, count + 1),
                count,
            )
        });
        let raw = self.logprobs.map(|_| logits.to_vec());
        if let Some(constraint) = &mut self.constraint {
            let ends = match self.ignore_end {
                true => tokenizer.end_of_generation(),
                false => Vec::new(),
            };
            constraint.mask(logits, &ends)?;
        }
        let token = self.sampler.sample(logits, history)?;
        if self.stop_tokens.contains(&token)
            // A grammar leaves end tokens only where nothing else can follow, or where they are not ignored.
            || ((!self.ignore_end || self.constraint.is_some()) && tokenizer.is_end_of_generation(token))
        {
            return Ok(self.ended(None, FinishReason::Stop));
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        self.generated += 1;
        let logprobs = match (told, raw) {
            (Some((log, likeliest, count)), Some(raw)) => {
                let others = likeliest
                    .into_iter()
                    .filter(|&(other, _)| other != token)
                    .take(count);
                std::iter::once((token, raw[token as usize]))
                    .chain(others)
                    .map(|(token, logit)| token_logprob(tokenizer, token, log.of(logit)))
                    .collect()
            }
            _ => Vec::new(),
        };
        // A row of the model that is no token of the vocabulary has no text.
        let bytes = self
            .decoder
            .as_mut()
            .and_then(|decoder| decoder.push(token).ok())
            .unwrap_or_default();
        let pushed = self.stream.push(&bytes);
        if let Some(stop) = pushed.stop {
            let found = self.stream.stop_string(stop).to_owned();
            return Ok(Advance {
                token: Some((token, pushed.text, logprobs)),
                tail: String::new(),
                end: Some((FinishReason::StopString, Some(found))),
            });
        }
        let token = Some((token, pushed.text, logprobs));
        if self.is_complete() {
            return Ok(self.ended(token, FinishReason::Stop));
        }
        if self.generated >= self.limit {
            return Ok(self.ended(token, self.at_limit));
        }
        Ok(Advance {
            token,
            ..Advance::default()
        })
    }

    /// Whether nothing can follow what there is.
    fn is_complete(&self) -> bool {
        self.constraint.as_ref().is_some_and(|it| it.is_complete())
    }

    fn ended(
        &mut self,
        token: Option<(u32, String, Vec<TokenLogprob>)>,
        reason: FinishReason,
    ) -> Advance {
        let held = self
            .decoder
            .take()
            .map(StreamDecoder::finish)
            .unwrap_or_default();
        let last = self.stream.push(&held);
        let rest = self.stream.finish();
        let end = match last.stop.or(rest.stop) {
            Some(stop) => (
                FinishReason::StopString,
                Some(self.stream.stop_string(stop).to_owned()),
            ),
            None => (reason, None),
        };
        Advance {
            token,
            tail: last.text + &rest.text,
            end: Some(end),
        }
    }
}

/// A token's log probability with its text, broken characters as U+FFFD.
pub(crate) fn token_logprob(tokenizer: &Tokenizer, token: u32, logprob: f32) -> TokenLogprob {
    TokenLogprob {
        token,
        text: tokenizer.token_text(token).unwrap_or_default(),
        logprob,
    }
}
