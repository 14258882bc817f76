//! Prints what model files hold and how long their headers take: `cargo run --release --example header -- FILE…`

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use backplane_weights::Weights;

const TURNS: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    for file in std::env::args_os().skip(1) {
        let path = Path::new(&file);
        let start = Instant::now();
        let weights = Weights::open(path)?;
        let first = start.elapsed();
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..TURNS {
            let start = Instant::now();
            let again = Weights::open(path)?;
            times.push(start.elapsed());
            drop(again);
        }
        times.sort();
        let megabytes = weights.file_bytes() / 1_000_000;
        println!(
            "{}: {megabytes} MB, {} tensors",
            path.display(),
            weights.tensors().count()
        );
        println!(
            "open: first {first:?}, then median {:?}, least {:?}",
            times[TURNS / 2],
            times[0]
        );
        let meta = weights.metadata();
        if let Some(tokens) = meta.array("tokenizer.ggml.tokens")? {
            let start = Instant::now();
            let count = tokens.strings()?.len();
            println!("{count} tokens read as text in {:?}", start.elapsed());
        }
        for key in meta.keys() {
            if let Some(value) = meta.get(key) {
                println!("  {key}: {value}");
            }
        }
    }
    Ok(())
}
