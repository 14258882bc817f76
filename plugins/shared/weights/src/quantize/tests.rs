//! What only the inside shows: the same bytes from any number of threads.

use std::ops::ControlFlow;

use super::model::on_threads;
use crate::blocks::TensorType;
use crate::writer::GgufWriter;
use crate::{Error, Weights};

/// A matrix of numbers that look random, some rows of it tiny.
fn model(rows: usize, cols: usize) -> Weights {
    let mut state = 7_u32;
    let values: Vec<f32> = (0..rows * cols)
        .map(|at| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (state >> 8) as f32 / 8_388_608.0 - 1.0;
            if at / cols % 5 == 3 {
                value * 1e-6
            } else {
                value
            }
        })
        .collect();
    let mut writer = GgufWriter::new();
    writer.add_f32("a.weight", &[rows, cols], &values);
    Weights::from_bytes("model.gguf".as_ref(), &writer.to_bytes().unwrap()).unwrap()
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let weights = model(23, 512);
    let tensor = weights.require("a.weight").unwrap();
    let go = &mut |_, _, _: &str| ControlFlow::Continue(());
    for ty in TensorType::ALL.iter().filter(|ty| ty.can_quantize()) {
        let path = weights.path();
        let one = on_threads(path, &tensor, *ty, 1, go).unwrap();
        assert_eq!(one.len(), 23 * ty.row_bytes(512).unwrap());
        for threads in [2, 3, 7, 64] {
            assert_eq!(
                on_threads(path, &tensor, *ty, threads, go).unwrap(),
                one,
                "{ty}, {threads} threads"
            );
        }
    }
}

#[test]
fn the_first_row_that_can_not_be_stored_is_named_whatever_the_number_of_threads() {
    let mut values = vec![1.0_f32; 40 * 32];
    for row in [11, 12, 30] {
        values[row * 32 + row % 7] = f32::NAN;
    }
    let mut writer = GgufWriter::new();
    writer.add_f32("a.weight", &[40, 32], &values);
    let weights = Weights::from_bytes("model.gguf".as_ref(), &writer.to_bytes().unwrap()).unwrap();
    let tensor = weights.require("a.weight").unwrap();
    for threads in [1, 2, 5] {
        let error = on_threads(
            weights.path(),
            &tensor,
            TensorType::Q4_0,
            threads,
            &mut |_, _, _| ControlFlow::Continue(()),
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "model.gguf: tensor a.weight: found NaN in row 11, column 4, expected finite numbers"
        );
    }
}

#[test]
fn a_slab_is_at_least_a_row_and_each_is_announced() {
    let weights = model(5, 1 << 20);
    let tensor = weights.require("a.weight").unwrap();
    let mut told = Vec::new();
    on_threads(
        weights.path(),
        &tensor,
        TensorType::Q8_0,
        2,
        &mut |done, total, name| {
            told.push((done >> 20, total >> 20, name.to_owned()));
            ControlFlow::Continue(())
        },
    )
    .unwrap();
    let told: Vec<_> = told
        .iter()
        .map(|(done, total, name)| (*done, *total, &**name))
        .collect();
    assert_eq!(told, [0, 2, 4, 5].map(|done| (done, 5, "a.weight")));
    let stopped = on_threads(
        weights.path(),
        &tensor,
        TensorType::Q8_0,
        2,
        &mut |done, _, _| {
            if done > 1 << 20 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    assert!(matches!(stopped, Err(Error::Cancelled)));
}
