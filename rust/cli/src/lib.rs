//! The `proa` command: one flag table, the engine's configuration document, the model, supervision, wiring.
//!
//! `run` is what both the cargo binary and the pip command call. Owns every word of the command line and nothing of
//! what a request may hold.

pub mod command_line;
mod default_model;
mod engine_command;
pub mod engine_config;
pub mod environment;
mod fingerprint;
pub mod flag;
pub mod flag_table;
pub mod foreign_table;
mod generation;
pub mod help;
mod listen;
mod logging;
mod model;
pub mod python;
mod report;
mod serve;
mod served_model;
mod server_config;
pub mod settings;
mod signals;
pub mod value;
pub mod yaml;

use std::path::PathBuf;

use limits::{nearest_name, quote};

use python::Python;
use report::Phases;
use settings::{Refusal, Settings};

/// Done.
pub const EXIT_DONE: i32 = 0;
/// The start was refused; one line on stderr says why.
pub const EXIT_REFUSED: i32 = 2;
/// The engine died too often, or a bug ended the front end.
pub const EXIT_GAVE_UP: i32 = 70;

const COMMANDS: [&str; 4] = ["serve", "engine", "check-config", "help"];
const LATER_COMMANDS: [&str; 4] = ["frontend", "bench", "chat", "explain-program"];

/// Runs `proa` with the arguments after the program's name and returns the exit code.
///
/// `own_python` is the interpreter this runs in, if it runs in one.
pub fn run(arguments: &[String], own_python: Option<PathBuf>) -> i32 {
    // SAFETY: sets a process-wide disposition before any thread of ours exists. Python's own handler would wait for a
    // main thread that never returns to it.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    match dispatch(arguments, own_python) {
        Ok(code) => code,
        Err(refusal) => {
            eprintln!("proa: {refusal}");
            EXIT_REFUSED
        }
    }
}

fn dispatch(arguments: &[String], own_python: Option<PathBuf>) -> Result<i32, Refusal> {
    let (command, rest) = match arguments.split_first() {
        None => ("help", arguments),
        Some((first, rest)) if !first.starts_with('-') => (first.as_str(), rest),
        // `proa --help`, `proa --version`, and flags without a command, which are a mistake.
        Some(_) => ("", arguments),
    };
    if command == "help" {
        return print_help(rest.first().map(String::as_str));
    }
    if let Some(at) = position_before_end(rest, &["--help", "-h"]) {
        return print_help(rest.get(at + 1).map(String::as_str));
    }
    if position_before_end(rest, &["--version", "-V"]).is_some() {
        println!("proa {}", python::VERSION);
        return Ok(EXIT_DONE);
    }
    match command {
        "serve" | "engine" | "check-config" => with_settings(command, rest, own_python),
        "" => Err(Refusal(format!(
            "expected a command ({}); flags go behind it",
            COMMANDS.join(", ")
        ))),
        later if LATER_COMMANDS.contains(&later) => {
            Err(Refusal(format!("not supported yet: proa {later}")))
        }
        unknown => Err(Refusal(unknown_command(unknown))),
    }
}

/// Where one of `words` stands, if before `--`.
fn position_before_end(arguments: &[String], words: &[&str]) -> Option<usize> {
    let flags = arguments
        .iter()
        .position(|a| a == "--")
        .unwrap_or(arguments.len());
    arguments[..flags]
        .iter()
        .position(|a| words.contains(&a.as_str()))
}

fn with_settings(
    command: &str,
    arguments: &[String],
    own_python: Option<PathBuf>,
) -> Result<i32, Refusal> {
    let phases = Phases::begin();
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| {
            Some((
                name.into_string().ok()?,
                value.to_string_lossy().into_owned(),
            ))
        })
        .collect();
    let settings = Settings::load(arguments, &variables, read_config_file)?;
    logging::start(&settings);
    let python = match (settings.text("python"), own_python) {
        (None, Some(own)) => Python::Own(own),
        (Some(_), Some(_)) => {
            return Err(Refusal(
                "--python belongs to the plain binary; this command runs in a Python already"
                    .to_string(),
            ));
        }
        (Some(named), None) => Python::Named(PathBuf::from(named)),
        (None, None) => Python::Named(PathBuf::from("python3")),
    };
    match command {
        "check-config" => check_config(&settings),
        "engine" => engine(&settings, &python),
        _ if settings.switch("headless") => engine(&settings, &python),
        _ => serve::run(&settings, &python, phases),
    }
}

fn check_config(settings: &Settings) -> Result<i32, Refusal> {
    model::check(settings.text("model"))?;
    println!("the configuration is good");
    Ok(EXIT_DONE)
}

fn engine(settings: &Settings, python: &Python) -> Result<i32, Refusal> {
    python.check_version()?;
    engine_command::run(settings, python).map(|()| EXIT_DONE)
}

fn read_config_file(path: &str) -> Result<String, String> {
    let size = std::fs::metadata(path)
        .map_err(|error| error.to_string())?
        .len();
    if size > yaml::MAX_FILE_BYTES as u64 {
        return Err(format!(
            "{size} bytes is above the maximum {}",
            yaml::MAX_FILE_BYTES
        ));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

fn print_help(word: Option<&str>) -> Result<i32, Refusal> {
    match help::text(word) {
        Some(text) => {
            print!("{text}");
            Ok(EXIT_DONE)
        }
        None => Err(Refusal(format!(
            "no help for '{}'; see proa --help",
            quote(word.unwrap_or(""))
        ))),
    }
}

fn unknown_command(command: &str) -> String {
    match nearest_name(command, COMMANDS.into_iter().chain(LATER_COMMANDS)) {
        Some(near) => format!("unknown command '{}'; did you mean {near}?", quote(command)),
        None => format!(
            "unknown command '{}'; there are {}",
            quote(command),
            COMMANDS.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
        dispatch(&arguments, None).expect_err("this is refused").0
    }

    #[test]
    fn commands_are_known_or_refused_by_name() {
        assert_eq!(
            error(&["serv"]),
            "unknown command 'serv'; did you mean serve?".to_string()
        );
        assert_eq!(error(&["bench", "x"]), "not supported yet: proa bench");
        assert!(error(&["--port", "1"]).starts_with("expected a command"));
        assert!(error(&["help", "zzzzzz"]).starts_with("no help for"));
        assert!(error(&["check-config", "missing.gguf"]).contains("no such file"));
        assert!(
            error(&["engine"]).contains("--python python3")
                || error(&["engine"]).contains("--connect")
        );
    }

    #[test]
    fn help_and_version_are_done() {
        for arguments in [
            &["--help"][..],
            &["--version"],
            &["serve", "--help", "limits"],
            &["help"],
        ] {
            let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
            assert_eq!(dispatch(&arguments, None), Ok(EXIT_DONE));
        }
    }
}
