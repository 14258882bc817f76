use super::*;

#[test]
fn a_page_has_every_kind() {
    let metrics = Metrics::default();
    let labels = ["/v1/models", "200", "openai", "a\"b\\c\nd"];
    metrics.requests.add(labels.map(str::to_owned), 2);
    metrics.connections.up();
    let series = metrics.series("m", "cpu");
    series.completion_tokens.fetch_add(7, Ordering::Relaxed);
    series.ended(FinishReason::Length);
    series.failed(false);
    series.failed(true);
    series.failed(true);
    for seconds in [0.001, 0.0011, 99.0] {
        series.next_token.observe(seconds);
    }
    let mut page = Page::default();
    metrics.write(&mut page);
    let text = page.text();
    for line in [
        "# TYPE backplane_http_requests_total counter",
        r#"backplane_http_requests_total{route="/v1/models",status="200",dialect="openai",key="a\"b\\c\nd"} 2"#,
        "backplane_http_connections 1",
        r#"backplane_completion_tokens_total{model="m",backend="cpu"} 7"#,
        r#"backplane_replies_total{model="m",backend="cpu",end="length"} 1"#,
        r#"backplane_replies_total{model="m",backend="cpu",end="error"} 1"#,
        r#"backplane_replies_total{model="m",backend="cpu",end="refused"} 2"#,
        r#"backplane_time_between_tokens_seconds_bucket{model="m",backend="cpu",le="0.001"} 1"#,
        r#"backplane_time_between_tokens_seconds_bucket{model="m",backend="cpu",le="0.0025"} 2"#,
        r#"backplane_time_between_tokens_seconds_bucket{model="m",backend="cpu",le="2.5"} 2"#,
        r#"backplane_time_between_tokens_seconds_bucket{model="m",backend="cpu",le="+Inf"} 3"#,
        r#"backplane_time_between_tokens_seconds_count{model="m",backend="cpu"} 3"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
}

#[test]
fn numbers_that_no_number_can_be_are_written_as_the_format_has_them() {
    let mut page = Page::default();
    page.gauge("a", "b", f64::INFINITY);
    page.gauge("a", "b", f64::NEG_INFINITY);
    page.gauge("a", "b", f64::NAN);
    let text = page.text();
    for line in ["a +Inf", "a -Inf", "a NaN"] {
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}

#[test]
fn names_of_engines_are_the_formats() {
    let named = engine_name("kv_pages_used");
    assert_eq!(named.as_deref(), Some("backplane_engine_kv_pages_used"));
    for wrong in ["", "Kv", "a-b", "a b", "a\nb", "é", &"x".repeat(65)] {
        assert_eq!(engine_name(wrong), None, "{wrong}");
    }
}
