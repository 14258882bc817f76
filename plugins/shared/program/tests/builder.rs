//! Building, checking, planning and listing programs.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too, may panic")]

use backplane_program::{
    Activation, AttentionSpec, Builder, CacheSpec, CachedValues, Op, Plan, Program, ProgramError,
    Rope, RopeStyle, RowView, Rows, Value, ValueId,
};
use backplane_weights::Weights;
use backplane_weights::writer::GgufWriter;
use std::path::Path;

fn weights() -> Weights {
    let mut writer = GgufWriter::new();
    for (name, shape) in [
        ("table", vec![10, 4]),
        ("square", vec![4, 4]),
        ("up", vec![6, 4]),
        ("down", vec![4, 6]),
        ("gain", vec![4]),
        ("bias", vec![4]),
        ("half", vec![2]),
    ] {
        let count = shape.iter().product();
        writer.add_f32(name, &shape, &vec![0.5; count]);
    }
    Weights::from_bytes(Path::new("test.gguf"), &writer.to_bytes().unwrap()).unwrap()
}

/// `layers` blocks of attention and feed-forward.
fn program(layers: usize) -> Program {
    let weights = weights();
    let mut b = Builder::new("test", &weights);
    let table = b.weight("table", &[10, 4]).unwrap();
    let gain = b.weight("gain", &[4]).unwrap();
    let square = b.weight("square", &[4, 4]).unwrap();
    let (up, down) = (
        b.weight("up", &[6, 4]).unwrap(),
        b.weight("down", &[4, 6]).unwrap(),
    );
    let rope = Rope {
        style: RopeStyle::Halves,
        inverse_frequencies: vec![1.0],
        magnitude: 1.0,
    };
    let rope = b.declare_rope(rope);
    let mut x = b.embed(table, 2.0).unwrap();
    b.mark("embedding", x);
    for layer in 0..layers {
        let a = b.rms_norm(x, gain, 1e-5).unwrap();
        let (q, k) = (
            b.linear(a, square, None).unwrap(),
            b.linear(a, square, None).unwrap(),
        );
        let v = b.linear(a, square, None).unwrap();
        let (q, k) = (b.rope(q, rope, 2).unwrap(), b.rope(k, rope, 2).unwrap());
        let cache = b.cache(CacheSpec {
            kv_heads: 2,
            key_dim: 2,
            value_dim: 2,
            values: CachedValues::Stored,
        });
        let spec = AttentionSpec {
            heads: 2,
            scale: 0.5,
            window: Some(8),
            soft_cap: Some(30.0),
        };
        let a = b.attention([q, k, v], cache, spec).unwrap();
        x = b.add(x, a).unwrap();
        let gate = b.linear(x, up, None).unwrap();
        let wide = b.linear(x, up, None).unwrap();
        let f = b.gated(gate, wide, Activation::Silu).unwrap();
        let f = b.linear(f, down, None).unwrap();
        x = b.add(x, f).unwrap();
        b.mark(format!("layer.{layer}"), x);
    }
    let x = b.gather(x).unwrap();
    let x = b.scale(x, 0.5).unwrap();
    let logits = b.linear(x, table, None).unwrap();
    let logits = b.soft_cap(logits, 30.0).unwrap();
    b.finish(logits, 10, 64).unwrap()
}

#[test]
fn a_built_program_is_valid_and_declares_each_thing_once() {
    let program = program(3);
    program.validate().unwrap();
    program.check_weights(&weights()).unwrap();
    assert_eq!(
        (
            program.weights.len(),
            program.ropes.len(),
            program.caches.len()
        ),
        (5, 1, 3)
    );
    assert_eq!(
        program.values[program.logits.0],
        Value {
            rows: Rows::Wanted,
            width: 10
        }
    );
    assert_eq!(program.marks.len(), 4);
}

#[test]
fn the_listing_shows_every_operation_with_its_shape() {
    let listing = program(1).listing();
    let lines: Vec<_> = listing.lines().collect();
    assert_eq!(lines.len(), 1 + program(1).ops.len() + 1);
    assert_eq!(lines[0], "test: vocabulary 10, context 64");
    assert_eq!(
        lines[1],
        "%0    [tokens, 4]       embed     table scale 2  ; embedding"
    );
    assert_eq!(
        lines[2],
        "%1    [tokens, 4]       rms_norm  %0 gain group 4 eps 1e-5"
    );
    assert_eq!(
        lines[8],
        "%7    [tokens, 4]       attention %5 %6 %4 cache 0 heads 2 scale 0.5 window 8 soft_cap 30"
    );
    assert_eq!(lines[11], "%10   [tokens, 6]       linear    %8 up");
    assert_eq!(lines[12], "%11   [tokens, 6]       gated     %9 %10 Silu");
    assert_eq!(lines[15], "%14   [wanted, 4]       gather    %13");
    assert_eq!(lines[18], "%17   [wanted, 10]      soft_cap  %16 cap 30");
    assert_eq!(lines[19], "logits %17");
}

#[test]
fn views_are_rows_of_stored_matrices() {
    let weights = weights();
    let mut b = Builder::new("test", &weights);
    let table = b.weight("table", &[10, 4]).unwrap();
    let x = b.embed(table, 1.0).unwrap();
    let upper = b.weight_rows("up", [6, 4], 0..2).unwrap();
    let lower = b.weight_rows("up", [6, 4], 2..6).unwrap();
    assert_ne!(upper, lower);
    assert_eq!(b.weight_rows("up", [6, 4], 2..6).unwrap(), lower);
    assert_ne!(b.weight("up", &[6, 4]).unwrap(), upper);
    let narrow = b.linear(x, upper, None).unwrap();
    let x = b.linear(x, lower, None).unwrap();
    assert_eq!((b.width(narrow), b.width(x)), (2, 4));
    let refusals = [
        ([7, 4], 0..2, "up: expected [7, 4], got [6, 4]"),
        (
            [6, 4],
            2..7,
            "operation 3: up has 6 rows, a view takes 5 from row 2 on",
        ),
        (
            [6, 4],
            7..8,
            "operation 3: up has 6 rows, a view takes 1 from row 7 on",
        ),
        ([6, 4], 2..2, "operation 3: up is [0, 4], expected a matrix"),
    ];
    for (stored, rows, expected) in refusals {
        let error = b.weight_rows("up", stored, rows).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let part = b.weight_rows("table", [10, 4], 0..5).unwrap();
    assert_eq!(
        b.embed(part, 1.0).unwrap_err().to_string(),
        "operation 3: embed: table is a view of rows, expected a whole table"
    );
    let x = b.gather(x).unwrap();
    let logits = b.linear(x, table, None).unwrap();
    let mut program = b.finish(logits, 10, 64).unwrap();
    assert!(program.listing().contains("linear    %0 up[2..6]"));
    program.check_weights(&weights).unwrap();
    // Altered by hand: past the matrix the program says there is, and past the one that there is.
    program.weights[lower.0].view = Some(RowView {
        first: 3,
        of: vec![6, 4],
    });
    assert_eq!(
        program.validate().unwrap_err().to_string(),
        "operation 5: up has 6 rows, a view takes 4 from row 3 on"
    );
    program.weights[lower.0].view = Some(RowView {
        first: usize::MAX,
        of: vec![6, 4],
    });
    assert!(program.validate().is_err());
    program.weights[lower.0].view = Some(RowView {
        first: 3,
        of: vec![7, 4],
    });
    program.validate().unwrap();
    assert_eq!(
        program.check_weights(&weights).unwrap_err().to_string(),
        "up: expected [7, 4], got [6, 4]"
    );
}

#[test]
fn missing_and_misshapen_weights_are_named() {
    let weights = weights();
    let mut b = Builder::new("test", &weights);
    let error = b.weight("nowhere", &[4]).unwrap_err();
    assert_eq!(error.to_string(), "nowhere: tensor is missing");
    let error = b.weight("up", &[4, 6]).unwrap_err();
    assert_eq!(error.to_string(), "up: expected [4, 6], got [6, 4]");
    assert_eq!(b.optional_weight("nowhere", &[4]), Ok(None));
    assert!(matches!(
        b.optional_weight("gain", &[5]),
        Err(ProgramError::WeightShape { .. })
    ));
    assert!(b.has("gain") && !b.has("nowhere"));
}

/// Runs one builder call on `x [tokens, 4]` and gives its error.
fn refused(
    call: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, ProgramError>,
) -> String {
    let weights = weights();
    let mut b = Builder::new("test", &weights);
    let table = b.weight("table", &[10, 4]).unwrap();
    let x = b.embed(table, 1.0).unwrap();
    call(&mut b, x).unwrap_err().to_string()
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let refusals = [
        refused(|b, _| {
            let gain = b.weight("gain", &[4])?;
            b.embed(gain, 1.0)
        }),
        refused(|b, x| {
            let half = b.weight("half", &[2])?;
            b.rms_norm(x, half, 1e-5)
        }),
        refused(|b, x| {
            let half = b.weight("half", &[2])?;
            b.rms_norm_groups(x, half, 1e-5, 3)
        }),
        refused(|b, x| {
            let gain = b.weight("gain", &[4])?;
            b.rms_norm(x, gain, f32::NAN)
        }),
        refused(|b, x| {
            let down = b.weight("down", &[4, 6])?;
            b.linear(x, down, None)
        }),
        refused(|b, x| {
            let (square, half) = (b.weight("square", &[4, 4])?, b.weight("half", &[2])?);
            b.linear(x, square, Some(half))
        }),
        refused(|b, x| {
            let rope = Rope {
                style: RopeStyle::Halves,
                inverse_frequencies: vec![1.0, 1.0],
                magnitude: 1.0,
            };
            let rope = b.declare_rope(rope);
            b.rope(x, rope, 2)
        }),
        refused(|b, x| {
            let wanted = b.gather(x)?;
            b.gather(wanted)
        }),
        refused(|b, x| {
            let wanted = b.gather(x)?;
            b.add(x, wanted)
        }),
        refused(|b, x| b.scale(x, f32::INFINITY)),
        refused(|b, x| b.soft_cap(x, 0.0)),
        refused(|b, _| b.scale(ValueId(9), 1.0)),
    ];
    let expected = [
        "operation 1: embed: gain is [4], expected a matrix",
        "operation 1: rms_norm: half is [2], expected [4]",
        "operation 1: rms_norm: group is 3, expected a divisor of 4",
        "operation 1: rms_norm: eps is NaN, expected a finite number not below 0",
        "operation 1: linear: input is 4 wide, down takes 6",
        "operation 1: linear: half is [2], expected [4]",
        "operation 1: rope: 2 pairs do not fit a head of 2",
        "operation 2: gather: %1 is [wanted, 4], expected a row per token",
        "operation 2: add: operands are [tokens, 4] and [wanted, 4], expected equal shapes",
        "operation 1: scale: factor is inf, expected a finite number",
        "operation 1: soft_cap: cap is 0, expected a finite number above 0",
        "operation 1: scale: no value %9",
    ];
    assert_eq!(refusals, expected);
}

#[test]
fn attention_checks_heads_and_sizes() {
    let attend = |kv_heads, key_dim, heads, window| {
        refused(|b, x| {
            let cache = b.cache(CacheSpec {
                kv_heads,
                key_dim,
                value_dim: 2,
                values: CachedValues::Stored,
            });
            b.attention(
                [x, x, x],
                cache,
                AttentionSpec {
                    heads,
                    scale: 1.0,
                    window,
                    soft_cap: None,
                },
            )
        })
    };
    assert_eq!(
        attend(3, 2, 2, None),
        "operation 1: attention: kv_heads is 3, expected a divisor of 2"
    );
    assert_eq!(
        attend(0, 2, 2, None),
        "operation 1: attention: kv_heads is 0, expected a divisor of 2"
    );
    assert_eq!(
        attend(2, 2, 0, None),
        "operation 1: attention: 0 heads of 2/2, expected no zeros"
    );
    assert_eq!(
        attend(2, 2, 4, None),
        "operation 1: attention: queries are 4 wide, expected 4 heads of 2"
    );
    assert_eq!(
        attend(1, 2, 2, None),
        "operation 1: attention: keys are 4 wide, expected 1 heads of 2"
    );
    assert_eq!(
        attend(2, 2, 2, Some(0)),
        "operation 1: attention: window is 0, expected at least 1"
    );
    let huge = attend(2, usize::MAX, 2, None);
    assert_eq!(
        huge,
        format!(
            "operation 1: attention: queries are 4 wide, expected 2 heads of {}",
            usize::MAX
        )
    );
}

#[test]
fn programs_altered_by_hand_are_found_out() {
    type Alteration<'a> = &'a dyn Fn(&mut Program);
    let broken = |alter: Alteration<'_>| {
        let mut program = program(1);
        alter(&mut program);
        program.validate().unwrap_err().to_string()
    };
    let cases: [(Alteration<'_>, &str); 9] = [
        (
            &|p| p.ops.swap(0, 1),
            "operation 0: rms_norm: %0 is read before it is written",
        ),
        (
            &|p| p.values[1].width = 5,
            "operation 1: rms_norm: result is [tokens, 4], %1 is declared [tokens, 5]",
        ),
        (
            &|p| {
                p.ops.push(Op::Embed {
                    table: backplane_program::WeightId(0),
                    scale: 1.0,
                    out: ValueId(0),
                })
            },
            "operation 18: embed: %0 is written twice",
        ),
        (
            &|p| {
                p.values.push(Value {
                    rows: Rows::Tokens,
                    width: 4,
                })
            },
            "operation 18: %18 is never written",
        ),
        (
            &|p| p.logits = ValueId(0),
            "operation 18: logits are [tokens, 4], expected [wanted, 10]",
        ),
        (
            &|p| p.vocab = 9,
            "operation 0: table has 10 rows, the logits have 9 columns",
        ),
        (
            &|p| p.context_length = 0,
            "operation 18: context of 0 tokens, vocabulary of 10",
        ),
        (
            &|p| p.marks.push(("far".into(), ValueId(99))),
            "operation 18: mark far: no value %99",
        ),
        (&|p| p.caches.clear(), "operation 7: attention: no cache 0"),
    ];
    for (alter, expected) in cases {
        assert_eq!(broken(alter), expected);
    }
}

/// Replays a plan and checks that no value is overwritten while it is still needed.
fn check_plan(program: &Program) -> Plan {
    let plan = Plan::new(program);
    let mut holds: Vec<Option<ValueId>> = vec![None; plan.slots.len()];
    for (index, op) in program.ops.iter().enumerate() {
        let out = op.output();
        let slot = plan.slot_of[out.0];
        for input in op.inputs() {
            assert_eq!(
                holds[plan.slot_of[input.0]],
                Some(input),
                "operation {index} reads what was overwritten"
            );
            assert_ne!(
                plan.slot_of[input.0], slot,
                "operation {index} overwrites its input"
            );
        }
        assert_eq!(plan.slots[slot].rows, program.values[out.0].rows);
        assert!(plan.slots[slot].width >= program.values[out.0].width);
        holds[slot] = Some(out);
    }
    assert_eq!(holds[plan.slot_of[program.logits.0]], Some(program.logits));
    plan
}

#[test]
fn a_plan_reuses_buffers_whatever_the_depth() {
    let shallow = check_plan(&program(1));
    let deep = check_plan(&program(40));
    assert_eq!(shallow.slots.len(), deep.slots.len());
    assert!(deep.slots.len() <= 8, "{:?}", deep.slots);
    // Marks take no room.
    let mut unmarked = program(40);
    unmarked.marks.clear();
    assert_eq!(check_plan(&unmarked), deep);
    assert_eq!(
        deep.elements(1, 0),
        Some(
            deep.slots
                .iter()
                .filter(|s| s.rows == Rows::Tokens)
                .map(|s| s.width)
                .sum()
        )
    );
    assert_eq!(deep.elements(usize::MAX, 1), None);
}
