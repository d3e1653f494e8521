//! `proa engine`: the engine alone. Replaces this process by Python, with the configuration on descriptor 3.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::engine_config::{EngineConfig, EnginePlace};
use crate::model;
use crate::python::Python;
use crate::server_config;
use crate::settings::{Refusal, Settings};

/// The descriptor the engine reads its configuration from.
pub const CONFIG_FD: i32 = 3;

/// Checks the settings and becomes the engine; returns only if that fails.
pub fn run(settings: &Settings, python: &Python) -> Result<(), Refusal> {
    settings.refuse_front_flags()?;
    let connect = settings
        .text("connect")
        .ok_or_else(|| Refusal("proa engine needs --connect ADDRESS of a front end".to_string()))?;
    if !connect.starts_with("ipc://") {
        return Err(Refusal(format!(
            "not supported yet: engines over TCP (--connect {connect}); ipc://PATH is"
        )));
    }
    let model_path = model::resolve(settings.text("model"), python)?;
    let place = EnginePlace {
        connect,
        model_path: &model_path,
        engine_index: settings.count("engine_index").unwrap_or(0) as u16,
        tokenizer_vocab_size: None,
        parent_pid: 0,
    };
    let config = EngineConfig::new(settings, &place)?;
    let document =
        filled_pipe(&config.to_json()).map_err(|error| Refusal(format!("proa engine: {error}")))?;
    let mut command = Command::new(python.program());
    command.args(["-m", "proa.engine", "--config-fd", &CONFIG_FD.to_string()]);
    command.envs([server_config::engine_log_level(settings)]);
    let source = document.as_raw_fd();
    // SAFETY: dup2 and fcntl are async-signal-safe, and the pipe is open here.
    unsafe {
        command.pre_exec(move || {
            // dup2 of a descriptor onto itself changes nothing, so that one would still be closed by exec.
            let done = match source == CONFIG_FD {
                true => libc::fcntl(CONFIG_FD, libc::F_SETFD, 0),
                false => libc::dup2(source, CONFIG_FD),
            };
            if done == -1 {
                Err(std::io::Error::last_os_error())
            } else {
                Ok(())
            }
        });
    }
    let error = command.exec();
    Err(Refusal(format!("{}: {error}", python.program().display())))
}

/// The reading end of a pipe that already holds `text`, which must fit a pipe's buffer.
fn filled_pipe(text: &str) -> std::io::Result<OwnedFd> {
    const PIPE_BYTES: usize = 65_536;
    if text.len() > PIPE_BYTES {
        return Err(std::io::Error::other(
            "the configuration is larger than 64 KiB",
        ));
    }
    let (reader, mut writer) = std::io::pipe()?;
    writer.write_all(text.as_bytes())?;
    Ok(reader.into())
}
