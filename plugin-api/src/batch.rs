//! Batches for engines that run requests one by one.

use crate::sdk::{BatchSink, Result, Sink, TextModel};
use crate::types::{Completion, Control, Error, ErrorCode, Event, GenerateRequest};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most requests of a batch that run at once.
const AT_ONCE: usize = 64;

/// Runs each request of a batch as a generation of its own, side by side on threads: a
/// [`TextModel::batch_generate`] for engines that have nothing better. Up to 64 run at once, the others after them. A
/// panic is an error of its request.
///
/// # Errors
/// None as a whole: each request has its own answer.
pub fn side_by_side(
    model: &(impl TextModel + ?Sized),
    requests: &[GenerateRequest],
    sink: &mut dyn BatchSink,
) -> Result<Vec<Result<Completion>>> {
    let sink = &Mutex::new(sink);
    let next = &AtomicUsize::new(0);
    let answers: Vec<Mutex<Option<Result<Completion>>>> =
        requests.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(request) = requests.get(index) else {
                return;
            };
            let run = || model.generate(request, &mut OneOf { index, sink });
            let answer = crate::guard::guard(run)
                .unwrap_or_else(|what| Err(Error::new(ErrorCode::Panicked, what)));
            *answers[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(answer);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..requests.len().min(AT_ONCE) {
            scope.spawn(work);
        }
    });
    let told = |answer: Mutex<Option<Result<Completion>>>| {
        let answer = answer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let lost = || Error::new(ErrorCode::Internal, "a request of the batch has no answer");
        answer.unwrap_or_else(|| Err(lost()))
    };
    Ok(answers.into_iter().map(told).collect())
}

/// One request of a batch, as a sink of its own.
struct OneOf<'a, 'b> {
    index: usize,
    sink: &'a Mutex<&'b mut dyn BatchSink>,
}

impl Sink for OneOf<'_, '_> {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        sink.on_event(self.index, event)
    }

    fn should_stop(&self) -> bool {
        let sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        sink.should_stop(self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{
        ChatRequest, Classification, ClassifyRequest, FinishReason, GenerateOptions, Metrics,
        ModelInfo, Prompt,
    };

    /// Says the number of its prompt; refuses 3, panics at 5.
    struct Numbers;

    impl TextModel for Numbers {
        fn info(&self) -> ModelInfo {
            unimplemented_here()
        }
        fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
            let Prompt::Tokens(tokens) = &request.prompt else {
                return unimplemented_here();
            };
            match tokens[0] {
                3 => return Err(Error::new(ErrorCode::InvalidRequest, "not three")),
                5 => panic!("five"),
                _ => {}
            }
            let event = Event::Token {
                token: Some(tokens[0]),
                text: "",
                logprobs: &[],
            };
            let stopped = sink.should_stop() || sink.on_event(event) == Control::Stop;
            Ok(Completion {
                finish_reason: if stopped {
                    FinishReason::Cancelled
                } else {
                    FinishReason::Stop
                },
                stop_string: None,
                prompt_tokens: 1,
                cached_tokens: 0,
                completion_tokens: 1,
                seed: u64::from(tokens[0]),
                queue_s: 0.0,
                prefill_s: 0.0,
                decode_s: 0.0,
            })
        }
        fn chat(&self, _: &ChatRequest, _: &mut dyn Sink) -> Result<Completion> {
            unimplemented_here()
        }
        fn render_chat(&self, _: &ChatRequest) -> Result<String> {
            unimplemented_here()
        }
        fn classify(&self, _: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
            unimplemented_here()
        }
        fn batch_generate(
            &self,
            requests: &[GenerateRequest],
            sink: &mut dyn BatchSink,
        ) -> Result<Vec<Result<Completion>>> {
            side_by_side(self, requests, sink)
        }
        fn tokenize(&self, _: &str, _: bool, _: bool) -> Result<Vec<u32>> {
            unimplemented_here()
        }
        fn detokenize(&self, _: &[u32], _: bool) -> Result<Vec<u8>> {
            unimplemented_here()
        }
        fn metrics(&self) -> Metrics {
            Metrics::new()
        }
        fn close(&self) -> Result<()> {
            Ok(())
        }
    }

    fn unimplemented_here<T>() -> T {
        panic!("a batch asks for generations only")
    }

    struct StopsTwo(Vec<(usize, Option<u32>)>);

    impl BatchSink for StopsTwo {
        fn on_event(&mut self, index: usize, event: Event<'_>) -> Control {
            if let Event::Token { token, .. } = event {
                self.0.push((index, token));
            }
            match index {
                2 => Control::Stop,
                _ => Control::Continue,
            }
        }
    }

    #[test]
    fn each_has_its_own_answer() {
        let requests: Vec<_> = (0..200)
            .map(|number| GenerateRequest {
                prompt: Prompt::Tokens(vec![number]),
                options: GenerateOptions::default(),
            })
            .collect();
        let mut sink = StopsTwo(vec![]);
        let answers = Numbers.batch_generate(&requests, &mut sink).unwrap();
        assert_eq!(answers.len(), 200);
        for (index, answer) in answers.into_iter().enumerate() {
            match (index, answer) {
                (3, answer) => assert_eq!(answer.unwrap_err().code, ErrorCode::InvalidRequest),
                (5, answer) => {
                    let error = answer.unwrap_err();
                    assert_eq!(error.code, ErrorCode::Panicked);
                    assert!(error.message.contains("five"), "{error}");
                }
                (2, answer) => assert_eq!(answer.unwrap().finish_reason, FinishReason::Cancelled),
                (index, answer) => assert_eq!(answer.unwrap().seed, index as u64),
            }
        }
        sink.0.sort();
        assert_eq!(sink.0.len(), 198);
        assert!(
            sink.0
                .iter()
                .all(|(index, token)| *token == Some(*index as u32))
        );
        assert_eq!(Numbers.batch_generate(&[], &mut sink), Ok(vec![]));
    }
}
