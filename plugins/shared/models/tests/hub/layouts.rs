//! Layouts that the fixtures don't have: other prefixes, heads, and forms of the same weights.

use crate::support::{Model, metadata};
use backplane_golden::{Runner, Sequence};
use backplane_models::{hub, lower, summarize};
use backplane_program::Interpreter;
use backplane_weights::Weights;
use serde_json::json;

fn opened(model: &Model) -> Weights {
    model.open().unwrap_or_else(|error| panic!("{error}"))
}

/// Whether two models have the same program and the same bytes by the same names, and the same metadata but for notes.
fn assert_same(one: &Weights, other: &Weights) {
    let of = |weights| {
        let mut pairs = metadata(weights);
        pairs.retain(|(key, _)| !["backplane.notes", "general.name"].contains(&key.as_str()));
        pairs
    };
    assert_eq!(of(one), of(other));
    assert_eq!(lower(one).expect("lowered"), lower(other).expect("lowered"));
    assert_eq!(one.tensors().count(), other.tensors().count());
    for tensor in one.tensors() {
        let [a, b] = [one, other].map(|weights| weights.require(&tensor.name).expect("a tensor"));
        assert!(
            a.data == b.data && a.info.shape == b.info.shape,
            "{}",
            tensor.name
        );
    }
}

fn logits(weights: &Weights) -> Vec<f32> {
    let mut runner = Runner::of(&Interpreter, weights, None, 64, 16);
    runner.feed(&mut Sequence::default(), &[3, 77, 5, 400, 12, 9], 16, 0)
}

const FUSED: &[(&str, &[&str])] = &[
    (
        "self_attn.qkv_proj",
        &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    ),
    ("mlp.gate_up_proj", &["mlp.gate_proj", "mlp.up_proj"]),
];

fn name(layer: usize, part: &str) -> String {
    format!("model.layers.{layer}.{part}.weight")
}

#[test]
fn matrices_may_be_fused_in_any_family() {
    for family in [
        "llama3-gqa",
        "qwen3-qknorm",
        "gemma3-text",
        "mistral-sliding",
    ] {
        let split = Model::of(family);
        let mut fused = split.clone();
        let layers = split.config["num_hidden_layers"]
            .as_u64()
            .expect("a number") as usize;
        for (layer, (whole, parts)) in
            (0..layers).flat_map(|layer| FUSED.iter().map(move |it| (layer, it)))
        {
            let mut one = split.tensor(&name(layer, parts[0])).clone();
            for part in &parts[1..] {
                let part = split.tensor(&name(layer, part));
                one.shape[0] += part.shape[0];
                one.bytes.extend_from_slice(&part.bytes);
            }
            one.name = name(layer, whole);
            fused
                .tensors
                .retain(|tensor| !parts.iter().any(|part| tensor.name == name(layer, part)));
            fused.tensors.push(one);
        }
        let (split, fused) = (opened(&split), opened(&fused));
        assert_eq!(fused.owned_bytes(), split.owned_bytes());
        assert!(logits(&split) == logits(&fused), "{family}");
    }
    // Biases of fused matrices are not known to exist.
    let fused = Model::of("qwen2.5-bias").change("q_proj.weight", |tensor| {
        tensor.name = tensor.name.replace("q_proj", "qkv_proj");
    });
    assert!(
        fused
            .refusal()
            .contains("qkv_proj.weight: found [64, 64], expected [128, 64]")
    );
}

#[test]
fn matrices_of_phi3_may_be_split() {
    let fused = Model::of("phi3-full-rotary");
    let mut split = fused.clone();
    for layer in 0..3 {
        for (whole, parts, rows) in [
            (FUSED[0].0, FUSED[0].1, &[64, 32, 32][..]),
            (FUSED[1].0, FUSED[1].1, &[128, 128]),
        ] {
            let mut rest = fused.tensor(&name(layer, whole)).bytes.as_slice();
            split = split.without(&name(layer, whole));
            for (part, rows) in parts.iter().zip(rows) {
                split = split.with(&name(layer, part), &[*rows, 64]);
                let tensor = split.tensors.last_mut().expect("a tensor");
                let (bytes, others) = rest.split_at(rows * 64 * 2);
                (tensor.bytes, tensor.dtype) = (bytes.into(), "BF16".into());
                rest = others;
            }
            assert!(rest.is_empty());
        }
    }
    assert!(logits(&opened(&fused)) == logits(&opened(&split)));
}

/// As transformers 5 has experts in memory, and writes them where it is told not to give them back their first names.
#[test]
fn experts_may_be_stacked() {
    for (family, experts, [gate, up, down]) in [
        (
            "mixtral",
            4,
            [
                "block_sparse_moe.experts.{}.w1",
                "block_sparse_moe.experts.{}.w3",
                "block_sparse_moe.experts.{}.w2",
            ],
        ),
        (
            "qwen2-moe",
            6,
            [
                "mlp.experts.{}.gate_proj",
                "mlp.experts.{}.up_proj",
                "mlp.experts.{}.down_proj",
            ],
        ),
        (
            "qwen3-moe",
            8,
            [
                "mlp.experts.{}.gate_proj",
                "mlp.experts.{}.up_proj",
                "mlp.experts.{}.down_proj",
            ],
        ),
        (
            "deepseek-v3",
            8,
            [
                "mlp.experts.{}.gate_proj",
                "mlp.experts.{}.up_proj",
                "mlp.experts.{}.down_proj",
            ],
        ),
    ] {
        let single = Model::of(family);
        let mut stacked = single.clone();
        let layers = single.config["num_hidden_layers"]
            .as_u64()
            .expect("a number") as usize;
        let dense = single.config["first_k_dense_replace"].as_u64().unwrap_or(0) as usize;
        for layer in dense..layers {
            for (part, of_each) in [("gate_up_proj", &[gate, up][..]), ("down_proj", &[down])] {
                let names = (0..experts).flat_map(|expert| {
                    of_each.iter().map(move |pattern| {
                        name(layer, &pattern.replace("{}", &expert.to_string()))
                    })
                });
                let names: Vec<String> = names.collect();
                let mut one = single.tensor(&names[0]).clone();
                one.shape = vec![experts, one.shape[0] * of_each.len(), one.shape[1]];
                one.bytes = names
                    .iter()
                    .flat_map(|name| single.tensor(name).bytes.clone())
                    .collect();
                one.name = format!("model.layers.{layer}.mlp.experts.{part}");
                stacked
                    .tensors
                    .retain(|tensor| !names.contains(&tensor.name));
                stacked.tensors.push(one);
            }
        }
        if family == "mixtral" {
            stacked = stacked.change("block_sparse_moe.gate", |tensor| {
                tensor.name = tensor.name.replace("block_sparse_moe", "mlp");
            });
        }
        let (single, opened) = (opened(&single), opened(&stacked));
        assert_eq!(opened.owned_bytes(), single.owned_bytes());
        assert!(logits(&single) == logits(&opened), "{family}");
        let line = stacked.without("experts.down_proj").refusal();
        assert!(
            line.contains("mlp.experts.down_proj: found no such tensor"),
            "{line}"
        );
    }
}

#[test]
fn a_decoder_without_head_has_no_prefix() {
    let model = Model::of("qwen3-qknorm");
    let bare = model.clone().change("model.", |tensor| {
        tensor.name = tensor.name.replacen("model.", "", 1);
    });
    assert_same(&opened(&model), &opened(&bare));
}

#[test]
fn gemma3_that_also_sees_runs_its_text() {
    let model = Model::of("gemma3-text");
    let layouts = [
        ("language_model.model.", ""),
        ("model.language_model.", "model."),
    ];
    for (prefix, vision) in layouts {
        let mut seeing = model.clone().change("model.", |tensor| {
            tensor.name = tensor.name.replacen("model.", prefix, 1);
        });
        seeing = seeing
            .with(
                &format!("{vision}vision_tower.vision_model.post_layernorm.weight"),
                &[8],
            )
            .with(
                &format!("{vision}multi_modal_projector.mm_soft_emb_norm.weight"),
                &[8],
            );
        seeing.config = json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 256,
            "boi_token_index": 4, "vision_config": {"hidden_size": 8}, "text_config": model.config,
        });
        let weights = opened(&seeing);
        assert_same(&opened(&model), &weights);
        let notes = hub::notes(&weights).expect("notes");
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(
            notes[0].starts_with("2 tensors that begin with"),
            "{notes:?}"
        );
        assert!(
            notes[0].ends_with("are left out: only text is run"),
            "{notes:?}"
        );
    }
    let nothing = Model::of("gemma3-text").set("model_type", json!("gemma3"));
    assert_eq!(
        nothing.refusal(),
        "config.json: key text_config: found nothing, expected an object that describes the language model"
    );
    let nested = Model::of("gemma3-text");
    let mut text = nested.config.clone();
    text["num_hidden_layers"] = json!("seven");
    let mut nested = nested;
    nested.config = json!({"model_type": "gemma3", "text_config": text});
    let line = nested.refusal();
    assert!(
        line.starts_with("config.json: key text_config.num_hidden_layers: found \"seven\""),
        "{line}"
    );
}

/// Gemma's text configurations within others name only what differs from the defaults of their class.
#[test]
fn gemma3_has_the_defaults_of_its_class() {
    let mut model = Model::of("gemma3-text");
    for key in [
        "rms_norm_eps",
        "rope_theta",
        "sliding_window_pattern",
        "rope_local_base_freq",
    ] {
        model = model.without_key(key);
    }
    for key in ["tie_word_embeddings", "hidden_activation", "attention_bias"] {
        model = model.without_key(key);
    }
    assert_same(&opened(&Model::of("gemma3-text")), &opened(&model));
    // 256 elements in each of 8 heads, 4 of them for keys; 262,208 tokens: not what the tensors have.
    let line = Model::of("gemma3-text").without_key("head_dim").refusal();
    assert!(
        line.contains("q_norm.weight: found [16], expected [256], [head_dim]"),
        "{line}"
    );
    let line = Model::of("gemma3-text")
        .without_key("num_attention_heads")
        .refusal();
    assert!(line.contains("expected [128, 64]"), "{line}");
    let line = Model::of("gemma3-text").without_key("vocab_size").refusal();
    assert!(line.contains("expected [262208, 64]"), "{line}");
}

#[test]
fn a_head_beside_a_tied_embedding_is_used_and_noted() {
    let untied = Model::of("llama3-gqa");
    let tied = untied.clone().set("tie_word_embeddings", json!(true));
    let weights = opened(&tied);
    assert_same(&opened(&untied), &weights);
    let notes = hub::notes(&weights).expect("notes");
    let expected = "tensor lm_head.weight is used as it is, though key tie_word_embeddings says that it is the embedding";
    assert_eq!(notes, [expected]);
    assert!(hub::notes(&opened(&untied)).expect("notes").is_empty());
}

#[test]
fn a_tied_model_needs_no_head() {
    let tied = Model::of("llama3-gqa")
        .without("lm_head")
        .set("tie_word_embeddings", json!(true));
    let weights = opened(&tied);
    assert!(weights.tensor("output.weight").is_none());
    lower(&weights).expect("lowered");
}

#[test]
fn biases_are_taken_where_the_configuration_has_them() {
    let mut model = Model::of("llama3-gqa")
        .set("attention_bias", json!(true))
        .set("mlp_bias", json!(true));
    for layer in 0..3 {
        for (name, rows) in [
            ("self_attn.q_proj", 64),
            ("self_attn.k_proj", 32),
            ("self_attn.v_proj", 32),
            ("self_attn.o_proj", 64),
            ("mlp.gate_proj", 128),
            ("mlp.up_proj", 128),
            ("mlp.down_proj", 64),
        ] {
            model = model.with(&format!("model.layers.{layer}.{name}.bias"), &[rows]);
        }
    }
    let program = lower(&opened(&model)).expect("lowered");
    let biases = program
        .weights
        .iter()
        .filter(|weight| weight.name.ends_with(".bias"));
    assert_eq!(biases.count(), 3 * 7);
    let line = model.without("layers.2.mlp.down_proj.bias").refusal();
    assert!(
        line.contains("tensor model.layers.2.mlp.down_proj.bias: found no such tensor"),
        "{line}"
    );
}

#[test]
fn layers_of_a_mixture_may_be_dense() {
    for (name, key, value) in [
        ("qwen3-moe", "mlp_only_layers", json!([1])),
        ("qwen2-moe", "decoder_sparse_step", json!(3)),
    ] {
        let dense: &[usize] = if name == "qwen3-moe" { &[1] } else { &[0, 1] };
        let mut model = Model::of(name).set(key, value);
        for layer in dense {
            model = model.without(&format!("layers.{layer}.mlp."));
            for (name, shape) in [("gate", [128, 64]), ("up", [128, 64]), ("down", [64, 128])] {
                model = model.with(
                    &format!("model.layers.{layer}.mlp.{name}_proj.weight"),
                    &shape,
                );
            }
        }
        lower(&opened(&model)).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn experts_that_see_every_token_may_be_none() {
    let model = Model::of("deepseek-v3")
        .set("n_shared_experts", json!(0))
        .without("shared_experts");
    lower(&opened(&model)).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn queries_of_latent_attention_may_have_no_rank() {
    let mut model = Model::of("deepseek-v3")
        .set("q_lora_rank", json!(null))
        .without("q_a_")
        .without("q_b_proj");
    for layer in 0..3 {
        model = model.with(
            &format!("model.layers.{layer}.self_attn.q_proj.weight"),
            &[128, 64],
        );
    }
    lower(&opened(&model)).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn layers_that_predict_further_tokens_are_left_out() {
    let model = Model::of("deepseek-v3")
        .set("num_nextn_predict_layers", json!(1))
        .with("model.layers.3.eh_proj.weight", &[64, 128]);
    let weights = opened(&model);
    assert_eq!(
        hub::notes(&weights).expect("notes"),
        ["1 tensors of layers 3 and on, which predict further tokens, are left out"]
    );
    lower(&weights).expect("lowered");
    let line = model.set("num_nextn_predict_layers", json!(0)).refusal();
    assert_eq!(
        line,
        "model.safetensors: tensor \"model.layers.3.eh_proj.weight\" has no place in architecture deepseek_v3"
    );
}

#[test]
fn frequencies_that_follow_from_the_configuration_are_passed_over() {
    let model = Model::of("llama3-gqa");
    let old = model
        .clone()
        .with("model.layers.0.self_attn.rotary_emb.inv_freq", &[8]);
    assert_same(&opened(&model), &opened(&old));
}

#[test]
fn windows_of_gemma3_are_written_where_they_are_not_the_usual_ones() {
    let key = "gemma3.attention.sliding_window_pattern";
    let usual = opened(&Model::of("gemma3-text"));
    assert!(usual.metadata().get(key).is_none());
    let listed = ["sliding_attention", "full_attention"]
        .into_iter()
        .cycle()
        .take(7);
    let listed = Model::of("gemma3-text").set("layer_types", json!(listed.collect::<Vec<_>>()));
    let weights = opened(&listed);
    let expected = [true, false, true, false, true, false, true];
    assert_eq!(
        weights
            .metadata()
            .require_array(key)
            .expect("an array")
            .bools()
            .expect("flags"),
        expected
    );
    assert_eq!(
        summarize(&weights).expect("a summary").window,
        "window of 16 in 4 of 7 layers"
    );
    let period = Model::of("gemma3-text").set("sliding_window_pattern", json!(2));
    assert_same(&weights, &opened(&period));
}

#[test]
fn what_nobody_knows_is_noted_and_code_is_not_run() {
    let model = Model::of("llama3-gqa")
        .set("best_of_all_models", json!("yes\nindeed"))
        .set("auto_map", json!({"AutoModel": "modeling.Llama"}))
        .set("unsloth_fixed", json!(true));
    let weights = opened(&model);
    assert_eq!(
        hub::notes(&weights).expect("notes"),
        [
            "config.json: key auto_map: code beside the weights is never run",
            "config.json: key best_of_all_models: \"yes\\nindeed\" is not known, and not heeded",
        ]
    );
}

#[test]
fn weights_of_any_float_type_are_taken() {
    let model = Model::of("llama3-gqa").change("mlp.down_proj", |tensor| {
        let values = tensor.bytes.chunks_exact(4).map(|it| [it[2], it[3]]);
        tensor.bytes = values.flatten().collect();
        tensor.dtype = "BF16".into();
    });
    let weights = opened(&model);
    let down = weights.require("blk.1.ffn_down.weight").expect("a tensor");
    assert_eq!(down.info.ty.name(), "BF16");
    assert_eq!(summarize(&weights).expect("a summary").quantization, "F32");
    lower(&weights).expect("lowered");
}
