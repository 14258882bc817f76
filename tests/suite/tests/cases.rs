//! What users of other systems ran into, at the level of HTTP: the classes "Serving" and "Text" of the cases.
//!
//! | class | where |
//! | --- | --- |
//! | interference; one fails, others live; disconnect | here; `soak.rs` |
//! | stream shape; logprobs shape | `openai_client.py` |
//! | schema references; tool calls | tests of structured output and tools |
//! | port in use | `serve.rs` |
//! | orphans | `crashes.rs`, `hostile_plugin.rs`, `llama_cpp.rs` |
//! | interrupt | `repl.rs` |
//! | pre-tokenizers; double BOS; template features; roles | here; every id: `plugins/shared/tokenizer/tests` |
//! | characters split over tokens; stop strings across tokens | here |
//! | context overflow; empty things; sizes | here; `serve.rs` |
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use backplane_tests::http::{Answer, head, send};
use backplane_tests::server::Server;
use backplane_tests::{GEMMA3, SMOLLM2, fixture, real_model};
use serde_json::{Value, json};
use std::path::Path;
use std::thread::scope;

/// A context of 1024, no chat template, and made of noise.
const TINY: &str = "model-f16";

/// A template that takes no system message and wants turns, as Gemma's first did, and uses what templates of others use.
const STRICT: &str = "{%- if messages[0]['role'] == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}\
    {%- set turn = namespace(count=0) -%}\
    {%- for message in messages -%}\
    {%- if (message['role'] == 'user') != (turn.count % 2 == 0) -%}\
    {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif -%}\
    {%- set turn.count = turn.count + 1 -%}\
    {{ message['content'].split()[-1] }}|{{ message['content'][::-1].lstrip('\\n') }}|{{ message.content.startswith(('a', 'b')) }}|\
    {%- endfor -%}\
    {{ {'x': [1]} | tojson(indent=4) }}{{ strftime_now('%Y')[:1] }}\
    {%- if add_generation_prompt -%}{% generation %}>{% endgeneration %}{%- endif -%}";

/// A folder of a model with that template.
fn strict(home: &Path) -> String {
    let folder = home.join("strict");
    std::fs::create_dir(&folder).expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let from = fixture(&format!("tiny/llama3-gqa/{name}"));
        std::fs::copy(from, folder.join(name)).expect("a copy");
    }
    let config = fixture("tiny/llama3-gqa/tokenizer_config.json");
    let config = std::fs::read_to_string(config).expect("the tokenizer's configuration");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["chat_template"] = json!(STRICT);
    let file = folder.join("tokenizer_config.json");
    std::fs::write(file, config.to_string()).expect("a file");
    folder.to_str().expect("UTF-8").to_owned()
}

struct Served {
    server: Server,
    smollm2: String,
    gemma3: String,
}

impl Served {
    fn complete(&self, body: &Value) -> Answer {
        self.server.post("/v1/completions", body)
    }

    /// What is answered where all is well.
    fn fine(&self, body: &Value) -> Value {
        let path = if body.get("messages").is_some() {
            "/v1/chat/completions"
        } else {
            "/v1/completions"
        };
        let answer = self.server.post(path, body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        answer.json()
    }

    /// How many tokens a prompt has.
    fn count(&self, body: &Value) -> u64 {
        let mut body = body.clone();
        body["max_tokens"] = json!(0);
        let count = &self.fine(&body)["usage"]["prompt_tokens"];
        count.as_u64().expect("a count")
    }

    /// The words of what is refused with 400.
    fn refused(&self, path: &str, body: &Value) -> String {
        let answer = self.server.post(path, body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        let message = &answer.json()["error"]["message"];
        message.as_str().expect("a message").to_owned()
    }

    /// The text of a completion, and its pieces as they were streamed, which are the same.
    fn text(&self, body: &Value) -> (String, String) {
        let whole = self.fine(body);
        let choice = &whole["choices"][0];
        let text = choice["text"].as_str().expect("a text").to_owned();
        let reason = choice["finish_reason"].as_str().expect("a reason");
        let mut body = body.clone();
        body["stream"] = json!(true);
        let events = self.complete(&body).events();
        let pieces = events
            .iter()
            .filter_map(|event| event["choices"][0]["text"].as_str());
        assert_eq!(pieces.collect::<String>(), text, "{body}");
        (text, reason.to_owned())
    }

    fn metric(&self, name: &str, model: &str) -> f64 {
        let page = self.server.get("/metrics").body;
        let label = format!("model=\"{model}\"");
        let sample = page
            .lines()
            .find(|line| line.starts_with(name) && line.contains(&label));
        let sample = sample.unwrap_or_else(|| panic!("no {name} of {model} in\n{page}"));
        sample
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .expect("a number")
    }

    fn interference(&self) {
        let canaries = [
            "Tell me of Paris.",
            "What is 2 + 2?",
            "Sing!",
            "Café déjà vu 😊",
        ];
        let ask = |(number, text): (usize, &&str)| {
            let body = json!({
                "model": self.smollm2, "messages": [{ "role": "user", "content": text }], "max_tokens": 16,
                "seed": number, "temperature": 0.7,
            });
            self.fine(&body)["choices"][0]["message"]["content"].clone()
        };
        let alone: Vec<Value> = canaries.iter().enumerate().map(ask).collect();
        let at_once: Vec<Value> = scope(|scope| {
            let asked = canaries.iter().enumerate();
            let asked: Vec<_> = asked.map(|one| scope.spawn(move || ask(one))).collect();
            asked.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(at_once, alone);
    }

    fn one_fails_and_the_others_live(&self) {
        scope(|scope| {
            for number in 0..4 {
                let words = if number == 2 { 2000 } else { 4 };
                let body = json!({
                    "model": TINY, "prompt": "word ".repeat(words), "max_tokens": 400, "ignore_eos": true,
                });
                scope.spawn(move || {
                    if number == 2 {
                        let said = self.refused("/v1/completions", &body);
                        assert!(said.contains("1024"), "{said}");
                    } else {
                        let answer = self.fine(&body);
                        assert_eq!(answer["usage"]["completion_tokens"], 400);
                    }
                });
            }
        });
    }

    fn a_client_that_goes_away_while_its_prompt_is_read(&self) {
        let words = 3900;
        let body = json!({
            "model": self.smollm2, "prompt": "one ".repeat(words), "max_tokens": 50, "stream": true,
        });
        let before = self.metric("backplane_engine_kv_pages_cached", &self.smollm2);
        let open = send(
            &self.server.address,
            "POST",
            "/v1/completions",
            "",
            &body.to_string(),
        );
        self.server.waits("it runs", |_| {
            self.metric("backplane_engine_sequences_running", &self.smollm2) == 1.0
        });
        drop(open);
        self.server.waits("its place is free", |_| {
            let none = |name| self.metric(name, &self.smollm2) == 0.0;
            none("backplane_engine_sequences_running") && none("backplane_engine_kv_pages_used")
        });
        // What it had read is kept for later; that is not all of it.
        let page = self.metric("backplane_engine_kv_pages_total", &self.smollm2) / 4.0;
        let kept = self.metric("backplane_engine_kv_pages_cached", &self.smollm2) - before;
        assert!(kept < page * 0.75, "{kept} of {page} pages");
    }

    fn prompts_are_the_tokens_of_the_model(&self) {
        let text = "Café déjà vu — 1234567 😊";
        let prompt = |model: &str, prompt: Value| json!({ "model": model, "prompt": prompt });
        // Counts of the reference tokenizers (`plugins/shared/tokenizer/tests` has the ids).
        assert_eq!(self.count(&prompt(&self.smollm2, json!(text))), 19);
        // A beginning is there once: added, written, or given as its id.
        for hello in [json!("Hello"), json!("<bos>Hello"), json!([2, 9259])] {
            assert_eq!(
                self.count(&prompt(&self.gemma3, hello.clone())),
                2,
                "{hello}"
            );
        }
        assert_eq!(self.count(&prompt(&self.gemma3, json!(""))), 1);
        for text in ["Hello", "<bos>Hello", "<bos><bos>Hello"] {
            let asked = prompt(&self.gemma3, json!(text));
            let answer = self.server.post("/tokenize", &asked).json();
            assert_eq!(answer["tokens"], json!([2, 9259]), "{text}");
        }
    }

    fn templates_are_as_their_authors_meant(&self) {
        let chat = |messages: Value| json!({ "model": "strict", "messages": messages });
        let user = |text: &str| json!({ "role": "user", "content": text });
        let counted = self.count(&chat(json!([user("a bc")])));
        let rendered = "bc|cb a|True|{\n    \"x\": [\n        1\n    ]\n}2>";
        let body = json!({ "model": "strict", "prompt": rendered });
        assert_eq!(counted, self.count(&body));
        let path = "/v1/chat/completions";
        let system = json!({ "role": "system", "content": "s" });
        let said = self.refused(path, &chat(json!([system, user("a"), user("b")])));
        assert!(said.contains("System role not supported"), "{said}");
        let said = self.refused(path, &chat(json!([user("a"), user("b")])));
        assert!(said.contains("Conversation roles must alternate"), "{said}");
        // A model without one says so.
        let body = json!({ "model": TINY, "messages": [user("a")] });
        let said = self.refused(path, &body);
        assert!(said.contains("no chat template"), "{said}");
    }

    fn characters_are_whole_and_stops_never_leak(&self) {
        let asked = |more: Value| {
            let mut body = json!({
                "model": self.smollm2, "prompt": "1 2 3 4 5 6 7 8 9 10 11 12", "max_tokens": 24, "temperature": 0,
            });
            let more = more.as_object().expect("fields").clone();
            body.as_object_mut().expect("fields").extend(more);
            body
        };
        let (whole, _) = self.text(&asked(json!({})));
        let middle = whole.len() / 2;
        let stop = &whole[middle - 3..middle + 4];
        let at = whole.find(stop).expect("it is there");
        let (cut, reason) = self.text(&asked(json!({ "stop": stop })));
        assert_eq!((cut.as_str(), reason.as_str()), (&whole[..at], "stop"));
        // One that nearly comes true: what was held back is said.
        let near = format!("{}§", &whole[whole.len() - 4..]);
        let (kept, reason) = self.text(&asked(json!({ "stop": [near, "\nUser:"] })));
        assert_eq!((kept, reason.as_str()), (whole, "length"));
        // Noise has characters in pieces, and pieces of none: whole and streamed they are the same text.
        for seed in 0..4 {
            let body = json!({
                "model": TINY, "prompt": "é", "max_tokens": 5 + seed, "seed": seed, "ignore_eos": true,
            });
            self.text(&body);
        }
    }

    /// Tokens that are parts of characters tell their bytes, and a reply that is cut within one has whole ones alone.
    fn bytes_put_characters_together(&self) {
        let said = "🙂漢字🫠é";
        let chat = json!({
            "model": self.smollm2, "messages": [{ "role": "user", "content": "Smile" }], "grammar": { "regex": said },
            "logprobs": true, "top_logprobs": 5, "temperature": 0,
        });
        let bytes = |token: &Value| -> Vec<u8> {
            serde_json::from_value(token["bytes"].clone()).unwrap_or_else(|_| panic!("{token}"))
        };
        let joined = |tokens: &Value| -> Vec<u8> {
            let tokens = tokens.as_array().expect("tokens");
            for token in tokens {
                let others = token["top_logprobs"].as_array().expect("others");
                assert_eq!(others.len(), 5);
                for one in others.iter().chain([token]) {
                    let bytes = bytes(one);
                    assert_eq!(one["token"], *String::from_utf8_lossy(&bytes), "{one}");
                }
            }
            tokens.iter().flat_map(bytes).collect()
        };
        let answer = self.fine(&chat);
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["content"], said);
        let tokens = &choice["logprobs"]["content"];
        assert_eq!(joined(tokens), said.as_bytes());
        let count = tokens.as_array().map_or(0, Vec::len);
        assert!(count > said.chars().count(), "{tokens}");
        // In other words, and in pieces.
        let responses = json!({
            "model": self.smollm2, "input": "Smile", "top_logprobs": 5, "temperature": 0,
            "text": { "format": { "type": "json_schema", "name": "smile", "schema": { "const": said } } },
            "include": ["message.output_text.logprobs"],
        });
        let answer = self.server.post("/v1/responses", &responses).json();
        let part = &answer["output"][0]["content"][0];
        let text = part["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(text.contains(said), "{answer}");
        assert_eq!(joined(&part["logprobs"]), text.as_bytes());
        let ollama = json!({
            "model": self.smollm2, "messages": chat["messages"], "stream": false, "logprobs": true, "top_logprobs": 5,
            "format": { "const": said }, "options": { "temperature": 0 },
        });
        let answer = self.server.post("/api/chat", &ollama).json();
        let text = answer["message"]["content"].as_str();
        let text = text.unwrap_or_else(|| panic!("{answer}"));
        assert!(text.contains(said), "{answer}");
        assert_eq!(joined(&answer["logprobs"]), text.as_bytes());
        for most in 1..=count {
            let mut body = chat.clone();
            body["max_tokens"] = json!(most);
            let whole = self.fine(&body);
            let text = whole["choices"][0]["message"]["content"]
                .as_str()
                .expect("a text");
            assert!(said.starts_with(text), "{text:?}");
            assert_eq!(
                whole["usage"]["completion_tokens"], most,
                "what is left out is counted"
            );
            let told = joined(&whole["choices"][0]["logprobs"]["content"]);
            let rest = told.strip_prefix(text.as_bytes()).expect("its text");
            let cut =
                std::str::from_utf8(rest).map_or_else(|it| it.error_len().is_none(), str::is_empty);
            assert!(cut && said.as_bytes().starts_with(&told), "{told:?}");
            body["stream"] = json!(true);
            let events = self.server.post("/v1/chat/completions", &body).events();
            let (mut streamed, mut bytes) = (String::new(), Vec::new());
            for event in &events {
                let choice = &event["choices"][0];
                streamed += choice["delta"]["content"].as_str().unwrap_or_default();
                if choice["logprobs"].is_object() {
                    bytes.extend(joined(&choice["logprobs"]["content"]));
                }
            }
            assert_eq!((streamed.as_str(), bytes), (text, told), "{most}");
        }
    }

    fn what_does_not_fit_or_is_empty_has_a_stated_answer(&self) {
        let secret = format!("The secret is 42. {}", "word ".repeat(5000));
        let body =
            json!({ "model": self.smollm2, "messages": [{ "role": "user", "content": secret }] });
        let said = self.refused("/v1/chat/completions", &body);
        assert!(said.contains("4096") && said.contains("50"), "{said}");
        let chat = |messages: Value| json!({ "model": self.smollm2, "messages": messages, "max_tokens": 2 });
        self.refused("/v1/chat/completions", &chat(json!([])));
        self.fine(&chat(json!([{ "role": "user", "content": "" }])));
        let said = self.refused(
            "/v1/chat/completions",
            &chat(json!([{ "role": "user", "content": null }])),
        );
        assert!(said.contains("messages[0].content"), "{said}");
        let prompt =
            |prompt: Value| json!({ "model": self.smollm2, "prompt": prompt, "max_tokens": 2 });
        for empty in [json!(""), json!([]), json!([[]])] {
            self.refused("/v1/completions", &prompt(empty));
        }
        for (tokens, status) in [
            (json!(0), 200),
            (json!(-2), 400),
            (json!(1e8), 400),
            (json!(1.5), 400),
        ] {
            let body = json!({ "model": TINY, "prompt": "x", "max_tokens": tokens });
            let answer = self.complete(&body);
            assert_eq!(answer.status, status, "{tokens}: {}", answer.body);
        }
        // Stated, it is to fit; up to the end of the context is said otherwise.
        let mut body =
            json!({ "model": TINY, "prompt": "x", "max_tokens": 100_000_000, "ignore_eos": true });
        let said = self.refused("/v1/completions", &body);
        assert!(said.contains("+ 100000000 > 1024"), "{said}");
        body["max_tokens"] = json!(-1);
        let answer = self.fine(&body);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["total_tokens"], 1024);
    }
}

#[test]
fn the_classes_of_serving_and_text() {
    let home = tempfile::tempdir().expect("a folder");
    let strict = strict(home.path());
    let real = |file| real_model(file).to_str().expect("UTF-8").to_owned();
    let tiny = fixture("tiny/llama3-gqa/model-f16.gguf");
    let tiny = tiny.to_str().expect("UTF-8");
    let (smollm2, gemma3) = (real(SMOLLM2), real(GEMMA3));
    let arguments = [&smollm2, &gemma3, tiny, &strict, "--backend", "cpu"];
    let name = |file: &str| file.trim_end_matches(".gguf").to_owned();
    let served = Served {
        server: Server::start(home.path(), None, &arguments).ready(),
        smollm2: name(SMOLLM2),
        gemma3: name(GEMMA3),
    };
    served.interference();
    served.one_fails_and_the_others_live();
    served.a_client_that_goes_away_while_its_prompt_is_read();
    served.prompts_are_the_tokens_of_the_model();
    served.templates_are_as_their_authors_meant();
    served.characters_are_whole_and_stops_never_leak();
    served.bytes_put_characters_together();
    served.what_does_not_fit_or_is_empty_has_a_stated_answer();
    // What was kept alive all along.
    assert_eq!(
        head(send(&served.server.address, "GET", "/readyz", "", "")).status,
        200
    );
}
