//! What is wrong with a directory, in one line that names what users know: keys of `config.json`, the hub's names.

use crate::support::{Model, line};
use backplane_models::hub;
use serde_json::{Value, json};

#[test]
fn keys() {
    let no_such = |model: &str| format!("expected no such key: {model} is run without it");
    let cases: Vec<(&str, &str, Value, String)> = [
        ("llama3-gqa", "model_type", json!("gpt_neox"), "found \"gpt_neox\", expected one of deepseek_v3, gemma3, gemma3_text, llama, mistral, mixtral, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe".to_owned()),
        ("llama3-gqa", "model_type", json!(3), "found 3, expected a string".into()),
        ("llama3-gqa", "hidden_act", json!("gelu"), "found \"gelu\", expected silu or swish".into()),
        ("gemma3-text", "hidden_activation", json!("gelu"), "found \"gelu\", expected gelu_pytorch_tanh".into()),
        ("llama3-gqa", "hidden_size", json!(0), "found 0, expected at least 1".into()),
        ("llama3-gqa", "hidden_size", json!(-64), "found -64, expected a whole number of at most 32 bits".into()),
        ("llama3-gqa", "hidden_size", json!(64.5), "found 64.5, expected a whole number of at most 32 bits".into()),
        ("llama3-gqa", "hidden_size", json!(1u64 << 32), "found 4294967296, expected a whole number of at most 32 bits".into()),
        ("llama3-gqa", "hidden_size", json!(null), "found nothing, expected a whole number of at least 1".into()),
        ("llama3-gqa", "num_hidden_layers", json!(4_000_000_000u32), "found 4000000000, expected at most 30, the number of tensors there are".into()),
        ("llama3-gqa", "num_key_value_heads", json!(3), "found 3, expected a divisor of num_attention_heads, 4".into()),
        ("llama3-gqa", "head_dim", json!(1 << 17), "found heads of 131072, expected at most 65536 elements in a head".into()),
        ("llama3-gqa", "rms_norm_eps", json!("tiny"), "found \"tiny\", expected a number, not negative".into()),
        ("llama3-gqa", "tie_word_embeddings", json!(1), "found 1, expected true or false".into()),
        ("llama3-gqa", "sliding_window", json!(16), "found 16, ".to_owned() + &no_such("llama")),
        ("llama3-gqa", "num_local_experts", json!(8), "found 8, ".to_owned() + &no_such("llama")),
        ("llama3-gqa", "logit_scale", json!(0.0625), "found 0.0625, ".to_owned() + &no_such("llama")),
        ("llama3-gqa", "layer_types", json!(["full_attention", "full_attention", "sliding_attention"]), "found sliding_attention in layer 2, expected full_attention in every layer".into()),
        ("llama3-gqa", "layer_types", json!(["full_attention"]), "found 1 of them, expected one for each of 3 layers".into()),
        ("llama3-gqa", "layer_types", json!("full_attention"), "found \"full_attention\", expected full_attention or sliding_attention for each layer".into()),
        ("gemma3-text", "layer_types", json!([0, 0, 0, 0, 0, 0, 0]), "found 0, expected full_attention or sliding_attention for each layer".into()),
        ("gemma3-text", "sliding_window_pattern", json!(0), "found 0, expected at least 1".into()),
        ("gemma3-text", "query_pre_attn_scalar", json!(0), "found 0.0, expected a number above 0".into()),
        ("gemma3-text", "use_bidirectional_attention", json!(true), "found true, ".to_owned() + &no_such("gemma3_text")),
        ("mistral-full", "attention_bias", json!(true), "found true, ".to_owned() + &no_such("mistral")),
        ("qwen2.5-bias", "mlp_bias", json!(true), "found true, ".to_owned() + &no_such("qwen2")),
        ("mixtral", "num_local_experts", json!(0), "found 0, expected at least 1".into()),
        ("mixtral", "num_local_experts", json!(1 << 30), "found 1073741824, expected at most 41, the number of tensors there are".into()),
        ("mixtral", "num_experts_per_tok", json!(0), "found 0, expected at least 1".into()),
        ("mixtral", "num_experts_per_tok", json!(5), "found 5, expected at most num_local_experts, 4".into()),
        ("qwen2-moe", "num_experts", json!(0), "found 0, expected at least 1".into()),
        ("qwen2-moe", "shared_expert_intermediate_size", json!(0), "found 0, expected at least 1".into()),
        ("qwen2-moe", "decoder_sparse_step", json!(0), "found 0, expected at least 1".into()),
        ("qwen3-moe", "num_experts", json!(0), "found 0, expected at least 1".into()),
        ("qwen3-moe", "num_local_experts", json!(4), "found 4, expected 8, as num_experts says".into()),
        ("qwen3-moe", "moe_intermediate_size", json!(0), "found 0, expected at least 1".into()),
        ("qwen3-moe", "mlp_only_layers", json!([2]), "found 2, expected a list of layers, each less than 2".into()),
        ("qwen3-moe", "mlp_only_layers", json!(1), "found 1, expected a list of layers, each less than 2".into()),
        ("deepseek-v3", "n_routed_experts", json!(0), "found 0, expected at least 1".into()),
        ("deepseek-v3", "n_group", json!(3), "found 3, expected a divisor of n_routed_experts, 8".into()),
        ("deepseek-v3", "n_group", json!(0), "found 0, expected at least 1".into()),
        ("deepseek-v3", "topk_group", json!(5), "found 5, expected at most n_group, 4".into()),
        ("deepseek-v3", "scoring_func", json!("softmax"), "found \"softmax\", expected sigmoid".into()),
        ("deepseek-v3", "topk_method", json!("greedy"), "found \"greedy\", expected noaux_tc".into()),
        ("deepseek-v3", "moe_layer_freq", json!(2), "found 2, expected 1".into()),
        ("deepseek-v3", "attention_bias", json!(true), "found true, ".to_owned() + &no_such("deepseek_v3")),
        ("deepseek-v3", "qk_rope_head_dim", json!(15), "found 15, expected an even number".into()),
        ("deepseek-v3", "n_shared_experts", json!(4_000_000_000u32), "found 4000000000, expected a number that fits memory".into()),
        ("deepseek-v3", "quantization_config", json!({"quant_method": "fp8", "fmt": "e4m3"}), "found weights stored by fp8, expected no such key, and weights in F32, F16 or BF16".into()),
        ("llama3-gqa", "quantization_config", json!({"quant_method": "gptq", "bits": 4}), "found weights stored by gptq, expected no such key, and weights in F32, F16 or BF16".into()),
        ("llama3-gqa", "quantization_config", json!({"bits": 4}), "found an object of 1 keys, ".to_owned() + &no_such("llama")),
    ]
    .into();
    for (model, key, value, expected) in cases {
        let found = Model::of(model).set(key, value.clone()).refusal();
        assert_eq!(
            found,
            format!("config.json: key {key}: {expected}"),
            "{model}: {key} = {value}"
        );
    }
}

/// A window that is stated and not used changes nothing; one that is used in some layers is refused. Keys that are left out
/// mean a window of 4096 from layer 28 on, in Qwen 2's mixtures before it, in Qwen 3's everywhere.
#[test]
fn windows_of_qwen() {
    let refusal = |window: u32| {
        format!(
            "config.json: key use_sliding_window: found true, with a window of {window}, expected false: windows in some layers are not run for this family"
        )
    };
    for (name, some, none, by_default) in [
        ("qwen2.5-bias", 1, Some(3), false),
        ("qwen2-moe", 3, Some(0), true),
        ("qwen3-qknorm", 1, Some(3), false),
        ("qwen3-moe", 3, None, true),
    ] {
        let plain = Model::of(name)
            .without_key("sliding_window")
            .without_key("max_window_layers");
        let model = plain.set("sliding_window", json!(16));
        model.open().expect("a window that is not used");
        let used = model
            .set("use_sliding_window", json!(true))
            .set("max_window_layers", json!(some));
        assert_eq!(used.refusal(), refusal(16), "{name}");
        let used = match none {
            Some(none) => {
                let used = used.set("max_window_layers", json!(none));
                used.open().expect("a window in no layer");
                used
            }
            None => used,
        };
        let usual = used
            .without_key("sliding_window")
            .without_key("max_window_layers");
        match by_default {
            true => assert_eq!(usual.refusal(), refusal(4096), "{name}"),
            false => drop(usual.open().expect("fewer layers than those without")),
        }
        let from_first = usual.set("max_window_layers", json!(1));
        assert_eq!(from_first.refusal(), refusal(4096), "{name}");
        let no_window = from_first.set("sliding_window", json!(null));
        no_window.open().expect("no window");
    }
}

#[test]
fn neutral_values_change_nothing() {
    let model = Model::of("llama3-gqa")
        .set("logit_scale", json!(1.0))
        .set("final_logit_softcapping", json!(null))
        .set("use_sliding_window", json!(false))
        .set("no_rope_layers", json!([]))
        .set("clip_qkv", json!(0));
    let weights = model.open().expect("a model");
    assert!(hub::notes(&weights).expect("notes").is_empty());
}

#[test]
fn tensors() {
    let shape = |shape: &'static [usize]| {
        move |tensor: &mut crate::support::Tensor| {
            let size = if tensor.dtype == "F32" { 4 } else { 2 };
            tensor.shape = shape.into();
            tensor
                .bytes
                .resize(size * shape.iter().product::<usize>(), 0);
        }
    };
    let dtype = |name: &'static str, size: usize| {
        move |tensor: &mut crate::support::Tensor| {
            tensor.dtype = name.into();
            tensor.bytes = vec![0; size * tensor.shape.iter().product::<usize>()];
        }
    };
    let of = Model::of;
    let cases = [
        (
            of("llama3-gqa").without("layers.1.self_attn.k_proj"),
            "tensor model.layers.1.self_attn.k_proj.weight: found no such tensor, expected [32, 64], [num_key_value_heads * head_dim, hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").without("embed_tokens"),
            "tensor model.embed_tokens.weight: found no such tensor, expected [512, 64], [vocab_size, hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").without("lm_head"),
            "tensor lm_head.weight: found no such tensor, expected [512, 64], [vocab_size, hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").change("model.norm", shape(&[63])),
            "tensor model.norm.weight: found [63], expected [64], [hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").change("model.norm", shape(&[1, 64])),
            "tensor model.norm.weight: found [1, 64], expected [64], [hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").change("model.norm", shape(&[0])),
            "tensor model.norm.weight: found [0], expected [64], [hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").change("model.norm", shape(&[])),
            "tensor model.norm.weight: found [], expected [64], [hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").change("layers.2.mlp.up_proj", shape(&[64, 128])),
            "tensor model.layers.2.mlp.up_proj.weight: found [64, 128], expected [128, 64], [intermediate_size, hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").change("embed_tokens", shape(&[500, 64])),
            "tensor model.embed_tokens.weight: found [500, 64], expected [512, 64], [vocab_size, hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").set("vocab_size", json!(511)),
            "tensor model.embed_tokens.weight: found [512, 64], expected [511, 64], [vocab_size, hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").set("num_attention_heads", json!(8)),
            "tensor model.layers.0.self_attn.q_proj.weight: found [64, 64], expected [128, 64], [num_attention_heads * head_dim, hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").set("num_hidden_layers", json!(4)),
            "tensor model.layers.3.input_layernorm.weight: found no such tensor, expected [64], [hidden_size] of config.json",
        ),
        (
            of("llama3-gqa").set("num_hidden_layers", json!(2)),
            "tensor \"model.layers.2.input_layernorm.weight\" has no place in architecture llama",
        ),
        (
            of("llama3-gqa").with("model.layers.0.self_attn.q_proj.bias", &[64]),
            "tensor \"model.layers.0.self_attn.q_proj.bias\" has no place in architecture llama",
        ),
        (
            of("llama3-gqa").with("score.weight\n", &[1]),
            "tensor \"score.weight\\n\" has no place in architecture llama",
        ),
        (
            of("llama3-gqa").change("layers.0.mlp.up_proj", dtype("I64", 8)),
            "tensor model.layers.0.mlp.up_proj.weight: found dtype I64, expected F32, F16 or BF16",
        ),
        (
            of("llama3-gqa").change("model.norm", dtype("F64", 8)),
            "tensor model.norm.weight: found dtype F64, expected F32, F16 or BF16",
        ),
        (
            of("deepseek-v3").change("layers.0.self_attn.kv_b_proj", dtype("F8_E4M3", 1)),
            "tensor model.layers.0.self_attn.kv_b_proj.weight: found dtype F8_E4M3, expected F32, F16 or BF16",
        ),
        (
            of("deepseek-v3").change("layers.2.self_attn.kv_b_proj", shape(&[32, 128])),
            "tensor model.layers.2.self_attn.kv_b_proj.weight: found [32, 128], expected [128, 32], [num_attention_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank] of config.json",
        ),
        (
            of("deepseek-v3").without("layers.1.mlp.gate.e_score_correction_bias"),
            "tensor model.layers.1.mlp.gate.e_score_correction_bias: found no such tensor, expected [8], [the number of experts] of config.json",
        ),
        (
            of("deepseek-v3").without("layers.2.mlp.experts.7.down_proj"),
            "tensor model.layers.2.mlp.experts.7.down_proj.weight: found no such tensor, expected [64, 32], [hidden_size, the width of an expert] of config.json",
        ),
        (
            of("deepseek-v3").set("first_k_dense_replace", json!(0)),
            "tensor model.layers.0.mlp.gate.weight: found no such tensor, expected [8, 64], [the number of experts, hidden_size] of config.json",
        ),
        (
            of("mixtral").set("num_local_experts", json!(5)),
            "tensor model.layers.0.block_sparse_moe.gate.weight: found [4, 64], expected [5, 64], [the number of experts, hidden_size] of config.json",
        ),
        (
            of("mixtral").with(
                "model.layers.0.block_sparse_moe.experts.4.w1.weight",
                &[128, 64],
            ),
            "tensor \"model.layers.0.block_sparse_moe.experts.4.w1.weight\" has no place in architecture mixtral",
        ),
        (
            of("gemma3-text").without("layers.6.self_attn.q_norm"),
            "tensor model.layers.6.self_attn.q_norm.weight: found no such tensor, expected [16], [head_dim] of config.json",
        ),
        (
            of("gemma3-text").with("vision_tower.patch", &[4]),
            "tensor \"vision_tower.patch\" has no place in architecture gemma3_text",
        ),
        (
            of("phi3-full-rotary").change("layers.0.mlp.gate_up_proj", shape(&[128, 64])),
            "tensor model.layers.0.mlp.gate_up_proj.weight: found [128, 64], expected [256, 64], [2 * intermediate_size, hidden_size] of config.json",
        ),
        (
            of("qwen2.5-bias").without("layers.0.self_attn.v_proj.bias"),
            "tensor model.layers.0.self_attn.v_proj.bias: found no such tensor, expected [32], [num_key_value_heads * head_dim] of config.json",
        ),
    ];
    for (model, expected) in cases {
        let line = model.refusal();
        let line = line.strip_prefix("model.safetensors: ").unwrap_or(&line);
        assert_eq!(line, expected);
    }
}

#[test]
fn configurations_that_are_none() {
    let folder = Model::of("llama3-gqa").write();
    let config = folder.path().join("config.json");
    let refusal = || {
        let error = hub::open(folder.path(), vec![]).expect_err("no configuration");
        line(&error, folder.path())
    };
    for (bytes, expected) in [
        (&b""[..], "found an empty file, expected a JSON object"),
        (b" \n", "found an empty file, expected a JSON object"),
        (b"[]", "found a list of 0, expected a JSON object"),
        (b"\"llama\"", "found \"llama\", expected a JSON object"),
        (
            b"{\"model_type\": \"llama\"",
            "found something that is no JSON (EOF while parsing an object at line 1 column 22), expected a JSON object",
        ),
        (
            b"<html>",
            "found something that is no JSON (expected value at line 1 column 1), expected a JSON object",
        ),
        (
            b"{\"rms_norm_eps\": NaN}",
            "found something that is no JSON (expected value at line 1 column 18), expected a JSON object",
        ),
        (
            b"\xff\xfe{",
            "found something that is no JSON (expected value at line 1 column 1), expected a JSON object",
        ),
        (
            b"{}",
            "key model_type: found nothing, expected one of deepseek_v3, gemma3, gemma3_text, llama, mistral, mixtral, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe",
        ),
    ] {
        std::fs::write(&config, bytes).expect("written");
        assert_eq!(refusal(), format!("config.json: {expected}"));
    }
    // Deeper than any stack.
    std::fs::write(&config, "[".repeat(1 << 20)).expect("written");
    assert!(refusal().starts_with("config.json: found something that is no JSON (recursion limit"));
    let file = std::fs::File::create(&config).expect("created");
    file.set_len(1 << 40).expect("a file with a hole");
    assert_eq!(
        refusal(),
        "config.json: found 1099511627776 bytes, expected at most 16777216"
    );
    std::fs::remove_file(&config).expect("removed");
    assert_eq!(
        refusal(),
        "config.json: found no such file, expected a file, the configuration of the model beside its weights"
    );
    std::fs::create_dir(&config).expect("created");
    assert!(refusal().starts_with("config.json: found something that is no file"));
}

#[test]
fn directories_without_weights() {
    let folder = Model::of("llama3-gqa").write();
    std::fs::remove_file(folder.path().join("model.safetensors")).expect("removed");
    let error = hub::open(folder.path(), vec![]).expect_err("no weights");
    assert!(
        line(&error, folder.path()).contains("safetensors"),
        "{error}"
    );
    assert!(!hub::looks_like(folder.path()));
    let missing = hub::open(&folder.path().join("nothing"), vec![]).expect_err("no such folder");
    assert!(
        line(&missing, folder.path()).starts_with("nothing"),
        "{missing}"
    );
}
