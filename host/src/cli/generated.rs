//! Completions and manual pages, from the definition of the arguments.

use super::arguments::{Arguments, Completions, Man};
use super::written;
use crate::error::{Error, Result};
use clap::CommandFactory;
use std::io::Write;
use std::process::ExitCode;

pub(super) fn completions(verb: &Completions) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(
        verb.shell,
        &mut Arguments::command(),
        "backplane",
        &mut script,
    );
    written(std::io::stdout().lock().write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn man(verb: &Man) -> Result<ExitCode> {
    let mut command = Arguments::command();
    command.build();
    let Some(folder) = &verb.folder else {
        written(std::io::stdout().lock().write_all(&page(&command)?))?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, &error))?;
    let mut pending = vec![(command, "backplane".to_owned())];
    while let Some((command, name)) = pending.pop() {
        let file = folder.join(format!("{name}.1"));
        for inner in command
            .get_subcommands()
            .filter(|inner| inner.get_name() != "help")
        {
            pending.push((inner.clone(), format!("{name}-{}", inner.get_name())));
        }
        let named: &'static str = Box::leak(name.into_boxed_str());
        std::fs::write(&file, page(&command.name(named))?)
            .map_err(|error| Error::file(&file, &error))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn page(command: &clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut page)
        .map_err(|error| Error::file("manual page", &error))?;
    Ok(page)
}
