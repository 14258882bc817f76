//! Quantisers against llama.cpp's own quantisation of the same values, and what they must never do.

use std::ops::ControlFlow;

use backplane_weights::quantize::{Destination, destination, requantize};
use backplane_weights::writer::GgufWriter;
use backplane_weights::{Error, TensorType, Weights};
use proptest::prelude::*;

use crate::support::{fixtures, open, says};

fn all(weights: &Weights, ty: TensorType) -> (Weights, Vec<String>) {
    let done = requantize(weights, ty, &mut |_, _, _| ControlFlow::Continue(())).unwrap();
    (done.weights, done.notes)
}

fn quantisable() -> impl Iterator<Item = TensorType> {
    let types = TensorType::ALL.iter().copied();
    types.filter(|ty| ty.can_quantize())
}

/// Values as a type stores them.
fn stored(ty: TensorType, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; ty.row_bytes(values.len()).unwrap()];
    ty.quantize(values, &mut bytes).unwrap();
    let mut out = vec![f32::NAN; values.len()];
    ty.dequantize(&bytes, &mut out);
    out
}

fn squares(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

fn squared_error(values: &[f32], exact: &[f32]) -> f64 {
    let pairs = values.iter().zip(exact);
    squares(pairs.map(|(value, exact)| f64::from(*value) - f64::from(*exact)))
}

/// Relative rms error of a model's matrices.
fn relative_error(original: &Weights, quantised: &Weights) -> f64 {
    let (mut error, mut power) = (0.0, 0.0);
    for info in original.tensors().filter(|info| info.shape.len() > 1) {
        let exact = original.require(&info.name).unwrap().to_f32();
        let values = quantised.require(&info.name).unwrap().to_f32();
        error += squared_error(&values, &exact);
        power += squares(exact.iter().map(|value| f64::from(*value)));
    }
    (error / power).sqrt()
}

#[test]
fn the_error_is_no_larger_than_that_of_llama_cpp() {
    let folder = fixtures().join("tiny/llama-256-quant");
    let original = Weights::open(&folder.join("model-f16.gguf")).unwrap();
    let mut seen = 0;
    for ty in quantisable().filter(|ty| ty.block_elems() > 1) {
        let path = folder.join(format!("model-{ty}.gguf"));
        if !path.exists() {
            continue;
        }
        seen += 1;
        let (ours, notes) = all(&original, ty);
        assert_eq!(notes, [""; 0]);
        let theirs = Weights::open(&path).unwrap();
        for info in theirs.tensors() {
            let our = &ours.require(&info.name).unwrap().info;
            assert_eq!(
                (our.ty, &our.shape),
                (info.ty, &info.shape),
                "{ty}: {}",
                info.name
            );
        }
        let (our_error, their_error) = (
            relative_error(&original, &ours),
            relative_error(&original, &theirs),
        );
        println!(
            "{ty}: relative rms {our_error:.5}, llama.cpp {their_error:.5}, ratio {:.4}",
            our_error / their_error
        );
        assert!(
            our_error <= their_error,
            "{ty}: {our_error} and {their_error}"
        );
    }
    assert_eq!(seen, 12, "files of one block type");
}

/// What a type's blocks can hold is held: values that come from blocks go back with hardly any error.
#[test]
fn values_of_blocks_go_back_into_blocks() {
    for ty in quantisable() {
        let Ok(bytes) = std::fs::read(fixtures().join(format!("blocks/{ty}.bin"))) else {
            assert_eq!(ty.block_elems(), 1);
            continue;
        };
        let (mut worst, mut seen) = (0.0_f64, 0);
        for block in bytes.chunks_exact(ty.block_bytes()) {
            let mut exact = vec![0.0; ty.block_elems()];
            ty.dequantize(block, &mut exact);
            if ty == TensorType::TQ2_0 {
                // A code that the type's name has no number for, and that no quantiser makes.
                let d = exact.iter().fold(0.0_f32, |d, value| d.max(value.abs())) / 2.0;
                exact
                    .iter_mut()
                    .for_each(|value| *value = value.clamp(-d, d));
            }
            // The blocks' bytes are random: some scales are infinite, or so small that the search sees zeros.
            let peak = exact
                .iter()
                .fold(0.0_f32, |peak, value| peak.max(value.abs()));
            if exact.iter().all(|value| value.is_finite()) && (1e-2..3e4).contains(&peak) {
                seen += 1;
                let power = squares(exact.iter().map(|value| f64::from(*value)));
                worst = worst.max((squared_error(&stored(ty, &exact), &exact) / power).sqrt());
            }
        }
        println!("{ty}: worst relative rms {worst:.5} of {seen} blocks");
        let limit = match ty {
            TensorType::MXFP4 | TensorType::TQ1_0 | TensorType::TQ2_0 => 0.0,
            TensorType::Q2_K => 0.1,
            _ => 0.03,
        };
        assert!(
            worst <= limit && seen >= 4,
            "{ty}: {worst} of {seen} blocks"
        );
    }
}

#[test]
fn floats_are_rounded_to_the_nearest() {
    let values = [0.1_f32, -1.0, 3.0e-5, 65504.0, 1.0 + 1.0 / 2048.0, -0.0];
    for (value, half) in values.iter().zip(stored(TensorType::F16, &values)) {
        assert_eq!(half, half::f16::from_f32(*value).to_f32());
    }
    for (value, short) in values.iter().zip(stored(TensorType::BF16, &values)) {
        assert_eq!(short, half::bf16::from_f32(*value).to_f32());
    }
    assert_eq!(stored(TensorType::F32, &values), values);
}

#[test]
fn zeros_and_ones_are_exact_or_near() {
    for ty in quantisable() {
        assert!(
            stored(ty, &[0.0; 512]).iter().all(|value| *value == 0.0),
            "{ty}"
        );
        let ones = stored(ty, &[1.0; 512]);
        assert!(
            ones.iter().all(|value| (value - 1.0).abs() < 1e-3),
            "{ty}: {ones:?}"
        );
        let ones = stored(ty, &[-1.0; 512]);
        assert!(
            ones.iter().all(|value| (value + 1.0).abs() < 1e-3),
            "{ty}: {ones:?}"
        );
        // One value among zeros.
        let mut values = [0.0; 512];
        values[300] = -3.0;
        let one = stored(ty, &values);
        assert!((one[300] + 3.0).abs() < 0.25, "{ty}: {}", one[300]);
    }
}

#[test]
fn what_can_not_be_stored_is_refused_with_its_place() {
    for ty in quantisable() {
        let mut bytes = vec![0; ty.row_bytes(512).unwrap()];
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [0.25; 512];
            values[300] = value;
            let found = ty.quantize(&values, &mut bytes).unwrap_err();
            assert_eq!(
                (found.at, found.value.to_bits()),
                (300, value.to_bits()),
                "{ty}"
            );
        }
        let mut values = [0.25; 512];
        values[511] = -3.0e38;
        let held = matches!(ty, TensorType::F32 | TensorType::BF16 | TensorType::MXFP4);
        match ty.quantize(&values, &mut bytes) {
            Ok(()) => assert!(held, "{ty}"),
            Err(found) => assert!(
                !held && found.at == 511 && found.value == -3.0e38,
                "{ty}: {found:?}"
            ),
        }
    }
}

proptest! {
    /// Whatever the values and however large or small: the stored ones are finite and no worse than zeros.
    #[test]
    fn any_values_are_stored_no_worse_than_as_zeros(
        seed in proptest::collection::vec(-1.0_f32..1.0, 256),
        exponent in -40_i32..8,
        outlier in prop_oneof![Just(1.0_f32), Just(100.0), Just(1e5)],
        shift in prop_oneof![Just(0.0_f32), Just(1.0), Just(-3.0)],
    ) {
        let mut values: Vec<f32> = seed.iter().map(|value| (value + shift) * 10.0_f32.powi(exponent)).collect();
        values[17] *= outlier;
        for ty in quantisable() {
            let mut bytes = vec![0; ty.row_bytes(256).unwrap()];
            if ty.quantize(&values, &mut bytes).is_err() {
                prop_assert!(exponent >= 0, "{ty}");
                continue;
            }
            let out = stored(ty, &values);
            prop_assert!(out.iter().all(|value| value.is_finite()), "{ty}: {out:?}");
            let power = squares(values.iter().map(|value| f64::from(*value)));
            let error = squared_error(&out, &values);
            prop_assert!(error <= power * 1.000_001, "{ty}: {error} of {power}");
        }
    }
}

#[test]
fn names_are_taken_in_any_case_and_the_nearest_is_told() {
    for ty in quantisable() {
        assert_eq!(
            TensorType::to_quantize_to(&ty.name().to_lowercase()).unwrap(),
            ty
        );
    }
    assert_eq!(
        TensorType::to_quantize_to("q4-k").unwrap(),
        TensorType::Q4_K
    );
    for (name, part) in [
        (
            "q4_k_m",
            "expected one type for all matrices, like Q4_K: mixtures of types are not made",
        ),
        ("Q4", "did you mean Q4_"),
        ("q9_0", "did you mean Q8_0?"),
        ("int8", "expected one of F32, F16, BF16, Q8_0"),
        ("", "expected one of F32"),
        (
            "iq2_xs",
            "expected another type: it needs an importance matrix",
        ),
        ("a\nb", "a\\nb"),
        (&"q".repeat(10_000), "expected one of F32"),
    ] {
        let error = TensorType::to_quantize_to(name).unwrap_err();
        says(&error, "type ", &[part]);
    }
    let refused: Vec<&str> = TensorType::ALL
        .iter()
        .filter(|ty| ty.refuses_quantizing().is_some())
        .map(|ty| ty.name())
        .collect();
    assert_eq!(
        refused,
        [
            "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M"
        ]
    );
}

/// A model with a tensor of each kind.
fn mixed() -> Weights {
    let wave =
        |count: usize| -> Vec<f32> { (0..count).map(|at| (at as f32 * 0.37).sin()).collect() };
    let mut writer = GgufWriter::new();
    for (name, shape) in [
        ("token_embd.weight", &[8, 256][..]),
        ("output_norm.weight", &[256]),
        ("blk.0.attn_q.weight", &[4, 256]),
        ("blk.0.attn_q_norm.weight", &[4, 256]),
        ("blk.0.ffn_gate_inp.weight", &[3, 256]),
        ("blk.0.ffn_gate_exps.weight", &[3, 2, 256]),
        ("blk.0.attn_k_b.weight", &[2, 4, 64]),
        ("blk.1.attn_k_b.weight", &[2, 4, 64]),
        ("blk.0.odd.weight", &[2, 24]),
        ("blk.0.row.weight", &[1, 256]),
    ] {
        writer.add_f32(name, shape, &wave(shape.iter().product()));
    }
    let half: Vec<u8> = wave(512)
        .iter()
        .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
        .collect();
    writer.add_tensor("blk.0.attn_v.weight", TensorType::F16, &[2, 256], half);
    open(&writer.to_bytes().unwrap()).unwrap()
}

#[test]
fn matrices_change_and_everything_else_stays() {
    let weights = mixed();
    let (done, notes) = all(&weights, TensorType::Q4_K);
    let types: Vec<(&str, &str)> = done
        .tensors()
        .map(|info| (&*info.name, info.ty.name()))
        .collect();
    assert_eq!(
        types,
        [
            ("token_embd.weight", "Q4_K"),
            ("output_norm.weight", "F32"),
            ("blk.0.attn_q.weight", "Q4_K"),
            ("blk.0.attn_q_norm.weight", "F32"),
            ("blk.0.ffn_gate_inp.weight", "F32"),
            ("blk.0.ffn_gate_exps.weight", "Q4_K"),
            ("blk.0.attn_k_b.weight", "Q8_0"),
            ("blk.1.attn_k_b.weight", "Q8_0"),
            ("blk.0.odd.weight", "F32"),
            ("blk.0.row.weight", "F32"),
            ("blk.0.attn_v.weight", "Q4_K"),
        ]
    );
    assert_eq!(
        notes,
        [
            "blk.*.odd.weight: rows of 24 values are no whole blocks of Q4_K (256), kept as F32",
            "blk.*.attn_k_b.weight (2 tensors): rows of 64 values are no whole blocks of Q4_K (256), stored as Q8_0",
        ]
    );
    for info in done.tensors() {
        let (before, after) = (
            weights.require(&info.name).unwrap(),
            done.require(&info.name).unwrap(),
        );
        assert_eq!(before.info.shape, after.info.shape);
        if before.info.ty == after.info.ty {
            assert_eq!(
                before.data.as_ptr(),
                after.data.as_ptr(),
                "{} was copied",
                info.name
            );
        } else {
            let exact = before.to_f32();
            let power = squares(exact.iter().map(|value| f64::from(*value)));
            assert!(
                squared_error(&after.to_f32(), &exact) < 0.02 * power,
                "{}",
                info.name
            );
        }
    }
    let changed = done
        .tensors()
        .filter(|info| destination(info, TensorType::Q4_K) == Destination::Stays);
    assert_eq!(
        changed.count(),
        8,
        "once quantised, nothing changes any more"
    );
}

#[test]
fn quantising_what_is_quantised_is_said() {
    let (once, _) = all(&mixed(), TensorType::Q8_0);
    let (twice, notes) = all(&once, TensorType::Q4_0);
    assert_eq!(
        notes,
        [
            "blk.*.odd.weight: rows of 24 values are no whole blocks of Q4_0 (32), kept as F32",
            "already quantised (6 in Q8_0): the loss of both quantisations adds up",
        ]
    );
    assert_eq!(
        twice.require("token_embd.weight").unwrap().info.ty,
        TensorType::Q4_0
    );
    // What is smaller than the fallback does not grow to it.
    let (again, notes) = all(&twice, TensorType::Q6_K);
    assert_eq!(
        again.require("blk.0.attn_k_b.weight").unwrap().info.ty,
        TensorType::Q4_0
    );
    assert!(
        notes.iter().any(
            |note| note.starts_with("blk.*.attn_k_b.weight (2 tensors): ")
                && note.ends_with("kept as Q4_0")
        ),
        "{notes:?}"
    );
    let (floats, _) = all(&twice, TensorType::F32);
    assert_eq!(
        floats.require("token_embd.weight").unwrap().to_f32(),
        twice.require("token_embd.weight").unwrap().to_f32()
    );
}

#[test]
fn a_bad_value_names_its_tensor_and_refused_types_touch_nothing() {
    let mut values = vec![0.5_f32; 4 * 256];
    values[2 * 256 + 9] = f32::NEG_INFINITY;
    let mut writer = GgufWriter::new();
    writer.add_f32("blk.7.ffn_up.weight", &[4, 256], &values);
    let weights = open(&writer.to_bytes().unwrap()).unwrap();
    let mut go = |_: u64, _: u64, _: &str| ControlFlow::Continue(());
    let error = requantize(&weights, TensorType::F16, &mut go)
        .err()
        .unwrap();
    says(
        &error,
        "model.gguf",
        &["tensor blk.7.ffn_up.weight: found -inf in row 2, column 9, expected finite numbers"],
    );
    let error = requantize(&weights, TensorType::IQ1_S, &mut |_, _, _| panic!("began"))
        .err()
        .unwrap();
    says(&error, "IQ1_S", &["importance matrix"]);

    values[2 * 256 + 9] = 70_000.0;
    let mut writer = GgufWriter::new();
    writer.add_f32("blk.7.ffn_up.weight", &[4, 256], &values);
    let weights = open(&writer.to_bytes().unwrap()).unwrap();
    let error = requantize(&weights, TensorType::F16, &mut go)
        .err()
        .unwrap();
    says(
        &error,
        "model.gguf",
        &["found 70000 in row 2, column 9, expected numbers that F16 can hold"],
    );
}

#[test]
fn progress_counts_all_values_and_can_stop() {
    let weights = mixed();
    let mut told = Vec::new();
    requantize(&weights, TensorType::Q8_0, &mut |done, total, name| {
        told.push((done, total, name.to_owned()));
        ControlFlow::Continue(())
    })
    .unwrap();
    let total = (8 + 4 + 6 + 2) * 256 + 2 * 8 * 64;
    assert!(told.iter().all(|(_, of, _)| *of == total), "{told:?}");
    assert!(told.is_sorted_by_key(|(done, _, _)| *done));
    assert_eq!(
        told.last().map(|(done, _, name)| (*done, &**name)),
        Some((total, "blk.0.attn_v.weight"))
    );
    let stopped = requantize(&weights, TensorType::Q8_0, &mut |done, _, _| match done {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    assert!(matches!(stopped, Err(Error::Cancelled)));
}
