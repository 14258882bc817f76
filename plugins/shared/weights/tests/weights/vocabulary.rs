//! Arrays of many strings, which are hopped over in several places at once: with the same result as one by one.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{ARRAY, Raw, STRING, U8, open, refused};

/// A file of one array of strings and a key behind it.
fn array(strings: &[Vec<u8>]) -> Raw {
    let raw = Raw::new(3, 0, 2)
        .key("tokens", ARRAY)
        .u32(STRING)
        .u64(strings.len() as u64);
    let raw = strings.iter().fold(raw, |raw, string| raw.string(string));
    raw.key("behind", U8).u8(7)
}

#[track_caller]
fn reads_back(strings: &[Vec<u8>]) {
    let weights = open(&array(strings).0).unwrap();
    assert_eq!(weights.metadata().u32("behind").unwrap(), Some(7));
    let tokens = weights.metadata().require_array("tokens").unwrap();
    assert_eq!(tokens.len(), strings.len());
    let text = tokens.strings().unwrap();
    assert!(
        text.zip(strings)
            .all(|(text, string)| text.as_bytes() == string)
    );
}

/// `count` strings, the n-th as `string` makes it.
fn many(count: usize, string: impl Fn(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
    (0..count).map(string).collect()
}

#[test]
fn strings_of_every_kind_are_hopped_over() {
    reads_back(&many(40_000, |n| format!("token{n}").into_bytes()));
    reads_back(&many(40_000, |n| vec![b'x'; n % 7]));
    reads_back(&many(40_000, |_| Vec::new()));
    // Strings that look like lengths, and lengths of strings that lead astray.
    reads_back(&many(20_000, |n| {
        let fake = (n as u64 % 40).to_le_bytes();
        fake.repeat(n % 5)
    }));
    reads_back(&many(20_000, |n| vec![0; n * 31 % 40]));
    reads_back(&many(400, |n| vec![b'x'; n * 37]));
    reads_back(&many(12, |n| vec![b'y'; n << 16]));
}

#[test]
fn a_wrong_length_among_many_is_named_at_its_place() {
    let strings = many(30_000, |n| format!("token{n}").into_bytes());
    let bytes = array(&strings).0;
    let mut place = array(&[]).0.len() - 8 - "behind".len() - 4 - 1;
    for (n, string) in strings.iter().enumerate() {
        if n % 1_999 == 0 {
            let mut damaged = bytes.clone();
            damaged[place + 3] = 1;
            let length = (1 << 24) + string.len();
            let parts = [
                &*format!("offset {place}: array's string of key tokens"),
                &format!("a string of {length} bytes"),
            ];
            refused(&damaged, &parts);
        }
        place += 8 + string.len();
    }
    assert_eq!(place + 8 + "behind".len() + 4 + 1, bytes.len());
    // Cut anywhere, it ends too early.
    for cut in (0..bytes.len()).step_by(10_007) {
        refused(&bytes[..cut], &[]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]

    #[test]
    fn any_strings_are_hopped_over(
        kinds in vec((vec(any::<u8>(), 0..40), 1_usize..9_000), 1..6),
        zeros in any::<bool>(),
    ) {
        let strings: Vec<Vec<u8>> = kinds
            .iter()
            .flat_map(|(bytes, count)| {
                let bytes: Vec<u8> = bytes.iter().map(|byte| if zeros { byte & 3 } else { byte & 0x7f }).collect();
                (0..*count).map(move |n| bytes[..n % (bytes.len() + 1)].to_vec())
            })
            .collect();
        reads_back(&strings);
    }
}
