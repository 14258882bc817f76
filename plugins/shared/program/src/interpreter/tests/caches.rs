//! Cache types, and caches that have their values in the keys.

use super::{assert_close, compile_with, model, weights};
use crate::interpreter::cache::{Pool, round};
use crate::interpreter::ops;
use crate::program::{CacheId, CacheSpec, CachedValues};
use crate::{Builder, CacheType, Limits, SequenceStep, Step};

/// The pool of one cache, with the keys and values of three positions on scattered pages.
fn pool(spec: CacheSpec, cache_type: CacheType, keys: &[f32], values: Option<&[f32]>) -> Pool {
    let weights = weights(&[]);
    let mut builder = Builder::new("test", &weights);
    builder.cache(spec);
    let limits = Limits {
        max_step_tokens: 8,
        max_wanted: 8,
        page_size: 2,
        pages: 4,
        threads: 1,
        cache_type,
    };
    let mut pool = Pool::new(&builder.unchecked(), &limits).unwrap();
    pool.commit(&step()).unwrap();
    pool.append(CacheId(0), &step(), keys, values);
    pool
}

const PAGES: [u32; 2] = [3, 1];

fn step() -> Step<'static> {
    const SEQUENCES: [SequenceStep<'_>; 1] = [SequenceStep {
        count: 3,
        past: 0,
        pages: &PAGES,
    }];
    Step {
        tokens: &[0; 3],
        sequences: &SEQUENCES,
        wanted: &[],
        marks: false,
    }
}

#[test]
fn values_in_keys_are_their_beginnings_and_stored_once() {
    let spec = CacheSpec {
        kv_heads: 2,
        key_dim: 2,
        value_dim: 1,
        values: CachedValues::InKeys,
    };
    // Two heads: the second element makes scores, the first is the value.
    let (a, b, c) = (1f32.ln(), 3f32.ln(), 4f32.ln());
    let keys = [10.0, a, 1.0, c, 20.0, b, 2.0, c, 40.0, c, 3.0, c];
    let pool = pool(spec, CacheType::F32, &keys, None);
    assert_eq!(pool.page_floats(), 2 * 2 * 2);
    let shape = ops::AttentionShape {
        heads: 4,
        scale: 1.0,
        window: None,
        soft_cap: None,
    };
    let mut out = vec![0.0; 3 * 4];
    let q = [[0.0, 1.0]; 12].concat();
    ops::attention(&q, &step(), &pool.view(CacheId(0)), shape, 1, &mut out);
    // Weights 1; 1:3; 1:3:4 for the first two heads, equal ones for the others.
    assert_close(
        &out,
        &[
            [10.0, 10.0, 1.0, 1.0],
            [70.0 / 4.0, 70.0 / 4.0, 1.5, 1.5],
            [230.0 / 8.0, 230.0 / 8.0, 2.0, 2.0],
        ]
        .concat(),
    );
}

#[test]
fn what_is_stored_is_rounded_to_the_cache_type() {
    let spec = CacheSpec {
        kv_heads: 1,
        key_dim: 2,
        value_dim: 1,
        values: CachedValues::Stored,
    };
    let keys = [1.0, 1.0 + 1.0 / 4096.0, 3.0, 1e-9, 5.0, -70_000.0];
    let values = [0.1, 0.2, 2049.0];
    let pool = pool(spec, CacheType::F16, &keys, Some(&values));
    let view = pool.view(CacheId(0));
    assert_eq!(view.key(&PAGES, 0, 0), [1.0, 1.0]);
    assert_eq!(view.key(&PAGES, 1, 0), [3.0, 0.0]);
    assert_eq!(view.key(&PAGES, 2, 0), [5.0, f32::NEG_INFINITY]);
    assert_eq!(view.value(&PAGES, 2, 0), [2048.0]);
    assert!((view.value(&PAGES, 0, 0)[0] - 0.1).abs() < 1e-4);
}

#[test]
fn q8_0_rounds_blocks_of_32_as_gguf_does() {
    let mut head = [0.0f32; 64];
    head[..5].copy_from_slice(&[127.0, 0.5, -0.5, 1.4, -2.6]);
    // A scale that f16 can't hold: 1 + 2^-12 becomes 1, and the whole numbers are those of the exact scale.
    head[32] = -127.0 * (1.0 + 1.0 / 4096.0);
    head[33] = 63.6;
    round(CacheType::Q8_0, &mut head);
    assert_eq!(head[..6], [127.0, 1.0, -1.0, 1.0, -3.0, 0.0]);
    assert_eq!(head[32..35], [-127.0, 64.0, 0.0]);
    let mut nothing = [0.0f32; 32];
    round(CacheType::Q8_0, &mut nothing);
    assert_eq!(nothing, [0.0; 32]);
    let mut exact = [1.25e-9f32, -3.0];
    round(CacheType::F32, &mut exact);
    assert_eq!(exact, [1.25e-9, -3.0]);
}

#[test]
fn heads_that_a_cache_type_cannot_hold_are_named() {
    let (program, weights) = model();
    for cache_type in [CacheType::F32, CacheType::F16] {
        let executable = compile_with(&program, &weights, cache_type).unwrap();
        assert!(executable.describe().contains(&cache_type.to_string()));
    }
    assert_eq!(
        compile_with(&program, &weights, CacheType::Q8_0)
            .err()
            .unwrap()
            .to_string(),
        "cache type q8_0: layer 0 has key heads of 2 elements, expected a multiple of 32"
    );
    let spec = |key_dim, value_dim, values| CacheSpec {
        kv_heads: 1,
        key_dim,
        value_dim,
        values,
    };
    let fits = |caches: &[CacheSpec]| CacheType::Q8_0.check(caches).map_err(|e| e.to_string());
    assert_eq!(fits(&[spec(64, 32, CachedValues::Stored)]), Ok(()));
    assert_eq!(fits(&[spec(64, 48, CachedValues::InKeys)]), Ok(()));
    assert_eq!(
        fits(&[
            spec(64, 64, CachedValues::Stored),
            spec(64, 48, CachedValues::Stored)
        ]),
        Err(
            "cache type q8_0: layer 1 has value heads of 48 elements, expected a multiple of 32"
                .into()
        )
    );
}

#[test]
fn cache_types_are_read_by_name() {
    for cache_type in CacheType::ALL {
        assert_eq!(
            cache_type.to_string().to_uppercase().parse(),
            Ok(cache_type)
        );
    }
    assert_eq!(CacheType::default(), CacheType::F16);
    assert_eq!(
        "q4_0\n".parse::<CacheType>(),
        Err("cache type \"q4_0\\n\", expected f32, f16 or q8_0".into())
    );
}
