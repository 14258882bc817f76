//! Any value at any key: an error in one line, or a model that lowers or is refused; never a panic, a long wait or much memory.

use crate::support::{MODELS, Model, line};
use backplane_models::{hub, lower, summarize};
use proptest::prelude::*;
use serde_json::{Value, json};

fn values() -> Vec<Value> {
    vec![
        json!(null),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(1e-60),
        json!(65536),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1e300),
        json!("yarn"),
        json!([]),
        json!([0]),
        json!({"type": "yarn"}),
        json!({"rope_type": "longrope", "long_factor": [], "short_factor": {}}),
        json!({"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}),
    ]
}

/// Opens a directory with another configuration, and does with the model what can be done with it.
fn try_with(folder: &std::path::Path, config: &Value) {
    let bytes = serde_json::to_vec(config).expect("JSON");
    std::fs::write(folder.join("config.json"), bytes).expect("written");
    match hub::open(folder, vec![]) {
        Err(error) => {
            let line = line(&error, folder);
            assert!(line.len() < 600, "{line}");
        }
        Ok(weights) => {
            let _ = hub::notes(&weights).expect("notes");
            let lowered = lower(&weights).map_err(|error| error.to_string());
            let summary = summarize(&weights).map_err(|error| error.to_string());
            for refused in [lowered.err(), summary.err()].into_iter().flatten() {
                assert!(!refused.contains('\n'), "{refused}");
            }
        }
    }
}

/// Every key of the older dialect, and within the newer one what only that has; a model of each family.
#[test]
fn any_value_at_any_key() {
    for name in [
        "deepseek-v3-yarn",
        "gemma3-text-linear8",
        "llama3-ropescaled",
        "mistral-sliding",
        "mixtral",
        "phi4mini-partial-longrope",
        "qwen2-moe",
        "qwen2.5-yarn",
        "qwen3-moe",
        "qwen3-qknorm",
    ] {
        let model = Model::of(name);
        let folder = model.write();
        let mut places = keys(&model.config, "");
        places.extend(keys(&model.config["rope_scaling"], "/rope_scaling"));
        try_all(folder.path(), &model.config, &places);
        let newer = Model::in_dialect(name, "config.transformers5.json").config;
        let mut places = keys(&newer["rope_parameters"], "/rope_parameters");
        for kind in [
            "/rope_parameters/full_attention",
            "/rope_parameters/sliding_attention",
        ] {
            places.extend(
                newer
                    .pointer(kind)
                    .map_or(vec![], |within| keys(within, kind)),
            );
        }
        assert!(!places.is_empty());
        try_all(folder.path(), &newer, &places);
    }
}

fn keys(within: &Value, place: &str) -> Vec<String> {
    let keys = within.as_object().into_iter().flatten();
    keys.map(|(key, _)| format!("{place}/{key}")).collect()
}

fn try_all(folder: &std::path::Path, config: &Value, places: &[String]) {
    for place in places {
        for value in values() {
            let mut config = config.clone();
            *config.pointer_mut(place).expect("a key that is there") = value;
            try_with(folder, &config);
        }
    }
}

#[test]
fn any_tensor_missing_or_empty() {
    for name in [
        "deepseek-v3",
        "gemma3-text",
        "llama3-ropescaled",
        "phi3-full-rotary",
        "qwen2-moe",
    ] {
        let model = Model::of(name);
        for index in 0..model.tensors.len() {
            let mut without = model.clone();
            let removed = without.tensors.remove(index).name;
            assert!(without.refusal().contains(&removed), "{name}: {removed}");
            let mut empty = model.clone();
            empty.tensors[index].shape = vec![0];
            empty.tensors[index].bytes = vec![];
            assert!(empty.refusal().contains(&removed), "{name}: {removed}");
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0i64..70).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,8}", inner, 0..4)
                .prop_map(|keys| Value::Object(keys.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn several_values_at_once(
        model in 0..MODELS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_json()), 1..5),
    ) {
        let model = Model::of(MODELS[model]);
        let folder = model.write();
        let mut config = model.config.clone();
        let keys: Vec<String> = config.as_object().expect("keys").keys().cloned().collect();
        for (index, value) in changes {
            config[index.get(&keys)] = value;
        }
        try_with(folder.path(), &config);
    }
}
