//! Chat templates against llama-server's prompts and against what Python's Jinja prints.
#![allow(clippy::unwrap_used)] // in helpers of tests too

mod common;

use std::time::{Duration, Instant};

use backplane_tokenizer::{ChatTemplate, Error, Message, RenderOptions};
use serde_json::{Value, json};

fn message(fields: &Value) -> Message {
    let mut extra = fields.as_object().unwrap().clone();
    let role = extra.remove("role").unwrap().as_str().unwrap().to_owned();
    let content = extra
        .remove("content")
        .and_then(|content| content.as_str().map(String::from));
    Message {
        role,
        content,
        extra,
    }
}

fn messages(list: &Value) -> Vec<Message> {
    list.as_array().unwrap().iter().map(message).collect()
}

fn render(source: &str, list: &Value, opts: &RenderOptions) -> Result<String, Error> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(&messages(list), opts)
}

#[test]
fn prompts_equal_the_servers() {
    let fixture = common::json("real/smollm2-135m-server.json");
    let weights = common::weights("smollm2-135m");
    let tokenizer = common::tokenizer("smollm2-135m");
    let template = ChatTemplate::from_metadata(weights.metadata(), &tokenizer)
        .unwrap()
        .unwrap();
    assert_eq!(
        template.source(),
        fixture["chat_template"].as_str().unwrap()
    );
    // Gemma's base model has no template; the server's own for such models is in its fixture.
    let gemma = common::json("real/gemma3-270m-server.json");
    let chatml =
        ChatTemplate::new(gemma["chat_template"].as_str().unwrap(), "<bos>", "<eos>").unwrap();
    for (template, fixture) in [(template, fixture), (chatml, gemma)] {
        let cases = fixture["apply_template"].as_array().unwrap();
        assert!(cases.len() >= 5);
        for case in cases {
            let opts = RenderOptions {
                add_generation_prompt: true,
                ..RenderOptions::default()
            };
            let prompt = template
                .render(&messages(&case["messages"]), &opts)
                .unwrap();
            assert_eq!(prompt, case["prompt"].as_str().unwrap());
        }
    }
}

#[test]
fn a_model_without_a_template_has_none() {
    let weights = common::weights("gemma3-270m");
    let tokenizer = common::tokenizer("gemma3-270m");
    assert!(
        ChatTemplate::from_metadata(weights.metadata(), &tokenizer)
            .unwrap()
            .is_none()
    );
}

/// Name, template, what Python's Jinja prints with the settings of `apply_chat_template`.
const AS_PYTHON: &[(&str, &str, &str)] = &[
    (
        "blocks are trimmed",
        "  {% if true %}\n  x\n  {% endif %}\ny",
        "  x\ny",
    ),
    ("last line end", "x\n", "x"),
    (
        "special tokens",
        "{{ bos_token }}{{ eos_token }}",
        "<s></s>",
    ),
    (
        "reversed list",
        "{% for m in messages[::-1] %}{{ m.role }} {% endfor %}",
        "assistant user ",
    ),
    ("reversed text", "{{ 'abc'[::-1] }}", "cba"),
    ("last part", "{{ 'a</think>b'.split('</think>')[-1] }}", "b"),
    ("split limit", "{{ 'a b c'.split(' ', 1)[1] }}", "b c"),
    (
        "starts with one of",
        "{{ 'xyz'.startswith(('a', 'x')) }}{{ 'xyz'.endswith('y') }}",
        "TrueFalse",
    ),
    (
        "strip line ends",
        "[{{ '\n\n a \n'.lstrip('\n') }}][{{ '\n a\n'.strip('\n') }}][{{ ' a\n'.rstrip() }}]",
        "[ a \n][ a][ a]",
    ),
    (
        "items",
        "{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}={{ v }};{% endfor %}",
        "b=1;a=2;",
    ),
    (
        "keys kept in order",
        "{{ {'z': 1, 'a': 2}.keys() | list }}",
        "['z', 'a']",
    ),
    ("get", "{{ messages[0].get('name', 'nobody') }}", "nobody"),
    ("generation", "{% generation %}a{% endgeneration %}b", "ab"),
    (
        "generation, trimmed",
        "x  {%- generation -%}  a  {%- endgeneration -%}  b",
        "xab",
    ),
    (
        "generation in text",
        "{{ '{% generation %}' }}{# {% generation %} #}",
        "{% generation %}",
    ),
    (
        "generation in raw",
        "{% raw %}{% generation %}{% endraw %}",
        "{% generation %}",
    ),
    (
        "namespace",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "2",
    ),
    (
        "loop controls",
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "02",
    ),
    (
        "loop fields",
        "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{% endfor %}",
        "0TrueFalse1FalseTrue",
    ),
    (
        "neighbours",
        "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}|{% endfor %}",
        "|user|",
    ),
    (
        "macro",
        "{% macro f(x, y='d') %}{{ x }}{{ y }}{% endmacro %}{{ f(1) }}{{ f(1, y=2) }}",
        "1d12",
    ),
    (
        "constants",
        "{{ none }} {{ true }} {{ false }} {{ missing }}",
        "None True False ",
    ),
    (
        "list and dict",
        "{{ [1, 'a', none, \"it's\", 1.0, {'k': true}] }}",
        "[1, 'a', None, \"it's\", 1.0, {'k': True}]",
    ),
    (
        "string filter",
        "{{ true | string + [none] | string }}",
        "True[None]",
    ),
    (
        "floats",
        "{{ 0.1 }} {{ 1e16 }} {{ 0.00001 }} {{ 100.0 }}",
        "0.1 1e+16 1e-05 100.0",
    ),
    (
        "integer division",
        "{{ 7 // 2 }} {{ 7 % 2 }} {{ 4 / 2 }}",
        "3 1 2.0",
    ),
    ("slices", "{{ [1, 2, 3][1:] }}{{ 'abc'[:-1] }}", "[2, 3]ab"),
    (
        "tests",
        "{{ messages is sequence }}{{ 'a' is string }}{{ {} is mapping }}{{ x is defined }}{{ none is none }}",
        "TrueTrueTrueFalseTrue",
    ),
    (
        "filters",
        "{{ ' a ' | trim }}{{ 'a' | upper }}{{ [1, 2] | length }}{{ ['x', 'y'] | join('-') }}{{ '' | default('d', true) }}",
        "aA2x-yd",
    ),
    (
        "selectattr",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "1",
    ),
    (
        "map",
        "{{ messages | map(attribute='role') | join(',') }}",
        "user,assistant",
    ),
    (
        "replace, title",
        "{{ 'a-b'.replace('-', '+') }}{{ 'ab cd'.title() }}{{ 'ab'.capitalize() }}",
        "a+bAb CdAb",
    ),
    (
        "in",
        "{{ 'a' in 'cat' }}{{ 'role' in messages[0] }}{{ 3 not in [1, 2] }}",
        "TrueTrueTrue",
    ),
    (
        "concatenation",
        "{{ 'a' ~ 1 ~ 'b' }}{{ 'x' * 3 }}",
        "a1bxxx",
    ),
    (
        "conditional",
        "{{ 'a' if false else 'b' }}{{ 'a' if false }}",
        "b",
    ),
    (
        "set block",
        "{% set x %}a{{ 1 }}{% endset %}[{{ x }}]",
        "[a1]",
    ),
    (
        "json",
        "{{ {'a': [1, 2.0, none], 'é': '<&\\'>\"\\n'} | tojson }}",
        "{\"a\": [1, 2.0, null], \"é\": \"<&'>\\\"\\n\"}",
    ),
    (
        "json, indented",
        "{{ {'a': [1, {}], 'b': []} | tojson(indent=4) }}",
        "{\n    \"a\": [\n        1,\n        {}\n    ],\n    \"b\": []\n}",
    ),
    (
        "json, indent by place",
        "{{ [1] | tojson(2) }}",
        "[\n  1\n]",
    ),
    (
        "json, ASCII",
        "{{ 'é😀' | tojson(ensure_ascii=true) }}",
        "\"\\u00e9\\ud83d\\ude00\"",
    ),
    (
        "json, separators",
        "{{ {'a': 1, 'b': 2} | tojson(separators=(',', ':')) }}",
        "{\"a\":1,\"b\":2}",
    ),
    (
        "json, sorted",
        "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}",
        "{\"a\": 2, \"b\": 1}",
    ),
    ("no HTML escapes", "{{ '<b> & \"c\"' }}", "<b> & \"c\""),
    (
        "null content",
        "{% for m in messages %}{{ m.content is none }}{% endfor %}",
        "FalseTrue",
    ),
    (
        "tool calls",
        "{{ messages[1].tool_calls[0].function.arguments | tojson }}",
        "{\"z\": 1, \"city\": \"Zürich\"}",
    ),
    (
        "no tools",
        "{{ tools is none }}{% if tools %}x{% endif %}",
        "True",
    ),
    ("generation prompt", "{{ add_generation_prompt }}", "False"),
];

#[test]
fn templates_print_what_pythons_jinja_prints() {
    let list = json!([
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": null,
          "tool_calls": [{ "function": { "name": "weather", "arguments": { "z": 1, "city": "Zürich" } } }] },
    ]);
    let mut failures = Vec::new();
    for (name, source, expected) in AS_PYTHON {
        let found = render(source, &list, &RenderOptions::default());
        if found.as_deref().ok() != Some(expected) {
            failures.push(format!("{name}: found {found:?}, expected {expected:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_clock_is_read() {
    let before = render(
        "{{ strftime_now('%Y-%m-%d') }}",
        &json!([]),
        &RenderOptions::default(),
    )
    .unwrap();
    assert!(before.starts_with("20") && before.len() == 10, "{before}");
    assert!(
        render(
            "{{ strftime_now('%d %B %Y %-d %H:%M') }}",
            &json!([]),
            &RenderOptions::default()
        )
        .is_ok()
    );
    let error = render(
        "\n{{ strftime_now('%Q!') }}",
        &json!([]),
        &RenderOptions::default(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "chat template line 2: invalid operation: strftime_now: \"%Q!\" is not a valid format"
    );
}

#[test]
fn options_reach_the_template() {
    let opts = RenderOptions {
        add_generation_prompt: true,
        tools: Some(json!([{ "type": "function" }])),
        extra: json!({ "enable_thinking": false, "messages": "mine" })
            .as_object()
            .unwrap()
            .clone(),
    };
    let source = "{{ add_generation_prompt }} {{ tools | tojson }} {{ enable_thinking }} {{ messages | length }}";
    let text = render(source, &json!([]), &opts).unwrap();
    assert_eq!(text, "True [{\"type\": \"function\"}] False 0");
    let parts = json!([{ "role": "user", "content": null }]);
    let mut list = messages(&parts);
    list[0].extra.insert(
        "content".into(),
        json!([{ "type": "text", "text": "in parts" }]),
    );
    let template = ChatTemplate::new("{{ messages[0].content[0].text }}", "", "").unwrap();
    assert_eq!(
        template.render(&list, &RenderOptions::default()).unwrap(),
        "in parts"
    );
}

#[test]
fn a_refusal_is_the_templates_own_message() {
    let source = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('Roles must alternate user/assistant!') }}{% endif %}{% endfor %}ok";
    let role = |role: &str| json!({ "role": role, "content": "x" });
    let refused = render(
        source,
        &json!([role("system"), role("user"), role("user")]),
        &RenderOptions::default(),
    );
    assert!(
        matches!(&refused, Err(Error::TemplateRefused { message }) if message == "Roles must alternate user/assistant!")
    );
    assert_eq!(
        refused.unwrap_err().to_string(),
        "Roles must alternate user/assistant!"
    );
    // Within a macro too.
    let source = "{% macro fail() %}{{ raise_exception('no') }}{% endmacro %}{{ fail() }}";
    let refused = render(source, &json!([]), &RenderOptions::default());
    assert!(matches!(refused, Err(Error::TemplateRefused { message }) if message == "no"));
    let accepted = render(
        source.split('{').next().unwrap_or_default(),
        &json!([]),
        &RenderOptions::default(),
    );
    assert_eq!(accepted.unwrap(), "");
}

#[test]
fn errors_name_the_line() {
    let cases = [
        ("a\nb\n{% if %}", 3),
        ("a\n{{ 1 + }}", 2),
        ("{% for x in y %}", 1),
        ("a\n\n{{ no_such_function() }}", 3),
        (
            "{% generation %}\n{{ messages[0].content.x.y }}\n{% endgeneration %}",
            2,
        ),
        ("\n{{ missing | tojson }}", 2),
        ("\n\n\n{{ 'a' + none }}", 4),
        ("{{ 'a' | no_such_filter }}", 1),
        ("{% include 'other' %}", 1),
    ];
    for (source, expected) in cases {
        let error = render(
            source,
            &json!([{ "role": "user", "content": "x" }]),
            &RenderOptions::default(),
        )
        .unwrap_err();
        let Error::Template { line, .. } = error else {
            panic!("{source:?}: {error}")
        };
        assert_eq!(line, expected, "{source:?}: {error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn hostile_templates_end_in_an_error() {
    let cases = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'x' * 1000000000000 }}",
        "{% set x = 'x' * 50000000 %}{% for i in range(1000) %}{{ x }}{% endfor %}",
        "{{ range(1000000000000) | list }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{{ [[[[[[[[1, 1, 1, 1]]]]]]]] | tojson(indent=1000000) }}",
    ];
    for source in cases {
        let started = Instant::now();
        let found = render(source, &json!([]), &RenderOptions::default());
        assert!(
            matches!(found, Err(Error::Template { .. })),
            "{source}: {:?}",
            found.map(|text| text.len())
        );
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{source}: {:?}",
            started.elapsed()
        );
    }
}

/// Lists that grow without end, whatever is done with them.
#[test]
fn lists_are_added_up_to_a_bound() {
    let doubled = "{% set ns = namespace(l=[1, 2]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}";
    let repeated = "{% set ns = namespace(l=[1] * 1000000 * 1000000) %}";
    let many = "{% set ns = namespace(l=[1] * 500000) %}{% for i in range(100000) %}{% set ns.l = [2] + ns.l %}{% endfor %}";
    let mixed = "{% set ns = namespace(l=[1, 2]) %}{% for i in range(60) %}{% set ns.l = [] + (ns.l * 1 + ns.l * 1) %}{% endfor %}";
    for (prelude, body) in [
        (doubled, ""),
        (doubled, "{{ ns.l }}"),
        (many, ""),
        (mixed, ""),
    ] {
        let source = format!("{prelude}{body}");
        let error = render(&source, &json!([]), &RenderOptions::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("+ makes"), "{error}");
        assert!(error.starts_with("chat template line 1: "), "{error}");
    }
    for body in [
        "{{ ns.l }}",
        "{{ ns.l | string | length }}",
        "{{ ns.l | tojson | length }}",
        "{{ ns.l | list | length }}",
        "{{ ns.l + [] }}",
        "{% for x in ns.l %}{% endfor %}",
    ] {
        let found = render(
            &format!("{repeated}{body}"),
            &json!([]),
            &RenderOptions::default(),
        );
        assert!(
            matches!(found, Err(Error::Template { .. })),
            "{body}: {:?}",
            found.map(|text| text.len())
        );
    }
    // Lists as templates build them are no trouble, nor is anything else that is added.
    let built = "{% set ns = namespace(l=[], n=0) %}{% for m in range(5000) %}{% set ns.l = ns.l + [m] %}{% set ns.n = ns.n + m %}{% endfor %}{{ ns.l | length }} {{ ns.l[4321] }} {{ ns.n }} {{ 1 + 2.5 }} {{ 'a' + 'b' }} {{ (1, 2) + (3,) }} {{ true + 1 }}{% macro f(x) %}{{ x + x }}{% endmacro %} {{ f(2) }} {{ [1] + [2] }}";
    let found = render(built, &json!([]), &RenderOptions::default()).unwrap();
    assert_eq!(found, "5000 4321 12497500 3.5 ab [1, 2, 3] 2 4 [1, 2]");
}

#[test]
fn deep_expressions_are_refused_or_rendered_but_never_fatal() {
    for source in [
        format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(20_000), "]".repeat(20_000)),
        format!(
            "{}{}",
            "{% if true %}".repeat(20_000),
            "{% endif %}".repeat(20_000)
        ),
        format!("{{{{ {}1 }}}}", "not ".repeat(20_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(130_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(60_000)),
        format!("{{{{ x{} }}}}", "|e".repeat(60_000)),
        "{% generation".repeat(1000),
        "{{ '".into(),
        "{% raw %}".into(),
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}".into(),
        "{#".into(),
    ] {
        let _ = render(&source, &json!([]), &RenderOptions::default());
    }
    let error = ChatTemplate::new(&" ".repeat(200_000), "", "").unwrap_err();
    assert_eq!(
        error.to_string(),
        "chat template line 0: the template has 200000 bytes, expected at most 131072"
    );
}

#[test]
fn long_conversations_are_rendered() {
    let list: Vec<_> = (0..10_000)
        .map(|i| json!({ "role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "word ".repeat(40) }))
        .collect();
    let weights = common::weights("smollm2-135m");
    let template =
        ChatTemplate::from_metadata(weights.metadata(), &common::tokenizer("smollm2-135m"))
            .unwrap()
            .unwrap();
    let text = template
        .render(&messages(&list.into()), &RenderOptions::default())
        .unwrap();
    assert!(text.len() > 2_000_000);
}
