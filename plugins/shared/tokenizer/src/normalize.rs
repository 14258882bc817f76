//! Unicode normal forms, which some tokenizers bring text to before they cut it.

use std::borrow::Cow;

use unicode_normalization::{
    IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

/// A normal form of Unicode (Unicode Standard Annex 15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormalForm {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

impl NormalForm {
    const ALL: [Self; 4] = [Self::Nfc, Self::Nfd, Self::Nfkc, Self::Nfkd];

    /// Its name in metadata; in capitals, its name in `tokenizer.json`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nfc => "nfc",
            Self::Nfd => "nfd",
            Self::Nfkc => "nfkc",
            Self::Nfkd => "nfkd",
        }
    }

    /// The form of that name in metadata.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }

    /// `text` in this form.
    pub(crate) fn apply(self, text: &str) -> Cow<'_, str> {
        if text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let quick = match self {
            Self::Nfc => is_nfc_quick(text.chars()),
            Self::Nfd => is_nfd_quick(text.chars()),
            Self::Nfkc => is_nfkc_quick(text.chars()),
            Self::Nfkd => is_nfkd_quick(text.chars()),
        };
        match (self, quick) {
            (_, IsNormalized::Yes) => Cow::Borrowed(text),
            (Self::Nfc, _) => text.nfc().collect(),
            (Self::Nfd, _) => text.nfd().collect(),
            (Self::Nfkc, _) => text.nfkc().collect(),
            (Self::Nfkd, _) => text.nfkd().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_normalised() {
        let text = "e\u{301} ﬁ é";
        for (form, expected) in [
            ("nfc", "é ﬁ é"),
            ("nfd", "e\u{301} ﬁ e\u{301}"),
            ("nfkc", "é fi é"),
            ("nfkd", "e\u{301} fi e\u{301}"),
        ] {
            assert_eq!(NormalForm::by_name(form).unwrap().apply(text), expected);
        }
        assert_eq!(NormalForm::by_name("NFC"), None);
        assert!(matches!(NormalForm::Nfc.apply("Å"), Cow::Borrowed(_)));
    }
}
