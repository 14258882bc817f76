//! Checks of a step against the limits: afterwards nothing in it can lead outside a device's buffers.

use crate::device::{DeviceError, Limits, Step};

/// Checks steps, for any device. It remembers of every page whether it was written, so that checking a step allocates nothing.
#[derive(Debug)]
pub struct StepChecker {
    limits: Limits,
    vocab: usize,
    /// Whether a page has ever been written.
    filled: Vec<bool>,
    /// The last mark a page got: a new one for each sequence and each step.
    seen: Vec<u64>,
    written: Vec<u64>,
    mark: u64,
}

impl StepChecker {
    /// For steps within `limits` of a vocabulary of `vocab` tokens. `device` is named where memory is short.
    ///
    /// # Errors
    /// A page has no positions, a step no tokens, or there is no memory for the table of pages.
    pub fn new(limits: Limits, vocab: usize, device: &str) -> Result<Self, DeviceError> {
        if limits.page_size == 0 || limits.max_step_tokens == 0 {
            return Err(DeviceError::Step(format!(
                "page size {} and {} tokens a step, expected at least 1",
                limits.page_size, limits.max_step_tokens
            )));
        }
        Ok(Self {
            limits,
            vocab,
            filled: table(limits.pages, device)?,
            seen: table(limits.pages, device)?,
            written: table(limits.pages, device)?,
            mark: 0,
        })
    }

    /// Checks everything a step says. What runs the step then says so by [`wrote`](Self::wrote).
    ///
    /// # Errors
    /// [`DeviceError::Step`] with the first rule broken: those of [`Step`], [`SequenceStep`](crate::SequenceStep) and [`Limits`],
    /// and that positions behind a sequence lie on pages that were written.
    pub fn check(&mut self, step: &Step<'_>) -> Result<(), DeviceError> {
        self.tokens(step)
            .and_then(|()| self.sequences(step))
            .and_then(|()| self.wanted(step))
            .map_err(DeviceError::Step)
    }

    /// Takes note of the pages that a step writes. It must have passed [`check`](Self::check).
    pub fn wrote(&mut self, step: &Step<'_>) {
        let size = self.limits.page_size;
        for sequence in step.sequences {
            let end = (sequence.past + sequence.count).div_ceil(size);
            for page in &sequence.pages[sequence.past / size..end] {
                self.filled[*page as usize] = true;
            }
        }
    }

    /// Checks a copy of a page, then takes note of it.
    ///
    /// # Errors
    /// [`DeviceError::Step`]: there is no such page.
    pub fn copy(&mut self, from: u32, to: u32) -> Result<(), DeviceError> {
        let pages = self.limits.pages;
        if let Some(page) = [from, to].into_iter().find(|page| *page as usize >= pages) {
            return Err(DeviceError::Step(format!(
                "page {page}, expected below {pages}"
            )));
        }
        self.filled[to as usize] = self.filled[from as usize];
        Ok(())
    }

    fn tokens(&self, step: &Step<'_>) -> Result<(), String> {
        let (count, most, vocab) = (step.tokens.len(), self.limits.max_step_tokens, self.vocab);
        if count == 0 || count > most {
            return Err(format!("{count} tokens, expected 1 to {most}"));
        }
        if let Some(row) = step
            .tokens
            .iter()
            .position(|token| *token as usize >= vocab)
        {
            return Err(format!(
                "token {} at row {row}, expected below {vocab}",
                step.tokens[row]
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

    fn sequences(&mut self, step: &Step<'_>) -> Result<(), String> {
        let size = self.limits.page_size;
        self.mark += 1;
        let step_mark = self.mark;
        for (index, sequence) in step.sequences.iter().enumerate() {
            if sequence.count == 0 {
                return Err(format!("sequence {index} has no tokens"));
            }
            let end = sequence.past.checked_add(sequence.count);
            let need = end
                .ok_or_else(|| format!("sequence {index}: position overflows"))?
                .div_ceil(size);
            if sequence.pages.len() < need {
                return Err(format!(
                    "sequence {index} has {} pages, expected at least {need}",
                    sequence.pages.len()
                ));
            }
            self.mark += 1;
            for (place, page) in sequence.pages[..need].iter().enumerate() {
                let at = *page as usize;
                if at >= self.limits.pages {
                    return Err(format!(
                        "sequence {index} has page {page}, expected below {}",
                        self.limits.pages
                    ));
                }
                if std::mem::replace(&mut self.seen[at], self.mark) == self.mark {
                    return Err(format!("sequence {index} has page {page} twice"));
                }
                if place * size < sequence.past && !self.filled[at] {
                    let past = sequence.past;
                    return Err(format!(
                        "sequence {index} has {past} positions behind it, but page {page} was never written"
                    ));
                }
                let writes = place >= sequence.past / size;
                if writes && std::mem::replace(&mut self.written[at], step_mark) == step_mark {
                    return Err(format!(
                        "sequence {index} writes page {page}, as another sequence does"
                    ));
                }
            }
        }
        Ok(())
    }

    fn wanted(&self, step: &Step<'_>) -> Result<(), String> {
        let (count, most, tokens) = (step.wanted.len(), self.limits.max_wanted, step.tokens.len());
        if count > most {
            return Err(format!("{count} rows wanted, expected at most {most}"));
        }
        if let Some(row) = step.wanted.iter().find(|row| **row as usize >= tokens) {
            return Err(format!("row {row} wanted, expected below {tokens}"));
        }
        if let Some(pair) = step.wanted.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!(
                "row {} wanted after row {}, expected ascending rows",
                pair[1], pair[0]
            ));
        }
        Ok(())
    }
}

fn table<T: Clone + Default>(pages: usize, device: &str) -> Result<Vec<T>, DeviceError> {
    let mut table = vec![];
    table
        .try_reserve_exact(pages)
        .map_err(|_| DeviceError::Memory {
            device: device.into(),
            bytes: pages.saturating_mul(size_of::<T>()),
            what: "the page table".into(),
        })?;
    table.resize(pages, T::default());
    Ok(table)
}
