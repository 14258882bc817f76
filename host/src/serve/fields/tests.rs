use super::*;
use serde_json::json;

fn read_body(endpoint: Endpoint, body: &Value) -> Result<Asked, Problem> {
    read(endpoint, body.as_object().unwrap())
}

fn wrong(endpoint: Endpoint, body: &Value) -> String {
    let problem = read_body(endpoint, body).unwrap_err().json();
    problem["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn what_is_honoured_reaches_the_request() {
    let body = json!({
        "model": "m", "messages": [], "stream": true, "stream_options": { "include_usage": true },
        "n": 2, "max_tokens": 9, "max_completion_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": 3,
        "min_p": 0.1, "presence_penalty": -1, "frequency_penalty": 1.5, "repeat_penalty": 1.1,
        "repeat_last_n": 8, "logit_bias": { "5": -100 }, "seed": -1, "stop": "x", "stop_token_ids": [1, 2],
        "ignore_eos": true, "logprobs": true, "top_logprobs": 4, "chat_template_kwargs": { "a": 1 },
        "user": "u", "metadata": { "a": "b" }, "tools": [], "tool_choice": "none", "suffix": null,
        "response_format": { "type": "text" }, "modalities": ["text"], "store": false,
    });
    // Of the other endpoint.
    assert!(wrong(Endpoint::Chat, &body).contains("`suffix`: no such field"));
    let mut body = body;
    body.as_object_mut().unwrap().remove("suffix");
    let asked = read_body(Endpoint::Chat, &body).unwrap();
    let (options, sampling) = (&asked.generate, &asked.generate.sampling);
    assert!(asked.stream && asked.usage && options.ignore_end);
    assert_eq!((asked.choices, options.max_tokens), (2, Some(7)));
    assert_eq!((sampling.temperature, sampling.top_k), (Some(0.0), Some(3)));
    assert_eq!((sampling.top_p, sampling.min_p), (Some(0.5), Some(0.1)));
    assert_eq!(sampling.presence_penalty, Some(-1.0));
    assert_eq!(sampling.frequency_penalty, Some(1.5));
    assert_eq!(
        (sampling.repeat_penalty, sampling.repeat_last_n),
        (Some(1.1), Some(8))
    );
    assert_eq!(sampling.logit_bias, [(5, -100.0)]);
    assert_eq!(sampling.seed, Some(u64::MAX));
    assert_eq!(
        (options.stop.as_slice(), options.stop_tokens.as_slice()),
        (&["x".to_owned()][..], &[1, 2][..])
    );
    assert_eq!(options.logprobs, Some(4));
    assert_eq!(asked.template["a"], 1);
}

#[test]
fn defaults_are_openais() {
    let chat = read_body(Endpoint::Chat, &json!({ "model": "m", "stop": null })).unwrap();
    assert_eq!(chat.generate.max_tokens, None);
    assert_eq!(chat.logprobs, None);
    let asked = |body: Value| {
        read_body(Endpoint::Completions, &body)
            .unwrap()
            .generate
            .max_tokens
    };
    assert_eq!(asked(json!({ "model": "m" })), Some(16));
    assert_eq!(asked(json!({ "model": "m", "max_tokens": null })), Some(16));
    assert_eq!(asked(json!({ "model": "m", "max_tokens": 500 })), Some(500));
    assert_eq!(asked(json!({ "model": "m", "max_tokens": -1 })), None);
    let bare = json!({ "model": "m", "logprobs": true });
    assert_eq!(read_body(Endpoint::Chat, &bare).unwrap().logprobs, Some(0));
}

#[test]
fn a_reply_is_held_to_one_thing() {
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let grammar = json!({ "regex": "a" });
    for body in [
        json!({ "model": "m", "grammar": grammar, "response_format": { "type": "json_object" } }),
        json!({ "model": "m", "grammar": grammar, "tools": tools, "tool_choice": "required" }),
        json!({ "model": "m", "grammar": grammar, "tools": tools,
            "tool_choice": { "type": "function", "function": { "name": "f" } } }),
    ] {
        let message = wrong(Endpoint::Chat, &body);
        assert!(message.starts_with("`grammar`: expected no `"), "{message}");
    }
    let body = json!({ "model": "m", "grammar": grammar, "response_format": { "type": "text" },
        "tools": tools, "tool_choice": "auto" });
    assert!(read_body(Endpoint::Chat, &body).is_ok());
}

#[test]
fn what_responses_include_by_the_number_of_others() {
    for (top, told) in [
        (json!(0), Some(0)),
        (json!(3), Some(3)),
        (json!(null), None),
    ] {
        let body = json!({ "model": "m", "top_logprobs": top });
        let asked = read_body(Endpoint::Responses, &body).unwrap();
        assert_eq!(asked.logprobs, told);
    }
    let format = json!({ "type": "json_object", "schema": {}, "foo": 1 });
    let body = json!({ "model": "m", "text": { "format": format } });
    assert!(wrong(Endpoint::Responses, &body).contains("`text.format.foo`: no such field"));
    let config = json!({ "format": { "type": "json_schema", "schema": {}, "foo": 1 } });
    let body = json!({ "model": "m", "max_tokens": 1, "output_config": config });
    let message = wrong(Endpoint::Messages, &body);
    assert!(
        message.contains("`output_config.format.foo`: no such field"),
        "{message}"
    );
}

#[test]
fn what_is_wrong_within_a_field_is_named_by_its_way() {
    use Endpoint::{Chat, Completions, Messages, OllamaChat, Responses};
    let function = |parameters: Value| json!({ "name": "f", "parameters": parameters });
    let tool = |function: Value| json!({ "type": "function", "function": function });
    let flat = json!({ "type": "function", "name": "f", "parameters": 1 });
    let right = tool(function(json!({})));
    for (endpoint, field, value, param) in [
        (Chat, "tools", json!({}), "tools"),
        (Chat, "tools", json!([1]), "tools[0]"),
        (Chat, "tools", json!([{}]), "tools[0].type"),
        (Chat, "tools", json!([tool(json!(1))]), "tools[0].function"),
        (
            Chat,
            "tools",
            json!([right, tool(json!({}))]),
            "tools[1].function.name",
        ),
        (
            Chat,
            "tools",
            json!([right, right]),
            "tools[1].function.name",
        ),
        (
            Chat,
            "tools",
            json!([tool(function(json!([])))]),
            "tools[0].function.parameters",
        ),
        (
            Chat,
            "tools",
            json!([tool(json!({ "name": "f", "strict": 1 }))]),
            "tools[0].function.strict",
        ),
        (
            Chat,
            "tools",
            json!([tool(json!({ "name": "f", "foo": 1 }))]),
            "tools[0].function.foo",
        ),
        (
            Chat,
            "tool_choice",
            json!({ "type": "function", "function": {} }),
            "tool_choice.function.name",
        ),
        (
            Chat,
            "tool_choice",
            json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [{}] } }),
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        (
            Chat,
            "response_format",
            json!({ "type": "yaml" }),
            "response_format.type",
        ),
        (
            Chat,
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": 1 } }),
            "response_format.json_schema.schema",
        ),
        (Chat, "stop", json!(["a", 1]), "stop[1]"),
        (Chat, "logit_bias", json!({ "7": 500 }), "logit_bias.7"),
        (
            Chat,
            "stream_options",
            json!({ "include_usage": 1 }),
            "stream_options.include_usage",
        ),
        (
            Completions,
            "stop_token_ids",
            json!([1, -1]),
            "stop_token_ids[1]",
        ),
        (Responses, "tools", json!([flat]), "tools[0].parameters"),
        (
            Responses,
            "tools",
            json!([{ "type": "function" }]),
            "tools[0].name",
        ),
        (
            Responses,
            "tools",
            json!([{ "type": "web_search" }]),
            "tools[0].type",
        ),
        (
            Responses,
            "tool_choice",
            json!({ "type": "function", "name": "a b" }),
            "tool_choice.name",
        ),
        (
            Responses,
            "tool_choice",
            json!({ "type": "allowed_tools", "mode": "x", "tools": [flat] }),
            "tool_choice.mode",
        ),
        (
            Responses,
            "text",
            json!({ "format": { "type": "json_schema", "schema": 1 } }),
            "text.format.schema",
        ),
        (
            Responses,
            "text",
            json!({ "verbosity": "low" }),
            "text.verbosity",
        ),
        (
            Responses,
            "reasoning",
            json!({ "effort": "endless" }),
            "reasoning.effort",
        ),
        (
            Responses,
            "include",
            json!(["message.output_text.logprobs", "x"]),
            "include[1]",
        ),
        (
            Messages,
            "tools",
            json!([{ "name": "f", "input_schema": 1 }]),
            "tools[0].input_schema",
        ),
        (
            Messages,
            "tool_choice",
            json!({ "type": "tool" }),
            "tool_choice.name",
        ),
        (
            Messages,
            "output_config",
            json!({ "effort": "high" }),
            "output_config.effort",
        ),
        (
            Messages,
            "thinking",
            json!({ "type": "enabled", "budget_tokens": 0 }),
            "thinking.budget_tokens",
        ),
        (
            Messages,
            "stop_sequences",
            json!(["a", ""]),
            "stop_sequences[1]",
        ),
        (
            OllamaChat,
            "options",
            json!({ "num_predict": 1.5 }),
            "options.num_predict",
        ),
        (
            OllamaChat,
            "options",
            json!({ "stop": ["a", 2] }),
            "options.stop[1]",
        ),
    ] {
        let mut body = json!({ "model": "m", "max_tokens": 1 });
        if [Responses, OllamaChat].contains(&endpoint) {
            body = json!({ "model": "m" });
        }
        body[field] = value;
        let problem = read_body(endpoint, &body).unwrap_err().json();
        assert_eq!(problem["error"]["param"], param, "{body}: {problem}");
        let message = problem["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("`{param}`: ")), "{message}");
    }
}

#[test]
fn ollamas_options_take_whole_numbers_however_they_are_written() {
    let of = |options: Value| {
        let body = json!({ "model": "m", "options": options });
        read_body(Endpoint::OllamaChat, &body)
    };
    let asked = of(
        json!({ "num_predict": 2.0, "seed": -1.0, "top_k": 40.0, "num_ctx": 512.0, "repeat_last_n": -1.0 }),
    );
    let asked = asked.unwrap();
    let sampling = &asked.generate.sampling;
    assert_eq!(
        (asked.generate.max_tokens, sampling.seed, sampling.top_k),
        (Some(2), Some(u64::MAX), Some(40))
    );
    assert_eq!(
        (asked.ollama.context, sampling.repeat_last_n),
        (Some(512), Some(u32::MAX))
    );
    assert_eq!(
        of(json!({ "num_predict": -2.0 }))
            .unwrap()
            .generate
            .max_tokens,
        None
    );
    for wrong in [
        json!({ "num_predict": 2.5 }),
        json!({ "num_predict": -3.0 }),
        json!({ "num_predict": 1e300 }),
        json!({ "seed": 1e19 }),
        json!({ "top_k": -1.0 }),
        json!({ "num_ctx": 0.0 }),
    ] {
        assert!(of(wrong.clone()).is_err(), "{wrong}");
    }
    // OpenAI takes them as integers alone.
    let body = json!({ "model": "m", "max_tokens": 16.0 });
    assert!(read_body(Endpoint::Chat, &body).is_err());
}

#[test]
fn what_is_wrong_is_named() {
    for (field, value, said) in [
        (
            "temperature",
            json!(-1),
            "expected a number from 0 to 3.4e38, found -1",
        ),
        ("temperature", json!("hot"), "found \"hot\""),
        (
            "temperature",
            json!(1e300),
            "expected a number from 0 to 3.4e38, found 1e+300",
        ),
        ("top_p", json!(1.5), "expected a number from 0 to 1"),
        ("repeat_penalty", json!(0), "expected a number above 0"),
        ("max_tokens", json!(-2), "expected a whole number from 0"),
        ("max_tokens", json!(1.5), "found 1.5"),
        ("n", json!(0), "from 1 to 128"),
        ("n", json!(129), "from 1 to 128"),
        ("seed", json!(0.5), "64 bits"),
        ("stop", json!(""), "not empty"),
        ("stop", json!(vec!["a"; 17]), "up to 16"),
        ("stop", json!([1]), "expected a text"),
        ("logit_bias", json!({ "x": 1 }), "by token ids"),
        ("logit_bias", json!({ "1": 101 }), "from -100 to 100"),
        ("stream", json!("yes"), "true or false"),
        ("stream_options", json!({ "usage": true }), "no such option"),
        ("top_logprobs", json!(2), "expected `logprobs` to be true"),
        (
            "tools",
            json!([{ "type": "function" }]),
            "`tools[0].function`: expected an object with the name",
        ),
        (
            "response_format",
            json!({ "type": "json" }),
            "expected the type `text`",
        ),
        ("store", json!(true), "nothing is stored"),
        ("temprature", json!(1), "did you mean `temperature`?"),
        ("model", json!(7), "expected a text"),
    ] {
        let mut body = json!({ "model": "m" });
        body[field] = value.clone();
        let message = wrong(Endpoint::Chat, &body);
        assert!(message.starts_with(&format!("`{field}")), "{message}");
        assert!(message.contains(said), "{field} {value}: {message}");
        assert!(!message.contains('\n'));
    }
    for (endpoint, field, value, said) in [
        (
            Endpoint::Embeddings,
            "encoding_format",
            json!("int8"),
            "expected float or base64",
        ),
        (Endpoint::Embeddings, "dimensions", json!(0), "from 1"),
        (
            Endpoint::Embeddings,
            "pooling",
            json!(1),
            "mean or last or cls",
        ),
        (Endpoint::Tokenize, "add_special", json!(1), "true or false"),
        (
            Endpoint::Tokenize,
            "add_generation_prompt",
            json!(false),
            "only true",
        ),
        (Endpoint::Detokenize, "prompt", json!(""), "no such field"),
    ] {
        let message = wrong(endpoint, &json!({ "model": "m", field: value }));
        assert!(
            message.contains(field) && message.contains(said),
            "{message}"
        );
    }
    assert!(
        read_body(Endpoint::Tokenize, &json!({})).is_ok(),
        "the only one is meant"
    );
    assert!(wrong(Endpoint::Chat, &json!({})).contains("the name of a model"));
    let echo = json!({ "model": "m", "echo": true });
    assert!(wrong(Endpoint::Completions, &echo).contains("can't be honoured"));
}

/// Every endpoint, with its path.
const ALL: &[(Endpoint, &str)] = &[
    (Endpoint::Chat, "POST /v1/chat/completions"),
    (Endpoint::ChatMessage, "messages"),
    (Endpoint::Completions, "POST /v1/completions"),
    (Endpoint::Embeddings, "POST /v1/embeddings"),
    (Endpoint::Responses, "POST /v1/responses"),
    (Endpoint::ResponseItem, "Items of `input`"),
    (Endpoint::Messages, "POST /v1/messages"),
    (Endpoint::CountTokens, "POST /v1/messages/count_tokens"),
    (Endpoint::OllamaChat, "POST /api/chat"),
    (Endpoint::OllamaGenerate, "POST /api/generate"),
    (Endpoint::OllamaEmbed, "POST /api/embed"),
    (Endpoint::OllamaEmbeddings, "POST /api/embeddings"),
    (Endpoint::OllamaShow, "POST /api/show"),
    (Endpoint::OllamaOptions, "options"),
    (Endpoint::Tokenize, "POST /tokenize"),
    (Endpoint::Detokenize, "POST /detokenize"),
];

/// The table of an endpoint, as the documentation shows it.
fn table(endpoint: Endpoint) -> String {
    let mut text = String::from("| field | | |\n| --- | --- | --- |\n");
    for field in fields(endpoint) {
        let does = match field.does {
            Does::Honoured(_) | Does::Content => "honoured",
            Does::Refused(_) => "refused",
            Does::NoEffect => "no effect",
        };
        text += &format!("| `{}` | {does} | {} |\n", field.name, field.about);
    }
    text
}

#[test]
fn the_documentation_shows_every_field() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md");
    let text = std::fs::read_to_string(page).unwrap();
    for (endpoint, path) in ALL {
        let heading = match path.contains('`') {
            true => format!("## {path}\n"),
            false => format!("## `{path}`\n"),
        };
        let part = text.split(&heading).nth(1).unwrap_or_default();
        let part = part.split("\n## ").next().unwrap_or_default();
        let table = table(*endpoint);
        assert!(
            part.contains(&table),
            "{heading} of docs/api.md is to have:\n{table}"
        );
    }
}

#[test]
fn no_field_stands_twice() {
    for (endpoint, _) in ALL {
        let mut names: Vec<_> = fields(*endpoint).map(|field| field.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
