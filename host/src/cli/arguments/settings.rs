//! Options out of the table of the server's settings: one for each row.

use crate::manifest::{Kind, SETTINGS, ServeOptions, Setting, Value};
use crate::serve::Flag;
use clap::builder::{StringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

/// The settings that were given as options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings(pub(crate) Vec<Flag>);

/// The rows that are options; models are named without one.
fn rows() -> impl Iterator<Item = &'static Setting<ServeOptions>> {
    SETTINGS.iter().filter(|setting| setting.name != "models")
}

fn argument(setting: &'static Setting<ServeOptions>) -> Arg {
    let kind = setting.kind;
    let default = setting.value(&ServeOptions::default());
    let default = default.map_or(setting.otherwise.to_owned(), |value| value.to_string());
    let read = move |text: String| kind.read(&text);
    let argument = Arg::new(setting.name)
        .long(setting.flag())
        .value_name(kind.placeholder())
        .allow_negative_numbers(true)
        .value_parser(StringValueParser::new().try_map(read))
        .help(format!("{} [default: {default}]", capital(setting.about)));
    match kind {
        Kind::Truth => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        _ => argument,
    }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(characters).collect()
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        command.args(rows().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |setting: &&Setting<ServeOptions>| {
            matches.value_source(setting.name) == Some(ValueSource::CommandLine)
        };
        let flag = |setting: &'static Setting<ServeOptions>| {
            let value = matches.get_one::<Value>(setting.name)?;
            Some((setting.name, value.clone()))
        };
        Ok(Self(rows().filter(given).filter_map(flag).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
