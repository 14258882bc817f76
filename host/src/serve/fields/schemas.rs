//! What each field takes, as JSON schema: the document of the API is made of it, and a test compares it with what is read.

use super::{Does, Endpoint, Field, fields};
use serde_json::{Map, Value, json};

/// The schema of an endpoint's request.
pub(in crate::serve) fn body(endpoint: Endpoint) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in fields(endpoint) {
        let mut schema = schema(endpoint, field.name).unwrap_or_else(|| match field.does {
            Does::Refused(_) => only(json!([[], {}, ""])),
            _ => json!({}),
        });
        if is_required(field) {
            required.push(field.name);
        } else if schema.as_object().is_some_and(|schema| !schema.is_empty()) {
            // Null is as if the field were not there.
            schema = json!({ "anyOf": [schema, { "type": "null" }] });
        }
        schema["description"] = field.about.into();
        properties.insert(field.name.to_owned(), schema);
    }
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if endpoint == Endpoint::OllamaShow {
        // By either name.
        schema["anyOf"] = json!([{ "required": ["model"] }, { "required": ["name"] }]);
    } else {
        schema["required"] = json!(required);
    }
    schema
}

/// Whether the table says that it has to be there.
fn is_required(field: &Field) -> bool {
    field.about.ends_with("; required")
}

/// Just above the largest number of 32 bits.
const LARGE: f64 = 3.402_823_5e38;

fn text() -> Value {
    json!({ "type": "string" })
}

fn some_text() -> Value {
    json!({ "type": "string", "minLength": 1 })
}

fn truth() -> Value {
    json!({ "type": "boolean" })
}

fn whole(least: i64, most: u64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most })
}

fn count() -> Value {
    whole(0, u32::MAX.into())
}

fn number(least: f64, most: f64) -> Value {
    json!({ "type": "number", "minimum": least, "maximum": most })
}

fn array(items: Value, least: usize, most: usize) -> Value {
    json!({ "type": "array", "items": items, "minItems": least, "maxItems": most })
}

fn any_of(schemas: &[Value]) -> Value {
    json!({ "anyOf": schemas })
}

fn only(values: Value) -> Value {
    json!({ "enum": values })
}

fn tokens() -> Value {
    json!({ "type": "array", "items": count(), "minItems": 1 })
}

/// What a field takes; `None`: what asks for nothing, where it is refused, else anything.
fn schema(endpoint: Endpoint, name: &str) -> Option<Value> {
    use Endpoint::{
        Chat, ChatMessage, Completions, Detokenize, Embeddings, OllamaChat, OllamaEmbed,
        OllamaEmbeddings, OllamaGenerate, ResponseItem, Responses, Tokenize,
    };
    Some(match (endpoint, name) {
        // What a request is about.
        (ChatMessage, "role") => only(json!(["system", "developer", "user", "assistant", "tool"])),
        (ChatMessage, "content") => any_of(&[
            text(),
            json!({ "type": "array", "items": {
                "type": "object",
                "properties": { "type": { "const": "text" }, "text": text(), "cache_control": {}, "prompt_cache_breakpoint": {}, "annotations": {} },
                "required": ["type", "text"],
                "additionalProperties": false,
            } }),
        ]),
        (ChatMessage, "tool_calls") => json!({ "type": "array", "items": call() }),
        (ChatMessage, "tool_call_id" | "reasoning_content" | "reasoning" | "refusal") => text(),
        (ResponseItem, "type") => only(json!([
            "message",
            "reasoning",
            "function_call",
            "function_call_output"
        ])),
        // What an item does not have by its type is not looked at.
        (ResponseItem, "role") => json!({ "examples": ["user", "assistant"] }),
        (ResponseItem, "content" | "output") => json!({ "examples": ["Hi"] }),
        (ResponseItem, "summary") => json!({ "examples": [[]] }),
        (ResponseItem, "call_id" | "name") => json!({ "examples": ["a"] }),
        (ResponseItem, "arguments") => json!({ "examples": ["{}"] }),
        (ResponseItem, "async" | "async_") => only(json!([false])),
        (_, "model" | "name") => text(),
        (_, "messages") => json!({
            "type": "array",
            "minItems": usize::from(endpoint != OllamaChat),
            "items": message(endpoint),
        }),
        (Completions, "prompt") => {
            any_of(&[text(), tokens(), array(any_of(&[text(), tokens()]), 1, 128)])
        }
        (Embeddings | OllamaEmbed, "input") => any_of(&[
            text(),
            tokens(),
            array(
                any_of(&[text(), tokens()]),
                usize::from(endpoint == Embeddings),
                2048,
            ),
        ]),
        (Responses, "input") => any_of(&[
            text(),
            json!({ "type": "array", "minItems": 1, "items": body(ResponseItem) }),
        ]),
        (Responses, "instructions") => text(),
        (OllamaGenerate | OllamaEmbeddings, "prompt") => text(),
        (OllamaGenerate, "system") => text(),
        (Tokenize, "prompt" | "content") => text(),
        (Detokenize, "tokens") => json!({ "type": "array", "items": count() }),
        (_, "system") => any_of(&[text(), json!({ "type": "array", "items": text_part() })]),
        // How it is answered.
        (_, "stream" | "ignore_eos" | "raw" | "normalize") => truth(),
        (_, "parallel_tool_calls" | "add_special" | "add_special_tokens") => truth(),
        (_, "parse_special" | "with_pieces" | "return_token_strs") => truth(),
        (_, "stream_options") => json!({
            "type": "object",
            "properties": {
                "include_usage": any_of(&[truth(), json!({ "type": "null" })]),
                "include_obfuscation": {},
            },
            "additionalProperties": false,
        }),
        (_, "n") => whole(1, 128),
        (Chat | Completions, "max_tokens" | "max_completion_tokens") => whole(-1, u32::MAX.into()),
        (_, "max_tokens" | "max_output_tokens") => count(),
        (_, "num_predict" | "repeat_last_n") if endpoint == Endpoint::OllamaOptions => {
            whole(-2, u32::MAX.into())
        }
        (_, "temperature") => json!({ "type": "number", "minimum": 0, "exclusiveMaximum": LARGE }),
        (_, "top_p" | "min_p") => number(0.0, 1.0),
        (_, "top_k" | "repeat_last_n") => count(),
        (_, "presence_penalty" | "frequency_penalty") => number(-2.0, 2.0),
        (_, "repeat_penalty") => json!({
            "type": "number", "minimum": f32::MIN_POSITIVE, "exclusiveMaximum": LARGE,
        }),
        (_, "logit_bias") => json!({
            "type": "object",
            "propertyNames": { "pattern": "^[0-9]{1,9}$" },
            "additionalProperties": number(-100.0, 100.0),
        }),
        (_, "seed") => whole(i64::MIN, u64::MAX),
        (_, "stop") => any_of(&[some_text(), array(some_text(), 0, 16)]),
        (_, "stop_sequences") => array(some_text(), 0, 16),
        (_, "stop_token_ids") => array(count(), 0, 1024),
        (Completions, "logprobs") => whole(0, 20),
        (_, "logprobs") => truth(),
        (_, "top_logprobs") => whole(0, 20),
        (_, "chat_template_kwargs") => json!({ "type": "object" }),
        (_, "encoding_format") => only(json!(["float", "base64"])),
        (_, "pooling") => only(json!(["mean", "last", "cls"])),
        (OllamaEmbed, "dimensions") => count(),
        (_, "dimensions" | "num_ctx") => whole(1, u32::MAX.into()),
        (_, "options") => body(Endpoint::OllamaOptions),
        // What is refused unless it asks for nothing.
        (_, "best_of") => only(json!([1])),
        (OllamaEmbed, "truncate") => truth(),
        (_, "echo" | "store" | "truncate" | "shift") => only(json!([false])),
        (_, "logits_all" | "vocab_only" | "embedding_only") => only(json!([false])),
        (_, "add_generation_prompt" | "penalize_newline") => only(json!([true])),
        (_, "mirostat") => only(json!([0])),
        (_, "tfs_z" | "typical_p") => only(json!([1])),
        (_, "keep_alive") => any_of(&[
            json!({ "type": "number" }),
            json!({ "type": "string", "examples": ["5m"] }),
        ]),
        (_, "width" | "height" | "steps") => only(json!([])),
        (Chat, "function_call") => only(json!(["none", "auto"])),
        (_, "reasoning_effort") => only(json!(EFFORTS)),
        (_, "reasoning_format") => only(json!(["auto", "deepseek", "none"])),
        (_, "think") => only(json!([true, false, "low", "medium", "high"])),
        (_, "verbosity") => only(json!(["medium"])),
        (Chat | Responses, "service_tier") => only(json!(["auto", "default"])),
        (Endpoint::Messages, "service_tier") => only(json!(["auto", "standard_only"])),
        (_, "inference_geo") => only(json!(["global"])),
        (_, "speed") => only(json!(["standard"])),
        (_, "modalities") => json!({ "type": "array", "items": { "const": "text" } }),
        // Objects with rules of their own.
        (_, "response_format") => any_of(&[
            json!({
                "type": "object",
                "properties": { "type": { "const": "text" } },
                "required": ["type"],
            }),
            json!({
                "type": "object",
                "properties": { "type": { "const": "json_object" }, "schema": any_of(&[
                    json!({ "type": "null" }),
                    json!({ "type": "object" }),
                ]) },
                "required": ["type"],
            }),
            json!({
                "type": "object",
                "properties": { "type": { "const": "json_schema" }, "json_schema": {
                    "type": "object",
                    "properties": {
                        "name": text(), "description": text(), "strict": truth(), "schema": { "type": "object" },
                    },
                    "additionalProperties": false,
                } },
                "required": ["type", "json_schema"],
            }),
        ]),
        (_, "grammar") => json!({
            "type": "object",
            "properties": { "json_schema": { "type": "object" }, "regex": text(), "lark": text() },
            "maxProperties": 1,
            "additionalProperties": false,
        }),
        (_, "tools") => json!({ "type": "array", "items": { "type": "object" } }),
        (_, "text") => json!({ "type": "object" }),
        (_, "format") => any_of(&[only(json!(["json", ""])), json!({ "type": "object" })]),
        (_, "output_config") => json!({
            "type": "object",
            "properties": { "format": any_of(&[
                json!({ "type": "null" }),
                json!({
                    "type": "object",
                    "properties": { "type": { "const": "json_schema" }, "schema": { "type": "object" } },
                    "required": ["type", "schema"],
                }),
            ]), "effort": { "type": "null" } },
            "additionalProperties": { "type": "null" },
        }),
        (_, "background") => only(json!([false])),
        (_, "truncation") => only(json!(["disabled"])),
        (_, "reasoning") => {
            let efforts = EFFORTS.iter().map(|one| json!(one)).chain([Value::Null]);
            let summaries = json!(["auto", "concise", "detailed", null]);
            json!({
                "type": "object",
                "properties": { "effort": only(efforts.collect()), "summary": only(summaries.clone()), "generate_summary": only(summaries) },
                "additionalProperties": false,
            })
        }
        (_, "thinking") => json!({
            "type": "object",
            "properties": { "type": only(json!(["disabled", "enabled", "adaptive"])), "budget_tokens": { "type": "integer", "minimum": 1, "maximum": 4_294_967_295_u32 } },
            "required": ["type"],
            "additionalProperties": false,
        }),
        (_, "include") => json!({
            "type": "array", "items": only(json!(["message.output_text.logprobs", "reasoning.encrypted_content"])),
        }),
        _ => return None,
    })
}

/// How much a model may be asked to think.
const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];

fn text_part() -> Value {
    json!({
        "type": "object",
        "properties": { "type": { "const": "text" }, "text": text() },
        "required": ["type", "text"],
    })
}

/// A call of a function, of an earlier message.
fn call() -> Value {
    json!({
        "type": "object",
        "properties": {
            "id": some_text(),
            "type": only(json!(["function", null])),
            "function": {
                "type": "object",
                "properties": {
                    "name": some_text(),
                    "arguments": any_of(&[
                        json!({ "type": "string", "examples": ["{}"] }),
                        json!({ "type": "object" }),
                    ]),
                    "parsed_arguments": {},
                },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            },
            "index": {},
        },
        "required": ["id", "function"],
        "additionalProperties": false,
    })
}

/// A message of a conversation. Only its frame is described: what is in it depends on its role.
fn message(endpoint: Endpoint) -> Value {
    if [Endpoint::Chat, Endpoint::Tokenize].contains(&endpoint) {
        return body(Endpoint::ChatMessage);
    }
    let roles = match endpoint {
        Endpoint::Messages | Endpoint::CountTokens => json!(["user", "assistant"]),
        _ => json!(["system", "user", "assistant"]),
    };
    let content = match endpoint {
        Endpoint::OllamaChat => text(),
        _ => any_of(&[text(), json!({ "type": "array", "items": text_part() })]),
    };
    json!({
        "type": "object",
        "properties": { "role": { "examples": roles, "type": "string", "minLength": 1 }, "content": content },
        "required": ["role", "content"],
    })
}

#[cfg(test)]
mod tests;
