//! Loads a model and streams a reply: `stream MODEL PROMPT`.

use backplane::{Control, Event, GenerateOptions, GenerateRequest, ModelOptions, Prompt, Registry};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("expected MODEL PROMPT")?;
    let prompt = Prompt::text(arguments.next().ok_or("expected MODEL PROMPT")?);
    let model = Registry::open(None)?.load(&name, &ModelOptions::default())?;
    let options = GenerateOptions {
        max_tokens: Some(32),
        ..GenerateOptions::default()
    };
    let request = GenerateRequest { prompt, options };
    let reply = model.generate(&request, &mut |event: Event<'_>| {
        if let Event::Token { text, .. } | Event::Text { text } = event {
            print!("{text}");
            let _ = std::io::stdout().flush();
        }
        Control::Continue
    })?;
    let tokens = reply.completion.completion_tokens;
    println!("\n[{tokens} tokens by {}]", reply.backend);
    Ok(())
}
