//! Building, checking and listing mixtures of experts and latent attention.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too, may panic")]

use backplane_program::{
    Activation, AttentionSpec, Builder, CacheSpec, CachedValues, Expert, ExpertGroups, Op, Plan,
    Program, ProgramError, Rope, RopeStyle, RouteSpec, Scoring, ValueId, WeightId,
};
use backplane_weights::Weights;
use backplane_weights::writer::GgufWriter;
use std::path::Path;

fn weights() -> Weights {
    let mut writer = GgufWriter::new();
    for (name, shape) in [
        ("table", vec![10, 4]),
        ("router", vec![3, 4]),
        ("gates", vec![3, 6, 4]),
        ("ups", vec![3, 6, 4]),
        ("downs", vec![3, 4, 6]),
        ("bias", vec![3]),
        ("row", vec![4]),
        ("matrix row", vec![1, 4]),
        ("heads", vec![2, 5, 2]),
    ] {
        writer.add_f32(name, &shape, &vec![0.5; shape.iter().product()]);
    }
    Weights::from_bytes(Path::new("test.gguf"), &writer.to_bytes().unwrap()).unwrap()
}

const SPEC: RouteSpec = RouteSpec {
    scoring: Scoring::Sigmoid,
    bias: None,
    groups: None,
    used: 2,
    normalise: true,
    scale: 2.5,
};

fn experts(b: &mut Builder<'_>) -> Vec<Expert> {
    let gates = b.stacked_weights("gates", [3, 6, 4]).unwrap();
    let ups = b.stacked_weights("ups", [3, 6, 4]).unwrap();
    let downs = b.stacked_weights("downs", [3, 4, 6]).unwrap();
    (0..3)
        .map(|e| Expert {
            gate: gates[e],
            up: ups[e],
            down: downs[e],
        })
        .collect()
}

/// Attention over a cache of latents of 2 + 1 elements, then a mixture of three experts.
fn program() -> Program {
    let weights = weights();
    let mut b = Builder::new("test", &weights);
    let table = b.weight("table", &[10, 4]).unwrap();
    let rope = b.declare_rope(Rope {
        style: RopeStyle::Halves,
        inverse_frequencies: vec![1.0],
        magnitude: 1.0,
    });
    let x = b.embed(table, 1.0).unwrap();
    let start = b.head_slice(x, 2, 0..1).unwrap();
    let turned = b.rope(x, rope, 2).unwrap();
    let q = b.head_concat(start, turned, 2).unwrap();
    let k = b.head_slice(x, 4, 1..4).unwrap();
    let cache = b.cache(CacheSpec {
        kv_heads: 1,
        key_dim: 3,
        value_dim: 2,
        values: CachedValues::InKeys,
    });
    let spec = AttentionSpec {
        heads: 2,
        scale: 0.5,
        window: None,
        soft_cap: None,
    };
    let a = b.latent_attention([q, k], cache, spec).unwrap();
    let wide = b.weight("heads", &[2, 5, 2]).unwrap();
    let wide = b.head_linear(a, wide).unwrap();
    let a = b.head_slice(wide, 5, 0..2).unwrap();
    let x = b.add(x, a).unwrap();
    let (router, bias) = (b.weight("router", &[3, 4]), b.weight("bias", &[3]));
    let logits = b.linear(x, router.unwrap(), None).unwrap();
    let spec = RouteSpec {
        bias: Some(bias.unwrap()),
        ..SPEC
    };
    let routing = b.route(logits, spec).unwrap();
    let experts = experts(&mut b);
    let x = b.experts(x, routing, experts, Activation::Silu).unwrap();
    let x = b.gather(x).unwrap();
    let logits = b.linear(x, table, None).unwrap();
    b.finish(logits, 10, 64).unwrap()
}

#[test]
fn the_listing_shows_one_expert_for_all() {
    let program = program();
    program.validate().unwrap();
    program.check_weights(&weights()).unwrap();
    let listing = program.listing();
    let lines: Vec<_> = listing.lines().collect();
    for (line, expected) in [
        (
            2,
            "%1    [tokens, 2]       head_slice %0 head_dim 2 elements 0..1",
        ),
        (4, "%3    [tokens, 6]       head_concat %1 %2 heads 2"),
        (
            6,
            "%5    [tokens, 4]       attention %3 %4 cache 0 heads 2 scale 0.5 values in keys",
        ),
        (7, "%6    [tokens, 10]      head_linear %5 heads"),
        (
            11,
            "%10   [tokens, 3]       route     %9 bias Sigmoid used 2 normalise scale 2.5",
        ),
        (
            12,
            "%11   [tokens, 4]       experts   %8 %10 gates[0..6] ups[0..6] downs[0..4] experts 3 Silu",
        ),
    ] {
        assert_eq!(lines[line], expected);
    }
    let Op::Experts { experts, .. } = &program.ops[11] else {
        panic!("{listing}");
    };
    assert_eq!(program.weights[experts[2].down.0].first_row(), 2 * 4);
    assert_eq!(program.weights[experts[2].down.0].stored_shape(), [3, 4, 6]);
    assert_eq!(program.ops[11].weights().len(), 9);
}

#[test]
fn routing_lives_until_the_experts_have_read_it() {
    let program = program();
    let plan = Plan::new(&program);
    assert_eq!((plan.last_use[8], plan.last_use[10]), (11, 11));
    // Queries and keys of attention without values.
    assert_eq!((plan.last_use[3], plan.last_use[4]), (5, 5));
}

#[test]
fn tensors_may_be_matrices_one_after_the_other() {
    let weights = weights();
    let mut b = Builder::new("test", &weights);
    let gates = b.stacked_weights("gates", [3, 6, 4]).unwrap();
    assert_eq!(b.stacked_weights("gates", [3, 6, 4]).unwrap(), gates);
    for (name, shape, expected) in [
        (
            "gates",
            [6, 3, 4],
            "gates: expected [6, 3, 4], got [3, 6, 4]",
        ),
        (
            "gates",
            [usize::MAX, 6, 4],
            "gates: expected [18446744073709551615, 6, 4], got [3, 6, 4]",
        ),
        (
            "router",
            [1, 3, 4],
            "router: expected [1, 3, 4], got [3, 4]",
        ),
        ("nowhere", [3, 6, 4], "nowhere: tensor is missing"),
    ] {
        let error = b.stacked_weights(name, shape).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let lower = b.stacked_weight_rows("gates", [3, 6, 4], 4..6).unwrap();
    let y = {
        let table = b.weight("table", &[10, 4]).unwrap();
        let x = b.embed(table, 1.0).unwrap();
        b.linear(x, lower[1], None).unwrap()
    };
    assert_eq!(b.width(y), 2);
    for (rows, expected) in [
        (
            4..7,
            "operation 2: gates has matrices of 6 rows, a view ends at 7",
        ),
        (3..3, "operation 2: gates is [0, 4], expected a matrix"),
    ] {
        let error = b.stacked_weight_rows("gates", [3, 6, 4], rows).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    // A row, stored as a vector or as a matrix.
    let table = b.weight("table", &[10, 4]).unwrap();
    let x = b.embed(table, 1.0).unwrap();
    for name in ["row", "matrix row"] {
        let row = b.row_weight(name, 4).unwrap();
        let y = b.linear(x, row, None).unwrap();
        assert_eq!(b.width(y), 1);
    }
    assert_eq!(
        b.row_weight("router", 4).unwrap_err().to_string(),
        "router: expected [1, 4], got [3, 4]"
    );
    // Views altered by hand: past the end, and of other rows than are stored.
    let mut program = program();
    let view = program
        .weights
        .iter()
        .position(|w| w.name == "ups")
        .unwrap();
    let alter = |program: &mut Program, first: usize, of: &[usize]| {
        let view = program.weights[view].view.as_mut().unwrap();
        (view.first, view.of) = (first, of.to_vec());
        program.validate().unwrap_err().to_string()
    };
    for (first, of, expected) in [
        (
            13,
            &[3, 6, 4][..],
            "ups has 18 rows, a view takes 6 from row 13 on",
        ),
        (0, &[3, 6, 5], "ups is [3, 6, 5], a view has 4 columns"),
        (0, &[], "ups is [], a view has 4 columns"),
        (
            0,
            &[usize::MAX, 6, 4],
            "ups has too many rows, a view takes 6 from row 0 on",
        ),
    ] {
        let found = alter(&mut program, first, of);
        assert!(found.ends_with(expected), "{found}");
    }
}

type Call<'a> = &'a dyn Fn(&mut Builder<'_>, ValueId) -> Result<ValueId, ProgramError>;

/// Makes a builder call on `x [tokens, 4]` and gives its error.
fn refused(call: Call<'_>) -> String {
    let weights = weights();
    let mut b = Builder::new("test", &weights);
    let table = b.weight("table", &[10, 4]).unwrap();
    let x = b.embed(table, 1.0).unwrap();
    let error = call(&mut b, x).unwrap_err().to_string();
    let (_, message) = error.split_once(": ").unwrap();
    message.to_owned()
}

#[test]
fn choices_that_cannot_be_made_are_refused() {
    let route = |spec: RouteSpec| refused(&|b, x| b.route(x, spec));
    let groups = |count, used| {
        let groups = Some(ExpertGroups { count, used });
        route(RouteSpec { groups, ..SPEC })
    };
    let cases = [
        (
            route(RouteSpec { used: 0, ..SPEC }),
            "route: 0 of 4 experts used, expected some",
        ),
        (
            route(RouteSpec { used: 5, ..SPEC }),
            "route: 5 of 4 experts used, expected some",
        ),
        (
            route(RouteSpec {
                scale: f32::NAN,
                ..SPEC
            }),
            "route: scale is NaN, expected a finite number",
        ),
        (groups(3, 1), "route: groups is 3, expected a divisor of 4"),
        (groups(0, 0), "route: groups is 0, expected a divisor of 4"),
        (groups(2, 0), "route: 0 of 2 groups used, expected some"),
        (groups(2, 3), "route: 3 of 2 groups used, expected some"),
        (groups(4, 1), "route: 2 of 1 experts used, expected some"),
        (
            refused(&|b, x| {
                let bias = Some(b.weight("bias", &[3])?);
                b.route(x, RouteSpec { bias, ..SPEC })
            }),
            "route: bias is [3], expected [4]",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

#[test]
fn experts_and_heads_that_do_not_fit_are_refused() {
    let mix = |alter: &dyn Fn(&mut Vec<Expert>, WeightId)| {
        refused(&|b, x| {
            let router = b.weight("router", &[3, 4])?;
            let logits = b.linear(x, router, None)?;
            let routing = b.route(logits, SPEC)?;
            let mut experts = experts(b);
            alter(&mut experts, router);
            b.experts(x, routing, experts, Activation::Silu)
        })
    };
    let slice = |head_dim, elements: std::ops::Range<usize>| {
        refused(&|b, x| b.head_slice(x, head_dim, elements.clone()))
    };
    let cases = [
        (
            mix(&|e, _| e.truncate(2)),
            "experts: 2 experts, routing is 3 wide",
        ),
        (
            mix(&|e, _| e.clear()),
            "experts: 0 experts, routing is 3 wide",
        ),
        (
            mix(&|e, router| e[1].up = router),
            "experts: router is [3, 4], expected [6, 4]",
        ),
        (
            mix(&|e, router| e[2].down = router),
            "experts: router is [3, 4], expected [4, 6]",
        ),
        (
            refused(&|b, x| {
                let wanted = b.gather(x)?;
                let routing = b.head_slice(wanted, 4, 0..3)?;
                let experts = experts(b);
                b.experts(x, routing, experts, Activation::Silu)
            }),
            "experts: operands are [tokens, 4] and [wanted, 3], expected equal rows",
        ),
        (
            slice(3, 0..1),
            "head_slice: head_dim is 3, expected a divisor of 4",
        ),
        (
            slice(2, 1..3),
            "head_slice: 2 elements from 1 on, expected some of 2",
        ),
        (
            slice(2, 1..1),
            "head_slice: 0 elements from 1 on, expected some of 2",
        ),
        (
            slice(2, usize::MAX - 1..usize::MAX),
            "head_slice: 1 elements from 18446744073709551614 on, expected some of 2",
        ),
        (
            refused(&|b, x| b.head_concat(x, x, 3)),
            "head_concat: heads is 3, expected a divisor of 4",
        ),
        (
            refused(&|b, x| {
                let wanted = b.gather(x)?;
                b.head_concat(x, wanted, 2)
            }),
            "head_concat: operands are [tokens, 4] and [wanted, 4], expected equal rows",
        ),
        (
            refused(&|b, x| {
                let router = b.weight("router", &[3, 4])?;
                b.head_linear(x, router)
            }),
            "head_linear: router is [3, 4], expected a matrix for each head",
        ),
        (
            refused(&|b, x| {
                let gates = b.weight("gates", &[3, 6, 4])?;
                b.head_linear(x, gates)
            }),
            "head_linear: input is 4 wide, gates takes 3 heads of 4",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

#[test]
fn caches_and_values_have_to_agree() {
    let attend = |values, value_dim, give: bool| {
        refused(&|b, x| {
            let cache = b.cache(CacheSpec {
                kv_heads: 1,
                key_dim: 4,
                value_dim,
                values,
            });
            let spec = AttentionSpec {
                heads: 1,
                scale: 1.0,
                window: None,
                soft_cap: None,
            };
            if give {
                b.attention([x, x, x], cache, spec)
            } else {
                b.latent_attention([x, x], cache, spec)
            }
        })
    };
    assert_eq!(
        attend(CachedValues::Stored, 4, false),
        "attention: no values, but the cache stores some"
    );
    assert_eq!(
        attend(CachedValues::InKeys, 4, true),
        "attention: values, but the cache has them in the keys"
    );
    assert_eq!(
        attend(CachedValues::InKeys, 5, false),
        "attention: values of 5 in keys of 4, expected no more"
    );
}
