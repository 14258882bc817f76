//! What `/set` changes, as one table.

use crate::cli::values;
use backplane_plugin_api::types::{GenerateOptions, LoadOptions};

/// What a conversation is held with.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// For each reply.
    pub(super) generate: GenerateOptions,
    /// For the next `/load`.
    pub(super) load: LoadOptions,
}

/// One setting: its name, its default in words, how it is shown and set; `None` sets the default again.
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) default: &'static str,
    pub(super) show: fn(&Settings) -> Option<String>,
    pub(super) set: fn(&mut Settings, Option<&str>) -> Result<(), String>,
}

macro_rules! setting {
    ($name:literal, $default:literal, $parse:path, $($field:ident).+) => {
        Setting {
            name: $name,
            default: $default,
            show: |settings| settings.$($field).+.map(|value| value.to_string()),
            set: |settings, text| {
                settings.$($field).+ = text.map($parse).transpose()?;
                Ok(())
            },
        }
    };
}

/// A setting of the backend's own, which checks it when a model is loaded.
macro_rules! extra {
    ($name:literal, $option:literal) => {
        Setting {
            name: $name,
            default: "the backend's choice; for the next /load",
            show: |settings| {
                let value = settings.load.extra.get($option)?;
                value.as_str().map(str::to_owned)
            },
            set: |settings, text| {
                match text {
                    Some(text) => settings.load.extra.insert($option.into(), text.into()),
                    None => settings.load.extra.remove($option),
                };
                Ok(())
            },
        }
    };
}

/// Every setting.
pub(super) const SETTINGS: &[Setting] = &[
    setting!(
        "temperature",
        "0.8",
        values::temperature,
        generate.sampling.temperature
    ),
    setting!("top-k", "40", values::whole, generate.sampling.top_k),
    setting!(
        "top-p",
        "0.95",
        values::probability,
        generate.sampling.top_p
    ),
    setting!(
        "min-p",
        "0.05",
        values::probability,
        generate.sampling.min_p
    ),
    setting!(
        "repeat-penalty",
        "1",
        values::penalty,
        generate.sampling.repeat_penalty
    ),
    setting!(
        "repeat-last-n",
        "64",
        values::whole,
        generate.sampling.repeat_last_n
    ),
    setting!(
        "presence-penalty",
        "0",
        values::finite,
        generate.sampling.presence_penalty
    ),
    setting!(
        "frequency-penalty",
        "0",
        values::finite,
        generate.sampling.frequency_penalty
    ),
    setting!(
        "seed",
        "drawn anew for each reply",
        values::seed,
        generate.sampling.seed
    ),
    setting!(
        "max-tokens",
        "up to the end of the context",
        values::whole,
        generate.max_tokens
    ),
    Setting {
        name: "stop",
        default: "none",
        show: |settings| {
            (!settings.generate.stop.is_empty()).then(|| format!("{:?}", settings.generate.stop))
        },
        set: |settings, text| {
            match text {
                Some(text) => settings
                    .generate
                    .stop
                    .push(text.replace("\\n", "\n").replace("\\t", "\t")),
                None => settings.generate.stop.clear(),
            }
            Ok(())
        },
    },
    setting!(
        "context",
        "the model's, at most the manifest's; for the next /load",
        values::count,
        load.context
    ),
    setting!(
        "threads",
        "the backend's choice; for the next /load",
        values::count,
        load.threads
    ),
    extra!("cache-type", "cache_type"),
    extra!("quantize", "quantize"),
];

/// A setting by name, `_` as `-`, whatever its case.
pub(super) fn find(name: &str) -> Option<&'static Setting> {
    let name = name.to_lowercase().replace('_', "-");
    SETTINGS.iter().find(|setting| setting.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_can_be_set_shown_and_reset() {
        for setting in SETTINGS {
            let mut settings = Settings::default();
            assert_eq!((setting.show)(&settings), None, "{}", setting.name);
            (setting.set)(&mut settings, Some("1")).unwrap();
            assert!(
                (setting.show)(&settings).is_some_and(|value| value.contains('1')),
                "{}",
                setting.name
            );
            (setting.set)(&mut settings, None).unwrap();
            assert_eq!((setting.show)(&settings), None, "{}", setting.name);
        }
        let wrong = (find("TOP_P").unwrap().set)(&mut Settings::default(), Some("2"));
        assert!(wrong.is_err_and(|message| message.contains("0 to 1")));
    }
}
