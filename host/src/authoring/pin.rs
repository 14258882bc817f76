//! Hashes of modules into the manifest: comments, order and formatting stay as they are, byte by byte.
//!
//! The edit itself is `toml_edit`'s, which may tidy what stands around it. So only the line of the pin is taken from it, and
//! the manifest that is read from the outcome must be the old one with that pin.

use super::validate;
use crate::error::{Error, Result};
use crate::loader::sha256_hex;
use crate::manifest::{Manifest, Source, normal_name};
use crate::nearest::suggestion;
use crate::registry::discover;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, TableLike, Value};

/// How a plugin's pin stands to its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// The pin is the file's hash.
    Pinned,
    /// There is none.
    Unpinned,
    /// It is another: the plugin is refused as untrusted.
    Differs,
}

/// A plugin with its file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Pin {
    /// Its name.
    pub(crate) name: String,
    /// Its module.
    #[serde(serialize_with = "crate::lossy::path")]
    pub(crate) path: PathBuf,
    /// SHA-256 of the file, in hexadecimal.
    pub(crate) sha256: String,
    /// The pin that the manifest has.
    pub(crate) pinned: Option<String>,
    /// How the two stand to each other.
    pub(crate) state: State,
}

/// A plugin whose module can't be opened, and so is not pinned unless somebody mends it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LeftOut {
    /// Its name.
    pub(crate) name: String,
    /// Why, in one line.
    pub(crate) why: String,
}

/// What a module states to a child: its name, or why it can't be opened. `None` where there is no child to ask.
pub(crate) type Stated = Option<std::result::Result<String, String>>;

/// The plugins of these names, or all that have a module file, with their hashes, and those that are left out. Modules are
/// asked for their names, by `stated`, in a child: the name of a file is not always the plugin's. For a mere `check` only
/// those are asked that the manifest says nothing of.
///
/// # Errors
/// No plugin has one of the names, or no module file; a file can't be read; a module's name is not that of its file; one
/// that was named can't be opened.
pub(crate) fn pins(
    manifest: &Manifest,
    names: &[String],
    check: bool,
    stated: impl Fn(&Path) -> Stated,
) -> Result<(Vec<Pin>, Vec<LeftOut>)> {
    let found = discover(manifest);
    let mut wanted: Vec<String> = Vec::new();
    for name in names.iter().map(|name| normal_name(name)) {
        if !wanted.contains(&name) {
            wanted.push(name);
        }
    }
    if names.is_empty() {
        for one in found.iter().filter(|one| one.path.is_some()) {
            if !wanted.contains(&one.name) {
                wanted.push(one.name.clone());
            }
        }
    }
    let (mut pins, mut left_out) = (Vec::new(), Vec::new());
    for name in wanted {
        let Some(one) = found.iter().find(|one| one.name == name) else {
            let known = found
                .iter()
                .filter(|one| one.path.is_some())
                .map(|one| one.name.as_str());
            let action = suggestion(
                &name,
                known,
                "no plugin is installed; see `backplane plugins`",
            );
            return Err(Error::UnknownBackend { name, action });
        };
        let Some(path) = one.path.clone() else {
            let verdict = one.verdict.as_ref();
            let why = verdict.map_or_else(String::new, |verdict| verdict.message.clone());
            let action = verdict.map_or_else(String::new, |verdict| verdict.action.clone());
            return Err(Error::usage(format!("{name}: {why}"), action));
        };
        let entry = manifest.plugin(&name);
        let sha256 = sha256_hex(&path).map_err(|error| Error::file(&path, &error))?;
        let asked = (entry.is_none() || !check).then(|| stated(&path)).flatten();
        if let (Some(Err(why)), false) = (&asked, check) {
            if names.is_empty() {
                let why = why.clone();
                left_out.push(LeftOut { name, why });
                continue;
            }
            let message = format!("{name} is not pinned, its module can't be opened: {why}");
            return Err(Error::usage(message, "build or install the module again"));
        }
        if entry.is_none()
            && let Some(Ok(own)) = asked
            && let own = normal_name(&own)
            && own != name
        {
            let message = format!(
                "{}: this module is the plugin `{own}`, but its file name says `{name}`",
                path.display()
            );
            let action = format!("name the file by `path` in [plugin.{own}], and pin `{own}`");
            return Err(Error::usage(message, action));
        }
        let pinned = entry.and_then(|entry| entry.sha256.clone());
        let state = match &pinned {
            None => State::Unpinned,
            Some(pin) if *pin == sha256 => State::Pinned,
            Some(_) => State::Differs,
        };
        pins.push(Pin {
            name,
            path,
            sha256,
            pinned,
            state,
        });
    }
    Ok((pins, left_out))
}

/// The name that a module states to a child.
pub(crate) fn stated(program: &Path, module: &Path) -> std::result::Result<String, String> {
    validate::ask(module, program).map(|asked| asked.opened.name)
}

/// Writes those pins that are not in the manifest as they are. The file is replaced at once or not at all; a link to it
/// stays one.
///
/// # Errors
/// The manifest is not a file, is read-only, can't be written, was changed meanwhile, or has a shape that can't be edited.
pub(crate) fn write(manifest: &Manifest, pins: &[Pin]) -> Result<()> {
    let path = manifest.source.path().ok_or_else(|| {
        Error::usage(
            "there is no manifest to write pins into",
            "write a plugins.toml into your configuration folder, or name one with --manifest",
        )
    })?;
    let failed = |error: std::io::Error| Error::file(path, &error);
    let old = std::fs::read_to_string(path).map_err(failed)?;
    let mut text = old.clone();
    for pin in pins.iter().filter(|pin| pin.state != State::Pinned) {
        text = edited(&text, path, &pin.name, &pin.sha256)?;
    }
    if text == old {
        return Ok(());
    }
    let real = path.canonicalize().map_err(failed)?;
    replace(&real, &old, &text)
}

fn replace(real: &Path, old: &str, text: &str) -> Result<()> {
    let failed = |error: std::io::Error| Error::file(real, &error);
    let metadata = std::fs::metadata(real).map_err(failed)?;
    if metadata.permissions().readonly() {
        return Err(Error::File {
            path: real.to_path_buf(),
            message: "the manifest is read-only; no pin was written".to_owned(),
        });
    }
    let folder = real.parent().unwrap_or(Path::new("."));
    let mut fresh = tempfile::Builder::new()
        .prefix(".plugins.toml.")
        .tempfile_in(folder)
        .map_err(failed)?;
    fresh.write_all(text.as_bytes()).map_err(failed)?;
    let file = fresh.as_file();
    file.set_permissions(metadata.permissions())
        .map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        // Only who may give files away can keep another's.
        let _ = fchown(file, Some(metadata.uid()), Some(metadata.gid()));
    }
    file.sync_all().map_err(failed)?;
    if std::fs::read_to_string(real).map_err(failed)? != old {
        return Err(Error::File {
            path: real.to_path_buf(),
            message: "the manifest was changed meanwhile; no pin was written".to_owned(),
        });
    }
    fresh
        .persist(real)
        .map_err(|error| failed(error.error))
        .map(|_| ())
}

/// The text of a manifest with the pin of a plugin.
fn edited(text: &str, path: &Path, name: &str, sha256: &str) -> Result<String> {
    let shape = |what: &str| {
        let message = format!("{}: {what}", path.display());
        let action = format!("write sha256 = \"{sha256}\" into [plugin.{name}] by hand");
        Error::usage(message, action)
    };
    let read = |text: &str| Manifest::parse(text, path, Source::Named).map_err(Error::from);
    let mut before = read(text)?;
    let pinned = before
        .plugin(name)
        .and_then(|entry| entry.sha256.as_deref());
    if pinned == Some(sha256) {
        return Ok(text.to_owned());
    }
    // `toml_edit` writes no mark of the byte order, and ends all lines in one way.
    let (mark, body) = match text.strip_prefix('\u{feff}') {
        Some(body) => ("\u{feff}", body),
        None => ("", text),
    };
    let plain = body.replace("\r\n", "\n");
    let mut document: DocumentMut = plain
        .parse()
        .map_err(|_| shape("the manifest can't be edited"))?;
    let new = if set(&mut document, name, sha256) {
        document.to_string()
    } else {
        let gap = if plain.is_empty() { "" } else { "\n" };
        let end = if plain.is_empty() || plain.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        format!("{plain}{end}{gap}[plugin.{name}]\nsha256 = \"{sha256}\"\n")
    };
    let merged = merged(body, &new, sha256)
        .map(|body| format!("{mark}{body}"))
        .ok_or_else(|| shape("the place of the pin can't be found"))?;
    // What is read from it is the same but for the pin.
    let after = read(&merged)?;
    match before.plugins.get_mut(name) {
        Some(entry) => entry.sha256 = Some(sha256.to_owned()),
        None => {
            let fresh = after.plugins.get(name).cloned();
            let fresh = fresh.filter(|entry| entry.sha256.as_deref() == Some(sha256));
            before
                .plugins
                .extend(fresh.map(|entry| (name.to_owned(), entry)));
        }
    }
    if before != after {
        return Err(shape(
            "a pin can't be written without changing other entries",
        ));
    }
    Ok(merged)
}

/// Sets the pin in the entry of a plugin, or in a new one of an inline table. False where there is no entry.
fn set(document: &mut DocumentMut, name: &str, sha256: &str) -> bool {
    let Some(plugins) = document.get_mut("plugin") else {
        return false;
    };
    if let Some(inline) = plugins.as_inline_table_mut()
        && !inline.iter().any(|(key, _)| normal_name(key) == name)
    {
        let mut entry = toml_edit::InlineTable::new();
        entry.insert("sha256", sha256.into());
        append(inline, name, Value::InlineTable(entry));
        return true;
    }
    let Some(table) = plugins.as_table_like_mut() else {
        return false;
    };
    let Some(key) = table
        .iter()
        .map(|(key, _)| key.to_owned())
        .find(|key| normal_name(key) == name)
    else {
        return false;
    };
    match table.get_mut(&key) {
        Some(Item::Value(Value::InlineTable(entry))) if !entry.contains_key("sha256") => {
            append(entry, "sha256", sha256.into());
            true
        }
        Some(item) => item
            .as_table_like_mut()
            .is_some_and(|entry| set_key(entry, sha256)),
        None => false,
    }
}

/// Appends to an inline table, keeping the space before its `}`.
fn append(table: &mut toml_edit::InlineTable, key: &str, value: Value) {
    let last = table.iter_mut().last().map(|(_, value)| value.decor_mut());
    let end = last.and_then(|decor| {
        let end = decor.suffix().cloned();
        decor.set_suffix("");
        end
    });
    table.insert(key, value);
    if let (Some(end), Some(value)) = (end, table.get_mut(key)) {
        value.decor_mut().set_suffix(end);
        value.decor_mut().set_prefix(" ");
    }
}

fn set_key(entry: &mut dyn TableLike, sha256: &str) -> bool {
    match entry.get_mut("sha256") {
        Some(Item::Value(value)) => {
            let decor = value.decor().clone();
            *value = sha256.into();
            *value.decor_mut() = decor;
        }
        Some(_) => return false,
        None => {
            entry.insert("sha256", toml_edit::value(sha256));
        }
    }
    true
}

/// The old text with the line of the pin, and what heads it, out of the new one: all other lines stay as they were, ends
/// included. `None`: the new text has no such line.
fn merged(old: &str, new: &str, sha256: &str) -> Option<String> {
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let new: Vec<&str> = new.split_inclusive('\n').collect();
    let bare = |line: &'_ str| line.trim_end_matches(['\n', '\r']).to_owned();
    let fresh = new.len().checked_sub(old.len())?;
    let last = (0..new.len()).find(|&at| {
        let before = old.get(at).map(|line| bare(line));
        new[at].contains(sha256) && before.is_none_or(|before| before != bare(new[at]))
    })?;
    // One line in the place of another, or some before those that follow.
    let first = (last + 1).checked_sub(fresh.max(1))?;
    let rest = if fresh == 0 { last + 1 } else { first };
    let end = if old.first().is_some_and(|line| line.ends_with("\r\n")) {
        "\r\n"
    } else {
        "\n"
    };
    let mut text = old.get(..first)?.concat();
    // The last line of a file may have had no end, and no longer be the last.
    if !text.is_empty() && !text.ends_with('\n') {
        text.push_str(end);
    }
    for line in new.get(first..=last)? {
        text.push_str(&bare(line));
        text.push_str(end);
    }
    if fresh == 0 && !old[last].ends_with('\n') {
        text.truncate(text.len() - end.len());
    }
    text.push_str(&old.get(rest..)?.concat());
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_can_not_be_opened_is_left_out_unless_it_is_named() {
        let root = tempfile::tempdir().unwrap();
        for file in ["cpu.so", "whole.so"] {
            std::fs::write(root.path().join(file), file).unwrap();
        }
        let text = "directories = [\".\"]\n[plugin.cpu]\n";
        let manifest = root.path().join("plugins.toml");
        let manifest = Manifest::parse(text, &manifest, Source::Named).unwrap();
        let stated = |module: &Path| {
            let whole = module.ends_with("whole.so");
            Some(if whole {
                Ok("whole".to_owned())
            } else {
                Err("broken".to_owned())
            })
        };
        let (pinned, left_out) = pins(&manifest, &[], false, stated).unwrap();
        let names: Vec<&str> = pinned.iter().map(|pin| pin.name.as_str()).collect();
        assert_eq!(names, ["whole"]);
        assert_eq!(
            (left_out[0].name.as_str(), left_out[0].why.as_str()),
            ("cpu", "broken")
        );
        let error = pins(&manifest, &["cpu".to_owned()], false, stated).unwrap_err();
        assert!(
            error.line().contains("can't be opened: broken"),
            "{}",
            error.line()
        );
        let (compared, _) = pins(&manifest, &[], true, stated).unwrap();
        assert_eq!(compared.len(), 2, "to compare, nothing is opened");
    }

    const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[track_caller]
    fn check(old: &str, expected: &str) {
        let new = edited(old, Path::new("/m/plugins.toml"), "cpu", HASH).unwrap();
        assert_eq!(new, expected.replace("HASH", HASH));
        let again = edited(&new, Path::new("/m/plugins.toml"), "cpu", HASH).unwrap();
        assert_eq!(again, new, "a second time changes nothing");
    }

    #[test]
    fn a_pin_changes_nothing_else() {
        // A file full of comments, odd order and odd spaces.
        let rich = "# head\n\n  order = [ 'cpu' ,\n   \"*\", # why\n ]\n\n[plugin.other] # o\nenabled=false   # off\n\n# of cpu\n\
                    [ plugin . cpu ]   # the processor\n# first\nenabled   =   true # on\n#sha256 = \"old\"\n\n# of its options\n\
                    [plugin.cpu.options]\nthreads = 2\n\n# tail without an end";
        check(
            rich,
            &rich.replace(" true # on\n", " true # on\nsha256 = \"HASH\"\n"),
        );
        let pinned = rich.replace(
            "#sha256 = \"old\"",
            &format!("sha256='{}' # mine", "0".repeat(64)),
        );
        check(
            &pinned,
            &pinned.replace(&format!("sha256='{}'", "0".repeat(64)), "sha256=\"HASH\""),
        );
    }

    #[test]
    fn every_way_to_write_an_entry_takes_a_pin() {
        check("", "[plugin.cpu]\nsha256 = \"HASH\"\n");
        check(
            "# only this",
            "# only this\n\n[plugin.cpu]\nsha256 = \"HASH\"\n",
        );
        check(
            "[plugin.CPU]\nenabled = true\n",
            "[plugin.CPU]\nenabled = true\nsha256 = \"HASH\"\n",
        );
        check(
            "[plugin]\ncpu = { enabled = true }\n",
            "[plugin]\ncpu = { enabled = true, sha256 = \"HASH\" }\n",
        );
        check(
            "[plugin]\ncpu = {}\n",
            "[plugin]\ncpu = { sha256 = \"HASH\" }\n",
        );
        check(
            "plugin.cpu.enabled = true\ncontext = 7\n",
            "plugin.cpu.enabled = true\nplugin.cpu.sha256 = \"HASH\"\ncontext = 7\n",
        );
        check(
            "plugin = { rocm = { enabled = false } }\n",
            "plugin = { rocm = { enabled = false }, cpu = { sha256 = \"HASH\" } }\n",
        );
        check(
            "[plugin.cpu.options]\nthreads = 1\n[plugin.rocm]\n",
            "[plugin.cpu]\nsha256 = \"HASH\"\n[plugin.cpu.options]\nthreads = 1\n[plugin.rocm]\n",
        );
    }

    #[test]
    fn ends_of_lines_and_marks_stay() {
        check(
            "\u{feff}# a\r\n[plugin.cpu]\r\nenabled = true\r\n# b\n[plugin.x]\n",
            "\u{feff}# a\r\n[plugin.cpu]\r\nenabled = true\r\nsha256 = \"HASH\"\r\n# b\n[plugin.x]\n",
        );
        check(
            "# a\r\n[plugin.x]",
            "# a\r\n[plugin.x]\r\n\r\n[plugin.cpu]\r\nsha256 = \"HASH\"\r\n",
        );
    }
}
