//! Directories as model hubs have them: `config.json` and safetensors in, what lowering reads out.
//!
//! [`open`] gives a [`Checkpoint`]'s tensors GGUF's names and its configuration GGUF's keys, by one table for each family
//! (`model_type`): `table` has the names, `families` the keys. Bytes stay mapped wherever they are used as stored.
//!
//! What GGUF would have in another way is said by keys that begin with `backplane.`:
//!
//! | key | value |
//! |---|---|
//! | `backplane.rope.style` | `halves`: the elements of a rotated pair lie half a head apart, where GGUF has q and k reordered |
//! | `backplane.notes` | strings, for people: what was left out or not heeded |
//!
//! Invariants:
//! - A key that would change the arithmetic and isn't heeded is refused by its name; a key that nobody knows is noted.
//! - Every tensor of a checkpoint is used, is known to follow from the configuration, is left out with a note, or is refused by
//!   the hub's name.
//! - Nothing is done or allocated as often as a number of the configuration says before there are as many tensors.

mod config;
mod families;
mod plan;
mod rope;
mod table;
mod tensors;
mod unheeded;

use crate::ModelError;
use backplane_weights::writer::OwnedValue;
use backplane_weights::{Assembly, Checkpoint, TensorType, Weights};
use config::Section;
use families::{FAMILIES, Family};
use plan::Plan;
use std::path::Path;

/// Notes for people, as a list of strings.
const NOTES: &str = "backplane.notes";

/// Whether a path looks like a checkpoint, by names and first bytes: see [`Checkpoint::looks_like`].
pub fn looks_like(path: &Path) -> bool {
    Checkpoint::looks_like(path)
}

/// Opens a directory of `config.json` and safetensors (or an index, or one safetensors file, with `config.json` beside it) as
/// a model. `tokenizer` are metadata to add: the vocabulary, in GGUF's terms.
///
/// # Errors
/// The checkpoint can't be read, or `config.json` isn't there, isn't JSON, lacks a key, or has one that is out of range or
/// asks for what isn't run; a tensor is missing, has another shape than the configuration means or a type that isn't
/// supported, or has no place in the family. Tensors are named as the hub names them.
pub fn open(path: &Path, tokenizer: Vec<(String, OwnedValue)>) -> Result<Weights, ModelError> {
    let checkpoint = Checkpoint::open(path)?;
    let config = Section::open(checkpoint.directory())?;
    assemble(&checkpoint, config, tokenizer).map(|(weights, _)| weights)
}

/// What the hub calls each tensor of a directory: pairs of the name that [`open`] gives it and the hub's. A matrix that is cut in
/// two has two pairs; what follows from the configuration alone has none.
///
/// # Errors
/// As [`open`].
pub fn tensor_names(path: &Path) -> Result<Vec<(String, String)>, ModelError> {
    let checkpoint = Checkpoint::open(path)?;
    let config = Section::open(checkpoint.directory())?;
    assemble(&checkpoint, config, Vec::new()).map(|(_, names)| names)
}

/// What the user of a model from a directory should know: what was left out, and what was not heeded. Empty for other models.
///
/// # Errors
/// The metadata's list is not one of strings.
pub fn notes(weights: &Weights) -> Result<Vec<String>, ModelError> {
    let Some(notes) = weights.metadata().array(NOTES)? else {
        return Ok(vec![]);
    };
    Ok(notes.strings()?.map(Into::into).collect())
}

/// The families, by what `model_type` says, each with the architecture that runs it.
pub fn families() -> impl Iterator<Item = (&'static str, &'static str)> {
    FAMILIES
        .iter()
        .map(|family| (family.model_type, family.architecture))
}

fn assemble(
    checkpoint: &Checkpoint,
    config: Section,
    tokenizer: Vec<(String, OwnedValue)>,
) -> Result<(Weights, tensors::Names), ModelError> {
    let family = family(&config)?;
    let mut plan = Plan::new(family.architecture, checkpoint.tensors().count());
    let config = match family.within {
        None => config,
        Some(key) => {
            let expected = "an object that describes the language model";
            let within = config.section(key)?;
            let within = within.ok_or_else(|| config.missing(key, expected))?;
            // The other models of the file.
            config.get("vision_config");
            unheeded::check(&config, family.model_type, &mut plan.notes)?;
            within
        }
    }
    .with_defaults(family.defaults);
    (family.read)(&config, &mut plan)?;
    unheeded::check(&config, family.model_type, &mut plan.notes)?;

    let mut assembly = Assembly::new(checkpoint);
    let (stored, names) = tensors::resolve(checkpoint, family, &mut plan, &mut assembly)?;
    let file_type: u32 = match stored {
        Some(TensorType::F16) => 1,
        Some(TensorType::BF16) => 32,
        _ => 0,
    };
    plan.set_global("general.file_type", file_type);
    if let Some(name) = name(checkpoint.directory()) {
        plan.set_global("general.name", name);
    }
    if !plan.notes.is_empty() {
        let notes = std::mem::take(&mut plan.notes);
        plan.set_global(NOTES, notes);
    }
    for (name, numbers) in plan.tables {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        assembly.own(name, TensorType::F32, &[numbers.len()], bytes.collect());
    }
    for (key, value) in plan.meta.into_iter().chain(tokenizer) {
        assembly.meta(key, value);
    }
    Ok((assembly.finish()?, names))
}

fn family(config: &Section) -> Result<&'static Family, ModelError> {
    let names = FAMILIES.iter().map(|family| family.model_type);
    let expected = format!("one of {}", names.collect::<Vec<_>>().join(", "));
    let name = config.text("model_type")?;
    let name = name.ok_or_else(|| config.missing("model_type", &expected))?;
    FAMILIES
        .iter()
        .find(|family| family.model_type == name)
        .ok_or_else(|| config.wrong("model_type", &name.into(), &expected))
}

/// The model's name: its directory's.
fn name(directory: &Path) -> Option<String> {
    let whole = directory.canonicalize().ok()?;
    whole.file_name()?.to_str().map(Into::into)
}
