//! Addition in templates, bounded: minijinja joins lists without counting their items, so that a template which doubles a list
//! many times would run, and take memory, without end.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions};
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Expression, Value, context};

/// The name of the function that adds. No template can name it.
pub(super) const NAME: &str = "+";

/// Items of the longest list that addition makes; a conversation of 10,000 messages is far below.
const LONGEST_LIST: usize = 1 << 20;

/// Items of all lists that addition makes while one conversation is rendered: each may be copied.
const MOST_ITEMS: u64 = 1 << 26;

/// Bytes of the longest text that addition makes.
const LONGEST_TEXT: usize = 256 << 20;

/// Makes a template's additions calls of [`NAME`].
pub(super) fn bound(template: &mut CompiledTemplate<'_>) {
    let blocks = template.blocks.values_mut();
    for instructions in std::iter::once(&mut template.instructions).chain(blocks) {
        bound_all(instructions);
    }
}

fn bound_all(instructions: &mut Instructions<'_>) {
    let mut index = 0;
    while let Some(instruction) = instructions.get_mut(index) {
        if matches!(instruction, Instruction::Add) {
            *instruction = Instruction::CallFunction(NAME, Some(2));
        }
        index += 1;
    }
}

/// The function for one rendering.
pub(super) fn function() -> Value {
    let items = AtomicU64::new(0);
    Value::from_function(move |left: Value, right: Value| add(&left, &right, &items))
}

fn add(left: &Value, right: &Value, items: &AtomicU64) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        if left.len() + right.len() > LONGEST_TEXT {
            return Err(too_long(format!(
                "a text of more than {LONGEST_TEXT} bytes"
            )));
        }
        return Ok(Value::from([left, right].concat()));
    }
    if let (true, true, Some(left), Some(right)) = (
        left.is_integer(),
        right.is_integer(),
        left.as_i64(),
        right.as_i64(),
    ) && let Some(sum) = left.checked_add(right)
    {
        return Ok(Value::from(sum));
    }
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if is_list(left) && is_list(right) {
        let lengths = left.len().zip(right.len());
        let length = lengths.and_then(|(left, right)| left.checked_add(right));
        let Some(length) = length.filter(|&length| length <= LONGEST_LIST) else {
            return Err(too_long(format!(
                "a list of more than {LONGEST_LIST} items"
            )));
        };
        if items.fetch_add(length as u64, Ordering::Relaxed) > MOST_ITEMS {
            return Err(too_long(format!(
                "lists of more than {MOST_ITEMS} items together"
            )));
        }
    }
    as_it_is(left, right)
}

fn too_long(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("+ makes {what}"))
}

/// The engine's own addition.
fn as_it_is(left: &Value, right: &Value) -> Result<Value, Error> {
    static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(Environment::empty);
    static SUM: LazyLock<Option<Expression<'static, 'static>>> =
        LazyLock::new(|| ENVIRONMENT.compile_expression("left + right").ok());
    let Some(sum) = SUM.as_ref() else {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "+ is not available",
        ));
    };
    sum.eval(context! { left, right }).map_err(|error| {
        // Its place is that of the template, not of the expression here.
        let detail = error.detail().unwrap_or_default().to_owned();
        Error::new(error.kind(), detail)
    })
}
