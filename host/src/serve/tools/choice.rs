//! Which tools a request offers, and which of them the model may or must call: every dialect fills this in.

use super::typed::Signature;
use super::{Held, finite};
use crate::serve::fields::values::{Amiss, expected, of_field, of_item};
use serde_json::{Map, Value, json};

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::serve) struct Tool {
    pub(in crate::serve) name: String,
    pub(in crate::serve) description: Option<String>,
    /// A JSON schema of its arguments, an object's; `None` takes none.
    pub(in crate::serve) parameters: Option<Value>,
    /// Where the schema stands in the request, as a JSON pointer: `/tools/0/function/parameters`.
    pub(in crate::serve) place: String,
}

impl Tool {
    /// As chat templates know tools.
    pub(in crate::serve) fn json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), json!(self.name));
        function.insert(
            "description".into(),
            json!(self.description.as_deref().unwrap_or_default()),
        );
        function.insert("parameters".into(), self.schema());
        json!({ "type": "function", "function": function })
    }

    /// What readers of calls know of it.
    pub(super) fn signature(&self) -> Signature {
        Signature {
            name: self.name.clone(),
            schema: self.schema(),
        }
    }

    /// The schema of its arguments: of no argument, where it has none, and without those that nothing finite can be. Arguments are an object, also where the schema leaves that open.
    pub(in crate::serve) fn schema(&self) -> Value {
        let Some(mut schema) = self.parameters.clone() else {
            return json!({ "type": "object", "properties": {}, "additionalProperties": false });
        };
        let open = match schema.get("type") {
            None => true,
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
            Some(_) => false,
        };
        if let (true, Some(object)) = (open, schema.as_object_mut()) {
            object.insert("type".into(), json!("object"));
        }
        finite::pruned(schema)
    }

    /// Why its arguments are no object, where its schema is that of something else.
    pub(super) fn no_object(&self) -> Option<String> {
        let schema = self.schema();
        let kind = schema.get("type").filter(|kind| *kind != "object")?;
        Some(expected(
            "an object's schema, as arguments are objects",
            kind,
        ))
    }
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) enum Choice {
    /// As the model likes.
    #[default]
    Auto,
    /// Not at all; the model is told of none.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// The tools of a request.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::serve) struct Tools {
    pub(in crate::serve) offered: Vec<Tool>,
    pub(in crate::serve) choice: Choice,
    /// Of those offered, which may be called; `None` is all.
    pub(in crate::serve) allowed: Option<Vec<String>>,
    /// Whether several may be called in one reply.
    pub(in crate::serve) parallel: bool,
    /// What the text of a reply is held to.
    pub(in crate::serve) held: Option<Held>,
    /// Whether what is thought stays in the text, with its marks.
    pub(in crate::serve) as_written: bool,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            offered: Vec::new(),
            choice: Choice::Auto,
            allowed: None,
            parallel: true,
            held: None,
            as_written: false,
        }
    }
}

impl Tools {
    /// Whether any may be called.
    pub(in crate::serve) fn any(&self) -> bool {
        !self.offered.is_empty() && self.choice != Choice::None
    }

    /// Whether the reply is to be a call.
    pub(in crate::serve) fn must_call(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::Named(_))
    }

    /// Those that may be called.
    pub(in crate::serve) fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.offered
            .iter()
            .filter(|tool| match (&self.choice, &self.allowed) {
                (Choice::None, _) => false,
                (Choice::Named(name), _) => tool.name == *name,
                (_, Some(allowed)) => allowed.contains(&tool.name),
                (_, None) => true,
            })
    }

    /// That what is chosen is offered.
    ///
    /// # Errors
    /// What is not.
    pub(in crate::serve) fn check(&self) -> Result<(), Amiss> {
        let named = match &self.choice {
            Choice::Named(name) => Some(name),
            _ => None,
        };
        let mut chosen = named.into_iter().chain(self.allowed.iter().flatten());
        let offered = |name: &&String| self.offered.iter().any(|tool| tool.name == **name);
        if let Some(other) = chosen.find(|name| !offered(name)) {
            return Err(format!("`{other}` is not among the tools").into());
        }
        if self.choice == Choice::Required && self.callable().next().is_none() {
            return Err("expected tools to choose from".to_owned().into());
        }
        Ok(())
    }
}

/// Most tools of one request.
const MOST: usize = 128;

/// OpenAI's `tools`.
///
/// # Errors
/// One is not a function with a name of its own.
pub(in crate::serve) fn read(value: &Value) -> Result<Vec<Tool>, Amiss> {
    let what = format!("an array of up to {MOST} functions");
    let all = value.as_array().filter(|all| all.len() <= MOST);
    let all = all.ok_or_else(|| expected(&what, value))?;
    let mut tools: Vec<Tool> = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let tool = tool(index, one).map_err(|why| of_item(index, why))?;
        if tools.iter().any(|other| other.name == tool.name) {
            let why = format!("there are two functions named `{}`", tool.name);
            return Err(of_item(index, of_field("function", of_field("name", why))));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(index: usize, value: &Value) -> Result<Tool, Amiss> {
    if !value.is_object() {
        return Err(expected("an object of the type `function`", value).into());
    }
    if value["type"] != "function" {
        let why = expected("the type `function`", &value["type"]);
        return Err(of_field("type", why));
    }
    fields(value, "of a tool", &["type", "function", "cache_control"])?;
    let what = "an object with the name of a function";
    let function = &value["function"];
    let object = function
        .as_object()
        .ok_or_else(|| of_field("function", expected(what, function)))?;
    let inside = |key: &str, why: String| of_field("function", of_field(key, why));
    let name = name(&function["name"]).map_err(|why| of_field("function", why))?;
    for (key, value) in object {
        let right = match key.as_str() {
            "name" => true,
            "description" => value.is_string() || value.is_null(),
            "parameters" => value.is_object() || value.is_null(),
            "strict" => value.is_boolean() || value.is_null(),
            other => return Err(inside(other, "no such field of a function".to_owned())),
        };
        if !right {
            let what = match key.as_str() {
                "description" => "a text",
                "parameters" => "a JSON schema, an object",
                _ => "true or false",
            };
            return Err(inside(key, expected(what, value)));
        }
    }
    Ok(Tool {
        name,
        description: function["description"].as_str().map(str::to_owned),
        parameters: object.get("parameters").filter(|it| !it.is_null()).cloned(),
        place: format!("/tools/{index}/function/parameters"),
    })
}

/// That an object has no field but these.
fn fields(value: &Value, of: &str, known: &[&str]) -> Result<(), Amiss> {
    let mut keys = value.as_object().into_iter().flat_map(Map::keys);
    match keys.find(|key| !known.contains(&key.as_str())) {
        Some(other) => Err(of_field(other, format!("no such field {of}"))),
        None => Ok(()),
    }
}

/// The name of a function: what families write around names is not to be mistaken for a part of one.
///
/// # Errors
/// It is none.
pub(in crate::serve) fn name(value: &Value) -> Result<String, Amiss> {
    let name = value.as_str().unwrap_or_default();
    let right = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > 128 || !name.bytes().all(right) {
        let what = "a name of up to 128 letters, digits, `_`, `-` and `.`";
        return Err(of_field("name", expected(what, value)));
    }
    Ok(name.to_owned())
}

/// OpenAI's `tool_choice`.
///
/// # Errors
/// It is none.
pub(in crate::serve) fn read_choice(value: &Value, tools: &mut Tools) -> Result<(), Amiss> {
    let what = "`auto`, `none`, `required`, or a function by its name";
    let wrong = || expected(what, value);
    let mode = |value: &Value| match value.as_str() {
        Some("auto") => Ok(Choice::Auto),
        Some("none") => Ok(Choice::None),
        Some("required") => Ok(Choice::Required),
        _ => Err(wrong()),
    };
    tools.choice = match value["type"].as_str() {
        Some("function") => {
            fields(value, "of a choice", &["type", "function"])?;
            let inside = |why: Amiss| of_field("function", why);
            let function = &value["function"];
            fields(function, "of a choice", &["name"]).map_err(inside)?;
            Choice::Named(name(&function["name"]).map_err(inside)?)
        }
        Some("allowed_tools") => {
            fields(value, "of a choice", &["type", "allowed_tools"])?;
            let allowed = &value["allowed_tools"];
            let inside = |why: Amiss| of_field("allowed_tools", why);
            fields(allowed, "of a choice", &["mode", "tools"]).map_err(inside)?;
            let within = |why: Amiss| inside(of_field("tools", why));
            let names = allowed["tools"].as_array();
            let names = names.filter(|names| !names.is_empty());
            let what = "at least one tool that is allowed";
            let names = names.ok_or_else(|| within(expected(what, &allowed["tools"]).into()))?;
            let one = |(index, one): (usize, &Value)| {
                let named = name(&one["function"]["name"]);
                named.map_err(|why| within(of_item(index, of_field("function", why))))
            };
            tools.allowed = Some(
                names
                    .iter()
                    .enumerate()
                    .map(one)
                    .collect::<Result<_, _>>()?,
            );
            mode(&allowed["mode"]).map_err(|why| inside(of_field("mode", why)))?
        }
        Some(_) => return Err(wrong().into()),
        None => mode(value)?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } })
    }

    #[test]
    fn tools_of_a_request() {
        let all = read(&json!([function("a"), { "type": "function", "function": { "name": "b", "strict": true, "description": null } }])).unwrap();
        assert_eq!(all[0].place, "/tools/0/function/parameters");
        assert_eq!(all[0].schema(), json!({ "type": "object" }));
        assert_eq!(all[0].no_object(), None);
        for (parameters, kind) in [
            (json!({}), "object"),
            (json!({ "type": ["null", "object"] }), "object"),
            (json!({ "anyOf": [{ "type": "object" }] }), "object"),
            (json!({ "type": "string" }), "string"),
        ] {
            let mut tool = all[0].clone();
            tool.parameters = Some(parameters);
            assert_eq!(tool.schema()["type"], kind);
            assert_eq!(tool.no_object().is_some(), kind == "string");
        }
        assert_eq!(all[1].schema()["additionalProperties"], false);
        assert_eq!(all[1].json()["function"]["name"], "b");
        for (wrong, said) in [
            (json!({}), "an array of up to 128"),
            (
                json!([1]),
                "`[0]`: expected an object of the type `function`",
            ),
            (
                json!([{ "type": "custom", "custom": {} }]),
                "`[0].type`: expected the type `function`, found \"custom\"",
            ),
            (
                json!([{ "type": "function" }]),
                "`[0].function`: expected an object with the name",
            ),
            (
                json!([function("a b")]),
                "`[0].function.name`: expected a name",
            ),
            (json!([function("")]), "`[0].function.name`"),
            (
                json!([function("a"), function("a")]),
                "`[1].function.name`: there are two functions named `a`",
            ),
            (
                json!([{ "type": "function", "function": { "name": "a", "parameters": [] } }]),
                "`[0].function.parameters`: expected a JSON schema",
            ),
            (
                json!([{ "type": "function", "function": { "name": "a", "schema": {} } }]),
                "`[0].function.schema`: no such field of a function",
            ),
            (
                json!([{ "type": "function", "function": { "name": "a" }, "foo": 1 }]),
                "`[0].foo`: no such field of a tool",
            ),
            (json!(vec![function("a"); 129]), "up to 128"),
        ] {
            let why = read(&wrong).unwrap_err().to_string();
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn choices_of_a_request() {
        let of = |choice: Value| {
            let mut tools = Tools {
                offered: read(&json!([function("a"), function("b")])).unwrap(),
                ..Tools::default()
            };
            read_choice(&choice, &mut tools)?;
            tools.check()?;
            let names: Vec<String> = tools.callable().map(|tool| tool.name.clone()).collect();
            Ok::<_, Amiss>((tools.choice.clone(), names.join(" ")))
        };
        let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let allowed = |mode: &str, name: &str| json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": [function(name)] } });
        for (choice, expected, names) in [
            (json!("auto"), Choice::Auto, "a b"),
            (json!("none"), Choice::None, ""),
            (json!("required"), Choice::Required, "a b"),
            (named("b"), Choice::Named("b".into()), "b"),
            (allowed("required", "a"), Choice::Required, "a"),
        ] {
            assert_eq!(of(choice).unwrap(), (expected, names.to_owned()));
        }
        for (wrong, said) in [
            (
                json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [] } }),
                "`.allowed_tools.tools`: expected at least one tool that is allowed",
            ),
            (
                json!({ "type": "allowed_tools", "allowed_tools": { "foo": 1 } }),
                "`.allowed_tools.foo`: no such field",
            ),
            (
                json!({ "type": "function", "function": { "name": "a" }, "foo": 1 }),
                "`.foo`: no such field of a choice",
            ),
            (function("b"), "`.function.parameters`: no such field"),
            (json!("any"), "expected `auto`"),
            (json!(1), "expected `auto`"),
            (json!({ "type": "custom" }), "expected `auto`"),
            (
                json!({ "type": "function" }),
                "`.function.name`: expected a name",
            ),
            (named("c"), "`c` is not among the tools"),
            (allowed("auto", "c"), "`c` is not among the tools"),
            (
                allowed("any", "a"),
                "`.allowed_tools.mode`: expected `auto`",
            ),
        ] {
            let why = of(wrong).unwrap_err().to_string();
            assert!(why.contains(said), "{why}");
        }
        let none = Tools {
            choice: Choice::Required,
            ..Tools::default()
        };
        assert!(none.check().is_err());
    }
}
