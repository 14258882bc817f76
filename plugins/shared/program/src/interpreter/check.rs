//! Checks of a step against the limits.

use super::cache::{Pool, written_pages};
use crate::device::{DeviceError, Limits, Step};
use std::collections::HashSet;

/// Checks everything a step says, so that running it can't fail on its content.
pub(super) fn step(
    step: &Step<'_>,
    limits: &Limits,
    vocab: usize,
    pool: &Pool,
) -> Result<(), DeviceError> {
    tokens(step, limits, vocab)
        .and_then(|()| sequences(step, limits, pool))
        .and_then(|()| wanted(step, limits))
        .map_err(DeviceError::Step)
}

fn tokens(step: &Step<'_>, limits: &Limits, vocab: usize) -> Result<(), String> {
    let count = step.tokens.len();
    if count == 0 || count > limits.max_step_tokens {
        return Err(format!(
            "{count} tokens, expected 1 to {}",
            limits.max_step_tokens
        ));
    }
    if let Some((row, token)) = step
        .tokens
        .iter()
        .enumerate()
        .find(|(_, token)| **token as usize >= vocab)
    {
        return Err(format!(
            "token {token} at row {row}, expected below {vocab}"
        ));
    }
    let in_sequences = step
        .sequences
        .iter()
        .try_fold(0usize, |sum, sequence| sum.checked_add(sequence.count));
    if in_sequences != Some(count) {
        return Err(format!(
            "{count} tokens, the sequences' counts do not add up to that"
        ));
    }
    Ok(())
}

fn sequences(step: &Step<'_>, limits: &Limits, pool: &Pool) -> Result<(), String> {
    let mut written = HashSet::new();
    for (index, sequence) in step.sequences.iter().enumerate() {
        if sequence.count == 0 {
            return Err(format!("sequence {index} has no tokens"));
        }
        let end = sequence.past.checked_add(sequence.count);
        let need = end
            .ok_or_else(|| format!("sequence {index}: position overflows"))?
            .div_ceil(limits.page_size);
        if sequence.pages.len() < need {
            return Err(format!(
                "sequence {index} has {} pages, expected at least {need}",
                sequence.pages.len()
            ));
        }
        let pages = &sequence.pages[..need];
        if let Some(page) = pages.iter().find(|page| !pool.has(**page)) {
            return Err(format!(
                "sequence {index} has page {page}, expected below {}",
                limits.pages
            ));
        }
        let mut seen = HashSet::new();
        if let Some(page) = pages.iter().find(|page| !seen.insert(**page)) {
            return Err(format!("sequence {index} has page {page} twice"));
        }
        let past_pages = &pages[..sequence.past.div_ceil(limits.page_size)];
        if let Some(page) = past_pages.iter().find(|page| !pool.is_written(**page)) {
            let past = sequence.past;
            return Err(format!(
                "sequence {index} has {past} positions behind it, but page {page} was never written"
            ));
        }
        if let Some(page) = written_pages(sequence, limits.page_size)
            .iter()
            .find(|page| !written.insert(**page))
        {
            return Err(format!(
                "sequence {index} writes page {page}, as another sequence does"
            ));
        }
    }
    Ok(())
}

fn wanted(step: &Step<'_>, limits: &Limits) -> Result<(), String> {
    if step.wanted.len() > limits.max_wanted {
        return Err(format!(
            "{} rows wanted, expected at most {}",
            step.wanted.len(),
            limits.max_wanted
        ));
    }
    if let Some(row) = step
        .wanted
        .iter()
        .find(|row| **row as usize >= step.tokens.len())
    {
        return Err(format!(
            "row {row} wanted, expected below {}",
            step.tokens.len()
        ));
    }
    if let Some(pair) = step.wanted.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(format!(
            "row {} wanted after row {}, expected ascending rows",
            pair[1], pair[0]
        ));
    }
    Ok(())
}
