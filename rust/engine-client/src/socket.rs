//! Where the unix socket lives: a folder of mode 0700, removed at exit.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Longest path of a unix socket, in bytes.
const MAX_SOCKET_PATH: usize = 107;
const SOCKET_NAME: &str = "engine.sock";

/// A private folder with the socket's path in it.
#[derive(Debug)]
pub(crate) struct SocketFolder {
    folder: PathBuf,
}

impl SocketFolder {
    /// Makes a folder under TMPDIR, or under /tmp (said in the log) when the path would be too long.
    ///
    /// A folder that is there already was left by a killed process with the same id (always so in a container): it is
    /// not touched, and the next name is taken.
    pub fn create() -> io::Result<Self> {
        loop {
            match Self::create_next() {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                outcome => return outcome,
            }
        }
    }

    fn create_next() -> io::Result<Self> {
        let name = format!("proa-{}-{:x}", std::process::id(), unique());
        let wanted = std::env::temp_dir().join(&name);
        let fits = wanted.join(SOCKET_NAME).as_os_str().len() <= MAX_SOCKET_PATH;
        let folder = if fits {
            wanted
        } else {
            Path::new("/tmp").join(&name)
        };
        if !fits {
            tracing::warn!(
                "TMPDIR is too long for a unix socket; using {}",
                folder.display()
            );
        }
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(SocketFolder { folder })
    }

    /// The socket's ZMQ address.
    pub fn address(&self) -> String {
        format!("ipc://{}", self.folder.join(SOCKET_NAME).display())
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!("cannot remove {}: {error}", self.folder.display());
        }
    }
}

/// Differs between the clients of one process.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_left_behind_is_passed_over() {
        let left: Vec<_> = (0..64)
            .map(|at| std::env::temp_dir().join(format!("proa-{}-{at:x}", std::process::id())))
            .filter(|path| fs::create_dir(path).is_ok())
            .collect();
        let folder = SocketFolder::create().unwrap();
        assert!(!left.contains(&folder.folder));
        for path in left {
            assert!(path.exists(), "another's folder is left alone");
            fs::remove_dir(path).unwrap();
        }
    }

    #[test]
    fn the_folder_is_private_and_goes_away() {
        let folder = SocketFolder::create().unwrap();
        let path = folder.folder.clone();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert!(folder.address().len() <= MAX_SOCKET_PATH + "ipc://".len());
        drop(folder);
        assert!(!path.exists());
    }
}
