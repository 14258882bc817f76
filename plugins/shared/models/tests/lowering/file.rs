//! Small model files, made up.

use backplane_models::lower;
use backplane_program::{Op, Program};
use backplane_weights::Weights;
use backplane_weights::writer::{GgufWriter, OwnedValue};
use std::collections::BTreeMap;
use std::path::Path;

/// A model file in the making; every test alters what it is about.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) meta: BTreeMap<String, OwnedValue>,
    pub(crate) tensors: BTreeMap<String, Vec<usize>>,
}

pub(crate) const VOCAB: usize = 10;
pub(crate) const WIDTH: usize = 8;

impl File {
    /// 4 heads of 2 over 2 key heads, 12 wide inside.
    pub(crate) fn new(architecture: &str, layers: usize) -> Self {
        let mut file = Self {
            meta: BTreeMap::new(),
            tensors: BTreeMap::new(),
        };
        file.meta
            .insert("general.architecture".into(), architecture.into());
        for (key, value) in [
            ("block_count", layers as u32),
            ("embedding_length", WIDTH as u32),
            ("context_length", 64),
            ("feed_forward_length", 12),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
        ] {
            file.meta
                .insert(format!("{architecture}.{key}"), value.into());
        }
        file.set("attention.layer_norm_rms_epsilon", 1e-6f32);
        file.tensor("token_embd.weight", &[VOCAB, WIDTH])
            .tensor("output_norm.weight", &[WIDTH]);
        for layer in 0..layers {
            for (name, shape) in [
                ("attn_norm", vec![WIDTH]),
                ("attn_q", vec![8, WIDTH]),
                ("attn_k", vec![4, WIDTH]),
                ("attn_v", vec![4, WIDTH]),
                ("attn_output", vec![WIDTH, 8]),
                ("ffn_norm", vec![WIDTH]),
                ("ffn_gate", vec![12, WIDTH]),
                ("ffn_up", vec![12, WIDTH]),
                ("ffn_down", vec![WIDTH, 12]),
            ] {
                file.tensor(&format!("blk.{layer}.{name}.weight"), &shape);
            }
            if architecture == "phi3" {
                for name in ["attn_q", "attn_k", "attn_v", "ffn_gate"] {
                    file.tensors.remove(&format!("blk.{layer}.{name}.weight"));
                }
                file.tensor(&format!("blk.{layer}.attn_qkv.weight"), &[16, WIDTH])
                    .tensor(&format!("blk.{layer}.ffn_up.weight"), &[24, WIDTH]);
            }
            if matches!(architecture, "qwen3" | "qwen3moe") {
                for name in ["attn_q_norm", "attn_k_norm"] {
                    file.tensor(&format!("blk.{layer}.{name}.weight"), &[2]);
                }
            }
            if matches!(architecture, "qwen2" | "qwen2moe") {
                for (name, width) in [("attn_q", 8), ("attn_k", 4), ("attn_v", 4)] {
                    file.tensor(&format!("blk.{layer}.{name}.bias"), &[width]);
                }
            }
            if architecture == "gemma3" {
                for (name, width) in [
                    ("attn_q_norm", 2),
                    ("attn_k_norm", 2),
                    ("post_attention_norm", WIDTH),
                    ("post_ffw_norm", WIDTH),
                ] {
                    file.tensor(&format!("blk.{layer}.{name}.weight"), &[width]);
                }
            }
        }
        match architecture {
            "deepseek2" => file.make_experts(layers).make_latent(layers),
            "qwen2moe" | "qwen3moe" => file.make_experts(layers),
            _ => &mut file,
        };
        if architecture == "qwen2moe" {
            file.set("expert_shared_feed_forward_length", 5u32);
            for layer in 0..layers {
                file.tensor(
                    &format!("blk.{layer}.ffn_gate_inp_shexp.weight"),
                    &[1, WIDTH],
                );
                file.shared_expert(layer, 5);
            }
        }
        file
    }

    /// Puts a mixture in the place of every feed-forward: 2 of 4 experts, 6 wide inside.
    fn make_experts(&mut self, layers: usize) -> &mut Self {
        self.set("expert_count", 4u32)
            .set("expert_used_count", 2u32)
            .set("expert_feed_forward_length", 6u32);
        for layer in 0..layers {
            for (name, shape) in [
                ("gate", [4, 6, WIDTH]),
                ("up", [4, 6, WIDTH]),
                ("down", [4, WIDTH, 6]),
            ] {
                self.tensors
                    .remove(&format!("blk.{layer}.ffn_{name}.weight"));
                self.tensor(&format!("blk.{layer}.ffn_{name}_exps.weight"), &shape);
            }
            self.tensor(&format!("blk.{layer}.ffn_gate_inp.weight"), &[4, WIDTH]);
        }
        self
    }

    fn shared_expert(&mut self, layer: usize, inner: usize) -> &mut Self {
        for (name, shape) in [
            ("gate", [inner, WIDTH]),
            ("up", [inner, WIDTH]),
            ("down", [WIDTH, inner]),
        ] {
            self.tensor(&format!("blk.{layer}.ffn_{name}_shexp.weight"), &shape);
        }
        self
    }

    /// DeepSeek's attention and routing: 4 heads of 3 + 2 elements over a latent of 4, values of 5; sigmoid scores with a bias,
    /// experts out of 1 of 2 groups, two shared ones, and a plain feed-forward in the first layer.
    fn make_latent(&mut self, layers: usize) -> &mut Self {
        for (key, value) in [
            ("attention.head_count_kv", 1u32),
            ("attention.key_length", 6),
            ("attention.value_length", 4),
            ("attention.key_length_mla", 5),
            ("attention.value_length_mla", 5),
            ("attention.kv_lora_rank", 4),
            ("attention.q_lora_rank", 7),
            ("rope.dimension_count", 2),
            ("expert_gating_func", 2),
            ("expert_group_count", 2),
            ("expert_group_used_count", 1),
            ("expert_shared_count", 2),
            ("leading_dense_block_count", 1),
        ] {
            self.set(key, value);
        }
        self.set("expert_weights_scale", 2.5f32)
            .set("expert_weights_norm", true);
        for layer in 0..layers {
            for name in ["attn_q", "attn_k", "attn_v"] {
                self.tensors.remove(&format!("blk.{layer}.{name}.weight"));
            }
            for (name, shape) in [
                ("attn_q_a", vec![7, WIDTH]),
                ("attn_q_a_norm", vec![7]),
                ("attn_q_b", vec![20, 7]),
                ("attn_kv_a_mqa", vec![6, WIDTH]),
                ("attn_kv_a_norm", vec![4]),
                ("attn_k_b", vec![4, 4, 3]),
                ("attn_v_b", vec![4, 5, 4]),
                ("attn_output", vec![WIDTH, 20]),
            ] {
                self.tensor(&format!("blk.{layer}.{name}.weight"), &shape);
            }
            self.tensor(&format!("blk.{layer}.exp_probs_b.bias"), &[4])
                .shared_expert(layer, 12);
        }
        let first: Vec<_> = self.tensors.keys().cloned().collect();
        for name in first {
            let of_experts = ["_exps.", "_shexp.", "exp_probs", "ffn_gate_inp"];
            if name.starts_with("blk.0.") && of_experts.iter().any(|part| name.contains(part)) {
                self.tensors.remove(&name);
            }
        }
        self.tensor("blk.0.ffn_gate.weight", &[12, WIDTH])
            .tensor("blk.0.ffn_up.weight", &[12, WIDTH])
            .tensor("blk.0.ffn_down.weight", &[WIDTH, 12])
    }

    /// A mixture of Llama's blocks; experts are as wide as the feed-forward would be.
    pub(crate) fn mixtral(layers: usize) -> Self {
        let mut file = Self::new("llama", layers);
        file.make_experts(layers);
        file
    }

    pub(crate) fn llama() -> Self {
        Self::new("llama", 3)
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<OwnedValue>) -> &mut Self {
        let Some(OwnedValue::String(architecture)) = self.meta.get("general.architecture") else {
            unreachable!()
        };
        let key = format!("{architecture}.{key}");
        self.meta.insert(key, value.into());
        self
    }

    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize]) -> &mut Self {
        self.tensors.insert(name.into(), shape.into());
        self
    }

    pub(crate) fn weights(&self) -> Weights {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.meta {
            writer.add_meta(key, value.clone());
        }
        for (name, shape) in &self.tensors {
            writer.add_f32(name, shape, &vec![0.5; shape.iter().product()]);
        }
        Weights::from_bytes(Path::new("m.gguf"), &writer.to_bytes().unwrap()).unwrap()
    }

    pub(crate) fn lower(&self) -> Program {
        lower(&self.weights()).unwrap()
    }

    pub(crate) fn refusal(&self) -> String {
        let weights = self.weights();
        lower(&weights).unwrap_err().to_string()
    }
}

pub(crate) fn windows(program: &Program) -> Vec<Option<usize>> {
    let window = |op: &Op| {
        if let Op::Attention { window, .. } = op {
            Some(*window)
        } else {
            None
        }
    };
    program.ops.iter().filter_map(window).collect()
}

pub(crate) fn count(program: &Program, is: impl Fn(&Op) -> bool) -> usize {
    program.ops.iter().filter(|op| is(op)).count()
}
