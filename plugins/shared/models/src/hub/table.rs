//! Rows of the tables of names: what the hub calls a tensor, what it is called here, its shape, and how it is taken.

use super::plan::Sizes;

/// A tensor of a model, or one for each layer, or for each expert of each layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The hub's name. `{model}` stands for what this checkpoint puts before its decoder's tensors, `{layer}` and `{expert}`
    /// for numbers from 0.
    pub(crate) hub: &'static str,
    /// GGUF's name, with the same placeholders.
    pub(crate) ours: &'static str,
    /// The shape in the checkpoint, outermost first.
    pub(crate) shape: &'static [Dim],
    pub(crate) when: When,
    pub(crate) take: Take,
}

/// How a tensor is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// As stored, mapped.
    AsStored,
    /// Owned in F32 with 1 added: Gemma's norms.
    PlusOne,
    /// The matrix that leads from the latent to keys and values, cut into GGUF's two: `attn_k_b` `[heads, rank, plain]`,
    /// transposed, and `attn_v_b` `[heads, value, rank]`; both owned in the type stored.
    KeysAndValues,
}

/// Which models, and which of their layers, have a tensor. A checkpoint must have all that it should, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// The head is not the embedding; or the checkpoint has one all the same.
    Head,
    QueryKeyValueBias,
    AttentionOutputBias,
    FeedForwardBias,
    /// Queries, keys and values are stored as three matrices, or as one.
    SplitQueries,
    FusedQueries,
    /// Gate and up are stored as two matrices, or as one. In layers without experts.
    SplitGate,
    FusedGate,
    /// Layers without experts, layers with them, and those whose experts are shared too.
    Dense,
    Experts,
    SharedExperts,
    /// Experts are stored one by one, or all in one tensor.
    SingleExperts,
    StackedExperts,
    /// Queries of latent attention have a rank, or none.
    QueryRank,
    NoQueryRank,
}

/// A length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dim {
    One,
    Width,
    Vocab,
    HeadLength,
    /// All query heads; all key (or value) heads; both with the values.
    Queries,
    Keys,
    QueriesKeysValues,
    FeedForward,
    GateUp,
    Experts,
    ExpertWidth,
    ExpertGateUp,
    SharedWidth,
    /// Of latent attention: the queries' rank, all their heads, the latent with the turned part of keys, the latent alone, what
    /// it leads to, and all value heads.
    QueryRank,
    LatentQueries,
    LatentAndRotary,
    Latent,
    KeysAndValues,
    LatentValues,
}

const fn row(hub: &'static str, ours: &'static str, shape: &'static [Dim]) -> Row {
    Row {
        hub,
        ours,
        shape,
        when: When::Always,
        take: Take::AsStored,
    }
}

impl Row {
    const fn when(self, when: When) -> Self {
        Self { when, ..self }
    }

    const fn take(self, take: Take) -> Self {
        Self { take, ..self }
    }
}

use Dim::*;

/// What every decoder has around its layers.
pub(crate) const FRAME: &[Row] = &[
    row(EMBEDDING, "token_embd.weight", &[Vocab, Width]),
    row("{model}norm.weight", "output_norm.weight", &[Width]),
    row(HEAD, "output.weight", &[Vocab, Width]).when(When::Head),
];

pub(crate) const EMBEDDING: &str = "{model}embed_tokens.weight";
pub(crate) const HEAD: &str = "{head}lm_head.weight";
pub(crate) const FUSED_QUERIES: &str = "{model}layers.{layer}.self_attn.qkv_proj.weight";
pub(crate) const STACKED: &str = "{model}layers.{layer}.mlp.experts.gate_up_proj";
pub(crate) const FUSED_GATE: &str = "{model}layers.{layer}.mlp.gate_up_proj.weight";

/// Norms before attention and feed-forward.
pub(crate) const PRE_NORMS: &[Row] = &[
    row(
        "{model}layers.{layer}.input_layernorm.weight",
        "blk.{layer}.attn_norm.weight",
        &[Width],
    ),
    row(
        "{model}layers.{layer}.post_attention_layernorm.weight",
        "blk.{layer}.ffn_norm.weight",
        &[Width],
    ),
];

/// Grouped-query attention.
pub(crate) const ATTENTION: &[Row] = &[
    row(
        "{model}layers.{layer}.self_attn.q_proj.weight",
        "blk.{layer}.attn_q.weight",
        &[Queries, Width],
    )
    .when(When::SplitQueries),
    row(
        "{model}layers.{layer}.self_attn.k_proj.weight",
        "blk.{layer}.attn_k.weight",
        &[Keys, Width],
    )
    .when(When::SplitQueries),
    row(
        "{model}layers.{layer}.self_attn.v_proj.weight",
        "blk.{layer}.attn_v.weight",
        &[Keys, Width],
    )
    .when(When::SplitQueries),
    row(
        FUSED_QUERIES,
        "blk.{layer}.attn_qkv.weight",
        &[QueriesKeysValues, Width],
    )
    .when(When::FusedQueries),
    row(
        "{model}layers.{layer}.self_attn.q_proj.bias",
        "blk.{layer}.attn_q.bias",
        &[Queries],
    )
    .when(When::QueryKeyValueBias),
    row(
        "{model}layers.{layer}.self_attn.k_proj.bias",
        "blk.{layer}.attn_k.bias",
        &[Keys],
    )
    .when(When::QueryKeyValueBias),
    row(
        "{model}layers.{layer}.self_attn.v_proj.bias",
        "blk.{layer}.attn_v.bias",
        &[Keys],
    )
    .when(When::QueryKeyValueBias),
    row(
        "{model}layers.{layer}.self_attn.o_proj.weight",
        "blk.{layer}.attn_output.weight",
        &[Width, Queries],
    ),
    row(
        "{model}layers.{layer}.self_attn.o_proj.bias",
        "blk.{layer}.attn_output.bias",
        &[Width],
    )
    .when(When::AttentionOutputBias),
];

/// Norms of each query and key head.
pub(crate) const HEAD_NORMS: &[Row] = &[
    row(
        "{model}layers.{layer}.self_attn.q_norm.weight",
        "blk.{layer}.attn_q_norm.weight",
        &[HeadLength],
    ),
    row(
        "{model}layers.{layer}.self_attn.k_norm.weight",
        "blk.{layer}.attn_k_norm.weight",
        &[HeadLength],
    ),
];

/// The gated feed-forward of layers that have no experts.
pub(crate) const FEED_FORWARD: &[Row] = &[
    row(
        "{model}layers.{layer}.mlp.gate_proj.weight",
        "blk.{layer}.ffn_gate.weight",
        &[FeedForward, Width],
    )
    .when(When::SplitGate),
    row(
        "{model}layers.{layer}.mlp.up_proj.weight",
        "blk.{layer}.ffn_up.weight",
        &[FeedForward, Width],
    )
    .when(When::SplitGate),
    row(FUSED_GATE, "blk.{layer}.ffn_up.weight", &[GateUp, Width]).when(When::FusedGate),
    row(
        "{model}layers.{layer}.mlp.down_proj.weight",
        "blk.{layer}.ffn_down.weight",
        &[Width, FeedForward],
    )
    .when(When::Dense),
    row(
        "{model}layers.{layer}.mlp.gate_proj.bias",
        "blk.{layer}.ffn_gate.bias",
        &[FeedForward],
    )
    .when(When::FeedForwardBias),
    row(
        "{model}layers.{layer}.mlp.up_proj.bias",
        "blk.{layer}.ffn_up.bias",
        &[FeedForward],
    )
    .when(When::FeedForwardBias),
    row(
        "{model}layers.{layer}.mlp.down_proj.bias",
        "blk.{layer}.ffn_down.bias",
        &[Width],
    )
    .when(When::FeedForwardBias),
];

/// Gemma's norms, before and after attention and feed-forward, and of heads.
pub(crate) const GEMMA_NORMS: &[Row] = &[
    row(
        "{model}layers.{layer}.input_layernorm.weight",
        "blk.{layer}.attn_norm.weight",
        &[Width],
    )
    .take(Take::PlusOne),
    row(
        "{model}layers.{layer}.post_attention_layernorm.weight",
        "blk.{layer}.post_attention_norm.weight",
        &[Width],
    )
    .take(Take::PlusOne),
    row(
        "{model}layers.{layer}.pre_feedforward_layernorm.weight",
        "blk.{layer}.ffn_norm.weight",
        &[Width],
    )
    .take(Take::PlusOne),
    row(
        "{model}layers.{layer}.post_feedforward_layernorm.weight",
        "blk.{layer}.post_ffw_norm.weight",
        &[Width],
    )
    .take(Take::PlusOne),
    row(
        "{model}layers.{layer}.self_attn.q_norm.weight",
        "blk.{layer}.attn_q_norm.weight",
        &[HeadLength],
    )
    .take(Take::PlusOne),
    row(
        "{model}layers.{layer}.self_attn.k_norm.weight",
        "blk.{layer}.attn_k_norm.weight",
        &[HeadLength],
    )
    .take(Take::PlusOne),
];

/// As [`FRAME`], with Gemma's norm.
pub(crate) const GEMMA_FRAME: &[Row] = &[FRAME[0], FRAME[1].take(Take::PlusOne), FRAME[2]];

/// Mixtral's router and experts, stored one by one as they were first, or in one tensor by transformers 5's own names.
pub(crate) const MIXTRAL_EXPERTS: &[Row] = &[
    row(
        "{model}layers.{layer}.block_sparse_moe.gate.weight",
        "blk.{layer}.ffn_gate_inp.weight",
        &[Experts, Width],
    )
    .when(When::SingleExperts),
    row(
        "{model}layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight",
        "blk.{layer}.ffn_gate.{expert}.weight",
        &[ExpertWidth, Width],
    )
    .when(When::SingleExperts),
    row(
        "{model}layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight",
        "blk.{layer}.ffn_up.{expert}.weight",
        &[ExpertWidth, Width],
    )
    .when(When::SingleExperts),
    row(
        "{model}layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight",
        "blk.{layer}.ffn_down.{expert}.weight",
        &[Width, ExpertWidth],
    )
    .when(When::SingleExperts),
    STACKED_ROUTER,
    STACKED_EXPERTS[0],
    STACKED_EXPERTS[1],
];

const STACKED_ROUTER: Row = row(
    "{model}layers.{layer}.mlp.gate.weight",
    "blk.{layer}.ffn_gate_inp.weight",
    &[Experts, Width],
)
.when(When::StackedExperts);

/// All experts of a layer, as transformers 5 has them in memory: gate and up one after the other for each.
const STACKED_EXPERTS: &[Row] = &[
    row(
        STACKED,
        "blk.{layer}.ffn_gate_up_exps.weight",
        &[Experts, ExpertGateUp, Width],
    )
    .when(When::StackedExperts),
    row(
        "{model}layers.{layer}.mlp.experts.down_proj",
        "blk.{layer}.ffn_down_exps.weight",
        &[Experts, Width, ExpertWidth],
    )
    .when(When::StackedExperts),
];

/// Router and experts of Qwen's and DeepSeek's mixtures.
pub(crate) const EXPERTS: &[Row] = &[
    row(
        "{model}layers.{layer}.mlp.gate.weight",
        "blk.{layer}.ffn_gate_inp.weight",
        &[Experts, Width],
    )
    .when(When::Experts),
    row(
        "{model}layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
        "blk.{layer}.ffn_gate.{expert}.weight",
        &[ExpertWidth, Width],
    )
    .when(When::SingleExperts),
    row(
        "{model}layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        "blk.{layer}.ffn_up.{expert}.weight",
        &[ExpertWidth, Width],
    )
    .when(When::SingleExperts),
    row(
        "{model}layers.{layer}.mlp.experts.{expert}.down_proj.weight",
        "blk.{layer}.ffn_down.{expert}.weight",
        &[Width, ExpertWidth],
    )
    .when(When::SingleExperts),
    STACKED_EXPERTS[0],
    STACKED_EXPERTS[1],
];

/// Qwen 2's expert that sees every token, behind a gate of its own.
pub(crate) const GATED_SHARED_EXPERT: &[Row] = &[
    row(
        "{model}layers.{layer}.mlp.shared_expert_gate.weight",
        "blk.{layer}.ffn_gate_inp_shexp.weight",
        &[One, Width],
    )
    .when(When::Experts),
    row(
        "{model}layers.{layer}.mlp.shared_expert.gate_proj.weight",
        "blk.{layer}.ffn_gate_shexp.weight",
        &[SharedWidth, Width],
    )
    .when(When::Experts),
    row(
        "{model}layers.{layer}.mlp.shared_expert.up_proj.weight",
        "blk.{layer}.ffn_up_shexp.weight",
        &[SharedWidth, Width],
    )
    .when(When::Experts),
    row(
        "{model}layers.{layer}.mlp.shared_expert.down_proj.weight",
        "blk.{layer}.ffn_down_shexp.weight",
        &[Width, SharedWidth],
    )
    .when(When::Experts),
];

/// DeepSeek V3's correction of the router's choice, and its shared experts.
pub(crate) const DEEPSEEK_EXPERTS: &[Row] = &[
    row(
        "{model}layers.{layer}.mlp.gate.e_score_correction_bias",
        "blk.{layer}.exp_probs_b.bias",
        &[Experts],
    )
    .when(When::Experts),
    row(
        "{model}layers.{layer}.mlp.shared_experts.gate_proj.weight",
        "blk.{layer}.ffn_gate_shexp.weight",
        &[SharedWidth, Width],
    )
    .when(When::SharedExperts),
    row(
        "{model}layers.{layer}.mlp.shared_experts.up_proj.weight",
        "blk.{layer}.ffn_up_shexp.weight",
        &[SharedWidth, Width],
    )
    .when(When::SharedExperts),
    row(
        "{model}layers.{layer}.mlp.shared_experts.down_proj.weight",
        "blk.{layer}.ffn_down_shexp.weight",
        &[Width, SharedWidth],
    )
    .when(When::SharedExperts),
];

/// Latent attention.
pub(crate) const LATENT_ATTENTION: &[Row] = &[
    row(
        "{model}layers.{layer}.self_attn.q_proj.weight",
        "blk.{layer}.attn_q.weight",
        &[LatentQueries, Width],
    )
    .when(When::NoQueryRank),
    row(
        "{model}layers.{layer}.self_attn.q_a_proj.weight",
        "blk.{layer}.attn_q_a.weight",
        &[QueryRank, Width],
    )
    .when(When::QueryRank),
    row(
        "{model}layers.{layer}.self_attn.q_a_layernorm.weight",
        "blk.{layer}.attn_q_a_norm.weight",
        &[QueryRank],
    )
    .when(When::QueryRank),
    row(
        "{model}layers.{layer}.self_attn.q_b_proj.weight",
        "blk.{layer}.attn_q_b.weight",
        &[LatentQueries, QueryRank],
    )
    .when(When::QueryRank),
    row(
        "{model}layers.{layer}.self_attn.kv_a_proj_with_mqa.weight",
        "blk.{layer}.attn_kv_a_mqa.weight",
        &[LatentAndRotary, Width],
    ),
    row(
        "{model}layers.{layer}.self_attn.kv_a_layernorm.weight",
        "blk.{layer}.attn_kv_a_norm.weight",
        &[Latent],
    ),
    row(
        "{model}layers.{layer}.self_attn.kv_b_proj.weight",
        "blk.{layer}.attn_k_b.weight",
        &[KeysAndValues, Latent],
    )
    .take(Take::KeysAndValues),
    row(
        "{model}layers.{layer}.self_attn.o_proj.weight",
        "blk.{layer}.attn_output.weight",
        &[Width, LatentValues],
    ),
];

impl Dim {
    /// The length in a model. What does not fit is saturated, and matches no tensor.
    pub(crate) fn of(self, s: &Sizes) -> usize {
        let latent = &s.latent;
        let product = |a: u32, b: u32| (a as usize).saturating_mul(b as usize);
        let (queries, keys) = (
            product(s.heads, s.head_dim),
            product(s.kv_heads, s.head_dim),
        );
        match self {
            One => 1,
            Width => s.width as usize,
            Vocab => s.vocab as usize,
            HeadLength => s.head_dim as usize,
            Queries => queries,
            Keys => keys,
            QueriesKeysValues => queries.saturating_add(keys.saturating_mul(2)),
            FeedForward => s.feed_forward as usize,
            GateUp => (s.feed_forward as usize).saturating_mul(2),
            Experts => s.experts as usize,
            ExpertWidth => s.expert_width as usize,
            ExpertGateUp => (s.expert_width as usize).saturating_mul(2),
            SharedWidth => s.shared_width as usize,
            QueryRank => latent.query_rank.unwrap_or(0) as usize,
            LatentQueries => product(s.heads, latent.plain_dim.saturating_add(latent.rotary_dim)),
            LatentAndRotary => (latent.rank as usize).saturating_add(latent.rotary_dim as usize),
            Latent => latent.rank as usize,
            KeysAndValues => product(s.heads, latent.plain_dim.saturating_add(latent.value_dim)),
            LatentValues => product(s.heads, latent.value_dim),
        }
    }

    /// The keys of `config.json` that it is made of.
    pub(crate) fn keys(self) -> &'static str {
        match self {
            One => "1",
            Width => "hidden_size",
            Vocab => "vocab_size",
            HeadLength => "head_dim",
            Queries => "num_attention_heads * head_dim",
            Keys => "num_key_value_heads * head_dim",
            QueriesKeysValues => "(num_attention_heads + 2 * num_key_value_heads) * head_dim",
            FeedForward => "intermediate_size",
            GateUp => "2 * intermediate_size",
            Experts => "the number of experts",
            ExpertWidth => "the width of an expert",
            ExpertGateUp => "twice the width of an expert",
            SharedWidth => "the width of the shared experts",
            QueryRank => "q_lora_rank",
            LatentQueries => "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)",
            LatentAndRotary => "kv_lora_rank + qk_rope_head_dim",
            Latent => "kv_lora_rank",
            KeysAndValues => "num_attention_heads * (qk_nope_head_dim + v_head_dim)",
            LatentValues => "num_attention_heads * v_head_dim",
        }
    }
}
