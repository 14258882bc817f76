//! Models assembled from checkpoints.

use backplane_weights::{Assembly, Checkpoint, Error, Format, TensorType, Weights};

use crate::safetensors::{file, ones, open, padded};
use crate::support::{fixtures, says};

/// GGUF's name of a tensor of the Qwen 2 family, which a conversion stores as it is.
fn qwen2(hub: &str) -> String {
    let hub = hub.strip_prefix("model.").unwrap_or(hub);
    let top = [
        ("embed_tokens.weight", "token_embd.weight"),
        ("norm.weight", "output_norm.weight"),
        ("lm_head.weight", "output.weight"),
    ];
    if let Some((_, name)) = top.iter().find(|(name, _)| *name == hub) {
        return (*name).into();
    }
    let layer = hub.strip_prefix("layers.").unwrap();
    let parts = [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
    ];
    let named = parts
        .iter()
        .fold(layer.to_owned(), |name, (from, to)| name.replace(from, to));
    format!("blk.{named}")
}

#[test]
fn an_assembly_holds_the_values_of_the_converted_model() {
    let folder = fixtures().join("tiny/qwen2.5-bias");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let mut assembly = Assembly::new(&checkpoint);
    assembly
        .meta("general.architecture", "qwen2")
        .meta("tokenizer.ggml.tokens", vec!["a", "b"]);
    for tensor in checkpoint.tensors() {
        assembly.map(qwen2(tensor.name), tensor.name);
    }
    let weights = assembly.finish().unwrap();
    let converted = Weights::open(&folder.join("model-f32.gguf")).unwrap();
    assert_eq!(
        (converted.format(), converted.owned_bytes()),
        (Format::Gguf, 0)
    );
    assert_eq!(
        (weights.format(), weights.owned_bytes()),
        (Format::Safetensors, 0)
    );
    let mut compared = 0;
    for info in converted.tensors() {
        let (ours, theirs) = (
            weights.require(&info.name).unwrap(),
            converted.require(&info.name).unwrap(),
        );
        assert_eq!(ours.info.shape, info.shape, "{}", info.name);
        assert_eq!(ours.info.ty, TensorType::BF16);
        assert!(ours.to_f32() == theirs.to_f32(), "{} differs", info.name);
        // The very bytes of the checkpoint, not a copy.
        let stored = checkpoint
            .tensors()
            .find(|tensor| qwen2(tensor.name) == info.name)
            .unwrap();
        assert_eq!(ours.data.as_ptr(), stored.data.as_ptr());
        compared += 1;
    }
    assert!(
        compared > 30 && compared == weights.tensors().count(),
        "{compared} tensors"
    );

    let file = folder.join("model.safetensors");
    assert_eq!(weights.path(), folder);
    assert_eq!(weights.files(), std::slice::from_ref(&file));
    assert_eq!(weights.file_bytes(), std::fs::metadata(file).unwrap().len());
    let meta = weights.metadata();
    assert_eq!(meta.require_str("general.architecture").unwrap(), "qwen2");
    let tokens = meta.require_array("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.strings().unwrap().collect::<Vec<_>>(), ["a", "b"]);
    says(
        &meta.require_u32("a.b").unwrap_err(),
        "tiny/qwen2.5-bias",
        &["key a.b: missing"],
    );
    weights.prefetch();
}

#[test]
fn mapped_reshaped_and_owned_tensors_stand_side_by_side_and_outlive_all_else() {
    let header = r#"{"w":{"dtype":"F16","shape":[2,3,2],"data_offsets":[0,24]}}"#;
    let data: Vec<u8> = (0..12).flat_map(|_| [0, 0x3c]).collect();
    let checkpoint = open(&file(&padded(header), &data)).unwrap();
    let mut assembly = Assembly::new(&checkpoint);
    assembly.map("cube", "w").map_as("matrix", "w", &[6, 2]);
    assembly.own(
        "norm",
        TensorType::F32,
        &[1, 2],
        vec![0, 0, 0x80, 0x3f, 0, 0, 0, 0x40],
    );
    assembly.own("blocks", TensorType::Q8_0, &[32], vec![1; 34]);
    let weights = assembly.finish().unwrap();
    drop(checkpoint);
    let shapes: Vec<_> = weights.tensors().map(|info| &info.shape[..]).collect();
    assert_eq!(shapes, [&[2, 3, 2][..], &[6, 2], &[1, 2], &[32]]);
    assert_eq!(weights.owned_bytes(), 8 + 34);
    let cube = weights.require("cube").unwrap();
    assert_eq!((cube.rows(), cube.cols()), (6, 2));
    assert_eq!(
        cube.data.as_ptr(),
        weights.require("matrix").unwrap().data.as_ptr()
    );
    let handle = weights.clone().owned("norm").unwrap();
    let address = handle.data().as_ptr();
    drop(weights);
    assert_eq!(handle.tensor().to_f32(), [1.0, 2.0]);
    assert_eq!(
        (handle.data().as_ptr(), handle.info().ty),
        (address, TensorType::F32)
    );
}

#[test]
fn a_tensor_that_lies_badly_is_copied() {
    let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} "#;
    for padding in 0..8 {
        let header = format!("{header}{}", " ".repeat(padding));
        let data: Vec<u8> = [1.0_f32, -2.5]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let checkpoint = open(&file(&header, &data)).unwrap();
        let mut assembly = Assembly::new(&checkpoint);
        let weights = {
            assembly.map("w", "w");
            assembly.finish().unwrap()
        };
        let tensor = weights.require("w").unwrap();
        assert_eq!(tensor.to_f32(), [1.0, -2.5]);
        assert_eq!(tensor.data.as_ptr().addr() % 4, 0);
        let aligned = (8 + header.len()) % 4 == 0;
        assert_eq!(weights.owned_bytes(), if aligned { 0 } else { 8 });
    }
}

#[track_caller]
fn refused(build: impl FnOnce(&mut Assembly), parts: &[&str]) {
    let header = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"s":{"dtype":"F32","shape":[],"data_offsets":[4,8]},
        "z":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},"m":{"dtype":"BOOL","shape":[1],"data_offsets":[8,9]},
        "d":{"dtype":"F8_E4M3","shape":[1,1,1,1,1],"data_offsets":[9,10]},"five":{"dtype":"BF16","shape":[1,1,1,1,1],"data_offsets":[10,12]}}"#;
    let checkpoint = open(&file(header, &[0; 12])).unwrap();
    let mut assembly = Assembly::new(&checkpoint);
    build(&mut assembly);
    let error: Error = assembly.finish().expect_err("must be refused");
    says(&error, "model.safetensors", parts);
}

#[test]
fn what_can_not_be_assembled_is_said() {
    refused(|a| _ = a.map("x", "nope"), &["tensor nope: missing"]);
    refused(
        |a| _ = a.map("x", "m"),
        &["tensor m", "dtype BOOL", "F32, F16 or BF16"],
    );
    refused(|a| _ = a.map("x", "d"), &["tensor d", "dtype F8_E4M3"]);
    refused(
        |a| _ = a.map("x", "s"),
        &["tensor s", "shape []", "1 to 4 dimensions"],
    );
    refused(|a| _ = a.map("x", "z"), &["tensor z", "shape [0]"]);
    refused(
        |a| _ = a.map("x", "five"),
        &["tensor five", "1 to 4 dimensions"],
    );
    refused(
        |a| _ = a.map_as("x", "w", &[2]),
        &["tensor w", "found 4 bytes", "8 bytes for shape [2] in F32"],
    );
    refused(
        |a| _ = a.map_as("x", "w", &[usize::MAX, 3]),
        &["tensor w", "more bytes than can be counted"],
    );
    refused(
        |a| _ = a.map("x", "w").map("x", "w"),
        &["tensor x", "the name twice"],
    );
    refused(|a| _ = a.map("", "w"), &["an empty name"]);
    refused(
        |a| _ = a.own("x", TensorType::F32, &[2], vec![0; 4]),
        &["tensor x", "found 4 bytes"],
    );
    refused(
        |a| _ = a.own("x", TensorType::Q4_K, &[2, 32], vec![0; 4]),
        &["tensor x", "rows of whole blocks, 256"],
    );
    refused(
        |a| _ = a.own("x", TensorType::F32, &[], vec![0; 4]),
        &["tensor x", "shape []"],
    );
    refused(
        |a| _ = a.meta("k", 1_u32).meta("k", 2_u32),
        &["key k", "the name twice"],
    );
    refused(
        |a| _ = a.meta("k", "x".repeat(2 << 20).as_str()),
        &["key k", "a string of 2097152 bytes"],
    );
}

#[test]
fn tensors_can_be_replaced_by_another_storage() {
    let checkpoint = open(&ones(&["a", "b"])).unwrap();
    let mut assembly = Assembly::new(&checkpoint);
    assembly.meta("k", 7_u32).map("x", "a").map("y", "b");
    let weights = assembly.finish().unwrap();
    let half = weights
        .replacing([("y".to_owned(), TensorType::F16, vec![0, 0x40])])
        .unwrap();
    assert_eq!(half.require("y").unwrap().to_f32(), [2.0]);
    assert_eq!(half.require("y").unwrap().info.ty, TensorType::F16);
    assert_eq!(
        half.require("x").unwrap().data.as_ptr(),
        weights.require("x").unwrap().data.as_ptr()
    );
    assert_eq!(
        (half.owned_bytes(), half.file_bytes()),
        (2, weights.file_bytes())
    );
    assert_eq!(half.metadata().require_u32("k").unwrap(), 7);
    assert_eq!(half.format(), Format::Safetensors);
    let fails = |name: &str, ty, bytes| {
        weights
            .replacing([(name.to_owned(), ty, bytes)])
            .unwrap_err()
    };
    says(
        &fails("z", TensorType::F16, vec![0; 2]),
        "model.safetensors",
        &["tensor z: missing"],
    );
    says(
        &fails("y", TensorType::F16, vec![0; 4]),
        "model.safetensors",
        &["tensor y", "found 4 bytes"],
    );
    says(
        &fails("y", TensorType::Q8_0, vec![0; 34]),
        "model.safetensors",
        &["tensor y", "rows of whole blocks"],
    );
}
