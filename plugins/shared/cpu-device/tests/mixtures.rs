//! Mixtures of experts and latent attention, at sizes that fill no vector and in quantised types, against the interpreter.

use backplane_program::{
    Activation, AttentionSpec, Builder, CacheSpec, CacheType, CachedValues, Expert, ExpertGroups,
    Interpreter, Limits, Program, ProgramError, Rope, RopeStyle, RouteSpec, Scoring,
};
use backplane_weights::writer::GgufWriter;
use backplane_weights::{TensorType, Weights};
use common::{LIMITS, VOCAB, compile, devices, steps, worst};
use std::path::Path;

mod common;

/// A file of tensors with some numbers, each in the type asked for.
struct File(GgufWriter);

impl File {
    fn add(&mut self, name: &str, shape: &[usize], ty: TensorType, factor: f32) -> &mut Self {
        let seed = name
            .bytes()
            .fold(7usize, |seed, byte| seed * 31 % 9973 + byte as usize);
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|i: usize| ((i * 37 + seed * 11) as f32).sin() * factor)
            .collect();
        let columns = *shape.last().expect("a dimension");
        let row = ty.row_bytes(columns).expect("whole blocks");
        let mut bytes = vec![0; values.len() / columns * row];
        ty.quantize(&values, &mut bytes)
            .expect("numbers that the type can hold");
        self.0.add_tensor(name, ty, shape, bytes);
        self
    }

    fn weights(&self) -> Weights {
        let bytes = self.0.to_bytes().expect("a small file");
        Weights::from_bytes(Path::new("test.gguf"), &bytes).expect("a file just written")
    }
}

/// Compares every set of kernels with the interpreter: differences over the greatest logit are below `most`.
fn judge(what: &str, program: &Program, weights: &Weights, limits: Limits, most: f32) {
    let truth = steps(&mut *compile(&Interpreter, program, weights, limits));
    assert!(truth.iter().all(|logit| logit.is_finite()));
    let greatest = truth
        .iter()
        .fold(0.0f32, |most, logit| most.max(logit.abs()));
    assert!(greatest > 0.1, "{what}: {truth:?}");
    for device in devices() {
        let found = steps(&mut *compile(&device, program, weights, limits));
        let off = worst(&found, &truth) / greatest;
        assert!(off < most, "{what} {:?}: {off}", device.isa());
    }
}

/// One layer of experts over all tokens, and one over the wanted rows.
struct Mixture {
    experts: usize,
    spec: RouteSpec,
    /// Types of the matrices of each expert, in turn; stacked where there is one.
    types: &'static [TensorType],
    width: usize,
    inner: usize,
    /// Added to the router's logits.
    router_bias: f32,
}

impl Mixture {
    fn new(experts: usize, used: usize) -> Self {
        Self {
            experts,
            spec: RouteSpec {
                scoring: Scoring::Softmax,
                bias: None,
                groups: None,
                used,
                normalise: false,
                scale: 1.0,
            },
            types: &[TensorType::F32],
            width: 19,
            inner: 13,
            router_bias: 0.0,
        }
    }

    fn weights(&self) -> Weights {
        let (n, width, inner) = (self.experts, self.width, self.inner);
        let mut file = File(GgufWriter::new());
        file.add("table", &[VOCAB, width], TensorType::F32, 1.0);
        file.add("gain", &[width], TensorType::F32, 1.5);
        file.add("head", &[VOCAB, width], TensorType::F32, 0.4);
        file.add("router", &[n, width], TensorType::F32, 0.5);
        file.0
            .add_f32("router_bias", &[n], &vec![self.router_bias; n]);
        file.add("choice_bias", &[n], TensorType::F32, 0.2);
        for (name, [rows, columns]) in [
            ("gate", [inner, width]),
            ("up", [inner, width]),
            ("down", [width, inner]),
        ] {
            if let [ty] = self.types {
                file.add(name, &[n, rows, columns], *ty, 0.6);
            } else {
                for expert in 0..n {
                    let turn = expert + usize::from(name == "up");
                    let ty = self.types[turn % self.types.len()];
                    file.add(&format!("{name}.{expert}"), &[rows, columns], ty, 0.6);
                }
            }
        }
        file.weights()
    }

    fn program(&self, weights: &Weights, with_bias: bool) -> Result<Program, ProgramError> {
        let (n, width, inner) = (self.experts, self.width, self.inner);
        let mut b = Builder::new("mixture", weights);
        let mut matrices = |name: &str, [rows, columns]: [usize; 2]| match self.types {
            [_] => b.stacked_weights(name, [n, rows, columns]),
            _ => (0..n)
                .map(|expert| b.weight(format!("{name}.{expert}"), &[rows, columns]))
                .collect(),
        };
        let gates = matrices("gate", [inner, width])?;
        let ups = matrices("up", [inner, width])?;
        let downs = matrices("down", [width, inner])?;
        let experts: Vec<Expert> = (0..n)
            .map(|i| Expert {
                gate: gates[i],
                up: ups[i],
                down: downs[i],
            })
            .collect();
        let table = b.weight("table", &[VOCAB, width])?;
        let gain = b.weight("gain", &[width])?;
        let head = b.weight("head", &[VOCAB, width])?;
        let router = b.weight("router", &[n, width])?;
        let router_bias = b.weight("router_bias", &[n])?;
        let bias = match with_bias {
            true => Some(b.weight("choice_bias", &[n])?),
            false => None,
        };
        let spec = RouteSpec { bias, ..self.spec };
        let mut x = b.embed(table, 1.0)?;
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let y = b.rms_norm(x, gain, 1e-5)?;
            let logits = b.linear(y, router, Some(router_bias))?;
            let routing = b.route(logits, spec)?;
            let y = b.experts(y, routing, experts.clone(), activation)?;
            x = b.add(x, y)?;
            if activation == Activation::Silu {
                // The second layer has the wanted rows only, if any.
                x = b.gather(x)?;
            }
        }
        let logits = b.linear(x, head, None)?;
        b.finish(logits, VOCAB, 64)
    }

    fn judge(&self, what: &str, most: f32) {
        let weights = self.weights();
        for with_bias in [false, true] {
            let program = self
                .program(&weights, with_bias)
                .expect("a program that fits");
            judge(what, &program, &weights, LIMITS, most);
        }
    }
}

#[test]
fn any_number_of_experts_agrees_with_the_interpreter() {
    for (experts, used) in [(1, 1), (2, 1), (5, 5), (7, 2), (64, 8)] {
        for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
            for normalise in [false, true] {
                let mut mixture = Mixture::new(experts, used);
                mixture.spec.scoring = scoring;
                mixture.spec.normalise = normalise;
                mixture.spec.scale = if normalise { 2.5 } else { 1.0 };
                let what = format!("{used} of {experts}, {scoring:?}, normalised {normalise}");
                mixture.judge(&what, 5e-6);
            }
        }
    }
}

#[test]
fn groups_of_experts_agree_with_the_interpreter() {
    // Groups of one, of two, of all; one used, all used.
    for (experts, groups, groups_used, used) in [
        (6, 6, 2, 2),
        (6, 3, 1, 2),
        (8, 4, 2, 3),
        (8, 2, 1, 4),
        (8, 1, 1, 3),
        (8, 4, 4, 8),
    ] {
        let mut mixture = Mixture::new(experts, used);
        mixture.spec.scoring = Scoring::Sigmoid;
        mixture.spec.normalise = true;
        mixture.spec.groups = Some(ExpertGroups {
            count: groups,
            used: groups_used,
        });
        let what = format!("{used} of {experts} in {groups_used} of {groups} groups");
        mixture.judge(&what, 5e-6);
    }
}

#[test]
fn scores_that_vanish_leave_every_expert_out() {
    // A logistic function of -1e4 is 0: nothing is chosen with a weight, and sums are not divided by.
    let mut mixture = Mixture::new(5, 2);
    mixture.spec.scoring = Scoring::Sigmoid;
    mixture.spec.normalise = true;
    mixture.router_bias = -1e4;
    mixture.judge("scores of zero", 5e-6);
}

#[test]
fn equal_scores_choose_the_first_experts() {
    // Logits so large that the router's own part is rounded away, and without a softmax to tell them apart.
    let mut mixture = Mixture::new(6, 3);
    mixture.spec.scoring = Scoring::Sigmoid;
    mixture.router_bias = 1e4;
    mixture.judge("equal scores", 5e-6);
}

#[test]
fn experts_of_quantised_types_agree_with_the_interpreter() {
    use TensorType::{BF16, F16, Q4_K, Q5_0, Q6_K, Q8_0};
    for (types, width, inner) in [
        (&[F16] as &[_], 19, 13),
        (&[Q8_0], 64, 96),
        (&[Q4_K], 256, 512),
        // Stored singly, each of another type: gate and up, too.
        (&[Q8_0, F16, Q5_0, BF16], 96, 160),
        (&[Q8_0, Q6_K, F16], 256, 256),
    ] {
        let mixture = Mixture {
            types,
            width,
            inner,
            ..Mixture::new(7, 3)
        };
        // Activations have 15 bits.
        mixture.judge(&format!("{types:?}"), 1e-3);
    }
}

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug)]
struct Latent {
    heads: usize,
    plain: usize,
    rotary: usize,
    rank: usize,
    value: usize,
    ty: TensorType,
}

fn latent(sizes: Latent, window: Option<usize>) -> (Weights, Program) {
    let Latent {
        heads,
        plain,
        rotary,
        rank,
        value,
        ty,
    } = sizes;
    let width = 64;
    let mut file = File(GgufWriter::new());
    file.add("table", &[VOCAB, width], TensorType::F32, 1.0);
    file.add("head", &[VOCAB, width], TensorType::F32, 0.3);
    file.add(
        "q",
        &[heads * (plain + rotary), width],
        TensorType::F32,
        0.5,
    );
    file.add("kv", &[rank + rotary, width], TensorType::F32, 0.5);
    file.add("k_b", &[heads, rank, plain], ty, 0.5);
    file.add("v_b", &[heads, value, rank], ty, 0.5);
    file.add("o", &[width, heads * value], TensorType::F32, 0.3);
    let weights = file.weights();
    let build = || {
        let mut b = Builder::new("latent", &weights);
        let table = b.weight("table", &[VOCAB, width])?;
        let head = b.weight("head", &[VOCAB, width])?;
        let q = b.weight("q", &[heads * (plain + rotary), width])?;
        let kv = b.weight("kv", &[rank + rotary, width])?;
        let k_b = b.weight("k_b", &[heads, rank, plain])?;
        let v_b = b.weight("v_b", &[heads, value, rank])?;
        let o = b.weight("o", &[width, heads * value])?;
        let rope = b.declare_rope(Rope {
            style: RopeStyle::Interleaved,
            inverse_frequencies: (0..rotary / 2).map(|i| 0.5f32.powi(i as i32)).collect(),
            magnitude: 1.0,
        });
        let cache = b.cache(CacheSpec {
            kv_heads: 1,
            key_dim: rank + rotary,
            value_dim: rank,
            values: CachedValues::InKeys,
        });
        let x = b.embed(table, 1.0)?;
        let q = b.linear(x, q, None)?;
        let turned = b.head_slice(q, plain + rotary, plain..plain + rotary)?;
        let turned = b.rope(turned, rope, rotary)?;
        let q = b.head_slice(q, plain + rotary, 0..plain)?;
        let q = b.head_linear(q, k_b)?;
        let q = b.head_concat(q, turned, heads)?;
        let k = b.linear(x, kv, None)?;
        let turned = b.head_slice(k, rank + rotary, rank..rank + rotary)?;
        let turned = b.rope(turned, rope, rotary)?;
        let k = b.head_slice(k, rank + rotary, 0..rank)?;
        let k = b.head_concat(k, turned, 1)?;
        let spec = AttentionSpec {
            heads,
            scale: 0.2,
            window,
            soft_cap: None,
        };
        let y = b.latent_attention([q, k], cache, spec)?;
        let y = b.head_linear(y, v_b)?;
        let y = b.linear(y, o, None)?;
        let x = b.add(x, y)?;
        let x = b.gather(x)?;
        let logits = b.linear(x, head, None)?;
        b.finish(logits, VOCAB, 64)
    };
    let program = build().expect("a program that fits its weights");
    (weights, program)
}

#[test]
fn latent_attention_agrees_with_the_interpreter() {
    let odd = Latent {
        heads: 3,
        plain: 5,
        rotary: 4,
        rank: 7,
        value: 3,
        ty: TensorType::F32,
    };
    let whole = Latent {
        heads: 20,
        plain: 32,
        rotary: 32,
        rank: 64,
        value: 8,
        ty: TensorType::Q8_0,
    };
    for (sizes, types) in [
        (odd, &CacheType::ALL[..2]),
        (
            Latent {
                heads: 1,
                value: 1,
                ..odd
            },
            &CacheType::ALL[..2],
        ),
        (whole, &CacheType::ALL),
    ] {
        for window in [None, Some(4)] {
            let (weights, program) = latent(sizes, window);
            for cache_type in types {
                for page_size in [3, 16] {
                    let limits = Limits {
                        page_size,
                        cache_type: *cache_type,
                        ..LIMITS
                    };
                    let what = format!("{sizes:?} {window:?} {cache_type}, pages of {page_size}");
                    // Activations of 15 bits, or a cached number that is rounded the other way.
                    let exact = sizes.ty == TensorType::F32 && *cache_type == CacheType::F32;
                    let most = if exact { 5e-6 } else { 2e-3 };
                    judge(&what, &program, &weights, limits, most);
                }
            }
        }
    }
}

#[test]
fn a_latent_cache_stores_its_values_once() {
    let sizes = Latent {
        heads: 2,
        plain: 4,
        rotary: 32,
        rank: 64,
        value: 4,
        ty: TensorType::F32,
    };
    let (weights, program) = latent(sizes, None);
    for (cache_type, bytes) in [
        (CacheType::F32, 96 * 4),
        (CacheType::F16, 96 * 2),
        (CacheType::Q8_0, 96 + 3 * 2),
    ] {
        let limits = Limits {
            page_size: 16,
            cache_type,
            ..LIMITS
        };
        for device in devices() {
            let executable = compile(&device, &program, &weights, limits);
            assert_eq!(executable.page_bytes(), 16 * bytes, "{cache_type}");
        }
    }
}
