//! The engine process: started by one thread that lives as long as the front end, reaped there, and started again.
//!
//! The parent-death signal follows the thread that spawned the child, so that thread must never end while a child lives.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::EngineCommand;

/// Descriptor at which the engine reads its configuration.
const CONFIG_FD: RawFd = 3;

/// What the spawner is told after a child's end.
#[derive(Debug)]
pub(crate) enum SpawnerOrder {
    /// Start again after this time.
    Restart(Duration),
    /// Start no more.
    Stop,
}

/// A word of the spawner.
#[derive(Debug)]
pub(crate) enum ChildEvent {
    /// A child runs.
    Started { pid: u32 },
    /// The child has been reaped; or it could not be started, then `status` is the reason.
    Ended {
        status: String,
        exit_code: Option<i32>,
    },
}

/// A handle that signals exactly the process it was made for, or nobody: the id is forgotten before the process is
/// reaped, and only then can the system give it to another.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChildHandle(Arc<Mutex<Option<libc::pid_t>>>);

impl ChildHandle {
    fn set(&self, pid: Option<libc::pid_t>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pid;
    }

    /// Sends a signal to the child, if it lives.
    pub fn signal(&self, signal: libc::c_int) {
        if let Some(pid) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: takes no pointer; the id names our own child as long as it stands here.
            unsafe { libc::kill(pid, signal) };
        }
    }
}

/// Runs on the spawner thread: starts children one after another until told to stop.
pub(crate) fn supervise(
    command: &EngineCommand,
    address: &str,
    child: &ChildHandle,
    orders: &Receiver<SpawnerOrder>,
    tell: impl Fn(ChildEvent),
) {
    loop {
        match spawn(command, address) {
            Ok(process) => {
                child.set(Some(process.id() as libc::pid_t));
                tell(ChildEvent::Started { pid: process.id() });
                // Told to stop while it was being started: nobody else has seen the child.
                let is_unwanted = orders.try_recv().is_ok();
                if is_unwanted {
                    child.signal(libc::SIGKILL);
                }
                tell(ended_event(reap(process, child)));
                if is_unwanted {
                    return;
                }
            }
            Err(error) => {
                let status = format!(
                    "cannot start {}: {error}",
                    command.program.to_string_lossy()
                );
                tell(ChildEvent::Ended {
                    status,
                    exit_code: Some(2),
                });
            }
        }
        match orders.recv() {
            Ok(SpawnerOrder::Restart(wait)) => match orders.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return,
            },
            Ok(SpawnerOrder::Stop) | Err(_) => return,
        }
    }
}

/// Waits for the child's end, ends what is left of its process group, and reaps it.
fn reap(mut process: Child, child: &ChildHandle) -> io::Result<ExitStatus> {
    let pid = process.id();
    loop {
        // SAFETY: the structure is plain data and ours; WNOWAIT leaves the child as it is.
        let waited = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(
                libc::P_PID,
                pid,
                &raw mut info,
                libc::WEXITED | libc::WNOWAIT,
            )
        };
        if waited == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
    child.set(None);
    // SAFETY: takes no pointer; as the leader is not reaped yet, the group's id is still its own.
    unsafe { libc::kill(-(pid as libc::pid_t), libc::SIGKILL) };
    process.wait()
}

fn ended_event(ended: io::Result<ExitStatus>) -> ChildEvent {
    match ended {
        Ok(status) => {
            let text = match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => "an unknown end".to_owned(),
            };
            ChildEvent::Ended {
                status: text,
                exit_code: status.code(),
            }
        }
        Err(error) => ChildEvent::Ended {
            status: format!("wait failed: {error}"),
            exit_code: None,
        },
    }
}

fn spawn(command: &EngineCommand, address: &str) -> io::Result<Child> {
    let parent = std::process::id();
    let document = command
        .document
        .replace("{connect}", address)
        .replace("\"{parent_pid}\"", &parent.to_string());
    let config = memory_file(document.as_bytes())?;
    let config_fd = config.as_raw_fd();
    let mut process = Command::new(&command.program);
    process
        .args(&command.arguments)
        .envs(command.environment.iter().cloned())
        .stdin(Stdio::null())
        .process_group(0);
    // SAFETY: between fork and exec only async-signal-safe calls are made, on descriptors that are open.
    unsafe {
        process.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the signal was asked for.
            if libc::getppid() != parent as libc::pid_t {
                libc::_exit(0);
            }
            let given = if config_fd == CONFIG_FD {
                libc::fcntl(CONFIG_FD, libc::F_SETFD, 0)
            } else {
                libc::dup2(config_fd, CONFIG_FD)
            };
            if given < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(())
            }
        });
    }
    process.spawn()
}

/// An anonymous file with these bytes, at its beginning.
fn memory_file(bytes: &[u8]) -> io::Result<File> {
    let name = CString::new("proa-engine-config")?;
    // SAFETY: the name is a valid C string; the result is checked before it becomes a descriptor.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is fresh and owned by nobody else.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}
