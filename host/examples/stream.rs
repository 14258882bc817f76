//! Loads a model and streams a reply: `stream MODEL PROMPT [MANIFEST]`.

use backplane::{Control, Event, GenerateOptions, GenerateRequest, ModelOptions, Prompt, Registry};
use std::io::Write;
use std::path::Path;

fn main() -> backplane::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, model, prompt, manifest @ ..] = arguments.as_slice() else {
        return Err(backplane::Error::usage(
            "expected MODEL PROMPT [MANIFEST]",
            "name a model and a prompt",
        ));
    };
    let registry = Registry::open(manifest.first().map(Path::new))?;
    let model = registry.load(model, &ModelOptions::default())?;
    let options = GenerateOptions {
        max_tokens: Some(32),
        ..GenerateOptions::default()
    };
    let request = GenerateRequest {
        prompt: Prompt::text(prompt),
        options,
    };
    let reply = model.generate(&request, &mut |event: Event<'_>| {
        if let Event::Token { text, .. } | Event::Text { text } = event {
            print!("{text}");
            let _ = std::io::stdout().flush();
        }
        Control::Continue
    })?;
    println!(
        "\n[{} tokens by {}]",
        reply.completion.completion_tokens, reply.backend
    );
    Ok(())
}
