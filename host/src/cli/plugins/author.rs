//! `plugins new`, `validate`, `inspect`, `pin`.

use crate::authoring::file::{self, ModuleFile};
use crate::authoring::pin::{self, Pin, State};
use crate::authoring::template::{self, Sdk};
use crate::authoring::validate::{self, Check, Ended, Outline, Request};
use crate::catalog::Catalog;
use crate::cli::arguments::Global;
use crate::cli::arguments::author::{Author, Inspect, New, Pin as PinVerb, Validate};
use crate::cli::output;
use crate::error::{Error, Result};
use crate::folders::Folders;
use crate::loader;
use crate::manifest::locate;
use crate::registry::module_name;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

pub(super) fn author(global: &Global, verb: &Author) -> Result<ExitCode> {
    match verb {
        Author::New(verb) => new(verb),
        Author::Validate(verb) => validate(global, verb),
        Author::Inspect(verb) => inspect(verb),
        Author::Pin(verb) => pin(global, verb),
    }
}

fn new(verb: &New) -> Result<ExitCode> {
    let name = template::check_name(&verb.name)?;
    let folders = Folders::from_environment();
    let folder = verb.path.clone().unwrap_or_else(|| PathBuf::from(name));
    let folder = folders.expand(&folder);
    template::check_folder(&folder)?;
    let (kind, sdk, files) = if verb.c {
        ("c", None, template::c_project(name))
    } else {
        let sdk = Sdk::find(verb.sdk.as_deref(), &folders)?;
        let files = template::rust_crate(name, &sdk);
        ("rust", Some(sdk), files)
    };
    template::write(&folder, &files)?;
    if verb.json {
        let files: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
        output::json(&json!({
            "name": name,
            "kind": kind,
            "folder": folder.display().to_string(),
            "files": files,
            "sdk": sdk.map(|sdk| sdk.to_string()),
        }))?;
    } else {
        let mut lines: Vec<String> = files
            .iter()
            .map(|(path, _)| folder.join(path).display().to_string())
            .collect();
        lines.push(format!("next: read {}", folder.join("README.md").display()));
        output::line(&lines.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn validate(global: &Global, verb: &Validate) -> Result<ExitCode> {
    let folders = Folders::from_environment();
    let module = validate::module_file(&folders.expand(&verb.path))?;
    let catalog = Catalog::new(&folders);
    let model = verb.model.as_deref();
    let model = model.map(|model| catalog.resolve(model)).transpose()?;
    let all = backplane_test_kit::cases();
    let part = verb.only.as_deref().unwrap_or_default();
    let cases: Vec<_> = all
        .iter()
        .filter(|case| case.name.contains(part))
        .copied()
        .collect();
    if cases.is_empty() {
        let names = all.iter().map(|case| case.name);
        let action = crate::nearest::suggestion(part, names, "");
        return Err(Error::usage(
            format!("no case has {part:?} in its name"),
            action,
        ));
    }
    let manifest = locate(global.manifest.as_deref(), &folders)?;
    let entry = module_name(&module).and_then(|name| manifest.plugin(&name).cloned());
    let options = entry.map(|entry| entry.options).unwrap_or_default();
    let request = Request {
        module: &module,
        model: model.as_deref(),
        options: &options,
        cases,
        time_limit: verb.time_limit,
        program: validate::program()?,
    };
    let colour = output::answer_colour(global);
    let mut told = Ok(());
    let mut unmodelled = 0;
    let mut not_run: Vec<(String, usize)> = Vec::new();
    let mut tell = |check: &Check| {
        let lacks_model = model.is_none()
            && matches!(check.ended, Ended::NotApplicable(_))
            && all
                .iter()
                .any(|case| case.name == check.name && case.needs_model);
        if lacks_model {
            unmodelled += 1;
        } else if let Ended::NotRun(why) = &check.ended {
            match not_run.iter_mut().find(|(known, _)| known == why) {
                Some((_, count)) => *count += 1,
                None => not_run.push((why.clone(), 1)),
            }
        } else if !verb.json && told.is_ok() {
            told = output::line(&line(check, colour));
        }
    };
    if !verb.json {
        output::line(&module.display().to_string())?;
    }
    let (checks, outline) = validate::validate(&request, &mut tell);
    told?;
    let count =
        |wanted: fn(&Ended) -> bool| checks.iter().filter(|check| wanted(&check.ended)).count();
    let passed = count(|ended| matches!(ended, Ended::Passed(_)));
    let failed = count(|ended| matches!(ended, Ended::Failed(_)));
    let other = count(|ended| matches!(ended, Ended::NotApplicable(_)));
    let missed = count(|ended| matches!(ended, Ended::NotRun(_)));
    if verb.json {
        output::json(&json!({
            "path": module.display().to_string(),
            "model": model.map(|model| model.display().to_string()),
            "verdict": outline,
            "passed": passed,
            "failed": failed,
            "not_applicable": other,
            "not_run": missed,
            "checks": checks,
        }))?;
    } else {
        if unmodelled > 0 {
            output::line(&format!(
                "n/a   {unmodelled} cases need a model: name one with --model"
            ))?;
        }
        for (why, count) in &not_run {
            let why = output::one_line(why);
            output::line(&format!("-     {count} not run: {why}"))?;
        }
        let end = match outline {
            Outline::Passed => output::styled(colour, "32", "valid"),
            Outline::Failed => output::styled(colour, "31", "not valid"),
            Outline::Unavailable => "not available here, and so not tried".to_owned(),
        };
        output::line(&format!(
            "{end}: {passed} passed, {failed} failed, {other} not applicable, {missed} not run"
        ))?;
    }
    Ok(ExitCode::from(outline.exit_code()))
}

/// A check as a line of the report.
fn line(check: &Check, colour: bool) -> String {
    let (word, style, detail) = match &check.ended {
        Ended::Passed(found) => ("pass", "32", found.clone()),
        Ended::Failed(what) => ("FAIL", "31", format!("{what} [{}]", check.about)),
        Ended::NotApplicable(why) => ("n/a", "2", why.clone()),
        Ended::NotRun(why) => ("-", "2", why.clone()),
    };
    let word = output::styled(colour, style, &format!("{word:<5}"));
    let line = format!(
        "{word} {:<32} {:>9.1} ms  {}",
        check.name,
        check.seconds * 1e3,
        output::one_line(&detail)
    );
    line.trim_end().to_owned()
}

fn inspect(verb: &Inspect) -> Result<ExitCode> {
    let folders = Folders::from_environment();
    let module = validate::module_file(&folders.expand(&verb.path))?;
    // The permissions are of no matter for looking at a file; a child refuses to open it.
    loader::check_format(&module)
        .map_err(|verdict| Error::usage(verdict.message, verdict.action))?;
    let read = file::read(&module).map_err(|why| {
        Error::usage(
            format!("{}: {why}", module.display()),
            "build or install the module again",
        )
    })?;
    let sha256 = loader::sha256_hex(&module).map_err(|error| Error::file(&module, &error))?;
    let asked = match (verb.file_only, read.door) {
        (true, _) => None,
        (_, None) => Some(Err("not a Backplane plugin: it was not opened".to_owned())),
        _ => Some(validate::ask(&module, &validate::program()?)),
    };
    let module_part = match &asked {
        None => serde_json::Value::Null,
        Some(Err(why)) => json!({ "error": why }),
        Some(Ok(asked)) => json!(asked),
    };
    if verb.json {
        let mut file = json!(read);
        file["sha256"] = json!(sha256);
        output::json(&json!({
            "path": module.display().to_string(),
            "file": file,
            "module": module_part,
        }))?;
    } else {
        let mut rows = of_file(&read, &sha256);
        match &asked {
            None => {}
            Some(Err(why)) => rows.push(("not asked".to_owned(), why.clone())),
            Some(Ok(asked)) => {
                let opened = &asked.opened;
                rows.push(("name".into(), opened.name.clone()));
                rows.push(("version".into(), opened.version.clone()));
                rows.push(("contract".into(), opened.contract_version.clone()));
                if !opened.rustc.is_empty() {
                    rows.push(("compiler".into(), opened.rustc.clone()));
                }
                rows.push(("verdict".into(), asked.verdict.to_string()));
                rows.push(("capabilities".into(), or_none(&asked.capabilities)));
            }
        }
        let split = 10;
        let show =
            |(key, value): &(String, String)| format!("  {key:<13} {}", output::one_line(value));
        let mut lines = vec![module.display().to_string()];
        lines.push("read from the file:".to_owned());
        lines.extend(rows.iter().take(split).map(show));
        if asked.is_some() {
            lines.push("asked of the module, in a process of its own:".to_owned());
            lines.extend(rows.iter().skip(split).map(show));
        }
        output::line(&lines.join("\n"))?;
    }
    // The answer about the file stands; a script learns from the code that the module could not be asked.
    Ok(ExitCode::from(if matches!(asked, Some(Err(_))) {
        5
    } else {
        0
    }))
}

fn or_none(list: &[String]) -> String {
    if list.is_empty() {
        "none".to_owned()
    } else {
        list.join(", ")
    }
}

/// What the file says, in ten rows.
fn of_file(read: &ModuleFile, sha256: &str) -> Vec<(String, String)> {
    let known = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    let door = read.door.map(|door| door.words().to_owned());
    // Names that C++ and Rust make up are many, and tell little.
    const MOST: usize = 20;
    let made_up = |name: &&String| name.starts_with("_Z") || name.starts_with("_R");
    let (named, others): (Vec<String>, Vec<String>) = read
        .exported
        .iter()
        .map(ToOwned::to_owned)
        .partition(|name| !made_up(&name));
    let mut exported = or_none(&named[..named.len().min(MOST)]);
    let more = others.len() + named.len().saturating_sub(MOST);
    if more > 0 {
        exported.push_str(&format!(" and {more} more"));
    }
    let row = |key: &str, value: String| (key.to_owned(), value);
    vec![
        row("format", read.format.clone()),
        row("processor", read.architecture.clone()),
        row("bytes", read.size.to_string()),
        row("sha256", sha256.to_owned()),
        row("build id", known(read.build_id.clone())),
        row("door", known(door)),
        row("exports", exported),
        row("needs", or_none(&read.needed)),
        row("looks in", or_none(&read.search)),
        row(
            "glibc",
            known(read.glibc.map(|version| format!("{version} or newer"))),
        ),
    ]
}

fn pin(global: &Global, verb: &PinVerb) -> Result<ExitCode> {
    let folders = Folders::from_environment();
    let manifest = locate(global.manifest.as_deref(), &folders)?;
    let program = validate::program().ok();
    let stated = |module: &std::path::Path| Some(pin::stated(program.as_deref()?, module));
    let (pins, left_out) = pin::pins(&manifest, &verb.names, verb.check, stated)?;
    if !verb.check {
        pin::write(&manifest, &pins)?;
    }
    if verb.json {
        output::json(
            &json!({ "manifest": manifest.source, "written": !verb.check, "plugins": pins, "left_out": left_out }),
        )?;
    } else if pins.is_empty() && left_out.is_empty() {
        output::line("no plugin has a module file")?;
    } else if !pins.is_empty() {
        let said = |pin: &Pin| said(pin, verb.check);
        output::line(&pins.iter().map(said).collect::<Vec<_>>().join("\n"))?;
    }
    for one in &left_out {
        let line = format!(
            "warning: {} is not pinned, its module can't be opened: {}",
            one.name, one.why
        );
        output::error_line(&output::one_line(&line));
    }
    let right = |pin: &Pin| pin.state == State::Pinned;
    let wrong = !left_out.is_empty() || verb.check && !pins.iter().all(right);
    Ok(ExitCode::from(if wrong { 3 } else { 0 }))
}

/// A pin as a line.
fn said(pin: &Pin, check: bool) -> String {
    let Pin {
        name,
        path,
        sha256,
        pinned,
        state,
    } = pin;
    let before = pinned.as_deref().unwrap_or_default();
    let what = match (state, check) {
        (State::Pinned, _) => format!("pinned to {sha256}, as it is"),
        (State::Unpinned, true) => format!("not pinned; it is {sha256}"),
        (State::Differs, true) => format!("pinned to {before}; it is {sha256}"),
        (State::Unpinned, false) => format!("now pinned to {sha256}"),
        (State::Differs, false) => format!("now pinned to {sha256}; was {before}"),
    };
    output::one_line(&format!("{name:<12} {what} ({})", path.display()))
}
