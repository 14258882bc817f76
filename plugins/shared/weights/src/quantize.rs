//! Quantisers: floats into blocks, and whole models into another storage type.
//!
//! A quantiser looks for the codes and scales with the least plain squared error; nothing but the values themselves decides,
//! so the same values give the same bytes on every machine and with any number of threads. Types that pay off only where an
//! importance matrix says which values matter are refused by name ([`TensorType::refuses_quantizing`]).

use crate::blocks::{self, Block, TensorType};
use crate::error::{Error, shown};

mod groups;
mod listed;
mod model;
mod plain;
mod search;
#[cfg(test)]
mod tests;

pub use model::{
    Destination, Progress, Requantized, changes, destination, notes, quantize_tensor, requantize,
};

/// A block that can be made of values.
trait Quantize: Block {
    /// The block of the least squared error found for `values` (`[ELEMS]`, all finite); `None` when one is too large for it.
    fn quantize(values: &[f32]) -> Option<Self>;
}

/// A value that a type can't store.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Unstorable {
    /// Its place among the values.
    pub at: usize,
    /// The value: NaN, infinite, or too large.
    pub value: f32,
}

/// Why the IQ types of low bits are refused.
const NEEDS_IMPORTANCE: &str =
    "it needs an importance matrix to be worth its loss, and none is read here";

type Quantizer = fn(&[f32], &mut [u8]) -> Result<(), Unstorable>;

impl TensorType {
    /// Why values can't be quantised to this type; `None` when they can.
    pub fn refuses_quantizing(self) -> Option<&'static str> {
        self.quantizer().err()
    }

    /// Whether values can be quantised to this type.
    pub fn can_quantize(self) -> bool {
        self.quantizer().is_ok()
    }

    /// Stores values: `values` is `[blocks * block_elems]`, `out` is `[blocks * block_bytes]`.
    ///
    /// # Errors
    /// When a value is NaN or infinite, or too large for the type.
    ///
    /// # Panics
    /// When the type can't be quantised to ([`can_quantize`](Self::can_quantize)), or the lengths don't fit each other.
    pub fn quantize(self, values: &[f32], out: &mut [u8]) -> Result<(), Unstorable> {
        match self.quantizer() {
            Ok(quantize) => quantize(values, out),
            Err(reason) => panic!("{self} is not quantised to: {reason}"),
        }
    }

    fn quantizer(self) -> Result<Quantizer, &'static str> {
        use blocks::*;
        Ok(match self {
            TensorType::F32 => quantize::<BlockF32>,
            TensorType::F16 => quantize::<BlockF16>,
            TensorType::BF16 => quantize::<BlockBF16>,
            TensorType::Q8_0 => quantize::<BlockQ8_0>,
            TensorType::Q4_0 => quantize::<BlockQ4_0>,
            TensorType::Q4_1 => quantize::<BlockQ4_1>,
            TensorType::Q5_0 => quantize::<BlockQ5_0>,
            TensorType::Q5_1 => quantize::<BlockQ5_1>,
            TensorType::Q2_K => quantize::<BlockQ2K>,
            TensorType::Q3_K => quantize::<BlockQ3K>,
            TensorType::Q4_K => quantize::<BlockQ4K>,
            TensorType::Q5_K => quantize::<BlockQ5K>,
            TensorType::Q6_K => quantize::<BlockQ6K>,
            TensorType::IQ4_NL => quantize::<BlockIQ4NL>,
            TensorType::IQ4_XS => quantize::<BlockIQ4XS>,
            TensorType::MXFP4 => quantize::<BlockMxfp4>,
            TensorType::TQ1_0 => quantize::<BlockTQ1_0>,
            TensorType::TQ2_0 => quantize::<BlockTQ2_0>,
            TensorType::IQ2_XXS
            | TensorType::IQ2_XS
            | TensorType::IQ2_S
            | TensorType::IQ3_XXS
            | TensorType::IQ3_S
            | TensorType::IQ1_S
            | TensorType::IQ1_M => return Err(NEEDS_IMPORTANCE),
        })
    }

    /// The type with this name, in any case, that values can be quantised to.
    ///
    /// # Errors
    /// When there is none, naming the nearest; when the type can't be quantised to, saying why.
    pub fn to_quantize_to(name: &str) -> Result<Self, Error> {
        let fail = |expected: String| {
            Err(Error::TypeName {
                found: shown(name),
                expected,
            })
        };
        let upper = name.trim().to_ascii_uppercase().replace('-', "_");
        let named = |name: &str| TensorType::ALL.iter().find(|ty| ty.name() == name);
        if let Some(ty) = named(&upper) {
            return match ty.refuses_quantizing() {
                None => Ok(*ty),
                Some(reason) => fail(format!("another type: {reason}")),
            };
        }
        let known = || TensorType::ALL.iter().filter(|ty| ty.can_quantize());
        // Mixtures are named after the type that most of the file has, and a size.
        let mixture = ["_S", "_M", "_L", "_XL"]
            .iter()
            .find_map(|size| named(upper.strip_suffix(size)?));
        if let Some(ty) = mixture.filter(|ty| ty.can_quantize()) {
            return fail(format!(
                "one type for all matrices, like {ty}: mixtures of types are not made"
            ));
        }
        let nearest = known().min_by_key(|ty| strsim::damerau_levenshtein(&upper, ty.name()));
        let list: Vec<&str> = known().map(|ty| ty.name()).collect();
        match nearest {
            Some(ty) if strsim::damerau_levenshtein(&upper, ty.name()) <= 2 => {
                fail(format!("one of {} (did you mean {ty}?)", list.join(", ")))
            }
            _ => fail(format!("one of {}", list.join(", "))),
        }
    }
}

fn quantize<B: Quantize>(values: &[f32], out: &mut [u8]) -> Result<(), Unstorable> {
    assert_eq!(
        values.len() * size_of::<B>(),
        out.len() * B::ELEMS,
        "{} values into {} bytes of {}",
        values.len(),
        out.len(),
        B::TYPE
    );
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    for (number, (block, values)) in blocks
        .iter_mut()
        .zip(values.chunks_exact(B::ELEMS))
        .enumerate()
    {
        let fail = |at: usize| Unstorable {
            at: number * B::ELEMS + at,
            value: values[at],
        };
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(fail(at));
        }
        *block = B::quantize(values).ok_or_else(|| {
            let largest = (0..values.len())
                .max_by(|a, b| values[*a].abs().total_cmp(&values[*b].abs()))
                .unwrap_or(0);
            fail(largest)
        })?;
    }
    Ok(())
}
