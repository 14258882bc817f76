//! Constraints on a text: JSON schemas, regular expressions and Lark grammars, by `llguidance`.
//!
//! A grammar is compiled on the thread of the call that brings it, within limits of size and time. While its text is
//! generated, each row of logits is masked before a token is chosen: tokens that can't go on are minus infinity. So what holds
//! for texts without a grammar holds for those with one: alone, batched or drafted, the same seed gives the same text.

mod vocabulary;

use backplane_plugin_api::schema::unheld_number;
use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{Error, ErrorCode, Grammar};
use backplane_tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::SimpleVob;
use llguidance::{Matcher, ParserFactory};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The longest source, bytes.
const LONGEST: usize = 512 << 10;
/// How deep brackets may be nested: compilers descend into them.
const DEEPEST: usize = 500;
/// How long compiling may take. What it may do is counted as well, and mostly ends it long before.
const TIME: Duration = Duration::from_secs(10);
/// Compilations at once, those included that nobody waits for any more.
const AT_ONCE: usize = 8;
/// Grammars are compiled on a stack of their own, since compilers descend. Pages that aren't touched cost nothing.
const STACK: usize = 256 << 20;

/// Compiles grammars for one vocabulary.
pub(crate) struct Grammars {
    tokenizer: Tokenizer,
    /// Made for the first grammar: it takes as long as some hundred tokens.
    factory: OnceLock<std::result::Result<Arc<ParserFactory>, String>>,
    running: Arc<AtomicUsize>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

/// One of the compilations at once.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn invalid(message: impl fmt::Display) -> Error {
    Error::invalid_field(
        "grammar",
        format!("grammar: {}", one_line(&message.to_string())),
    )
}

/// The first line of a message, of a length for people.
fn one_line(message: &str) -> String {
    // What the library says where its first token can be none.
    if message.starts_with("NoExtensionBias") {
        return "no text satisfies it".to_owned();
    }
    let lines = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let lines = lines.take_while(|line| !line.starts_with('<'));
    let joined = lines.collect::<Vec<_>>().join("; ");
    match joined.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &joined[..end]),
        None => joined,
    }
}

impl Grammars {
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            factory: OnceLock::new(),
            running: Arc::default(),
        }
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// It is of no kind that is known, wrong, too large, or takes too long: the field is `grammar`.
    pub(crate) fn compile(&self, grammar: &Grammar) -> Result<Constraint> {
        let source = checked(grammar)?;
        let running = Running(Arc::clone(&self.running));
        if running.0.fetch_add(1, Ordering::AcqRel) >= AT_ONCE {
            let message = format!("{AT_ONCE} grammars are being compiled already");
            return Err(Error::new(ErrorCode::Busy, message));
        }
        let factory = self
            .factory
            .get_or_init(|| vocabulary::factory(&self.tokenizer).map_err(|error| one_line(&error)));
        let factory = factory.as_ref().map_err(|why| {
            Error::new(
                ErrorCode::Unsupported,
                format!("the vocabulary takes no grammars: {why}"),
            )
        })?;
        let factory = Arc::clone(factory);
        let (sender, receiver) = channel();
        let compile = move || {
            let _running = running;
            let parser = factory.create_parser(source);
            let matcher = parser.map(|parser| Matcher::new(Ok(parser)));
            // Who asked may have given up.
            let _ = sender.send(matcher.map_err(|error| format!("{error:#}")));
        };
        let thread = std::thread::Builder::new()
            .name("backplane-grammar".into())
            .stack_size(STACK);
        thread.spawn(compile).map_err(|error| {
            let message = format!("the grammar's thread could not start: {error}");
            Error::new(ErrorCode::Internal, message)
        })?;
        let matcher = match receiver.recv_timeout(TIME) {
            Ok(compiled) => compiled.map_err(invalid)?,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = TIME.as_secs();
                return Err(invalid(format!(
                    "it was not compiled within {seconds} seconds"
                )));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(invalid("it can't be compiled")),
        };
        match matcher.get_error() {
            Some(error) => Err(invalid(error)),
            None => Ok(Constraint {
                matcher,
                tokens: self.tokenizer.vocab_size(),
            }),
        }
    }
}

/// A grammar as it is compiled, if it is not too large.
fn checked(grammar: &Grammar) -> Result<TopLevelGrammar> {
    let source = grammar.source.as_str();
    if source.len() > LONGEST {
        let found = source.len();
        return Err(invalid(format!(
            "it has {found} bytes, expected at most {LONGEST}"
        )));
    }
    if source.trim().is_empty() {
        return Err(invalid("it is empty"));
    }
    if depth(source) > DEEPEST {
        return Err(invalid(format!(
            "its brackets are nested more than {DEEPEST} deep"
        )));
    }
    match grammar.kind.as_str() {
        "json_schema" => {
            let schema = serde_json::from_str(source);
            let schema =
                schema.map_err(|error| invalid(format!("the schema is no JSON: {error}")))?;
            holds(&schema)?;
            Ok(TopLevelGrammar::from_json_schema(bounded(schema)))
        }
        "regex" => Ok(TopLevelGrammar::from_regex(source)),
        "lark" => {
            // Schemas within it. What is no JSON there is the compiler's to refuse.
            for part in source.split("%json").skip(1) {
                let mut values = serde_json::Deserializer::from_str(part).into_iter();
                if let Some(Ok(schema)) = values.next() {
                    holds(&schema)?;
                }
            }
            Ok(TopLevelGrammar::from_lark(source.to_owned()))
        }
        other => Err(invalid(format!(
            "found kind {other:?}, expected json_schema, regex or lark"
        ))),
    }
}

/// Whether a text can be held to the numbers of a schema.
fn holds(schema: &serde_json::Value) -> Result<()> {
    match unheld_number(schema) {
        Some((pointer, why)) => Err(invalid(format!("{pointer}: {why}"))),
        None => Ok(()),
    }
}

/// White space as it is usual in JSON, so that a text can't go on with nothing else. A schema that says otherwise has its way.
fn bounded(mut schema: serde_json::Value) -> serde_json::Value {
    if let Some(object) = schema.as_object_mut() {
        let space =
            serde_json::json!({ "whitespace_pattern": r"(\x20|\x0D?\x0A[\x20\x09]{0,20})" });
        object.entry("x-guidance").or_insert(space);
    }
    schema
}

/// How deep brackets of any kind are nested, at most.
fn depth(source: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// A grammar on its way through a text.
pub(crate) struct Constraint {
    matcher: Matcher,
    /// Tokens of the vocabulary; rows of logits may be longer.
    tokens: usize,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    /// Sets the logits of all tokens that can't go on to minus infinity; those of `ends` too, where anything else can.
    ///
    /// # Errors
    /// The grammar asks for more than it may take.
    pub(crate) fn mask(&mut self, logits: &mut [f32], ends: &[u32]) -> Result<()> {
        let mut allowed = self.matcher.compute_mask().map_err(invalid)?;
        if !ends.is_empty() {
            let mut others = allowed.clone();
            let known = ends.iter().filter(|&&end| (end as usize) < self.tokens);
            known.for_each(|&end| others.disallow_token(end));
            if !others.is_zero() {
                allowed = others;
            }
        }
        let (known, unknown) = logits.split_at_mut(self.tokens.min(logits.len()));
        keep(&allowed, known);
        unknown.fill(f32::NEG_INFINITY);
        Ok(())
    }

    /// Goes on by a token that the mask allowed.
    ///
    /// # Errors
    /// It did not.
    pub(crate) fn accept(&mut self, token: u32) -> Result<()> {
        self.matcher.consume_token(token).map_err(invalid)
    }

    /// Whether nothing can follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.matcher.is_stopped()
    }
}

/// Minus infinity for all that is not allowed.
fn keep(allowed: &SimpleVob, logits: &mut [f32]) {
    for (word, logits) in logits.chunks_mut(32).enumerate() {
        let bits = allowed.as_slice().get(word).copied().unwrap_or(0);
        if bits == u32::MAX {
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if bits >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
