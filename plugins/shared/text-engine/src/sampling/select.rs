//! Finding the likeliest tokens without sorting the vocabulary.

use std::cmp::Ordering;

/// A token that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) token: u32,
}

/// A logit was NaN or plus infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotFinite;

/// Likeliest first; of equals the lowest id.
pub(super) fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Elements looked at together, so that the compiler can use vectors.
const LANES: usize = 16;
/// Elements of which only the highest is looked at first.
const BLOCK: usize = 64;
/// Elements of which the place of the highest is looked for only where none before is as high.
const STRETCH: usize = 4096;

fn higher(one: f32, other: f32) -> f32 {
    if other > one { other } else { one }
}

/// The highest of some lanes: halves are compared, since a chain of comparisons would wait for each.
fn lanes_max(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = higher(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The highest that is a number.
fn block_max(block: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    // Whole arrays: the compiler then keeps lanes in vectors.
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = higher(lanes[lane], chunk[lane]);
        }
    }
    for (highest, &logit) in lanes.iter_mut().zip(rest) {
        *highest = higher(*highest, logit);
    }
    lanes_max(lanes)
}

/// Below zero as a signed number where this is no number.
fn below_if_nan(logit: f32) -> u32 {
    f32::INFINITY.to_bits().wrapping_sub(logit.abs().to_bits())
}

/// The highest that is a number, and whether there is one that is none.
fn stretch_max(stretch: &[f32]) -> (f32, bool) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut signs = [0_u32; LANES];
    let (chunks, rest) = stretch.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = higher(lanes[lane], chunk[lane]);
        }
        // A loop of its own, in whole numbers: otherwise what it keeps goes through scalar registers each time.
        for lane in 0..LANES {
            signs[lane] |= below_if_nan(chunk[lane]);
        }
    }
    for (lane, &logit) in rest.iter().enumerate() {
        lanes[lane] = higher(lanes[lane], logit);
        signs[lane] |= below_if_nan(logit);
    }
    let any = signs.iter().fold(0, |any, signs| any | signs);
    (lanes_max(lanes), any >> 31 != 0)
}

/// The likeliest token and its logit; of equals the lowest id.
pub(super) fn argmax(logits: &[f32]) -> Result<(u32, f32), NotFinite> {
    let (mut max, mut at) = (f32::NEG_INFINITY, 0);
    for (index, stretch) in logits.chunks(STRETCH).enumerate() {
        let (highest, broken) = stretch_max(stretch);
        if broken {
            return Err(NotFinite);
        }
        // Of equals the first stands.
        if highest > max {
            (max, at) = (highest, index * STRETCH);
        }
    }
    if max == f32::INFINITY {
        return Err(NotFinite);
    }
    let within = logits[at..].iter().position(|&logit| logit == max);
    Ok(((at + within.unwrap_or(0)) as u32, max))
}

/// The `k` likeliest in order; fewer where logits are minus infinity.
pub(super) fn top_k(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    if k == 0 {
        return;
    }
    let room = k.saturating_add(k.max(256)).min(logits.len().max(1));
    // Once k candidates are known, only a higher logit can enter: later ids lose against equals.
    let mut threshold = f32::NEG_INFINITY;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        if block_max(block) <= threshold {
            continue;
        }
        for (place, &logit) in block.iter().enumerate() {
            if logit > threshold {
                out.push(Candidate {
                    logit,
                    token: (index * BLOCK + place) as u32,
                });
                if out.len() >= room && out.len() > k {
                    out.select_nth_unstable_by(k - 1, by_likelihood);
                    out.truncate(k);
                    threshold = out[k - 1].logit;
                }
            }
        }
    }
    out.sort_unstable_by(by_likelihood);
    out.truncate(k);
}

/// All with `logit >= floor` that are not minus infinity, by id.
pub(super) fn above(logits: &[f32], floor: f32, out: &mut Vec<Candidate>) {
    out.clear();
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        if block_max(block) < floor {
            continue;
        }
        for (place, &logit) in block.iter().enumerate() {
            if logit >= floor && logit > f32::NEG_INFINITY {
                out.push(Candidate {
                    logit,
                    token: (index * BLOCK + place) as u32,
                });
            }
        }
    }
}

/// Of candidates in order, keeps the shortest beginning whose weights reach `share`, at least one.
pub(super) fn keep_share(candidates: &mut Vec<Candidate>, top: f32, share: f64) {
    if let Some(kept) = reaching(candidates, top, share) {
        candidates.truncate(kept);
    }
}

fn reaching(candidates: &[Candidate], top: f32, share: f64) -> Option<usize> {
    let mut reached = 0.0;
    candidates
        .iter()
        .position(|candidate| {
            reached += super::weight(candidate.logit, top);
            reached >= share
        })
        .map(|last| last + 1)
}

/// As [`keep_share`] for candidates in any order: sorts only as far as needed.
pub(super) fn keep_likeliest_share(candidates: &mut Vec<Candidate>, top: f32, share: f64) {
    let mut sorted = 256;
    while sorted < candidates.len() {
        candidates.select_nth_unstable_by(sorted - 1, by_likelihood);
        candidates[..sorted].sort_unstable_by(by_likelihood);
        if let Some(kept) = reaching(&candidates[..sorted], top, share) {
            candidates.truncate(kept);
            return;
        }
        sorted *= 8;
    }
    candidates.sort_unstable_by(by_likelihood);
    keep_share(candidates, top, share);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn top_k_equals_the_sort(
            logits in proptest::collection::vec((-40i32..40).prop_map(|n| n as f32 / 4.0), 0..900),
            k in 0usize..300,
        ) {
            let mut sorted: Vec<Candidate> =
                logits.iter().enumerate().map(|(token, &logit)| Candidate { logit, token: token as u32 }).collect();
            sorted.sort_by(by_likelihood);
            sorted.truncate(k);
            let mut got = Vec::new();
            top_k(&logits, k, &mut got);
            prop_assert_eq!(&got, &sorted);
            if let Some(first) = sorted.first() {
                prop_assert_eq!(argmax(&logits), Ok((first.token, first.logit)));
            }
        }
    }

    #[test]
    fn the_highest_and_what_is_no_number_are_found_wherever_they_stand() {
        for len in [1, 15, 16, 17, 4095, 4096, 4097, 9001] {
            for place in (0..len).step_by(1 + len / 50).chain([len - 1]) {
                let mut logits = vec![-3.5; len];
                logits[place] = 2.0;
                // An equal that comes later.
                logits[len - 1] = 2.0;
                assert_eq!(argmax(&logits), Ok((place as u32, 2.0)), "{len} {place}");
                for broken in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    logits[place] = broken;
                    assert_eq!(argmax(&logits), Err(NotFinite), "{len} {place} {broken}");
                }
            }
            let none = vec![f32::NEG_INFINITY; len];
            assert_eq!(argmax(&none), Ok((0, f32::NEG_INFINITY)));
        }
    }
}
