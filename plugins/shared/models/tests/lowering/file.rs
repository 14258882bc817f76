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
            if architecture == "qwen3" {
                for name in ["attn_q_norm", "attn_k_norm"] {
                    file.tensor(&format!("blk.{layer}.{name}.weight"), &[2]);
                }
            }
            if architecture == "qwen2" {
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
