//! What an endpoint takes beside prompts.

use std::collections::BTreeSet;

/// A field: its name, and whether endpoints are expected to take it where the manifest says nothing.
const KNOWN: &[(&str, bool)] = &[
    ("temperature", true),
    ("top_p", true),
    ("presence_penalty", true),
    ("frequency_penalty", true),
    ("seed", true),
    ("logit_bias", true),
    ("logprobs", true),
    ("grammar", true),
    ("stream_options", true),
    ("top_k", false),
    ("min_p", false),
    ("repeat_penalty", false),
    ("repeat_last_n", false),
    ("ignore_end", false),
    ("template_options", false),
    ("max_completion_tokens", false),
];

/// The fields that an endpoint takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fields(BTreeSet<&'static str>);

impl Default for Fields {
    fn default() -> Self {
        let usual = KNOWN.iter().filter(|(_, usual)| *usual);
        Self(usual.map(|(name, _)| *name).collect())
    }
}

impl Fields {
    /// The fields of these names.
    ///
    /// # Errors
    /// The first name that is not known.
    pub(crate) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, &'a str> {
        let known = |name: &'a str| {
            let found = KNOWN.iter().find(|(known, _)| *known == name);
            found.map(|(known, _)| *known).ok_or(name)
        };
        names
            .into_iter()
            .map(known)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Every name that there is, for messages.
    pub(crate) fn known() -> String {
        let names: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }
}
