//! A program as text, one operation a line.

use crate::program::{CachedValues, Op, Program, WeightId};
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
            // Of experts, the first: the others have the same shapes.
            let shown = match op {
                Op::Experts { .. } => 3,
                _ => usize::MAX,
            };
            for weight in op.weights().into_iter().take(shown) {
                self.write_weight(weight, f)?;
            }
            self.details(op, f)?;
            for (name, _) in self.marks.iter().filter(|(_, id)| *id == out) {
                write!(f, "  ; {name}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "logits %{}", self.logits.0)
    }
}

impl Program {
    fn write_weight(&self, id: WeightId, f: &mut Formatter<'_>) -> Result {
        let Some(weight) = self.weights.get(id.0) else {
            return write!(f, " ?");
        };
        write!(f, " {}", weight.name)?;
        let Some(view) = &weight.view else {
            return Ok(());
        };
        let rows = weight.shape.first().copied().unwrap_or(0);
        write!(f, "[{}..{}]", view.first, view.first.saturating_add(rows))
    }

    fn details(&self, op: &Op, f: &mut Formatter<'_>) -> Result {
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
                let spec = self.caches.get(cache.0);
                if spec.is_some_and(|spec| spec.values == CachedValues::InKeys) {
                    write!(f, " values in keys")?;
                }
                window.map_or(Ok(()), |window| write!(f, " window {window}"))?;
                soft_cap.map_or(Ok(()), |cap| write!(f, " soft_cap {cap}"))
            }
            Op::Gated { activation, .. } => write!(f, " {activation:?}"),
            Op::Scale { factor, .. } => write!(f, " factor {factor}"),
            Op::SoftCap { cap, .. } => write!(f, " cap {cap}"),
            Op::HeadSlice {
                head_dim,
                first,
                width,
                ..
            } => {
                write!(
                    f,
                    " head_dim {head_dim} elements {first}..{}",
                    first.saturating_add(*width)
                )
            }
            Op::HeadConcat { heads, .. } => write!(f, " heads {heads}"),
            Op::Route {
                scoring,
                groups,
                used,
                normalise,
                scale,
                ..
            } => {
                write!(f, " {scoring:?} used {used}")?;
                if let Some(groups) = groups {
                    write!(f, " groups {} of {}", groups.used, groups.count)?;
                }
                if *normalise {
                    write!(f, " normalise")?;
                }
                write!(f, " scale {scale}")
            }
            Op::Experts {
                experts,
                activation,
                ..
            } => {
                write!(f, " experts {} {activation:?}", experts.len())
            }
            Op::Linear { .. } | Op::HeadLinear { .. } | Op::Add { .. } | Op::Gather { .. } => {
                Ok(())
            }
        }
    }
}
