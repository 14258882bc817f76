//! Kinds of rotation, in both dialects, and what they come to.

use crate::support::Model;
use backplane_models::{hub, lower, lower_for, summarize};
use backplane_weights::{Value as Meta, Weights};
use serde_json::{Value, json};

/// The model with these parameters of rotation, in the older dialect and in the newer one.
fn both(name: &str, parameters: &Value) -> [Model; 2] {
    let older = Model::of(name).set("rope_scaling", parameters.clone());
    let newer = Model::in_dialect(name, "config.transformers5.json");
    let theta = newer.config["rope_parameters"]["rope_theta"].clone();
    let mut parameters = parameters.clone();
    parameters["rope_theta"] = theta;
    if let Some(partial) = newer.config["rope_parameters"].get("partial_rotary_factor") {
        parameters["partial_rotary_factor"] = partial.clone();
    }
    [older, newer.set("rope_parameters", parameters)]
}

fn f32_at(weights: &Weights, key: &str) -> Option<f32> {
    match weights.metadata().get(key) {
        Some(Meta::F32(number)) => Some(number),
        None => None,
        other => panic!("{key}: {other:?}"),
    }
}

fn opened(model: &Model) -> Weights {
    let weights = model.open().unwrap_or_else(|error| panic!("{error}"));
    lower(&weights).unwrap_or_else(|error| panic!("{error}"));
    weights
}

#[test]
fn linear() {
    for name in [
        "llama3-gqa",
        "mistral-full",
        "qwen2.5-bias",
        "qwen3-qknorm",
        "phi3-full-rotary",
        "mixtral",
        "deepseek-v3",
    ] {
        for model in both(name, &json!({"type": "linear", "factor": 4})) {
            let weights = opened(&model);
            let architecture = weights
                .metadata()
                .require_str("general.architecture")
                .expect("a name");
            let key = |key: &str| format!("{architecture}.rope.scaling.{key}");
            assert_eq!(
                weights
                    .metadata()
                    .require_str(&key("type"))
                    .expect("a type"),
                "linear"
            );
            assert_eq!(f32_at(&weights, &key("factor")), Some(4.0));
        }
    }
}

#[test]
fn yarn_has_the_factor_that_transformers_gives_cosine_and_sine() {
    let base = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256});
    let usual = 0.1 * 4.0f64.ln() + 1.0;
    let mscale = |scale: f64| 0.1 * scale * 4.0f64.ln() + 1.0;
    for (keys, factor) in [
        (json!({}), None),
        (json!({"attention_factor": usual}), None),
        (json!({"attention_factor": 1.0}), Some(1.0 / usual)),
        (
            json!({"mscale": 1.0, "mscale_all_dim": 1.0}),
            Some(1.0 / usual),
        ),
        (
            json!({"mscale": 0.7, "mscale_all_dim": 0.3}),
            Some(mscale(0.7) / mscale(0.3) / usual),
        ),
        (json!({"mscale": 0.7}), None),
        (
            json!({"beta_fast": 16, "beta_slow": 2, "truncate": true, "finetuned": true}),
            None,
        ),
    ] {
        let mut parameters = base.clone();
        for (key, value) in keys.as_object().expect("an object") {
            parameters[key] = value.clone();
        }
        for model in both("llama3-gqa", &parameters) {
            let weights = opened(&model);
            assert_eq!(
                weights
                    .metadata()
                    .require_str("llama.rope.scaling.type")
                    .expect("a type"),
                "yarn"
            );
            let found = f32_at(&weights, "llama.rope.scaling.attn_factor");
            assert_eq!(found, factor.map(|it| it as f32), "{parameters}");
            let beta = f32_at(&weights, "llama.rope.scaling.yarn_beta_fast");
            assert_eq!(beta, keys.get("beta_fast").map(|_| 16.0));
            let original = weights
                .metadata()
                .require_u32("llama.rope.scaling.original_context_length");
            assert_eq!(original.expect("a number"), 256);
        }
    }
    // Without a factor, the ratio of the contexts; without an original context, the longest.
    let no_factor = json!({"rope_type": "yarn", "original_max_position_embeddings": 128});
    for model in both("llama3-gqa", &no_factor) {
        assert_eq!(
            f32_at(&opened(&model), "llama.rope.scaling.factor"),
            Some(8.0)
        );
    }
    for model in both("llama3-gqa", &json!({"rope_type": "yarn", "factor": 2})) {
        let weights = opened(&model);
        let original = weights
            .metadata()
            .require_u32("llama.rope.scaling.original_context_length");
        assert_eq!(original.expect("a number"), 1024);
    }
}

/// As the model cards of Qwen 2.5 have it: the context stays the original one beside YaRN.
#[test]
fn yarn_stretches_the_context_where_the_file_states_the_original_one() {
    for (name, parameters, stated, expected) in [
        (
            "qwen2.5-yarn",
            json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}),
            256,
            1024,
        ),
        (
            "qwen2.5-yarn",
            json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}),
            1024,
            1024,
        ),
        (
            "qwen2.5-yarn",
            json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}),
            2048,
            2048,
        ),
        (
            "qwen2.5-yarn",
            json!({"type": "yarn", "factor": 1.5}),
            256,
            384,
        ),
        (
            "qwen2.5-yarn",
            json!({"type": "yarn", "factor": 1e30, "original_max_position_embeddings": 256}),
            256,
            u32::MAX as usize,
        ),
        (
            "qwen2.5-yarn",
            json!({"type": "linear", "factor": 4.0, "original_max_position_embeddings": 256}),
            256,
            256,
        ),
        (
            "deepseek-v3-yarn",
            json!({"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128}),
            128,
            1024,
        ),
    ] {
        let model = Model::of(name)
            .set("max_position_embeddings", json!(stated))
            .set("rope_scaling", parameters.clone());
        let weights = model.open().unwrap_or_else(|error| panic!("{error}"));
        let long = lower(&weights).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(long.context_length, expected, "{stated} {parameters}");
        assert_eq!(
            summarize(&weights).expect("a summary").context_length,
            expected
        );
        // The rotation is that of any context.
        let short = lower_for(&weights, Some(16)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(long.ropes, short.ropes);
        if name == "qwen2.5-yarn" && parameters == Model::of(name).config["rope_scaling"] {
            assert_eq!(
                long.ropes,
                lower(&opened(&Model::of(name))).expect("a program").ropes
            );
        }
    }
}

/// What transformers takes where a file leaves the key out.
#[test]
fn bases_and_original_contexts_have_the_defaults_of_their_class() {
    for (name, key, expected) in [
        ("mixtral", "llama.rope.freq_base", 1_000_000.0),
        ("mistral-full", "llama.rope.freq_base", 10_000.0),
        ("llama3-gqa", "llama.rope.freq_base", 10_000.0),
    ] {
        let weights = opened(&Model::of(name).without_key("rope_theta"));
        assert_eq!(f32_at(&weights, key), Some(expected), "{name}");
    }
    let model = Model::of("phi4mini-partial-longrope")
        .without_key("original_max_position_embeddings")
        .set("max_position_embeddings", json!(131_072));
    let weights = opened(&model);
    let original = weights
        .metadata()
        .require_u32("phi3.rope.scaling.original_context_length");
    assert_eq!(original.expect("a number"), 4096);
    let attention = (1.0 + 32f64.ln() / 4096f64.ln()).sqrt() as f32;
    assert_eq!(
        f32_at(&weights, "phi3.rope.scaling.attn_factor"),
        Some(attention)
    );
}

#[test]
fn yarn_of_a_part_of_each_head() {
    let parameters =
        json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256});
    for model in both("phi4mini-partial-longrope", &parameters) {
        let program = lower(&opened(&model)).expect("lowered");
        assert_eq!(program.ropes[0].inverse_frequencies.len(), 6);
        assert!((program.ropes[0].magnitude - (0.1 * 4.0f32.ln() + 1.0)).abs() < 1e-6);
    }
}

#[test]
fn yarn_of_deepseek_sharpens_scores() {
    let parameters = |one: f64, all: f64| json!({"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "mscale": one, "mscale_all_dim": all});
    for (one, all, multiplier, factor) in [
        (1.0, 1.0, Some(0.1), None),
        (0.0, 0.0, None, None),
        (0.707, 0.707, Some(0.0707), None),
        (
            1.0,
            0.5,
            Some(0.05),
            Some((0.1 * 8.0f64.ln() + 1.0) / (0.05 * 8.0f64.ln() + 1.0)),
        ),
    ] {
        for model in both("deepseek-v3-yarn", &parameters(one, all)) {
            let weights = opened(&model);
            let found = f32_at(&weights, "deepseek2.rope.scaling.yarn_log_multiplier");
            assert_eq!(found, multiplier.map(|it: f64| it as f32), "{one} {all}");
            let found = f32_at(&weights, "deepseek2.rope.scaling.attn_factor");
            assert_eq!(found, factor.map(|it| it as f32), "{one} {all}");
        }
    }
}

#[test]
fn dynamic_is_plain_within_the_context() {
    for model in both("qwen2.5-bias", &json!({"type": "dynamic", "factor": 2.0})) {
        let weights = opened(&model);
        assert!(weights.metadata().get("qwen2.rope.scaling.type").is_none());
        let notes = hub::notes(&weights).expect("notes");
        assert_eq!(notes.len(), 1);
        assert!(
            notes[0].ends_with(
                "\"dynamic\" changes nothing within 1024 positions, where the context ends"
            ),
            "{notes:?}"
        );
    }
}

#[test]
fn longrope_by_its_older_name_and_with_a_stated_factor() {
    let config = Model::of("phi4mini-partial-longrope").config;
    let mut parameters = config["rope_scaling"].clone();
    parameters["type"] = json!("su");
    for model in both("phi4mini-partial-longrope", &parameters) {
        let found = f32_at(&opened(&model), "phi3.rope.scaling.attn_factor");
        assert_eq!(found, Some(1.25f64.sqrt() as f32));
    }
    parameters["attention_factor"] = json!(1.5);
    for model in both("phi4mini-partial-longrope", &parameters) {
        assert_eq!(
            f32_at(&opened(&model), "phi3.rope.scaling.attn_factor"),
            Some(1.5)
        );
    }
}

#[test]
fn the_scale_of_gemma3s_scores_is_written_where_it_is_not_the_usual_one() {
    let key = "gemma3.attention.scale";
    assert_eq!(f32_at(&opened(&Model::of("gemma3-text")), key), None);
    let other = opened(&Model::of("gemma3-text-attnscale"));
    assert_eq!(f32_at(&other, key), Some(40.0f64.powf(-0.5) as f32));
}

/// What is refused: the parameters, and the line.
#[test]
fn refusals() {
    let yarn = |key: &str, value: Value| {
        let mut parameters = json!({"rope_type": "yarn", "factor": 4.0});
        parameters[key] = value;
        parameters
    };
    let llama3 = |key: &str, value: Value| {
        let mut parameters = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64});
        parameters[key] = value;
        parameters
    };
    let cases = [
        (
            json!({"rope_type": "mrope", "mrope_section": [1]}),
            "rope_type: found \"mrope\", expected one of linear, yarn, llama3, dynamic, default",
        ),
        (
            json!({"type": "longrope", "short_factor": [1], "long_factor": [1]}),
            "type: found \"longrope\", expected one of linear, yarn, llama3, dynamic, default",
        ),
        (
            json!({"rope_type": 7}),
            "rope_type: found 7, expected a string",
        ),
        (
            json!({"rope_type": "linear"}),
            "factor: found nothing, expected a number above 0",
        ),
        (
            json!({"rope_type": "linear", "factor": 0}),
            "factor: found 0.0, expected a number above 0",
        ),
        (
            json!({"rope_type": "linear", "factor": -1}),
            "factor: found -1, expected a number, not negative",
        ),
        (
            json!({"rope_type": "linear", "factor": 1e300}),
            "factor: found 1e+300, expected a number, not negative",
        ),
        (
            json!({"rope_type": "linear", "factor": 2, "low_freq_factor": 1}),
            "low_freq_factor: found 1, expected no such key for this kind of rotation",
        ),
        (
            json!({"rope_type": "dynamic", "alpha": 1000.0}),
            "factor: found nothing, expected a number above 0",
        ),
        (
            yarn("truncate", json!(false)),
            "truncate: found false, expected true",
        ),
        (
            yarn("beta_fast", json!(0)),
            "beta_fast: found 0.0, expected a number above 0",
        ),
        (
            yarn("original_max_position_embeddings", json!(0)),
            "original_max_position_embeddings: found 0, expected at least 1",
        ),
        (
            yarn("partial_rotary_factor", json!(0.5)),
            "partial_rotary_factor: found 0.5, expected 1: heads are turned as a whole in this family",
        ),
        (
            llama3("high_freq_factor", json!(1.0)),
            "high_freq_factor: found 1, expected more than low_freq_factor, 1",
        ),
        (
            llama3("low_freq_factor", json!(null)),
            "low_freq_factor: found nothing, expected a number above 0",
        ),
    ];
    for (parameters, expected) in cases {
        for (model, name) in both("llama3-gqa", &parameters)
            .iter()
            .zip(["rope_scaling", "rope_parameters"])
        {
            let line = model.refusal();
            let place = match expected.starts_with("partial") {
                true => "config.json: key ".to_owned(),
                false => format!("config.json: key {name}."),
            };
            assert_eq!(line, place + expected, "{parameters}");
        }
    }
    let older =
        |name: &str, parameters: Value| Model::of(name).set("rope_scaling", parameters).refusal();
    for (line, expected) in [
        (
            older("llama3-gqa", json!({"factor": 2.0})),
            "key rope_scaling.rope_type: found nothing, expected the kind of scaling",
        ),
        (
            older("llama3-gqa", json!("yarn")),
            "key rope_scaling: found \"yarn\", expected an object",
        ),
        (
            older(
                "phi3-full-rotary",
                json!({"type": "longrope", "short_factor": [1, 2], "long_factor": 3}),
            ),
            "key rope_scaling.long_factor: found 3, expected 8 numbers above 0, one for each pair that is turned",
        ),
        (
            older(
                "phi3-full-rotary",
                json!({"type": "longrope", "long_factor": [1, 2]}),
            ),
            "key rope_scaling.long_factor: found 2 of them, expected 8 numbers above 0, one for each pair that is turned",
        ),
        (
            older(
                "phi3-full-rotary",
                json!({"type": "longrope", "long_factor": [1, 1, 1, 0, 1, 1, 1, 1]}),
            ),
            "key rope_scaling.long_factor: found 0, expected 8 numbers above 0, one for each pair that is turned",
        ),
        (
            older("phi3-full-rotary", json!({"type": "llama3", "factor": 2})),
            "key rope_scaling.type: found \"llama3\", expected one of linear, yarn, longrope, dynamic, default",
        ),
        (
            older("gemma3-text", json!({"rope_type": "yarn", "factor": 2})),
            "key rope_scaling.rope_type: found \"yarn\", expected one of linear, dynamic, default",
        ),
        (
            Model::of("llama3-ropescaled")
                .set("rope_parameters", json!({"rope_theta": 1.0}))
                .refusal(),
            "key rope_scaling: found both, expected only one of rope_parameters and rope_scaling",
        ),
        (
            Model::of("llama3-gqa")
                .set("rope_parameters", json!({"rope_theta": 1.0}))
                .refusal(),
            "key rope_theta: found 500000, expected 1, as in rope_parameters",
        ),
        (
            Model::of("llama3-gqa")
                .set("rope_theta", json!(0))
                .refusal(),
            "key rope_theta: found 0.0, expected a number above 0",
        ),
        (
            Model::of("phi3-full-rotary")
                .set("partial_rotary_factor", json!(0.2))
                .refusal(),
            "key partial_rotary_factor: found 0.2, expected an even number of a head's 16 elements",
        ),
        (
            Model::of("phi3-full-rotary")
                .set("partial_rotary_factor", json!(1.5))
                .refusal(),
            "key partial_rotary_factor: found 1.5, expected an even number of a head's 16 elements",
        ),
        (
            gemma_newer(
                "sliding_attention",
                json!({"rope_type": "linear", "factor": 2, "rope_theta": 1e4}),
            ),
            "key rope_parameters.sliding_attention.rope_type: found \"linear\", expected default",
        ),
        (
            gemma_newer("full_attention", json!(null)),
            "key rope_parameters.full_attention: found nothing, expected parameters, as for the other layers",
        ),
        (
            gemma_newer("chunked_attention", json!({})),
            "key rope_parameters.chunked_attention: found an object of 0 keys, expected no such key for this kind of rotation",
        ),
    ] {
        assert_eq!(line, format!("config.json: {expected}"));
    }
}

fn gemma_newer(kind: &str, parameters: Value) -> String {
    let mut model = Model::in_dialect("gemma3-text", "config.transformers5.json");
    model.config["rope_parameters"][kind] = parameters;
    model.refusal()
}
