//! The families of the hub: what `model_type` says, the tensors it means, and how its configuration is read.

use super::config::Section;
use super::plan::{Plan, Windowed, bounded_dim, layer_kinds};
use super::rope::{DEFAULT_BASE, Rotation, Scaling};
use super::table::{self, Row};
use crate::ModelError;

/// A family of models on the hub.
pub(crate) struct Family {
    /// What `model_type` says.
    pub(crate) model_type: &'static str,
    /// Whose program it becomes: a name in [`ARCHITECTURES`](crate::ARCHITECTURES).
    pub(crate) architecture: &'static str,
    /// What keys that a file leaves out mean, as a JSON object: the defaults of the family's class in transformers.
    pub(crate) defaults: &'static str,
    /// The tensors.
    pub(crate) tensors: &'static [&'static [Row]],
    /// The key of the object that describes the language model, where it is one of several.
    pub(crate) within: Option<&'static str>,
    /// What the names of tensors begin with that belong to the other models; they are left out, and that is said.
    pub(crate) leaves_out: &'static [&'static str],
    /// The keys.
    pub(crate) read: fn(&Section, &mut Plan) -> Result<(), ModelError>,
}

/// Says that the elements of a rotated pair lie half a head apart, as the hub has them, where GGUF has them side by side.
const ROPE_STYLE: &str = "backplane.rope.style";

/// All families, by name.
pub(crate) const FAMILIES: &[Family] = &[
    Family {
        model_type: "deepseek_v3",
        architecture: "deepseek2",
        defaults: r#"{"rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_interleave": true, "norm_topk_prob": true,
            "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "n_shared_experts": 1}"#,
        tensors: &[
            table::FRAME,
            table::PRE_NORMS,
            table::LATENT_ATTENTION,
            table::FEED_FORWARD,
            table::EXPERTS,
            table::DEEPSEEK_EXPERTS,
        ],
        within: None,
        leaves_out: &[],
        read: deepseek_v3,
    },
    Family {
        model_type: "gemma3",
        within: Some("text_config"),
        leaves_out: &[
            "model.multi_modal_projector.",
            "model.vision_tower.",
            "multi_modal_projector.",
            "vision_tower.",
        ],
        ..GEMMA3_TEXT
    },
    GEMMA3_TEXT,
    Family {
        model_type: "llama",
        architecture: "llama",
        defaults: r#"{"rms_norm_eps": 1e-6, "max_position_embeddings": 2048}"#,
        tensors: &[
            table::FRAME,
            table::PRE_NORMS,
            table::ATTENTION,
            table::FEED_FORWARD,
        ],
        within: None,
        leaves_out: &[],
        read: |config, plan| {
            plan.read_common(config)?;
            plan.read_biases(config)?;
            llama_like(config, plan, DEFAULT_BASE)
        },
    },
    Family {
        model_type: "mistral",
        architecture: "llama",
        defaults: r#"{"rms_norm_eps": 1e-6, "max_position_embeddings": 131072, "sliding_window": 4096}"#,
        tensors: &[
            table::FRAME,
            table::PRE_NORMS,
            table::ATTENTION,
            table::FEED_FORWARD,
        ],
        within: None,
        leaves_out: &[],
        read: |config, plan| {
            plan.read_common(config)?;
            if let Some(window) = plan.read_window(config)? {
                plan.set("attention.sliding_window", window);
            }
            llama_like(config, plan, DEFAULT_BASE)
        },
    },
    Family {
        model_type: "mixtral",
        architecture: "llama",
        defaults: r#"{"rms_norm_eps": 1e-5, "max_position_embeddings": 131072}"#,
        tensors: &[
            table::FRAME,
            table::PRE_NORMS,
            table::ATTENTION,
            table::MIXTRAL_EXPERTS,
        ],
        within: None,
        leaves_out: &[],
        read: |config, plan| {
            plan.read_common(config)?;
            if let Some(window) = plan.read_window(config)? {
                plan.set("attention.sliding_window", window);
            }
            experts(config, plan, &["num_local_experts"])?;
            plan.sizes.expert_width = plan.sizes.feed_forward;
            llama_like(config, plan, MIXTRAL_BASE)
        },
    },
    Family {
        model_type: "phi3",
        architecture: "phi3",
        defaults: r#"{"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096}"#,
        tensors: &[
            table::FRAME,
            table::PRE_NORMS,
            table::ATTENTION,
            table::FEED_FORWARD,
        ],
        within: None,
        leaves_out: &[],
        read: phi3,
    },
    Family {
        model_type: "qwen2",
        architecture: "qwen2",
        defaults: r#"{"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}"#,
        tensors: &[
            table::FRAME,
            table::PRE_NORMS,
            table::ATTENTION,
            table::FEED_FORWARD,
        ],
        within: None,
        leaves_out: &[],
        read: |config, plan| {
            plan.read_common(config)?;
            plan.sizes.query_key_value_bias = true;
            plan.refuse_window(config, Windowed::After)?;
            qwen_like(config, plan)
        },
    },
    Family {
        model_type: "qwen2_moe",
        architecture: "qwen2moe",
        defaults: r#"{"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28, "qkv_bias": true, "norm_topk_prob": false}"#,
        tensors: &[
            table::FRAME,
            table::PRE_NORMS,
            table::ATTENTION,
            table::FEED_FORWARD,
            table::EXPERTS,
            table::GATED_SHARED_EXPERT,
        ],
        within: None,
        leaves_out: &[],
        read: |config, plan| {
            plan.read_common(config)?;
            plan.sizes.query_key_value_bias = config.flag("qkv_bias")?.unwrap_or(true);
            experts(config, plan, &["num_experts", "num_local_experts"])?;
            plan.sizes.shared_width = config.require_positive("shared_expert_intermediate_size")?;
            plan.set("expert_shared_feed_forward_length", plan.sizes.shared_width);
            qwen_experts(config, plan, false)?;
            plan.refuse_window(config, Windowed::Before)?;
            qwen_like(config, plan)
        },
    },
    Family {
        model_type: "qwen3",
        architecture: "qwen3",
        defaults: r#"{"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128}"#,
        tensors: &[
            table::FRAME,
            table::PRE_NORMS,
            table::ATTENTION,
            table::HEAD_NORMS,
            table::FEED_FORWARD,
        ],
        within: None,
        leaves_out: &[],
        read: |config, plan| {
            plan.read_common(config)?;
            plan.read_biases(config)?;
            plan.refuse_window(config, Windowed::After)?;
            qwen_like(config, plan)
        },
    },
    Family {
        model_type: "qwen3_moe",
        architecture: "qwen3moe",
        defaults: r#"{"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "sliding_window": 4096, "norm_topk_prob": false}"#,
        tensors: &[
            table::FRAME,
            table::PRE_NORMS,
            table::ATTENTION,
            table::HEAD_NORMS,
            table::FEED_FORWARD,
            table::EXPERTS,
        ],
        within: None,
        leaves_out: &[],
        read: |config, plan| {
            plan.read_common(config)?;
            plan.read_biases(config)?;
            experts(config, plan, &["num_experts", "num_local_experts"])?;
            qwen_experts(config, plan, true)?;
            plan.refuse_window(config, Windowed::All)?;
            qwen_like(config, plan)
        },
    },
];

/// The base of Mixtral, where a configuration names none.
const MIXTRAL_BASE: f32 = 1_000_000.0;

/// What Llama, Mistral and Mixtral share beside [`Plan::read_common`].
fn llama_like(config: &Section, plan: &mut Plan, default_base: f32) -> Result<(), ModelError> {
    plan.silu(config)?;
    plan.read_head_dim(config)?;
    plan.set("vocab_size", plan.sizes.vocab);
    plan.set("rope.dimension_count", plan.sizes.head_dim);
    plan.set_global(ROPE_STYLE, "halves");
    let rotation = Rotation::of(config)?;
    rotation.require_whole_heads()?;
    let scalings = [Scaling::Linear, Scaling::Yarn, Scaling::Llama3];
    rotation.write_with_base(plan, plan.sizes.head_dim, &scalings, default_base)
}

fn qwen_like(config: &Section, plan: &mut Plan) -> Result<(), ModelError> {
    plan.silu(config)?;
    plan.read_head_dim(config)?;
    let rotation = Rotation::of(config)?;
    rotation.require_whole_heads()?;
    let scalings = [Scaling::Linear, Scaling::Yarn, Scaling::Llama3];
    rotation.write(plan, plan.sizes.head_dim, &scalings)
}

const GEMMA3_TEXT: Family = Family {
    model_type: "gemma3_text",
    architecture: "gemma3",
    defaults: r#"{"rms_norm_eps": 1e-6, "max_position_embeddings": 131072,
        "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
        "tie_word_embeddings": true, "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256}"#,
    tensors: &[
        table::GEMMA_FRAME,
        table::GEMMA_NORMS,
        table::ATTENTION,
        table::FEED_FORWARD,
    ],
    within: None,
    leaves_out: &[],
    read: gemma3_text,
};

/// How many experts there are, by the first of `names` that the file has, and how many of them see a token.
fn experts(config: &Section, plan: &mut Plan, names: &[&str]) -> Result<(), ModelError> {
    let mut name = names[0];
    let mut count = None;
    for other in names {
        match (count, config.positive(other)?) {
            (Some(count), Some(found)) if count != found => {
                let expected = format!("{count}, as {name} says");
                return Err(config.differs(other, found.to_string(), &expected));
            }
            (None, Some(found)) => (count, name) = (Some(found), other),
            _ => {}
        }
    }
    let count = count.ok_or_else(|| config.missing(name, "a whole number of at least 1"))?;
    let used = config.require_positive("num_experts_per_tok")?;
    if used > count {
        let expected = format!("at most {name}, {count}");
        return Err(config.differs("num_experts_per_tok", used.to_string(), &expected));
    }
    plan.require_tensors_for(config, name, count)?;
    plan.sizes.experts = count;
    plan.set("expert_count", count);
    plan.set("expert_used_count", used);
    Ok(())
}

/// Keys of Qwen's mixtures. `usual` is what `norm_topk_prob` is taken to be where GGUF says nothing of it.
fn qwen_experts(config: &Section, plan: &mut Plan, usual: bool) -> Result<(), ModelError> {
    plan.sizes.expert_width = config.require_positive("moe_intermediate_size")?;
    plan.set("expert_feed_forward_length", plan.sizes.expert_width);
    let normalised = config.flag("norm_topk_prob")?.unwrap_or(false);
    if normalised != usual {
        plan.set("expert_weights_norm", normalised);
    }
    // Every so many layers one has experts; some are named that have none.
    let step = config.positive("decoder_sparse_step")?.unwrap_or(1);
    let layers = plan.sizes.layers;
    let mut dense: Vec<bool> = (1..=layers)
        .map(|layer| !layer.is_multiple_of(step))
        .collect();
    const KEY: &str = "mlp_only_layers";
    let expected = format!("a list of layers, each less than {layers}");
    if let Some(value) = config.get(KEY) {
        let list = value.as_array();
        for layer in list.ok_or_else(|| config.wrong(KEY, value, &expected))? {
            let index = layer.as_u64().and_then(|layer| usize::try_from(layer).ok());
            let place = index.and_then(|index| dense.get_mut(index));
            *place.ok_or_else(|| config.wrong(KEY, layer, &expected))? = true;
        }
    }
    plan.sizes.dense_layers = dense;
    Ok(())
}

fn phi3(config: &Section, plan: &mut Plan) -> Result<(), ModelError> {
    plan.read_common(config)?;
    plan.silu(config)?;
    plan.read_head_dim(config)?;
    let window = plan.read_window(config)?;
    plan.set("attention.sliding_window", window.unwrap_or(0));
    let rotation = Rotation::of(config)?;
    plan.set(
        "rope.scaling.original_context_length",
        rotation.original_context()?,
    );
    let turned = (f64::from(plan.sizes.head_dim) * rotation.partial_factor()?) as u32;
    if turned > plan.sizes.head_dim || turned == 0 || !turned.is_multiple_of(2) {
        let found = rotation.partial_factor()?.to_string();
        let expected = format!(
            "an even number of a head's {} elements",
            plan.sizes.head_dim
        );
        return Err(config.differs("partial_rotary_factor", found, &expected));
    }
    plan.set("rope.dimension_count", turned);
    let scalings = [Scaling::Linear, Scaling::Yarn, Scaling::LongRope];
    rotation.write(plan, turned, &scalings)
}

/// Layers of the 27B model, whose scores GGUF's readers scale by the width over the heads.
const LAYERS_27B: u32 = 62;
/// Every so many layers one sees all, where GGUF says nothing of it.
const USUAL_PATTERN: u32 = 6;

fn gemma3_text(config: &Section, plan: &mut Plan) -> Result<(), ModelError> {
    plan.read_common(config)?;
    plan.read_biases(config)?;
    plan.require_activation(config, "hidden_activation", &["gelu_pytorch_tanh"])?;
    if config.get("hidden_activation").is_none() {
        plan.require_activation(config, "hidden_act", &["gelu_pytorch_tanh"])?;
    }
    plan.read_head_dim(config)?;
    let s = plan.sizes.clone();
    for (key, name) in [
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ] {
        if let Some(cap) = config.number(key)?.filter(|cap| *cap > 0.0) {
            plan.set(name, cap as f32);
        }
    }
    let scalar = config.require_above_zero("query_pre_attn_scalar")?;
    let assumed = match s.layers {
        LAYERS_27B => s.width / s.heads,
        _ => s.head_dim,
    };
    if scalar != f64::from(assumed) {
        plan.set("attention.scale", scalar.powf(-0.5) as f32);
    }
    let window = config.whole("sliding_window")?.unwrap_or(0);
    plan.set("attention.sliding_window", window);
    gemma3_pattern(config, plan)?;
    gemma3_rotation(config, plan)
}

/// Which layers have a window: as listed, else by the period; written where it is not the usual period.
fn gemma3_pattern(config: &Section, plan: &mut Plan) -> Result<(), ModelError> {
    let layers = plan.sizes.layers;
    let newer = config.positive("_sliding_window_pattern")?;
    let older = config.require_positive("sliding_window_pattern")?;
    let period = newer.unwrap_or(older);
    let by_period = |period: u32| (1..=layers).map(move |layer| !layer.is_multiple_of(period));
    let listed = layer_kinds(config, layers)?;
    let sliding = listed.unwrap_or_else(|| by_period(period).collect());
    if !sliding.iter().copied().eq(by_period(USUAL_PATTERN)) {
        plan.set("attention.sliding_window_pattern", sliding);
    }
    Ok(())
}

/// The base of layers that see all, where a configuration names none.
const GEMMA_BASE: f32 = 1_000_000.0;

/// The base of windowed layers, which are never scaled, and base and scaling of the others.
fn gemma3_rotation(config: &Section, plan: &mut Plan) -> Result<(), ModelError> {
    let rotation = Rotation::of(config)?;
    rotation.require_whole_heads()?;
    let local = config.require_above_zero("rope_local_base_freq")? as f32;
    let (dim, scalings) = (plan.sizes.head_dim, [Scaling::Linear]);
    let Some((full, sliding)) = rotation.by_kind("full_attention", "sliding_attention")? else {
        plan.set("rope.freq_base_swa", local);
        return rotation.write_with_base(plan, dim, &scalings, GEMMA_BASE);
    };
    rotation.refuse_unasked()?;
    plan.set("rope.freq_base_swa", sliding.base()?.unwrap_or(local));
    sliding.require_plain()?;
    full.write_with_base(plan, dim, &scalings, GEMMA_BASE)
}

fn deepseek_v3(config: &Section, plan: &mut Plan) -> Result<(), ModelError> {
    plan.read_common(config)?;
    plan.silu(config)?;
    // Stated by newer files, and equal to qk_rope_head_dim there.
    config.get("head_dim");
    config.get("qk_head_dim");
    let latent = &mut plan.sizes.latent;
    latent.query_rank = config.positive("q_lora_rank")?;
    latent.rank = config.require_positive("kv_lora_rank")?;
    latent.plain_dim = config.require_positive("qk_nope_head_dim")?;
    latent.rotary_dim = config.require_positive("qk_rope_head_dim")?;
    latent.value_dim = config.require_positive("v_head_dim")?;
    let latent = latent.clone();
    bounded_dim(config, "qk_rope_head_dim", latent.rotary_dim)?;
    if !latent.rotary_dim.is_multiple_of(2) {
        let found = latent.rotary_dim.to_string();
        return Err(config.differs("qk_rope_head_dim", found, "an even number"));
    }
    let sum = |key: &str, a: u32, b: u32| {
        let sum = a.checked_add(b);
        sum.ok_or_else(|| config.differs(key, a.to_string(), "a length that fits memory"))
    };
    plan.set("attention.head_count_kv", 1u32);
    plan.set("vocab_size", plan.sizes.vocab);
    if let Some(rank) = latent.query_rank {
        plan.set("attention.q_lora_rank", rank);
    }
    plan.set("attention.kv_lora_rank", latent.rank);
    // As the cache has them: one key and value head for all, the latent with the turned part.
    let key_dim = sum("kv_lora_rank", latent.rank, latent.rotary_dim)?;
    plan.set("attention.key_length", key_dim);
    plan.set("attention.value_length", latent.rank);
    let key_dim = sum("qk_nope_head_dim", latent.plain_dim, latent.rotary_dim)?;
    plan.set("attention.key_length_mla", key_dim);
    plan.set("attention.value_length_mla", latent.value_dim);
    plan.set("rope.dimension_count", latent.rotary_dim);
    if config.flag("rope_interleave")? == Some(false) {
        plan.set_global(ROPE_STYLE, "halves");
    }
    deepseek_v3_experts(config, plan)?;
    let rotation = Rotation::of(config)?;
    rotation.require_whole_heads()?;
    let scalings = [Scaling::Linear, Scaling::YarnWithScores];
    rotation.write(plan, latent.rotary_dim, &scalings)
}

/// `expert_gating_func` of GGUF for sigmoid.
const SIGMOID: u32 = 2;

fn deepseek_v3_experts(config: &Section, plan: &mut Plan) -> Result<(), ModelError> {
    for (key, expected) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        match config.get(key) {
            Some(value) if value.as_str() != Some(expected) => {
                return Err(config.wrong(key, value, expected));
            }
            _ => {}
        }
    }
    let frequency = config.whole("moe_layer_freq")?.unwrap_or(1);
    if frequency != 1 {
        return Err(config.differs("moe_layer_freq", frequency.to_string(), "1"));
    }
    experts(config, plan, &["n_routed_experts", "num_local_experts"])?;
    plan.sizes.expert_width = config.require_positive("moe_intermediate_size")?;
    plan.set("expert_feed_forward_length", plan.sizes.expert_width);
    let shared = config.whole("n_shared_experts")?.unwrap_or(0);
    let Some(shared_width) = plan.sizes.expert_width.checked_mul(shared) else {
        let found = shared.to_string();
        return Err(config.differs("n_shared_experts", found, "a number that fits memory"));
    };
    plan.sizes.shared_width = shared_width;
    plan.set("expert_shared_count", shared);
    let (groups, used) = (
        config.require_positive("n_group")?,
        config.require_positive("topk_group")?,
    );
    if !plan.sizes.experts.is_multiple_of(groups) {
        let expected = format!("a divisor of n_routed_experts, {}", plan.sizes.experts);
        return Err(config.differs("n_group", groups.to_string(), &expected));
    }
    if used > groups {
        let expected = format!("at most n_group, {groups}");
        return Err(config.differs("topk_group", used.to_string(), &expected));
    }
    plan.set("expert_group_count", groups);
    plan.set("expert_group_used_count", used);
    plan.set("expert_gating_func", SIGMOID);
    let scale = config.require_above_zero("routed_scaling_factor")?;
    plan.set("expert_weights_scale", scale as f32);
    let normalised = config.flag("norm_topk_prob")?.unwrap_or(true);
    plan.set("expert_weights_norm", normalised);
    let dense = config.whole("first_k_dense_replace")?.unwrap_or(0);
    let layers = 0..plan.sizes.layers;
    plan.sizes.dense_layers = layers.map(|layer| layer < dense).collect();
    plan.set("leading_dense_block_count", dense);
    plan.sizes.predicting_layers = config.whole("num_nextn_predict_layers")?.unwrap_or(0);
    Ok(())
}
