//! The capability `check/1`: what is wrong with a model's weights.

use crate::backend::{located, unusable};
use crate::engine::cancelled;
use crate::inspect;
use crate::open::open_model;
use crate::vocabulary::Short;
use backplane_models::hub;
use backplane_plugin_api::capability::{Check, Finding, Progress};
use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::Control;
use backplane_weights::{Format, Tensor};
use std::path::Path;

/// Values looked at between two questions to the caller, about: a fraction of a second.
const PORTION: usize = 1 << 22;

/// Checks models of every format known here.
pub(crate) struct Checker;

impl Check for Checker {
    fn check(&self, path: &Path, progress: &mut dyn Progress) -> Result<Vec<Finding>> {
        let opened = open_model(path)?;
        let weights = &opened.weights;
        let total = weights.tensors().count() as u64;
        let mut findings = Vec::new();
        let whole = |message: String| Finding {
            tensor: String::new(),
            message,
        };
        // What loading would refuse.
        match inspect::describe(weights) {
            Ok(info) => findings.extend(info.unsupported.map(whole)),
            Err(error) => findings.push(whole(error.message)),
        }
        let short = Short::of(&opened).filter(|short| short.is_suspicious());
        findings.extend(short.map(|short| whole(located(path, short))));
        findings.extend(opened.tokenizer.as_ref().err().cloned().map(whole));
        for (done, info) in (0..).zip(weights.tensors()) {
            let Some(tensor) = weights.tensor(&info.name) else {
                continue;
            };
            let mut go_on = || match progress.on_progress(done, total, &info.name) {
                Control::Continue => Ok(()),
                Control::Stop => Err(cancelled()),
            };
            if let Some(message) = look_through(&tensor, &mut go_on)? {
                findings.push(Finding {
                    tensor: info.name.clone(),
                    message,
                });
            }
        }
        if weights.format() == Format::Safetensors
            && findings.iter().any(|it| !it.tensor.is_empty())
        {
            // By the names that users know.
            let names = hub::tensor_names(path).map_err(unusable)?;
            for finding in &mut findings {
                let found = names.iter().find(|(ours, _)| *ours == finding.tensor);
                if let Some((_, theirs)) = found {
                    finding.tensor.clone_from(theirs);
                }
            }
        }
        progress.on_progress(total, total, "tensors");
        Ok(findings)
    }
}

/// What is wrong with a tensor's values: how many are no numbers, and where the first one is. `go_on` is asked before every
/// portion of rows.
fn look_through(
    tensor: &Tensor<'_>,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<Option<String>> {
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let rows_at_once = (PORTION / cols.max(1)).max(1);
    let mut values = vec![0.0; cols];
    let (mut nans, mut infinities) = (0_u64, 0_u64);
    let mut first = None;
    for row in 0..rows {
        if row % rows_at_once == 0 {
            go_on()?;
        }
        tensor.row_f32(row, &mut values);
        // 0 times a number is 0, and NaN for anything else: vectors tell of a whole row.
        if values.iter().map(|value| value * 0.0).sum::<f32>() == 0.0 {
            continue;
        }
        for (column, value) in values.iter().enumerate() {
            if value.is_nan() {
                nans += 1;
            } else if value.is_infinite() {
                infinities += 1;
            } else {
                continue;
            }
            first.get_or_insert((row * cols + column, *value));
        }
    }
    Ok(first.map(|(at, value)| {
        let place = place(&tensor.info.shape, at);
        format!(
            "{nans} NaN and {infinities} infinite of {} values; the first, {value}, at {place:?}",
            rows * cols
        )
    }))
}

/// Indices of an element, outermost first.
fn place(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&length| {
            let index = at % length.max(1);
            at /= length.max(1);
            index
        })
        .collect();
    indices.reverse();
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_indices_outermost_first() {
        assert_eq!(place(&[7], 3), [3]);
        assert_eq!(place(&[2, 3, 4], 0), [0, 0, 0]);
        assert_eq!(place(&[2, 3, 4], 23), [1, 2, 3]);
        assert_eq!(place(&[2, 3, 4], 5), [0, 1, 1]);
    }
}
