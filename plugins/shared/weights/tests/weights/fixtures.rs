//! Every model among the fixtures: opens, and holds the numbers of its safetensors file.

use std::path::{Path, PathBuf};

use backplane_weights::{TensorType, Weights};
use safetensors::{Dtype, SafeTensors};

use crate::support::fixtures;

fn models() -> Vec<PathBuf> {
    let mut models: Vec<PathBuf> = std::fs::read_dir(fixtures().join("tiny"))
        .unwrap()
        .flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "gguf")
        })
        .collect();
    models.sort();
    assert!(models.len() >= 30, "only {} models", models.len());
    models
}

/// The hub's names of some tensors that a conversion leaves as they are, and GGUF's. The attention's query and key matrices
/// are permuted for some architectures, and Gemma's norms are stored plus one.
const SAME: &[(&str, &str)] = &[
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("lm_head.weight", "output.weight"),
    ("model.norm.weight", "output_norm.weight"),
    (
        "model.layers.0.input_layernorm.weight",
        "blk.0.attn_norm.weight",
    ),
    (
        "model.layers.0.self_attn.v_proj.weight",
        "blk.0.attn_v.weight",
    ),
    ("model.layers.0.self_attn.v_proj.bias", "blk.0.attn_v.bias"),
    (
        "model.layers.1.self_attn.o_proj.weight",
        "blk.1.attn_output.weight",
    ),
    (
        "model.layers.1.mlp.gate_proj.weight",
        "blk.1.ffn_gate.weight",
    ),
    ("model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
    (
        "model.layers.1.mlp.down_proj.weight",
        "blk.1.ffn_down.weight",
    ),
];

fn values(tensor: &safetensors::tensor::TensorView<'_>) -> Vec<f32> {
    let ty = match tensor.dtype() {
        Dtype::F32 => TensorType::F32,
        Dtype::F16 => TensorType::F16,
        Dtype::BF16 => TensorType::BF16,
        other => panic!("dtype {other:?}"),
    };
    let mut out = vec![0.0; tensor.shape().iter().product()];
    ty.dequantize(tensor.data(), &mut out);
    out
}

fn compare(path: &Path) -> usize {
    let weights = Weights::open(path).unwrap();
    let bytes = std::fs::read(path.with_file_name("model.safetensors")).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    let gemma = weights
        .metadata()
        .require_str("general.architecture")
        .unwrap()
        .starts_with("gemma");
    let mut compared = 0;
    for (hub, name) in SAME {
        let (Ok(expected), Some(tensor)) = (reference.tensor(hub), weights.tensor(name)) else {
            continue;
        };
        assert_eq!(
            tensor.info.shape,
            expected.shape(),
            "{} {name}",
            path.display()
        );
        let mut expected = values(&expected);
        if gemma && name.ends_with("norm.weight") {
            expected.iter_mut().for_each(|value| *value += 1.0);
        }
        let whole = tensor.to_f32();
        assert!(whole == expected, "{} {name} differs", path.display());
        let mut row = vec![0.0; tensor.cols()];
        let last = tensor.rows() - 1;
        tensor.row_f32(last, &mut row);
        assert_eq!(
            row,
            expected[last * tensor.cols()..],
            "{} {name}",
            path.display()
        );
        compared += 1;
    }
    assert!(
        compared >= 4,
        "{}: only {compared} tensors compared",
        path.display()
    );
    compared
}

#[test]
fn every_model_opens_and_unquantised_ones_equal_their_safetensors() {
    let (mut compared, mut opened) = (0, 0);
    for path in models() {
        let kind = path
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .strip_prefix("model-")
            .unwrap();
        if ["f32", "f16", "bf16"].contains(&kind) {
            compared += compare(&path);
            opened += 1;
            continue;
        }
        let weights = Weights::open(&path).unwrap();
        assert!(weights.tensors().count() > 10);
        assert!(
            weights
                .tensors()
                .all(|info| info.bytes == weights.require(&info.name).unwrap().data.len())
        );
        if let Some(ty) = TensorType::ALL
            .iter()
            .find(|ty| ty.name().eq_ignore_ascii_case(kind))
        {
            assert_eq!(
                weights.require("token_embd.weight").unwrap().info.ty,
                *ty,
                "{}",
                path.display()
            );
        }
        opened += 1;
    }
    assert!(
        compared > 120 && opened > 20,
        "{compared} tensors of {opened} models"
    );
}

/// Quantised values lie near the originals: within a few steps of the coarsest type.
#[test]
fn quantised_models_are_near_the_original() {
    let folder = fixtures().join("tiny/llama-256-quant");
    let original = Weights::open(&folder.join("model-f16.gguf")).unwrap();
    let mut seen = 0;
    for ty in TensorType::ALL.iter().filter(|ty| ty.block_elems() > 1) {
        let path = folder.join(format!("model-{ty}.gguf"));
        if !path.exists() {
            continue;
        }
        seen += 1;
        let limit = match ty {
            TensorType::Q2_K => 0.35,
            TensorType::Q3_K => 0.2,
            _ => 0.12,
        };
        let weights = Weights::open(&path).unwrap();
        let name = "blk.1.ffn_down.weight";
        let (values, exact) = (
            weights.require(name).unwrap().to_f32(),
            original.require(name).unwrap().to_f32(),
        );
        assert_eq!(weights.require(name).unwrap().info.ty, *ty);
        let error: f64 = values
            .iter()
            .zip(&exact)
            .map(|(a, b)| f64::from(a - b).powi(2))
            .sum();
        let power: f64 = exact.iter().map(|value| f64::from(*value).powi(2)).sum();
        assert!(
            (error / power).sqrt() < limit,
            "{ty}: relative rms {}",
            (error / power).sqrt()
        );
    }
    assert_eq!(seen, 12, "files of one block type");
}
