//! The checked form of a request's sampling fields.

use backplane_plugin_api::types::{Error, Sampling};

/// Sampling fields with their defaults filled in, every value in range.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: usize,
    /// In `0..=1`.
    pub top_p: f32,
    /// In `0..=1`.
    pub min_p: f32,
    /// Above 0; 1 is off.
    pub repeat_penalty: f32,
    /// Window of the penalties.
    pub repeat_last_n: usize,
    /// Taken off once.
    pub presence_penalty: f32,
    /// Taken off for each time.
    pub frequency_penalty: f32,
    /// Added to single logits.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Settings {
    /// Checks the fields of a request against a vocabulary.
    ///
    /// # Errors
    /// A value is out of its range or not a number; the error names the field.
    pub fn new(sampling: &Sampling, vocabulary: usize) -> Result<Self, Error> {
        let temperature = sampling.temperature.unwrap_or(0.8);
        in_range("temperature", temperature, 0.0, f32::MAX, "0 or more")?;
        let top_p = sampling.top_p.unwrap_or(0.95);
        in_range("top_p", top_p, 0.0, 1.0, "from 0 to 1")?;
        let min_p = sampling.min_p.unwrap_or(0.05);
        in_range("min_p", min_p, 0.0, 1.0, "from 0 to 1")?;
        let repeat_penalty = sampling.repeat_penalty.unwrap_or(1.0);
        in_range(
            "repeat_penalty",
            repeat_penalty,
            f32::MIN_POSITIVE,
            f32::MAX,
            "above 0",
        )?;
        let presence_penalty = sampling.presence_penalty.unwrap_or(0.0);
        in_range(
            "presence_penalty",
            presence_penalty,
            f32::MIN,
            f32::MAX,
            "a finite number",
        )?;
        let frequency_penalty = sampling.frequency_penalty.unwrap_or(0.0);
        in_range(
            "frequency_penalty",
            frequency_penalty,
            f32::MIN,
            f32::MAX,
            "a finite number",
        )?;
        for &(token, bias) in &sampling.logit_bias {
            if token as usize >= vocabulary {
                return Err(Error::invalid_field(
                    "logit_bias",
                    format!("logit_bias: token {token} is outside the vocabulary of {vocabulary}"),
                ));
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(Error::invalid_field(
                    "logit_bias",
                    format!(
                        "logit_bias: {bias} for token {token}; expected a number below infinity"
                    ),
                ));
            }
        }
        Ok(Self {
            temperature,
            top_k: sampling.top_k.unwrap_or(40) as usize,
            top_p,
            min_p,
            repeat_penalty,
            repeat_last_n: sampling.repeat_last_n.unwrap_or(64) as usize,
            presence_penalty,
            frequency_penalty,
            logit_bias: sampling.logit_bias.clone(),
        })
    }

    /// Whether any penalty changes anything.
    pub(super) fn penalises(&self) -> bool {
        self.repeat_last_n > 0
            && (self.repeat_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

fn in_range(field: &str, value: f32, low: f32, high: f32, expected: &str) -> Result<(), Error> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(Error::invalid_field(
            field,
            format!("{field}: {value}; expected {expected}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let none = Sampling::default();
        let cases: Vec<(Sampling, &str)> = vec![
            (
                Sampling {
                    temperature: Some(-0.1),
                    ..none.clone()
                },
                "temperature: -0.1; expected 0 or more",
            ),
            (
                Sampling {
                    temperature: Some(f32::NAN),
                    ..none.clone()
                },
                "temperature: NaN; expected 0 or more",
            ),
            (
                Sampling {
                    temperature: Some(f32::INFINITY),
                    ..none.clone()
                },
                "temperature: inf; expected 0 or more",
            ),
            (
                Sampling {
                    top_p: Some(1.5),
                    ..none.clone()
                },
                "top_p: 1.5; expected from 0 to 1",
            ),
            (
                Sampling {
                    min_p: Some(-1.0),
                    ..none.clone()
                },
                "min_p: -1; expected from 0 to 1",
            ),
            (
                Sampling {
                    repeat_penalty: Some(0.0),
                    ..none.clone()
                },
                "repeat_penalty: 0; expected above 0",
            ),
            (
                Sampling {
                    presence_penalty: Some(f32::NAN),
                    ..none.clone()
                },
                "presence_penalty: NaN; expected a finite number",
            ),
            (
                Sampling {
                    frequency_penalty: Some(f32::INFINITY),
                    ..none.clone()
                },
                "frequency_penalty: inf; expected a finite number",
            ),
            (
                Sampling {
                    logit_bias: vec![(10, 0.0)],
                    ..none.clone()
                },
                "logit_bias: token 10 is outside the vocabulary of 10",
            ),
            (
                Sampling {
                    logit_bias: vec![(1, f32::NAN)],
                    ..none.clone()
                },
                "logit_bias: NaN for token 1; expected a number below infinity",
            ),
        ];
        for (sampling, message) in cases {
            let error = Settings::new(&sampling, 10).unwrap_err();
            assert_eq!(error.message, message);
            assert!(message.starts_with(&error.field));
        }
        assert!(Settings::new(&none, 10).is_ok());
    }
}
