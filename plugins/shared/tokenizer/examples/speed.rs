//! Times the building of a tokenizer and the encoding of a text: `speed MODEL.gguf [TEXT-FILE]`.

use std::path::Path;
use std::time::{Duration, Instant};

use backplane_tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
use backplane_weights::Weights;

fn best<T>(mut work: impl FnMut() -> T) -> (Duration, T) {
    let timed = |work: &mut dyn FnMut() -> T| {
        let started = Instant::now();
        let result = work();
        (started.elapsed(), result)
    };
    let mut best = timed(&mut work);
    for _ in 0..9 {
        let next = timed(&mut work);
        if next.0 < best.0 {
            best = next;
        }
    }
    best
}

/// Resident memory, KiB; 0 where `/proc` doesn't say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or(0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments
        .next()
        .ok_or("usage: speed MODEL.gguf [TEXT-FILE]")?;
    let text = match arguments.next() {
        Some(path) => std::fs::read_to_string(path)?,
        None => "The quick brown fox jumps over the lazy dog, 1234 times.\n".repeat(20_000),
    };
    let weights = Weights::open(Path::new(&model))?;
    let before = resident();
    let started = Instant::now();
    let tokenizer = Tokenizer::from_metadata(weights.metadata())?;
    println!(
        "first build {:?}, {} KiB",
        started.elapsed(),
        resident().saturating_sub(before)
    );
    println!(
        "best build of ten {:?}",
        best(|| Tokenizer::from_metadata(weights.metadata())).0
    );
    let (time, ids) = best(|| tokenizer.encode(&text, EncodeOptions::default()));
    let ids = ids?;
    let rate = text.len() as f64 / time.as_secs_f64() / 1e6;
    println!(
        "encode {} bytes to {} tokens in {time:?}: {rate:.1} MB/s",
        text.len(),
        ids.len()
    );
    let (time, bytes) = best(|| tokenizer.decode(&ids, DecodeOptions::default()));
    println!("decode to {} bytes in {time:?}", bytes?.len());
    let long = "a".repeat(100_000);
    println!(
        "encode 100,000 times a in {:?}",
        best(|| tokenizer.encode(&long, EncodeOptions::default())).0
    );
    Ok(())
}
