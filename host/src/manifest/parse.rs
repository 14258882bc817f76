//! From text to a checked manifest, every error with its line.

use super::{
    Bytes, Fallback, Given, Isolation, Limit, MODEL_SETTINGS, Manifest, ManifestError, PluginEntry,
    SETTINGS, ServeEntry, Setting, Source, Watchdog, normal_name,
};
use crate::nearest::suggestion;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const TOP_KEYS: &[&str] = &[
    "directories",
    "order",
    "fallback",
    "discover",
    "context",
    "plugin",
    "serve",
];
const PLUGIN_KEYS: &[&str] = &[
    "enabled",
    "path",
    "sha256",
    "isolation",
    "watchdog",
    "memory_limit",
    "options",
];
/// Longest context that is taken for meant, in tokens.
const MOST_CONTEXT: i64 = 1 << 27;
/// Shortest limit of time that is taken for meant.
const LEAST_TIME: Duration = Duration::from_millis(100);
/// Least limit of memory that is taken for meant: an empty process holds some.
const LEAST_MEMORY: Bytes = Bytes(16 << 20);

type Value<'i> = Spanned<DeValue<'i>>;
type Result<T> = std::result::Result<T, ManifestError>;

struct File<'a> {
    text: &'a str,
    path: &'a Path,
}

pub(super) fn parse(text: &str, path: &Path, source: Source) -> Result<Manifest> {
    let file = File { text, path };
    let folder = path.parent().unwrap_or(Path::new(""));
    let table = DeTable::parse(text).map_err(|error| {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        file.error(
            error.span().unwrap_or(0..0),
            message,
            "mend the TOML syntax at that place",
        )
    })?;
    let mut manifest =
        Manifest::with_directories(source, vec![folder.join(super::DEFAULT_DIRECTORY)]);
    for (key, value) in in_order(table.get_ref()) {
        match key.get_ref().as_ref() {
            "directories" => {
                manifest.directories_named = true;
                manifest.directories = file
                    .strings("directories", value)?
                    .into_iter()
                    .map(|(text, span)| file.path_of("directories", folder, &text, span))
                    .collect::<Result<_>>()?;
            }
            "order" => manifest.order = file.order(value)?,
            "fallback" => manifest.fallback = file.fallback(value)?,
            "discover" => manifest.discover = file.boolean("discover", value)?,
            "context" => manifest.context = file.context(value)?,
            "plugin" => manifest.plugins = file.plugins(folder, value)?,
            "serve" => manifest.serve = file.serve(folder, value)?,
            unknown => return Err(file.unknown_key("", unknown, key.span(), TOP_KEYS)),
        }
    }
    Ok(manifest)
}

/// The entries of a table as they stand in the file, so that the first error is the first one in the text.
fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t Spanned<std::borrow::Cow<'i, str>>, &'t Value<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

impl File<'_> {
    fn error(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
        action: impl Into<String>,
    ) -> ManifestError {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        ManifestError {
            path: self.path.to_path_buf(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: message.into(),
            action: action.into(),
        }
    }

    fn unknown_key(
        &self,
        table: &str,
        key: &str,
        span: Range<usize>,
        known: &[&str],
    ) -> ManifestError {
        let place = if table.is_empty() {
            String::new()
        } else {
            format!(" in [{table}]")
        };
        self.error(
            span,
            format!("unknown key `{key}`{place}"),
            suggestion(key, known.iter().copied(), ""),
        )
    }

    fn wrong_type(&self, key: &str, value: &Value<'_>, expected: &str) -> ManifestError {
        let found = match value.get_ref() {
            DeValue::String(text) => format!("the text {text:?}"),
            DeValue::Integer(number) => format!("the number {number}"),
            DeValue::Float(number) => format!("the number {number}"),
            DeValue::Boolean(value) => format!("{value}"),
            DeValue::Datetime(date) => format!("the date {date}"),
            DeValue::Array(_) => "an array".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        self.error(
            value.span(),
            format!("`{key}`: found {found}, expected {expected}"),
            format!("make it {expected}"),
        )
    }

    fn string(&self, key: &str, value: &Value<'_>) -> Result<String> {
        let text = value
            .get_ref()
            .as_str()
            .ok_or_else(|| self.wrong_type(key, value, "a text in quotes"))?;
        Ok(text.to_owned())
    }

    fn strings(&self, key: &str, value: &Value<'_>) -> Result<Vec<(String, Range<usize>)>> {
        let expected = "an array of texts";
        let array = value
            .get_ref()
            .as_array()
            .ok_or_else(|| self.wrong_type(key, value, expected))?;
        array
            .iter()
            .map(|item| {
                let text = item
                    .get_ref()
                    .as_str()
                    .ok_or_else(|| self.wrong_type(key, item, "a text in quotes"))?;
                Ok((text.to_owned(), item.span()))
            })
            .collect()
    }

    fn boolean(&self, key: &str, value: &Value<'_>) -> Result<bool> {
        value
            .get_ref()
            .as_bool()
            .ok_or_else(|| self.wrong_type(key, value, "true or false"))
    }

    fn path_of(&self, key: &str, folder: &Path, text: &str, span: Range<usize>) -> Result<PathBuf> {
        if text.trim().is_empty() {
            return Err(self.error(
                span,
                format!("`{key}`: found an empty path"),
                "name a folder or file",
            ));
        }
        Ok(folder.join(text))
    }

    fn order(&self, value: &Value<'_>) -> Result<Vec<String>> {
        let mut order: Vec<String> = Vec::new();
        for (text, span) in self.strings("order", value)? {
            let name = normal_name(&text);
            self.check_name("order", &name, span.clone())?;
            if order.contains(&name) {
                return Err(self.error(
                    span,
                    format!("`order`: `{name}` stands there twice"),
                    "name each once",
                ));
            }
            order.push(name);
        }
        if order.is_empty() {
            let action = "name at least one plugin, or \"*\" for any";
            return Err(self.error(value.span(), "`order`: found an empty array", action));
        }
        Ok(order)
    }

    fn check_name(&self, key: &str, name: &str, span: Range<usize>) -> Result<()> {
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if (key == "order" && name == "*") || (!name.is_empty() && name.chars().all(letters)) {
            return Ok(());
        }
        let message =
            format!("`{key}`: found the plugin name {name:?}, expected letters, digits and `_`");
        Err(self.error(span, message, "use the name that `backplane plugins` shows"))
    }

    fn fallback(&self, value: &Value<'_>) -> Result<Fallback> {
        let text = self.string("fallback", value)?;
        let words = Fallback::ALL.iter().map(|(_, word)| *word);
        Fallback::ALL
            .iter()
            .find(|(_, word)| *word == text)
            .map(|(policy, _)| *policy)
            .ok_or_else(|| {
                let message =
                    format!("`fallback`: found {text:?}, expected \"deny\", \"warn\" or \"allow\"");
                self.error(value.span(), message, suggestion(&text, words, ""))
            })
    }

    fn context(&self, value: &Value<'_>) -> Result<u32> {
        let expected = "a whole number of tokens from 1 to 134217728";
        let number =
            integer(value.get_ref()).ok_or_else(|| self.wrong_type("context", value, expected))?;
        u32::try_from(number)
            .ok()
            .filter(|_| (1..=MOST_CONTEXT).contains(&number))
            .ok_or_else(|| self.wrong_type("context", value, expected))
    }

    fn plugins(&self, folder: &Path, value: &Value<'_>) -> Result<BTreeMap<String, PluginEntry>> {
        let expected = "tables such as [plugin.cpu]";
        let table = value
            .get_ref()
            .as_table()
            .ok_or_else(|| self.wrong_type("plugin", value, expected))?;
        let mut plugins = BTreeMap::new();
        for (key, value) in in_order(table) {
            let name = normal_name(key.get_ref());
            self.check_name("plugin", &name, key.span())?;
            let entry = self.plugin(folder, &name, value)?;
            if plugins.insert(name.clone(), entry).is_some() {
                let message = format!(
                    "`plugin.{}`: the plugin `{name}` has an entry already",
                    key.get_ref()
                );
                return Err(self.error(
                    key.span(),
                    message,
                    "keep one; case and `-` make no difference",
                ));
            }
        }
        Ok(plugins)
    }

    fn plugin(&self, folder: &Path, name: &str, value: &Value<'_>) -> Result<PluginEntry> {
        let place = format!("plugin.{name}");
        let table = value
            .get_ref()
            .as_table()
            .ok_or_else(|| self.wrong_type(&place, value, "a table"))?;
        let mut entry = PluginEntry::new(name);
        for (key, value) in in_order(table) {
            let full = format!("{place}.{}", key.get_ref());
            match key.get_ref().as_ref() {
                "enabled" => entry.enabled = self.boolean(&full, value)?,
                "path" => {
                    let text = self.string(&full, value)?;
                    entry.path = Some(self.path_of(&full, folder, &text, value.span())?);
                }
                "sha256" => entry.sha256 = Some(self.sha256(&full, value)?),
                "isolation" => entry.isolation = Some(self.isolation(&full, value)?),
                "watchdog" => entry.watchdog = Some(self.watchdog(&full, value)?),
                "memory_limit" => entry.memory_limit = Some(self.bytes(&full, value)?),
                "options" => {
                    let expected = "a table of the plugin's own options";
                    let table = value
                        .get_ref()
                        .as_table()
                        .ok_or_else(|| self.wrong_type(&full, value, expected))?;
                    for (key, value) in in_order(table) {
                        let json = self.json(&format!("{full}.{}", key.get_ref()), value)?;
                        entry.options.insert(key.get_ref().to_string(), json);
                    }
                }
                unknown => return Err(self.unknown_key(&place, unknown, key.span(), PLUGIN_KEYS)),
            }
        }
        Ok(entry)
    }

    fn serve(&self, folder: &Path, value: &Value<'_>) -> Result<ServeEntry> {
        let mut entry = ServeEntry {
            folder: folder.to_path_buf(),
            ..ServeEntry::default()
        };
        let (models, others): (Vec<_>, Vec<_>) = in_order(self.table("serve", value)?)
            .into_iter()
            .partition(|(key, _)| key.get_ref() == "model");
        entry.given = self.settings("serve", SETTINGS, &["model"], others, folder)?;
        // Names and aliases, which mean one model each, with what they were first used for.
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for (_, value) in models {
            for (key, value) in in_order(self.table("serve.model", value)?) {
                let name = key.get_ref().trim().to_owned();
                let place = format!("serve.model.{name}");
                if name.is_empty() || name.chars().any(char::is_control) {
                    let message = format!("`serve.model`: found the name {name:?}");
                    return Err(self.error(key.span(), message, "call it as clients should"));
                }
                let table = in_order(self.table(&place, value)?);
                let given = self.settings(&place, MODEL_SETTINGS, &[], table, folder)?;
                let aliases = match given.get("aliases").map(|given| &given.value) {
                    Some(super::Value::Texts(aliases)) => aliases.clone(),
                    _ => Vec::new(),
                };
                for one in [&name].into_iter().chain(&aliases) {
                    if let Some(first) = names.insert(one.to_lowercase(), name.clone()) {
                        let message = format!("`{place}`: `{one}` is a name of `{first}` already");
                        return Err(self.error(key.span(), message, "give each model its names"));
                    }
                }
                entry.models.insert(name, given);
            }
        }
        Ok(entry)
    }

    fn table<'t, 'i>(&self, key: &str, value: &'t Value<'i>) -> Result<&'t DeTable<'i>> {
        let table = value.get_ref().as_table();
        table.ok_or_else(|| self.wrong_type(key, value, "a table"))
    }

    /// Settings of a table; `others` are keys that it has besides.
    fn settings<T>(
        &self,
        place: &str,
        known: &'static [Setting<T>],
        others: &[&str],
        entries: Vec<(&Spanned<std::borrow::Cow<'_, str>>, &Value<'_>)>,
        folder: &Path,
    ) -> Result<BTreeMap<&'static str, Given>> {
        let mut given = BTreeMap::new();
        for (key, value) in entries {
            let name = key.get_ref().as_ref();
            let Some(setting) = known.iter().find(|setting| setting.name == name) else {
                let names = known.iter().map(|setting| setting.name);
                let names: Vec<&str> = names.chain(others.iter().copied()).collect();
                return Err(self.unknown_key(place, name, key.span(), &names));
            };
            let read = setting.kind.of_manifest(value.get_ref(), folder);
            let full = format!("{place}.{name}");
            let read =
                read.ok_or_else(|| self.wrong_type(&full, value, &setting.kind.expected()))?;
            let line = self.error(key.span(), "", "").line;
            given.insert(setting.name, Given { value: read, line });
        }
        Ok(given)
    }

    fn isolation(&self, key: &str, value: &Value<'_>) -> Result<Isolation> {
        let text = self.string(key, value)?;
        let words = Isolation::ALL.iter().map(|(_, word)| *word);
        Isolation::ALL
            .iter()
            .find(|(_, word)| *word == text)
            .map(|(isolation, _)| *isolation)
            .ok_or_else(|| {
                let message =
                    format!("`{key}`: found {text:?}, expected \"in-process\" or \"process\"");
                self.error(value.span(), message, suggestion(&text, words, ""))
            })
    }

    /// One time for what should answer and for signs of life, or a table of the limits.
    fn watchdog(&self, key: &str, value: &Value<'_>) -> Result<Watchdog> {
        let mut watchdog = Watchdog::default();
        let Some(table) = value.get_ref().as_table() else {
            let limit = self.limit(key, value)?;
            (watchdog.answer, watchdog.sign) = (limit, limit);
            if limit == Limit(None) {
                (watchdog.load, watchdog.event) = (limit, limit);
            }
            return Ok(watchdog);
        };
        for (name, value) in in_order(table) {
            let name_text = name.get_ref().as_ref();
            match watchdog.limit_mut(name_text) {
                Some(limit) => *limit = self.limit(&format!("{key}.{name_text}"), value)?,
                None => {
                    return Err(self.unknown_key(key, name_text, name.span(), Watchdog::KEYS));
                }
            }
        }
        Ok(watchdog)
    }

    fn limit(&self, key: &str, value: &Value<'_>) -> Result<Limit> {
        let expected =
            "a time such as \"60s\", \"500ms\", \"10m\" or \"1h\", up to a week, or \"off\"";
        let limit = value.get_ref().as_str().and_then(Limit::parse);
        let limit = limit.ok_or_else(|| self.wrong_type(key, value, expected))?;
        if limit.0.is_some_and(|limit| limit < LEAST_TIME) {
            let message = format!("`{key}`: found {limit}, expected 100ms or longer");
            return Err(self.error(value.span(), message, "raise it, or leave it out"));
        }
        Ok(limit)
    }

    fn bytes(&self, key: &str, value: &Value<'_>) -> Result<Bytes> {
        let expected = "a size such as \"8GiB\" or \"512MiB\"";
        let bytes = value.get_ref().as_str().and_then(Bytes::parse);
        let bytes = bytes.ok_or_else(|| self.wrong_type(key, value, expected))?;
        if bytes < LEAST_MEMORY {
            let message = format!("`{key}`: found {bytes}, expected {LEAST_MEMORY} or more");
            return Err(self.error(value.span(), message, "raise it, or leave it out"));
        }
        Ok(bytes)
    }

    fn sha256(&self, key: &str, value: &Value<'_>) -> Result<String> {
        let text = self.string(key, value)?.to_ascii_lowercase();
        if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(text);
        }
        let message = format!(
            "`{key}`: found {} characters, expected 64 hexadecimal digits",
            text.chars().count()
        );
        Err(self.error(value.span(), message, "take it from `sha256sum MODULE`"))
    }

    fn json(&self, key: &str, value: &Value<'_>) -> Result<serde_json::Value> {
        Ok(match value.get_ref() {
            DeValue::String(text) => serde_json::Value::from(text.as_ref()),
            DeValue::Boolean(value) => serde_json::Value::from(*value),
            number @ DeValue::Integer(_) => {
                let expected = "a whole number of 64 bits";
                serde_json::Value::from(
                    integer(number).ok_or_else(|| self.wrong_type(key, value, expected))?,
                )
            }
            DeValue::Float(number) => number
                .as_str()
                .parse::<f64>()
                .ok()
                .and_then(serde_json::Number::from_f64)
                .map(serde_json::Value::Number)
                .ok_or_else(|| self.wrong_type(key, value, "a finite number"))?,
            DeValue::Datetime(date) => serde_json::Value::from(date.to_string()),
            DeValue::Array(items) => serde_json::Value::Array(
                items
                    .iter()
                    .map(|item| self.json(key, item))
                    .collect::<Result<_>>()?,
            ),
            DeValue::Table(table) => serde_json::Value::Object(
                in_order(table)
                    .into_iter()
                    .map(|(inner, value)| {
                        let name = inner.get_ref().to_string();
                        let json = self.json(&format!("{key}.{name}"), value)?;
                        Ok((name, json))
                    })
                    .collect::<Result<_>>()?,
            ),
        })
    }
}

pub(super) fn integer(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}
