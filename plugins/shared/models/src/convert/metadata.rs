//! The metadata of the file.

use super::layout::Output;
use crate::ModelError;
use backplane_weights::quantize::changes;
use backplane_weights::writer::{GgufWriter, OwnedValue};
use backplane_weights::{Format, TensorType, Value, Weights};

const FILE_TYPE: &str = "general.file_type";
const QUANTIZATION_VERSION: &str = "general.quantization_version";
const ALIGNMENT: &str = "general.alignment";
const NAME: &str = "general.name";
const TYPE: &str = "general.type";

/// The version of the block types' layouts that ggml counts.
const CURRENT_QUANTIZATION: u32 = 2;

/// Begins of keys that are not written: what is said of parts, and what was said of the assembly.
const LEFT_OUT: &[&str] = &["split.", "backplane."];
/// Of those, the ones that are: a tokenizer's, which no key of GGUF can say.
const KEPT: &str = "backplane.tokenizer.";

/// Writes the model's metadata, with what is said of the file itself as this file has it.
pub(super) fn write(
    weights: &Weights,
    outputs: &[Output],
    quantize: Option<TensorType>,
    writer: &mut GgufWriter,
    notes: &mut Vec<String>,
) -> Result<(), ModelError> {
    let meta = weights.metadata();
    if let Some(alignment) = meta.usize(ALIGNMENT)? {
        writer.alignment(alignment);
    }
    for key in meta.keys() {
        let own = [FILE_TYPE, QUANTIZATION_VERSION, ALIGNMENT].contains(&key);
        let left_out = LEFT_OUT.iter().any(|start| key.starts_with(start));
        if own || left_out && !key.starts_with(KEPT) {
            continue;
        }
        if key == NAME
            && let Some(note) = misread_name(weights)?
        {
            notes.push(note);
            continue;
        }
        let Some(value) = meta.get(key) else { continue };
        let Some(value) = owned(&value) else {
            return Err(ModelError::Key {
                path: weights.path().into(),
                key: key.into(),
                found: "text that is not UTF-8".into(),
                expected: "UTF-8, as the format has it".into(),
            });
        };
        writer.add_meta(key, value);
    }
    if meta.get(TYPE).is_none() {
        writer.add_meta(TYPE, "model");
    }
    let stored = meta.u32(FILE_TYPE)?;
    let file_type = match (stored, quantize) {
        // It may name a mixture, which can't be told from the tensors.
        (Some(stored), None) if weights.format() == Format::Gguf => Some(stored),
        _ => dominant(outputs).and_then(file_type),
    };
    if let Some(file_type) = file_type {
        writer.add_meta(FILE_TYPE, file_type);
    }
    writer.add_meta(QUANTIZATION_VERSION, CURRENT_QUANTIZATION);
    Ok(())
}

/// A value to write; `None` for text that is not UTF-8.
fn owned(value: &Value<'_>) -> Option<OwnedValue> {
    Some(match *value {
        Value::U8(value) => value.into(),
        Value::I8(value) => value.into(),
        Value::U16(value) => value.into(),
        Value::I16(value) => value.into(),
        Value::U32(value) => value.into(),
        Value::I32(value) => value.into(),
        Value::U64(value) => value.into(),
        Value::I64(value) => value.into(),
        Value::F32(value) => value.into(),
        Value::F64(value) => value.into(),
        Value::Bool(value) => value.into(),
        Value::String(value) => value.into(),
        Value::InvalidString(_) => return None,
        Value::Array(array) => {
            let elements: Option<Vec<OwnedValue>> =
                array.iter().map(|value| owned(&value)).collect();
            OwnedValue::Array(array.element_type(), elements?)
        }
    })
}

/// The type that most of the matrices' values have.
fn dominant(outputs: &[Output]) -> Option<TensorType> {
    let matrices = || outputs.iter().filter(|output| changes(&output.info));
    let values = |ty: TensorType| -> usize {
        let of_type = matrices().filter(|output| output.to == ty);
        of_type
            .map(|output| output.info.rows() * output.info.cols())
            .sum()
    };
    matrices()
        .map(|output| output.to)
        .max_by_key(|ty| values(*ty))
}

/// The number that llama.cpp gives files of one type (`general.file_type`); `None` where it has none.
fn file_type(ty: TensorType) -> Option<u32> {
    Some(match ty {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q8_0 => 7,
        TensorType::Q5_0 => 8,
        TensorType::Q5_1 => 9,
        TensorType::Q2_K => 10,
        TensorType::Q3_K => 11,
        TensorType::Q4_K => 14,
        TensorType::Q5_K => 16,
        TensorType::Q6_K => 18,
        TensorType::IQ2_XXS => 19,
        TensorType::IQ2_XS => 20,
        TensorType::IQ3_XXS => 23,
        TensorType::IQ1_S => 24,
        TensorType::IQ4_NL => 25,
        TensorType::IQ3_S => 26,
        TensorType::IQ2_S => 28,
        TensorType::IQ4_XS => 30,
        TensorType::IQ1_M => 31,
        TensorType::BF16 => 32,
        TensorType::TQ1_0 => 36,
        TensorType::TQ2_0 => 37,
        TensorType::MXFP4 => 38,
    })
}

/// What to say of a name that llama.cpp would take for that of a model with another vocabulary, and then refuse.
fn misread_name(weights: &Weights) -> Result<Option<String>, ModelError> {
    const TOKEN: &str = "<|endoftext|>";
    let meta = weights.metadata();
    let Some(name) = meta.str(NAME)? else {
        return Ok(None);
    };
    let lower = name.to_lowercase();
    if !["phi-3", "phi3"].iter().any(|part| lower.contains(part)) {
        return Ok(None);
    }
    let known = match meta.array("tokenizer.ggml.tokens")? {
        Some(tokens) => tokens.strings()?.any(|token| token == TOKEN),
        None => true,
    };
    let note = format!(
        "key {NAME} is left out: from a name like {:?} llama.cpp concludes that there is a token {TOKEN}, which this vocabulary hasn't",
        name.chars().take(64).collect::<String>()
    );
    Ok((!known).then_some(note))
}
