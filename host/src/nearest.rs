//! Near-misses: the known word that a mistyped one most likely stands for.

/// The known word nearest to `word`, case ignored; `None` when none is near.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let mut best: Option<(&str, usize)> = None;
    for candidate in known {
        let lower = candidate.to_lowercase();
        let distance = strsim::damerau_levenshtein(&word, &lower);
        let longest = word.chars().count().max(lower.chars().count());
        let starts =
            word.chars().count() >= 3 && (lower.starts_with(&word) || word.starts_with(&lower));
        let near = distance <= longest.div_ceil(3) || starts;
        if near && best.is_none_or(|(_, least)| distance < least) {
            best = Some((candidate, distance));
        }
    }
    best.map(|(candidate, _)| candidate)
}

/// `did you mean …?`, or else the known words, or else a default.
pub(crate) fn suggestion<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
    otherwise: &str,
) -> String {
    if let Some(near) = nearest(word, known.clone()) {
        return format!("did you mean `{near}`?");
    }
    let known: Vec<String> = known
        .into_iter()
        .take(12)
        .map(|word| format!("`{word}`"))
        .collect();
    if known.is_empty() {
        otherwise.to_owned()
    } else {
        format!("known: {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses() {
        let known = ["metal", "rocm", "llama_cpp", "cpu"];
        assert_eq!(nearest("rocmm", known), Some("rocm"));
        assert_eq!(nearest("ROCM", known), Some("rocm"));
        assert_eq!(nearest("llama", known), Some("llama_cpp"));
        assert_eq!(nearest("vulkan", known), None);
        assert_eq!(suggestion("x", ["a b"], "none"), "known: `a b`");
        assert_eq!(suggestion("x", [], "none"), "none");
    }
}
