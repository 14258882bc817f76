//! What inspections read of a program: the hidden states after the last norm, and the queries and keys of its attention.

use backplane_program::{Op, Program, Rows, ValueId};

/// Mark of the hidden states after the last norm.
pub(crate) const HIDDEN: &str = "final_norm";

/// Names of the marks of a layer's queries and keys, as attention multiplies them.
pub(crate) fn attention_marks(layer: u32) -> [String; 2] {
    [
        format!("layer.{layer}.queries"),
        format!("layer.{layer}.keys"),
    ]
}

/// Where a program's inner values can be read, and in which shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct States {
    /// Width of the hidden states, a row per token; `None` where the program does not tell them.
    pub(crate) hidden: Option<usize>,
    /// Every layer's queries and keys, in order.
    pub(crate) attention: Vec<LayerShape>,
}

/// Shape of a layer's queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerShape {
    pub(crate) layer: u32,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl LayerShape {
    /// Numbers of queries and keys together, at one position.
    pub(crate) fn numbers(&self) -> usize {
        (self.heads + self.kv_heads) * self.head_dim
    }
}

impl States {
    /// Makes a program ready for inspections. The last norm goes before the choice of the rows whose logits are wanted, so
    /// that every token has a hidden state without having logits; a row's arithmetic stays the same. Marks that nobody
    /// here reads are dropped, those of queries and keys added.
    pub(crate) fn of(program: &mut Program) -> Self {
        let hidden = norm_every_token(program);
        let attention = layers(program);
        program.marks.retain(|(name, _)| name == HIDDEN);
        for (shape, queries, keys) in &attention {
            let names = attention_marks(shape.layer);
            program
                .marks
                .extend(names.into_iter().zip([*queries, *keys]));
        }
        Self {
            hidden,
            attention: attention.into_iter().map(|(shape, ..)| shape).collect(),
        }
    }
}

fn marked(program: &Program, name: &str) -> Option<ValueId> {
    let mark = program.marks.iter().find(|(known, _)| known == name);
    mark.map(|(_, value)| *value)
}

/// Swaps the last norm with the gathering of rows before it; the width of the hidden states.
fn norm_every_token(program: &mut Program) -> Option<usize> {
    let last = marked(program, HIDDEN)?;
    let width = program.values[last.0].width;
    if program.values[last.0].rows == Rows::Tokens {
        return Some(width);
    }
    let at = program.ops.iter().position(|op| op.output() == last)?;
    let Op::RmsNorm {
        x: gathered,
        weight,
        eps,
        group,
        ..
    } = program.ops[at]
    else {
        return None;
    };
    let from = program.ops.iter().position(|op| op.output() == gathered)?;
    let Op::Gather { x, .. } = program.ops[from] else {
        return None;
    };
    let reads = |op: &&Op| op.inputs().contains(&gathered);
    if program.ops.iter().filter(reads).count() != 1 {
        return None;
    }
    program.ops[from] = Op::RmsNorm {
        x,
        weight,
        eps,
        group,
        out: gathered,
    };
    program.ops[at] = Op::Gather {
        x: gathered,
        out: last,
    };
    program.values[gathered.0].rows = Rows::Tokens;
    for (name, value) in &mut program.marks {
        if name == HIDDEN {
            *value = gathered;
        }
    }
    Some(width)
}

/// Every layer's queries and keys, in the order of the program.
fn layers(program: &Program) -> Vec<(LayerShape, ValueId, ValueId)> {
    let attentions = program.ops.iter().filter_map(|op| match op {
        Op::Attention {
            q, k, cache, heads, ..
        } => Some((*q, *k, &program.caches[cache.0], *heads)),
        _ => None,
    });
    attentions
        .zip(0..)
        .map(|((queries, keys, cache, heads), layer)| {
            let shape = LayerShape {
                layer,
                heads,
                kv_heads: cache.kv_heads,
                head_dim: cache.key_dim,
            };
            (shape, queries, keys)
        })
        .collect()
}
