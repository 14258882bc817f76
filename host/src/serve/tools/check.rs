//! Whether a JSON schema can be held to, and if not, where in it the fault lies.
//!
//! A schema is compiled as engines do it, for a vocabulary of single bytes, with limits of size and time: so one tool's fault is
//! known by itself, before a model is asked.

use super::finite;
use backplane_plugin_api::schema::unheld_number;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long the schemas of a request may take, all together.
const TIME: Duration = Duration::from_secs(10);
/// Compilers descend. Pages that aren't touched cost nothing.
const STACK: usize = 256 << 20;
/// The longest schema, bytes.
const LONGEST: usize = 256 << 10;
/// How many parts of a wrong schema are tried, so that its fault is found.
const PARTS: usize = 200;

/// What is wrong with a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Where, as a JSON pointer into the schema.
    pub(super) pointer: String,
    pub(super) why: String,
}

/// The faults of some schemas; `None` for each that is right.
pub(super) fn schemas(all: Vec<Value>) -> Vec<Option<Fault>> {
    let count = all.len();
    let (sender, receiver) = channel();
    let work = move || {
        for (at, schema) in all.iter().enumerate() {
            if sender.send((at, fault(schema))).is_err() {
                return;
            }
        }
    };
    let unknown = |why: &str| {
        Some(Fault {
            pointer: String::new(),
            why: why.to_owned(),
        })
    };
    let mut faults = vec![unknown("it takes too long to compile"); count];
    let thread = std::thread::Builder::new()
        .name("schemas".into())
        .stack_size(STACK);
    if let Err(error) = thread.spawn(work) {
        return vec![unknown(&format!("it can't be compiled: {error}")); count];
    }
    let end = std::time::Instant::now() + TIME;
    for _ in 0..count {
        let left = end.saturating_duration_since(std::time::Instant::now());
        match receiver.recv_timeout(left) {
            Ok((at, fault)) => faults[at] = fault,
            Err(_) => break,
        }
    }
    faults
}

fn fault(schema: &Value) -> Option<Fault> {
    if schema.to_string().len() > LONGEST {
        let why = format!("it has more than {LONGEST} bytes");
        return Some(Fault {
            pointer: String::new(),
            why,
        });
    }
    if let Some((pointer, why)) = unheld_number(schema) {
        return Some(Fault { pointer, why });
    }
    let schema = &finite::pruned(schema.clone());
    let Some(why) = compile(schema) else {
        return finite::endless(schema).map(|pointer| Fault {
            pointer,
            why: "no finite text satisfies it: it requires itself within itself, without end"
                .to_owned(),
        });
    };
    let mut left = PARTS;
    Some(narrow(schema, schema, String::new(), why, &mut left))
}

fn factory() -> &'static Result<ParserFactory, String> {
    static FACTORY: OnceLock<Result<ParserFactory, String>> = OnceLock::new();
    FACTORY.get_or_init(|| {
        let bytes = ApproximateTokEnv::single_byte_env();
        let factory = ParserFactory::new(&bytes, InferenceCapabilities::default(), &[]);
        let mut factory = factory.map_err(|error| error.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(factory)
    })
}

/// Why a schema can't be compiled.
fn compile(schema: &Value) -> Option<String> {
    let factory = match factory() {
        Ok(factory) => factory,
        Err(why) => return Some(why.clone()),
    };
    let parser = factory.create_parser(TopLevelGrammar::from_json_schema(schema.clone()));
    let why = match parser {
        Ok(parser) => Matcher::new(Ok(parser)).get_error()?,
        Err(error) => format!("{error:#}"),
    };
    let lines = why.lines().map(str::trim).filter(|line| !line.is_empty());
    let line: Vec<&str> = lines.take_while(|line| !line.starts_with('<')).collect();
    let line: String = line.join("; ").chars().take(300).collect();
    Some(plain(&line))
}

/// What the compiler says, in words for who wrote the schema.
fn plain(line: &str) -> String {
    const NOTHING: &str = "Unsatisfiable schema: ";
    if line.contains("coerce_one_of") {
        return "parts of its oneOf overlap, and which of them a text is can't be seen while it is written: \
                make them exclude each other, or write anyOf"
            .to_owned();
    }
    if line.contains("Default retriever does not fetch") {
        return "a $ref leads out of the schema: no other documents are fetched".to_owned();
    }
    if !line.contains(NOTHING) {
        return line.to_owned();
    }
    // Behind this is how the compiler writes expressions.
    let line = line.split(":  (").next().unwrap_or(line);
    format!("no text satisfies it: {}", line.replace(NOTHING, ""))
}

/// The smallest part that is wrong by itself.
fn narrow(root: &Value, part: &Value, pointer: String, why: String, left: &mut usize) -> Fault {
    for (step, inner) in parts(part) {
        if *left == 0 {
            break;
        }
        *left -= 1;
        if let Some(why) = compile(&by_itself(root, inner)) {
            return narrow(root, inner, format!("{pointer}{step}"), why, left);
        }
    }
    Fault { pointer, why }
}

/// A part of a schema, with all that its references may name.
fn by_itself(root: &Value, part: &Value) -> Value {
    let (Some(all), Some(part)) = (root.as_object(), part.as_object()) else {
        return part.clone();
    };
    let mut alone: Map<String, Value> = part.clone();
    for name in ["$defs", "definitions", "$schema"] {
        if let Some(definitions) = all.get(name) {
            alone.insert(name.to_owned(), definitions.clone());
        }
    }
    Value::Object(alone)
}

/// The schemas right inside of a schema, each with its step of a pointer.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let mut parts = Vec::new();
    for (key, value) in schema.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions",
                Value::Object(inner),
            ) => {
                let step = |name: &String| {
                    format!("/{key}/{}", name.replace('~', "~0").replace('/', "~1"))
                };
                parts.extend(inner.iter().map(|(name, value)| (step(name), value)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(inner)) => {
                parts.extend(
                    inner
                        .iter()
                        .enumerate()
                        .map(|(at, value)| (format!("/{key}/{at}"), value)),
                );
            }
            ("items" | "additionalProperties" | "not", Value::Object(_)) => {
                parts.push((format!("/{key}"), value));
            }
            _ => {}
        }
    }
    parts
}

/// A grammar for single bytes.
#[cfg(test)]
pub(super) fn matcher(grammar: &backplane_plugin_api::types::Grammar) -> Result<Matcher, String> {
    let grammar = TopLevelGrammar::from_tagged_str(&grammar.kind, &grammar.source);
    let parser = factory()
        .as_ref()?
        .create_parser(grammar.map_err(|error| error.to_string())?);
    parser
        .map(|parser| Matcher::new(Ok(parser)))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn faults_are_found_where_they_lie() {
        let right = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/b" } }, "$defs": { "b": { "enum": [1] } } });
        let deep = json!({ "type": "object", "properties": { "a": right, "b/c": { "type": "array", "items": { "anyOf": [{}, { "type": "objet" }] } } } });
        let dangling =
            json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/none" } } });
        let unused = json!({ "type": "string", "pattern": "(?=a)b" });
        // Of this the compiler would call itself without end, and the server with it.
        let far = json!({ "properties": { "a": { "const": i64::MIN } } });
        let faults = schemas(vec![
            right,
            deep,
            dangling,
            unused,
            json!([]),
            json!({}),
            far,
        ]);
        let pointers: Vec<Option<&str>> = faults
            .iter()
            .map(|it| it.as_ref().map(|it| it.pointer.as_str()))
            .collect();
        let expected = [
            None,
            Some("/properties/b~1c/items/anyOf/1"),
            Some("/properties/a"),
            Some(""),
            Some(""),
            None,
            Some("/properties/a/const"),
        ];
        assert_eq!(pointers, expected, "{faults:?}");
        assert!(
            faults
                .iter()
                .flatten()
                .all(|it| !it.why.is_empty() && !it.why.contains('\n'))
        );
    }

    #[test]
    fn what_nothing_satisfies_is_said_in_plain_words() {
        let within = |inner: Value| json!({ "type": "object", "properties": { "a": inner }, "required": ["a"] });
        let itself = json!({ "$ref": "#" });
        for (schema, pointer, said) in [
            (itself.clone(), "", "no finite text satisfies it"),
            (
                within(itself),
                "/properties/a",
                "no finite text satisfies it",
            ),
            (
                within(json!(false)),
                "/properties/a",
                "no text satisfies it: schema is false",
            ),
            (
                within(json!({ "enum": [] })),
                "/properties/a",
                "no text satisfies it: anyOf is empty",
            ),
            (
                json!({ "type": "string", "minLength": 5, "maxLength": 2 }),
                "",
                "no text satisfies it: minLength (5) is greater than maxLength (2)",
            ),
            (
                json!({ "type": "string", "pattern": "^a$", "maxLength": 0 }),
                "",
                "no text satisfies it: Regex is empty",
            ),
        ] {
            let fault = fault(&schema).unwrap();
            assert_eq!(fault.pointer, pointer, "{fault:?}");
            assert!(fault.why.starts_with(said), "{fault:?}");
            assert!(!fault.why.contains("nsatisfiable schema"), "{fault:?}");
        }
        // A part that nothing can have is left out.
        let endless = json!({ "$ref": "#/$defs/loop" });
        for (schema, right, begun) in [
            (
                json!({ "type": "object", "properties": { "a": endless, "b": { "type": "null" } }, "additionalProperties": false }),
                "{\"b\":null}",
                "{\"a\":",
            ),
            (
                json!({ "type": "object", "properties": { "a": endless }, "additionalProperties": false }),
                "{}",
                "{\"a\":",
            ),
            (json!({ "type": "array", "items": endless }), "[]", "[{"),
            (
                json!({ "anyOf": [endless, { "type": "null" }] }),
                "null",
                "{",
            ),
            (
                json!({ "oneOf": [endless, { "type": "null" }] }),
                "null",
                "{",
            ),
            (
                json!({ "type": ["object", "null"], "properties": { "a": endless }, "required": ["a"] }),
                "null",
                "{",
            ),
        ] {
            let mut schema = schema;
            schema["$defs"] = json!({ "loop": within(json!({ "$ref": "#/$defs/loop" })) });
            assert_eq!(fault(&schema), None, "{schema}");
            let grammar = backplane_plugin_api::types::Grammar {
                kind: "json_schema".to_owned(),
                source: finite::pruned(schema.clone()).to_string(),
            };
            let takes = |text: &str| {
                let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
                let mut matcher = matcher(&grammar).unwrap();
                let taken = matcher.try_consume_tokens(&bytes).unwrap();
                (taken == bytes.len(), matcher.is_accepting().unwrap())
            };
            assert_eq!(takes(right), (true, true), "{schema}");
            assert!(!takes(begun).0, "{schema}: {begun}");
        }
        let tree = within(json!({ "anyOf": [{ "$ref": "#" }, { "type": "null" }] }));
        assert_eq!(fault(&tree), None);
    }
}
