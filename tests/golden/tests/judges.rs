//! The judges find devices that are off: each fault here is one that a real device could have.

use backplane_golden::{
    Judge, Tolerance, check_f32, check_quant, formats, perplexity, real_teacher_forced,
};
use backplane_program::{
    Activation, Device, DeviceError, Executable, Interpreter, Limits, Op, Program, RopeStyle,
    SequenceStep, Step, StepOutput,
};
use backplane_weights::Weights;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The interpreter on a program that has been altered, with steps and logits that have been tampered with.
#[derive(Clone, Copy)]
struct Faulty {
    program: fn(&mut Program),
    /// Swaps the first two pages of a sequence from its second step on.
    swaps_pages: bool,
    /// Share of the logits' size added as noise.
    noise: f32,
}

const FAITHFUL: Faulty = Faulty {
    program: |_| {},
    swaps_pages: false,
    noise: 0.0,
};

impl Device for Faulty {
    fn name(&self) -> String {
        "faulty".into()
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let mut program = program.clone();
        (self.program)(&mut program);
        Ok(Box::new(FaultyExecutable {
            device: *self,
            inner: Interpreter.compile(&program, weights, limits)?,
        }))
    }
}

struct FaultyExecutable {
    device: Faulty,
    inner: Box<dyn Executable>,
}

impl Executable for FaultyExecutable {
    fn step(&mut self, step: &Step<'_>, out: &mut StepOutput) -> Result<(), DeviceError> {
        let swapped: Vec<Vec<u32>> = step
            .sequences
            .iter()
            .map(|sequence| {
                let mut pages = sequence.pages.to_vec();
                if self.device.swaps_pages && sequence.past >= 8 {
                    pages.swap(0, 1);
                }
                pages
            })
            .collect();
        let sequences: Vec<_> = step
            .sequences
            .iter()
            .zip(&swapped)
            .map(|(sequence, pages)| SequenceStep { pages, ..*sequence })
            .collect();
        self.inner.step(
            &Step {
                sequences: &sequences,
                ..*step
            },
            out,
        )?;
        for (place, logit) in out.logits.iter_mut().enumerate() {
            // Uniform noise of variance 1 out of a hash of the place; logits have a standard deviation of about 8.
            let hash = (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let noise = (hash as f32 / (1u32 << 24) as f32 - 0.5) * 12f32.sqrt();
            *logit += self.device.noise * 8.0 * noise;
        }
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), DeviceError> {
        self.inner.copy_page(from, to)
    }

    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    fn describe(&self) -> String {
        "faulty".into()
    }
}

fn finds<T>(what: &str, check: impl FnOnce() -> T) {
    assert!(
        catch_unwind(AssertUnwindSafe(check)).is_err(),
        "{what} passes"
    );
}

#[test]
fn a_faithful_device_passes() {
    check_f32(
        &FAITHFUL,
        "llama3-gqa",
        "model-f32.gguf",
        Tolerance::default(),
    );
    check_quant(&FAITHFUL, "Q4_K", Judge::Exact);
    check_quant(&FAITHFUL, "Q4_K", Judge::Int8Activations);
}

#[test]
fn faults_of_operations_are_found() {
    type Fault = fn(&mut Program);
    let faults: [(&str, Fault); 5] = [
        ("another pairing", |program| {
            program
                .ropes
                .iter_mut()
                .for_each(|rope| rope.style = RopeStyle::Interleaved)
        }),
        ("a window of one less", |program| {
            for op in &mut program.ops {
                if let Op::Attention {
                    window: Some(window),
                    ..
                } = op
                {
                    *window -= 1;
                }
            }
        }),
        ("scores off by 0.1 %", |program| {
            for op in &mut program.ops {
                if let Op::Attention { scale, .. } = op {
                    *scale *= 1.001;
                }
            }
        }),
        ("another activation", |program| {
            for op in &mut program.ops {
                if let Op::Gated { activation, .. } = op {
                    *activation = Activation::Silu;
                }
            }
        }),
        ("a frequency off by 0.1 %", |program| {
            program.ropes[0].inverse_frequencies[0] *= 1.001
        }),
    ];
    for (what, program) in faults {
        let device = Faulty {
            program,
            ..FAITHFUL
        };
        finds(what, || {
            check_f32(
                &device,
                "gemma3-text",
                "model-f32.gguf",
                Tolerance::default(),
            )
        });
    }
}

/// Beyond a window that the GGUF file of a model does not know, its references are not right for the file; they are for the
/// directory.
#[test]
fn a_window_is_judged_where_the_file_knows_it() {
    let blind = Faulty {
        program: |program| {
            for op in &mut program.ops {
                if let Op::Attention { window, .. } = op {
                    *window = None;
                }
            }
        },
        ..FAITHFUL
    };
    let judge = |device: &dyn Device, format: &str| {
        check_f32(device, "mistral-sliding", format, Tolerance::default());
    };
    for format in formats("mistral-sliding") {
        judge(&FAITHFUL, format);
        if format.ends_with(".gguf") {
            judge(&blind, format);
        } else {
            finds("a window left out", || judge(&blind, format));
        }
    }
    let off = Faulty {
        program: |program| program.ropes[0].inverse_frequencies[0] *= 1.001,
        ..FAITHFUL
    };
    finds("a frequency off within the window", || {
        judge(&off, "model-f32.gguf")
    });
}

#[test]
fn faults_of_the_cache_are_found() {
    let device = Faulty {
        swaps_pages: true,
        ..FAITHFUL
    };
    // Keys carry their positions with them, so that order matters only where a window cuts.
    finds("pages out of order", || {
        check_f32(
            &device,
            "gemma3-text",
            "model-f32.gguf",
            Tolerance::default(),
        )
    });
}

#[test]
fn the_judge_for_8_bits_allows_their_noise_and_no_more() {
    let slight = Faulty {
        noise: 0.02,
        ..FAITHFUL
    };
    check_quant(&slight, "Q8_0", Judge::Int8Activations);
    finds("noise under the exact judge", || {
        check_quant(&slight, "Q8_0", Judge::Exact)
    });
    let strong = Faulty {
        noise: 0.08,
        ..FAITHFUL
    };
    finds("strong noise", || {
        check_quant(&strong, "Q8_0", Judge::Int8Activations)
    });
}

#[test]
fn real_models_find_faults_too() {
    let sharp = Faulty {
        program: |program| {
            for op in &mut program.ops {
                if let Op::Attention { scale, .. } = op {
                    *scale *= 1.3;
                }
            }
        },
        ..FAITHFUL
    };
    finds("scores off by 30 %", || perplexity(&sharp, "smollm2-135m"));
    let loud = Faulty {
        noise: 0.3,
        ..FAITHFUL
    };
    finds("noise over real logits", || {
        real_teacher_forced(&loud, "smollm2-135m", Judge::Int8Activations);
    });
}
