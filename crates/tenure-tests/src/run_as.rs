//! Runs programs as another user, in their own namespaces, or with a restricted `/proc`. Needs
//! root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// User that tests run programs as, besides root. Its name is `nobody`.
pub const USER: u32 = 65534;
/// A user without a name.
pub const UNNAMED_USER: u32 = 54321;

/// User, namespaces and `/proc` with which a program is started.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "nothing is started yet"]
pub struct RunAs {
    uid: Option<u32>,
    user_namespace: bool,
    pid_namespace: bool,
    network_namespace: bool,
    proc_options: Option<&'static str>,
}

impl RunAs {
    /// Runs as root, like this process.
    pub fn root() -> Self {
        Self::default()
    }

    /// Runs as a user without privileges.
    pub fn user(uid: u32) -> Self {
        Self {
            uid: Some(uid),
            ..Self::default()
        }
    }

    /// Runs in a new user namespace, where the program is root and sees other users as `nobody`.
    pub fn in_user_namespace(self) -> Self {
        Self {
            user_namespace: true,
            ..self
        }
    }

    /// Runs in a new PID namespace, with the `/proc` of that namespace.
    pub fn in_pid_namespace(self) -> Self {
        Self {
            pid_namespace: true,
            ..self
        }
    }

    /// Runs in a new network namespace, which hides the abstract sockets of other programs.
    pub fn in_network_namespace(self) -> Self {
        Self {
            network_namespace: true,
            ..self
        }
    }

    /// Runs with `/proc` mounted again with these options, for example `subset=pid`.
    pub fn with_proc(self, options: &'static str) -> Self {
        Self {
            proc_options: Some(options),
            ..self
        }
    }

    /// Words to put in front of a program and its arguments, so that the program runs with this
    /// user, these namespaces and this `/proc`.
    pub fn words(self) -> Vec<String> {
        let mut words = vec!["unshare".to_owned(), "--mount".to_owned()];
        if self.pid_namespace {
            words.extend(["--pid", "--fork", "--kill-child"].map(str::to_owned));
        }
        if self.network_namespace {
            words.push("--net".to_owned());
        }
        if self.pid_namespace || self.proc_options.is_some() {
            let options = self.proc_options.unwrap_or("rw");
            let script = format!("mount -t proc -o {options} proc /proc && exec \"$@\"");
            words.extend(["sh", "-c", &script, "sh"].map(str::to_owned));
        }
        if let Some(uid) = self.uid {
            words.push("setpriv".to_owned());
            words.push(format!("--reuid={uid}"));
            words.push(format!("--regid={uid}"));
            words.push("--clear-groups".to_owned());
        }
        if self.user_namespace {
            words.extend(["unshare", "--user", "--map-root-user"].map(str::to_owned));
        }
        words
    }

    /// Command that starts a program with the user, namespaces and `/proc` of this `RunAs`.
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let words = self.words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    /// True if this machine can start programs with the user, namespaces and `/proc` of this
    /// `RunAs`.
    pub fn is_possible(self) -> bool {
        let quiet = |command: &mut Command| {
            let command = command.stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(Stdio::null()).status()
        };
        quiet(&mut self.command("true")).is_ok_and(|status| status.success())
    }
}

/// A directory that all users can access, with copies of programs that all users can execute.
#[derive(Debug)]
pub struct SharedDir {
    dir: TempDir,
}

impl SharedDir {
    /// Creates the directory. Returns `None`, after reporting that the test is skipped, if programs
    /// cannot run as another user here.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            crate::skip("only root can run programs as another user");
            return None;
        }
        if !RunAs::user(USER).in_user_namespace().is_possible() {
            crate::skip("setpriv and unshare cannot switch to another user here");
            return None;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let shared_dir = Self { dir };
        set_mode(shared_dir.dir.path(), 0o755);
        Some(shared_dir)
    }

    /// Path of a file or subdirectory in the shared directory. The file need not exist.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Copies a program, so that every user can execute it, and returns the path of the copy.
    pub fn copy_of(&self, program: &str) -> PathBuf {
        let name = Path::new(program).file_name().expect("a program");
        let copy = self.dir.path().join(name);
        if !copy.exists() {
            fs::copy(program, &copy).expect("a copy");
            set_mode(&copy, 0o755);
        }
        copy
    }

    /// Creates a subdirectory that belongs to a user.
    pub fn dir(&self, name: &str, uid: u32, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("a directory");
        chown(&path, Some(uid), Some(uid)).expect("its owner");
        set_mode(&path, mode);
        path
    }
}

/// Sets the permissions of a file or directory, whatever the umask is.
pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
}
