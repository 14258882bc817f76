//! A hostile module beside a right one, each in its worker.

use super::{ignore, load, model, say, spec, worker};
use crate::manifest::{Limit, Watchdog};
use backplane_plugin_api::types::{Control, ErrorCode, Event, FinishReason};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn hostile(place: &str, word: &str, limit: Limit) -> Arc<dyn super::Isolated> {
    let options = [("in", json!(place)), ("does", json!([word]))];
    let mut spec = spec("backplane-module-hostile", &options);
    spec.plugin = "hostile".to_owned();
    spec.limits.watchdog = Watchdog {
        answer: limit,
        load: limit,
        sign: limit,
        ..Watchdog::default()
    };
    worker(spec)
}

#[test]
fn another_plugin_generates_on_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let right = worker(spec(
        "backplane-module-echo-a",
        &[("token_delay_ms", json!(2))],
    ));
    let other = load(&*right, &path);
    let told = AtomicU64::new(0);
    let heard = |more: u64| {
        let before = told.load(Ordering::Acquire);
        while told.load(Ordering::Acquire) < before + more {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let generation = scope.spawn(|| {
            let mut request = say("hello");
            request.options.ignore_end = true;
            other.generate(&request, &mut |event: Event<'_>| {
                told.fetch_add(
                    u64::from(matches!(event, Event::Token { .. })),
                    Ordering::AcqRel,
                );
                if ended.load(Ordering::Acquire) {
                    Control::Stop
                } else {
                    Control::Continue
                }
            })
        });
        let short = Limit(Some(Duration::from_millis(400)));
        for (place, word, expected) in [
            ("decode", "abort", "SIGABRT"),
            ("decode", "hang", "gave no sign of life"),
            ("generate", "endless", "of being told to stop"),
            ("load", "hang", "`load` did not answer"),
        ] {
            heard(5);
            let backend = hostile(place, word, short);
            let error = match backend.load(&path, &Default::default()) {
                Ok(model) => {
                    let mut tokens = 0;
                    // A consumer that has enough at some time.
                    let mut sink = |_: Event<'_>| {
                        tokens += 1;
                        if tokens < 100 {
                            Control::Continue
                        } else {
                            Control::Stop
                        }
                    };
                    model.generate(&say("hello"), &mut sink).unwrap_err()
                }
                Err(error) => error,
            };
            assert_eq!(error.code, ErrorCode::Device, "{error}");
            assert!(error.message.contains(expected), "{error}");
            heard(5);
        }
        ended.store(true, Ordering::Release);
        let done = generation.join().unwrap().expect("it was not disturbed");
        assert_eq!(done.finish_reason, FinishReason::Cancelled);
    });
}

#[test]
fn a_hung_call_ends_the_others_of_its_worker_and_a_new_worker_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let backend = hostile("tokenize", "hang", Limit(Some(Duration::from_millis(400))));
    let model = load(&*backend, &path);
    std::thread::scope(|scope| {
        let mut request = say("hello");
        request.options.ignore_end = true;
        let (send, receive) = std::sync::mpsc::channel();
        let model = &model;
        let running = scope.spawn(move || {
            model.generate(&request, &mut move |_: Event<'_>| {
                let _ = send.send(());
                std::thread::sleep(Duration::from_millis(1));
                Control::Continue
            })
        });
        receive.recv().unwrap();
        let hung = model.tokenize("a", false, false).unwrap_err();
        assert!(
            hung.message
                .contains("`tokenize` did not answer within 400ms"),
            "{hung}"
        );
        assert_eq!(running.join().unwrap().unwrap_err(), hung);
    });
    assert!(backend.probe().is_available(), "a new worker");
    let done = load(&*backend, &path).generate(&say("hello"), &mut ignore);
    assert_eq!(done.unwrap().finish_reason, FinishReason::Stop);
}

#[test]
fn a_slow_consumer_is_no_hang() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let backend = hostile("nowhere", "hang", Limit(Some(Duration::from_millis(200))));
    let model = load(&*backend, &path);
    let mut tokens = 0;
    let mut request = say("hello");
    request.options.ignore_end = true;
    request.options.max_tokens = Some(200);
    let done = model.generate(&request, &mut |_: Event<'_>| {
        tokens += 1;
        if tokens == 3 {
            std::thread::sleep(Duration::from_millis(700));
        }
        Control::Continue
    });
    assert_eq!(done.unwrap().completion_tokens, 200);
}
