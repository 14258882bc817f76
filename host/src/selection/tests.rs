use super::*;
use expect_test::{Expect, expect};

/// `name state`, where the state is a word, or for available ones what they do with the model.
fn candidates(list: &[(&str, &str)]) -> Vec<Candidate> {
    let states = VerdictState::ALL;
    let candidate = |(name, does): &(&str, &str)| Candidate {
        name: (*name).to_owned(),
        version: None,
        path: None,
        verdict: match states
            .iter()
            .find(|(state, word)| word == does && *state != VerdictState::Available)
        {
            Some((state, word)) => Verdict::unavailable(*state, format!("is {word}"), "mend it"),
            None => Verdict::available("ready"),
        },
    };
    list.iter().map(candidate).collect()
}

fn run(
    order: &[&str],
    pinned: Option<&str>,
    fallback: Fallback,
    list: &[(&str, &str)],
) -> (Trace, Result<String, Failure>) {
    let order: Vec<String> = order.iter().map(|name| (*name).to_owned()).collect();
    choose(
        candidates(list),
        &order,
        pinned,
        fallback,
        Some("m.gguf".into()),
        |candidate| {
            let does = list
                .iter()
                .find(|(name, _)| *name == candidate.name)
                .map(|(_, does)| *does);
            match does {
                Some("other") => Attempt::OtherFormat,
                Some("lacks") => Attempt::Lacks("check/1".to_owned()),
                Some("unsupported") => Attempt::Unsupported("architecture mamba".to_owned()),
                Some("broken") => {
                    Attempt::Broken(Error::new(ErrorCode::ModelUnusable, "m.gguf: cut off"))
                }
                Some("memory") => {
                    Attempt::Failed(Error::new(ErrorCode::OutOfMemory, "needs 9 GiB"))
                }
                Some("option") => Attempt::Failed(Error::unsupported_field("device", "a")),
                _ => Attempt::Taken(candidate.name.clone()),
            }
        },
    )
}

fn check(
    order: &[&str],
    pinned: Option<&str>,
    fallback: Fallback,
    list: &[(&str, &str)],
    expected: Expect,
) {
    let (trace, result) = run(order, pinned, fallback, list);
    let mut text = String::new();
    for candidate in &trace.candidates {
        let rank = candidate
            .rank
            .map_or("-".to_owned(), |rank| rank.to_string());
        text += &format!(
            "{rank} {} {:?}: {}\n",
            candidate.name, candidate.outcome, candidate.reason
        );
    }
    text += &match (&result, &trace.chosen) {
        (Ok(name), Some(chosen)) => {
            assert_eq!(name, chosen);
            format!(
                "=> {name}, notice: {}\n",
                trace.notice.as_deref().unwrap_or("none")
            )
        }
        (Err(failure), None) => format!("=> {failure:?}\n"),
        other => panic!("{other:?}"),
    };
    expected.assert_eq(&text);
}

const DEFAULT: &[&str] = &["metal", "rocm", "cuda", "sycl", "llama_cpp", "*"];

#[test]
fn the_order_decides_and_the_star_takes_names_in_order() {
    check(
        DEFAULT,
        None,
        Fallback::Warn,
        &[
            ("zeta", "ok"),
            ("cpu", "ok"),
            ("rocm", "absent"),
            ("metal", "disabled"),
        ],
        expect![[r#"
        1 metal Lost: disabled: is disabled (mend it)
        2 rocm Lost: absent: is absent (mend it)
        3 cpu Chosen: first in the order that can run it
        4 zeta NotTried: `cpu` comes before it
        => cpu, notice: none
    "#]],
    );
}

#[test]
fn never_one_outside_the_order() {
    check(
        &["a", "b"],
        None,
        Fallback::Allow,
        &[("a", "no_device"), ("b", "crashed"), ("c", "ok")],
        expect![[r#"
        1 a Lost: no device: is no_device (mend it)
        2 b Lost: crashed: is crashed (mend it)
        - c NotTried: the order does not reach it
        => NoBackend("no backend is available: `a`: no device: is no_device (mend it); `b`: crashed: is crashed (mend it); `c`: the order does not reach it")
    "#]],
    );
}

#[test]
fn a_fall_is_told_or_denied() {
    let list = &[("a", "missing_library"), ("b", "ok")];
    check(
        &["a", "b"],
        None,
        Fallback::Warn,
        list,
        expect![[r#"
        1 a Lost: missing library: is missing_library (mend it)
        2 b Chosen: first in the order that can run it
        => b, notice: `a` is preferred, but missing library: is missing_library (mend it); using `b` instead
    "#]],
    );
    let (trace, _) = run(&["a", "b"], None, Fallback::Allow, list);
    assert!(
        trace.notice.is_some(),
        "the reply's metadata says so under every policy"
    );
    check(
        &["a", "b"],
        None,
        Fallback::Deny,
        list,
        expect![[r#"
        1 a Lost: missing library: is missing_library (mend it)
        2 b NotTried: `a` lost, and fallback = "deny"
        => NoBackend("`a` is preferred, but missing library: is missing_library (mend it); fallback = \"deny\" forbids another")
    "#]],
    );
}

#[test]
fn absent_and_disabled_are_no_fall_under_deny() {
    check(
        &["a", "b", "c"],
        None,
        Fallback::Deny,
        &[("a", "absent"), ("b", "disabled"), ("c", "ok")],
        expect![[r#"
        1 a Lost: absent: is absent (mend it)
        2 b Lost: disabled: is disabled (mend it)
        3 c Chosen: first in the order that can run it
        => c, notice: none
    "#]],
    );
}

#[test]
fn a_pin_is_the_only_one_tried() {
    check(
        DEFAULT,
        Some("B"),
        Fallback::Allow,
        &[("a", "ok"), ("b", "no_device")],
        expect![[r#"
        1 b Lost: no device: is no_device (mend it)
        - a NotTried: another backend is pinned
        => NoBackend("the pinned backend `b` can't be used: no device: is no_device (mend it)")
    "#]],
    );
    check(
        &["a"],
        Some("b"),
        Fallback::Allow,
        &[("a", "ok"), ("b", "ok")],
        expect![[r#"
        1 b Chosen: pinned by the caller
        - a NotTried: another backend is pinned
        => b, notice: none
    "#]],
    );
}

#[test]
fn formats_architectures_and_failed_loads() {
    check(
        &["a", "b", "c", "d"],
        None,
        Fallback::Warn,
        &[
            ("a", "other"),
            ("b", "unsupported"),
            ("c", "memory"),
            ("d", "ok"),
        ],
        expect![[r#"
        1 a Lost: does not take this format
        2 b Lost: can't run this model: architecture mamba
        3 c Lost: loading failed: needs 9 GiB
        4 d Chosen: first in the order that can run it
        => d, notice: `b` is preferred, but can't run this model: architecture mamba; `c` is preferred, but loading failed: needs 9 GiB; using `d` instead
    "#]],
    );
}

#[test]
fn the_failure_says_whose_it_is() {
    let failure = |list: &[(&str, &str)]| {
        format!(
            "{:?}",
            run(&["*"], None, Fallback::Warn, list).1.unwrap_err()
        )
    };
    expect![[
        r#"Model("m.gguf: no such file or directory; no available backend takes this format")"#
    ]]
    .assert_eq(&failure(&[("a", "other")]));
    expect![[r#"Model("m.gguf: no such file or directory; no available backend takes this format; `b`: misconfigured: is misconfigured (mend it)")"#]]
        .assert_eq(&failure(&[("a", "other"), ("b", "misconfigured")]));
    expect![[r#"Model("a: m.gguf: cut off")"#]]
        .assert_eq(&failure(&[("a", "broken"), ("b", "other")]));
    expect![[r#"Model("a: architecture mamba")"#]].assert_eq(&failure(&[("a", "unsupported")]));
    expect![[r#"NoBackend("no backend is available: not installed: a")"#]]
        .assert_eq(&failure(&[("a", "absent")]));
    // A module that was opened, and calls itself absent.
    let mut list = candidates(&[("a", "absent"), ("b", "absent")]);
    list[0].version = Some("0.1.0".to_owned());
    let any = ["*".to_owned()];
    let chosen = choose(list, &any, None, Fallback::Warn, None, |_| {
        Attempt::<()>::OtherFormat
    });
    expect![[r#"NoBackend("no backend is available: `a`: absent: is absent (mend it); not installed: b")"#]]
        .assert_eq(&format!("{:?}", chosen.1.unwrap_err()));
    expect![[r#"NoBackend("no available backend offers `check/1`, asked: `a`; `b`: misconfigured: is misconfigured (mend it)")"#]]
        .assert_eq(&failure(&[("a", "lacks"), ("b", "misconfigured")]));
    expect![[r#"Model("m.gguf: no such file or directory; no available backend that offers `check/1` takes this format; not offered by `a`, `c`")"#]]
        .assert_eq(&failure(&[("a", "lacks"), ("b", "other"), ("c", "lacks")]));
    expect![[r#"Model("c: m.gguf: cut off")"#]].assert_eq(&failure(&[
        ("a", "lacks"),
        ("b", "other"),
        ("c", "broken"),
    ]));
    assert!(failure(&[("a", "memory"), ("b", "other")]).starts_with("Backend(\"a\""));
}

#[test]
fn an_option_that_is_refused_is_not_tried_elsewhere() {
    check(
        &["*"],
        None,
        Fallback::Allow,
        &[("a", "option"), ("b", "ok")],
        expect![[r#"
        1 a Lost: loading failed: a can't honour the request field `device`
        2 b NotTried: `a` refused the options of the call
        => Backend("a", Error { code: UnsupportedField, message: "a can't honour the request field `device`", field: "device", action: "leave out `device` or choose another backend" })
    "#]],
    );
}

#[test]
fn the_trace_survives_json() {
    let (trace, _) = run(
        DEFAULT,
        None,
        Fallback::Warn,
        &[("rocm", "no_device"), ("cpu", "ok")],
    );
    let text = serde_json::to_string(&trace).unwrap();
    assert_eq!(serde_json::from_str::<Trace>(&text).unwrap(), trace);
}
