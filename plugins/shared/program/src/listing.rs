//! A program as text, one operation a line.

use crate::program::{Op, Program, RowView, WeightId, WeightRef};
use std::fmt::{Display, Formatter, Result};

impl Program {
    /// The program as text for people: one operation a line, each with the shape of its result.
    #[must_use]
    pub fn listing(&self) -> String {
        self.to_string()
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(
            f,
            "{}: vocabulary {}, context {}",
            self.architecture, self.vocab, self.context_length
        )?;
        for op in &self.ops {
            let out = op.output();
            let shape = self
                .values
                .get(out.0)
                .map_or_else(|| "?".to_owned(), ToString::to_string);
            write!(f, "%{:<4} {:<17} {:<9}", out.0, shape, op.name())?;
            for input in op.inputs() {
                write!(f, " %{}", input.0)?;
            }
            for weight in op.weights() {
                write!(f, " {}", self.weight_name(weight))?;
                if let Some((weight, view)) = self.view(weight) {
                    let end = view
                        .first
                        .saturating_add(weight.shape.first().copied().unwrap_or(0));
                    write!(f, "[{}..{end}]", view.first)?;
                }
            }
            details(op, f)?;
            for (name, _) in self.marks.iter().filter(|(_, id)| *id == out) {
                write!(f, "  ; {name}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "logits %{}", self.logits.0)
    }
}

impl Program {
    fn view(&self, id: WeightId) -> Option<(&WeightRef, RowView)> {
        let weight = self.weights.get(id.0)?;
        weight.view.map(|view| (weight, view))
    }

    fn weight_name(&self, id: WeightId) -> &str {
        self.weights.get(id.0).map_or("?", |weight| &weight.name)
    }
}

fn details(op: &Op, f: &mut Formatter<'_>) -> Result {
    match op {
        Op::Embed { scale, .. } => write!(f, " scale {scale}"),
        Op::RmsNorm { eps, group, .. } => write!(f, " group {group} eps {eps:e}"),
        Op::Rope { rope, head_dim, .. } => write!(f, " rope {} head_dim {head_dim}", rope.0),
        Op::Attention {
            cache,
            heads,
            scale,
            window,
            soft_cap,
            ..
        } => {
            write!(f, " cache {} heads {heads} scale {scale}", cache.0)?;
            window.map_or(Ok(()), |window| write!(f, " window {window}"))?;
            soft_cap.map_or(Ok(()), |cap| write!(f, " soft_cap {cap}"))
        }
        Op::Gated { activation, .. } => write!(f, " {activation:?}"),
        Op::Scale { factor, .. } => write!(f, " factor {factor}"),
        Op::SoftCap { cap, .. } => write!(f, " cap {cap}"),
        Op::Linear { .. } | Op::Add { .. } | Op::Gather { .. } => Ok(()),
    }
}
