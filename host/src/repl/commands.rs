//! Commands: what a line that begins with `/` does.

use super::session::Session;
use super::settings::{self, SETTINGS};
use crate::cli::output;
use crate::cli::run::speed;
use crate::error::{Error, Result};
use crate::nearest::suggestion;
use backplane_plugin_api::types::ChatMessage;
use serde::{Deserialize, Serialize};
use std::path::Path;

type Do = fn(&mut Session<'_>, &str) -> Result<bool>;

/// One command: its name, what follows it, what it does, and how.
struct Command(&'static str, &'static str, &'static str, Do);

const COMMANDS: &[Command] = &[
    Command("help", "", "this list", help),
    Command(
        "system",
        "[TEXT]",
        "set the system message; alone: remove it",
        system,
    ),
    Command(
        "set",
        "[NAME [VALUE]]",
        "change how replies are made; alone: show; NAME alone: the default again",
        set,
    ),
    Command(
        "load",
        "MODEL",
        "load a model, or switch to one that is loaded",
        load,
    ),
    Command(
        "unload",
        "[NAME]",
        "unload a model; alone: the one talked to",
        unload,
    ),
    Command(
        "backend",
        "[NAME|auto]",
        "backend for the next /load; alone: show",
        backend,
    ),
    Command(
        "models",
        "",
        "models that are loaded, and those in the model folder",
        models,
    ),
    Command(
        "plugins",
        "",
        "which engines can run here, and why the others can't",
        plugins,
    ),
    Command(
        "reload",
        "",
        "look at the manifest and the modules again; models go on in what is new",
        reload,
    ),
    Command("save", "FILE", "save the conversation", save),
    Command("open", "FILE", "go on with a saved conversation", open),
    Command(
        "reset",
        "",
        "forget the conversation, but not the system message",
        reset,
    ),
    Command(
        "stats",
        "",
        "what the last reply took, and the model's counters",
        stats,
    ),
    Command("exit", "", "leave; Ctrl-D does too", |_, _| Ok(false)),
];

/// Runs a command; false ends the session.
pub(super) fn run(session: &mut Session<'_>, command: &str) -> Result<bool> {
    let (name, rest) = command
        .split_once(char::is_whitespace)
        .unwrap_or((command, ""));
    match COMMANDS
        .iter()
        .find(|command| command.0.eq_ignore_ascii_case(name))
    {
        Some(Command(.., run)) => run(session, rest.trim()),
        None => {
            let known = COMMANDS.iter().map(|command| command.0);
            let action = format!("{}; /help lists the commands", suggestion(name, known, ""));
            Err(Error::usage(format!("there is no command /{name}"), action))
        }
    }
}

fn help(session: &mut Session<'_>, _: &str) -> Result<bool> {
    let rows = COMMANDS
        .iter()
        .map(|Command(name, rest, what, _)| vec![format!("/{name} {rest}"), (*what).to_owned()]);
    session.say(&output::table(&["command", "does"], rows.collect()));
    session.say("A message that begins with / is written with two. Several lines: Alt-Enter, a line that ends with \\, text between \"\"\", or lines that are pasted.");
    Ok(true)
}

fn system(session: &mut Session<'_>, text: &str) -> Result<bool> {
    session.messages.retain(|message| message.role != "system");
    if text.is_empty() {
        session.say("the system message is removed");
    } else {
        session.messages.insert(0, ChatMessage::new("system", text));
        session.say("the system message is set");
    }
    Ok(true)
}

fn set(session: &mut Session<'_>, text: &str) -> Result<bool> {
    let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if name.is_empty() {
        let row = |setting: &settings::Setting| {
            let shown = (setting.show)(&session.settings);
            vec![
                setting.name.to_owned(),
                shown.unwrap_or_else(|| format!("default ({})", setting.default)),
            ]
        };
        session.say(&output::table(
            &["setting", "value"],
            SETTINGS.iter().map(row).collect(),
        ));
        return Ok(true);
    }
    let setting = settings::find(name).ok_or_else(|| {
        let action = suggestion(name, SETTINGS.iter().map(|setting| setting.name), "");
        Error::usage(format!("there is no setting `{name}`"), action)
    })?;
    let value = Some(value.trim()).filter(|value| !value.is_empty());
    (setting.set)(&mut session.settings, value).map_err(|message| {
        Error::usage(
            format!("{name}: {message}, found {:?}", value.unwrap_or_default()),
            "",
        )
    })?;
    let shown = (setting.show)(&session.settings)
        .unwrap_or_else(|| format!("default ({})", setting.default));
    session.say(&format!("{} is {shown}", setting.name));
    Ok(true)
}

fn reload(session: &mut Session<'_>, _: &str) -> Result<bool> {
    let reloaded = session.registry().reload()?;
    session.say(&output::visible(&reloaded.to_string()));
    Ok(true)
}

fn load(session: &mut Session<'_>, model: &str) -> Result<bool> {
    if model.is_empty() {
        return Err(Error::usage(
            "/load needs a model",
            "/models lists those in the model folder",
        ));
    }
    session.load(model)?;
    Ok(true)
}

fn unload(session: &mut Session<'_>, name: &str) -> Result<bool> {
    let at = if name.is_empty() {
        session.model()?;
        session.current
    } else {
        session.position(name).ok_or_else(|| {
            let action = suggestion(
                name,
                session.models.iter().map(|loaded| loaded.name.as_str()),
                "none is loaded",
            );
            Error::usage(format!("no loaded model is named `{name}`"), action)
        })?
    };
    let unloaded = session.models.remove(at);
    if session.current >= at {
        session.current = session.current.saturating_sub(1);
    }
    session.say(&format!("{} is unloaded", unloaded.name));
    if let Ok(loaded) = session.model() {
        session.say(&format!("talking to {}", loaded.name));
    }
    Ok(true)
}

fn backend(session: &mut Session<'_>, name: &str) -> Result<bool> {
    if name.eq_ignore_ascii_case("auto") {
        session.backend = None;
    } else if !name.is_empty() {
        session.backend = Some(session.registry().get(name)?.name);
    }
    let next = session
        .backend
        .as_deref()
        .unwrap_or("the first available in the manifest's order");
    session.say(&format!("the next /load uses {next}"));
    if let Ok(loaded) = session.model() {
        session.say(&format!(
            "{} is run by {}",
            loaded.name,
            loaded.model.backend()
        ));
    }
    Ok(true)
}

fn models(session: &mut Session<'_>, _: &str) -> Result<bool> {
    let row = |(at, loaded): (usize, &super::session::Loaded)| {
        let state = if at == session.current {
            "talking to it"
        } else {
            "loaded"
        };
        vec![
            loaded.name.clone(),
            state.to_owned(),
            loaded.model.backend().to_owned(),
            loaded.model.place(),
        ]
    };
    let mut rows: Vec<Vec<String>> = session.models.iter().enumerate().map(row).collect();
    let catalog = session.registry().catalog();
    if let Some(server) = session.server() {
        let answer = server.get("/v1/models")?;
        for model in answer["data"].as_array().into_iter().flatten() {
            let id = model["id"].as_str().unwrap_or_default();
            if !session.models.iter().any(|loaded| loaded.name == id) {
                let text = |name: &str| {
                    let text = model["backplane"][name].as_str();
                    text.unwrap_or_default().to_owned()
                };
                rows.push(vec![
                    id.to_owned(),
                    text("state"),
                    text("backend"),
                    server.url(),
                ]);
            }
        }
    } else if let Some(folder) = catalog.folder() {
        for path in crate::catalog::scan(folder) {
            let name = crate::catalog::model_name(&path);
            if !session
                .models
                .iter()
                .any(|loaded| loaded.model.path() == Some(path.as_path()))
            {
                rows.push(vec![
                    name,
                    "in the model folder".to_owned(),
                    String::new(),
                    path.display().to_string(),
                ]);
            }
        }
    }
    session.say(&output::table(&["name", "state", "backend", "path"], rows));
    Ok(true)
}

fn plugins(session: &mut Session<'_>, _: &str) -> Result<bool> {
    session.say(&crate::cli::plugins::table(
        session.registry(),
        output::error_colour(session.global()),
    ));
    Ok(true)
}

/// A saved conversation.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversation {
    messages: Vec<ChatMessage>,
}

fn save(session: &mut Session<'_>, file: &str) -> Result<bool> {
    let path = file_of(session, file, "save")?;
    let conversation = Conversation {
        messages: session.messages.clone(),
    };
    let text = serde_json::to_string_pretty(&conversation)
        .map_err(|error| Error::usage(format!("the conversation can't be written: {error}"), ""))?;
    write_whole(&path, &(text + "\n")).map_err(|error| Error::file(&path, &error))?;
    session.say(&format!(
        "{} messages are saved in {}",
        conversation.messages.len(),
        path.display()
    ));
    Ok(true)
}

/// Writes a file whole or not at all: through a new file beside it, which then takes its place in one step. A link stays a
/// link, and what it leads to is replaced.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        let message = "expected a file, found something else";
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            message,
        ));
    }
    let mut number = 0;
    let (beside, mut file) = loop {
        let ending = format!(".{}-{number}.new", std::process::id());
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(ending);
        let beside = path.with_file_name(name);
        let mut options = std::fs::OpenOptions::new();
        match options.write(true).create_new(true).open(&beside) {
            Ok(file) => break (beside, file),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    };
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| match path.metadata() {
            Ok(there) => file.set_permissions(there.permissions()),
            Err(_) => Ok(()),
        })
        .and_then(|()| std::fs::rename(&beside, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

fn open(session: &mut Session<'_>, file: &str) -> Result<bool> {
    let path = file_of(session, file, "open")?;
    let text = std::fs::read_to_string(&path).map_err(|error| Error::file(&path, &error))?;
    let conversation: Conversation = serde_json::from_str(&text).map_err(|error| {
        let action =
            "expected what /save writes: {\"messages\": [{\"role\": ..., \"content\": ...}]}";
        Error::usage(format!("{}: {error}", path.display()), action)
    })?;
    session.messages = conversation.messages;
    session.say(&format!(
        "{} messages from {}",
        session.messages.len(),
        path.display()
    ));
    Ok(true)
}

fn file_of(session: &Session<'_>, file: &str, command: &str) -> Result<std::path::PathBuf> {
    if file.is_empty() {
        return Err(Error::usage(
            format!("/{command} needs a file"),
            format!("/{command} talk.json"),
        ));
    }
    Ok(session.registry().folders().expand(Path::new(file)))
}

fn reset(session: &mut Session<'_>, _: &str) -> Result<bool> {
    session.messages.retain(|message| message.role == "system");
    session.last = None;
    session.say("the conversation is reset");
    Ok(true)
}

fn stats(session: &mut Session<'_>, _: &str) -> Result<bool> {
    match &session.last {
        Some(completion) => session.say(&speed(completion)),
        None => session.say("no tokens yet: there was no reply"),
    }
    if let Ok(loaded) = session.model() {
        let rows = loaded
            .model
            .metrics()
            .into_iter()
            .map(|(name, value)| vec![name, format!("{value}")]);
        session.say(&output::table(&["counter", "value"], rows.collect()));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_whole_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let (file, other) = (root.join("talk.json"), root.join("talk.new"));
        std::fs::write(&other, "of another").unwrap();
        let taken = root.join(format!("talk.json.{}-0.new", std::process::id()));
        std::fs::write(&taken, "taken").unwrap();
        for text in ["one", "two"] {
            write_whole(&file, text).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        #[cfg(unix)]
        {
            let link = root.join("link.json");
            std::os::unix::fs::symlink(&file, &link).unwrap();
            write_whole(&link, "three").unwrap();
            assert!(link.is_symlink(), "a link stays a link");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "three");
            std::fs::remove_file(link).unwrap();
        }
        assert!(write_whole(root, "x").is_err(), "a folder is no file");
        assert!(write_whole(&root.join("none/talk.json"), "x").is_err());
        assert_eq!(std::fs::read_to_string(other).unwrap(), "of another");
        assert_eq!(std::fs::read_to_string(taken).unwrap(), "taken");
        assert_eq!(std::fs::read_dir(root).unwrap().count(), 3);
    }
}
