"""Prometheus' own parser over a page of metrics: `python metrics_page.py URL [KEY]`. Prints its samples as one JSON object."""

import json
import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

url, *key = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key[0]}"} if key else {})
with urllib.request.urlopen(request, timeout=20) as answer:
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", answer.headers
    text = answer.read().decode()
assert text.endswith("\n")
samples, names = {}, set()
for family in text_string_to_metric_families(text):
    assert family.name not in names, f"{family.name} comes twice"
    names.add(family.name)
    assert family.documentation and family.type in ("counter", "gauge", "histogram"), family
    buckets = {}
    for sample in family.samples:
        shown = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
        shown = f"{sample.name}{{{shown}}}"
        assert shown not in samples, f"{shown} comes twice"
        samples[shown] = sample.value
        if family.type == "counter":
            assert sample.name.endswith("_total") and sample.value >= 0, sample
        if sample.name.endswith("_bucket"):
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            buckets.setdefault(json.dumps(labels, sort_keys=True), []).append((float(sample.labels["le"]), sample.value))
        if family.type == "histogram" and sample.name.endswith("_count"):
            labels = json.dumps(sample.labels, sort_keys=True)
            counts = buckets[labels]
            assert counts == sorted(counts) and [count for _, count in counts] == sorted(count for _, count in counts)
            assert counts[-1] == (float("inf"), sample.value), counts
print(json.dumps(samples))
