//! Root and the service's user use one data directory in turn. With the documented systemd units, the
//! directory belongs to the service's user, and administrators run commands as root.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::UsageSandbox;
use testkit::{Finished, UsageReceiver};

const SERVICE: u32 = 65534;

/// Verbs of `llmlb usage` with arguments; the empty one is the report. `URL` stands for the URL of
/// a receiver.
const VERBS: [&str; 12] = [
    "",
    "stage ../record.json",
    "consolidate",
    "deliver --archive",
    "deliver --to URL",
    "pending",
    "failed",
    "verify",
    "resend",
    "resend --all",
    "resend --archived",
    "resend --archived --all",
];

/// Verbs that must not change the data directory.
const READERS: [&str; 7] = [
    "",
    "pending",
    "failed",
    "verify",
    "resend",
    "resend --archived",
    "resend --all --dry-run",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Root,
    Service,
}

/// Data directory of the service's user, in a directory that every user can read.
struct World {
    sandbox: UsageSandbox,
    llmlb: PathBuf,
}

impl World {
    /// Returns `None` if the tests do not run as root.
    fn new() -> Option<Self> {
        if !testkit::has_root("to run commands as another user").unwrap() {
            return None;
        }
        let sandbox = UsageSandbox::new();
        let record = r#"{"model":"m","tokens":1}"#;
        let dir = sandbox.file("record.json", record);
        let dir = dir.parent().expect("a directory").to_owned();
        let llmlb = dir.join("llmlb");
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("readable");
        testkit::copy_program(env!("CARGO_BIN_EXE_llmlb"), &llmlb).expect("a copy");
        fs::create_dir(sandbox.data()).expect("a data directory");
        fs::set_permissions(sandbox.data(), PermissionsExt::from_mode(0o700)).expect("private");
        chown(sandbox.data(), Some(SERVICE), Some(SERVICE)).expect("chown to the service's user");
        Some(Self { sandbox, llmlb })
    }

    fn command(&self, user: User, words: &[&str]) -> Command {
        let mut command = match user {
            User::Root => Command::new(&self.llmlb),
            User::Service => {
                let mut command = Command::new("setpriv");
                let id = [format!("--reuid={SERVICE}"), format!("--regid={SERVICE}")];
                command.args(id).arg("--clear-groups").arg(&self.llmlb);
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LLMLB_") {
                command.env_remove(name);
            }
        }
        command
            .args(words)
            .env("LLMLB_DATA_DIR", self.sandbox.data())
            .env_remove("NOTIFY_SOCKET")
            .current_dir(self.sandbox.data())
            .stdin(Stdio::null());
        command
    }

    fn usage(&self, user: User, words: &str, receiver: &UsageReceiver) -> Finished {
        let words = words.replace("URL", &receiver.url);
        let words: Vec<&str> = ["usage"]
            .into_iter()
            .chain(words.split_whitespace())
            .collect();
        Finished::run(&mut self.command(user, &words))
    }

    fn run(&self, user: User, words: &str, receiver: &UsageReceiver) -> Finished {
        let ran = self.usage(user, words, receiver);
        assert_eq!(ran.code, Some(0), "{words:?} as {user:?}: {ran:?}");
        ran
    }

    /// Checks that the service's user can start a server on the data directory, that the server
    /// records a request, and that it stops without a message about usage. If the data directory
    /// has a stored destination, the server is started with the URL of `receiver`.
    fn assert_serves(&self, case: &str, receiver: &UsageReceiver) {
        let locks = self.sandbox.data().join("../locks");
        let _ = fs::create_dir(&locks);
        chown(&locks, Some(SERVICE), Some(SERVICE)).expect("chown to the service's user");
        let mut command = self.command(User::Service, &["serve", "-p", "0"]);
        command
            .args(["--backend", "http://127.0.0.1:9"])
            .env("LLMLB_LOCK_DIR", locks)
            .env("LLMLB_USAGE_ON_FAILURE", "refuse")
            .env("LLMLB_USAGE_EVERY", "1h");
        if self.sandbox.data().join("destination.json").exists() {
            command.env("LLMLB_USAGE_URL", &receiver.url);
        }
        let server = self.sandbox.serve_command(&mut command);
        let body = r#"{"model":"m","messages":[]}"#;
        server.fetch("POST /v1/chat/completions", body);
        assert_eq!(server.usage()["recorded"], 1, "{case}");
        assert_eq!(server.stop(), Some(0), "{case}: {}", server.log());
        let log = server.log();
        assert!(!log.contains("usage: "), "{case}: {log}");
    }
}

/// Path, owner, size and modification time of everything in a directory.
type Tree = Vec<(PathBuf, u32, u64, i64, i64)>;

fn tree(dir: &Path) -> Tree {
    let mut found = Vec::new();
    let mut queue = vec![dir.to_owned()];
    while let Some(path) = queue.pop() {
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        if metadata.is_dir() {
            let files = fs::read_dir(&path).expect("readable");
            queue.extend(files.map(|file| file.expect("a file").path()));
        }
        let (size, uid) = (metadata.len(), metadata.uid());
        found.push((path, uid, size, metadata.mtime(), metadata.mtime_nsec()));
    }
    found.sort();
    found
}

const NONE: [PathBuf; 0] = [];

/// Returns the files that do not belong to the service's user.
fn foreign_files(dir: &Path) -> Vec<PathBuf> {
    let foreign = tree(dir).into_iter().filter(|(_, uid, ..)| *uid != SERVICE);
    foreign.map(|(path, ..)| path).collect()
}

/// A file that cannot be read, as on a damaged disk, must be reported and must not delay other
/// records. (promise S9)
#[test]
fn unreadable_entry_or_batch_is_reported_and_delays_no_other() {
    let receiver = UsageReceiver::always(200);
    let Some(world) = World::new() else { return };
    for (part, verb) in [
        ("_staging", "stage ../record.json"),
        ("spool", "consolidate"),
    ] {
        world.run(User::Service, "stage ../record.json", &receiver);
        world.run(User::Service, verb, &receiver);
        let file = world.sandbox.files(part).remove(0);
        let file = world.sandbox.data().join(part).join(file);
        chown(&file, Some(0), Some(0)).expect("chown to root");
        world.run(User::Service, "stage ../record.json", &receiver);

        let error = format!("cannot read {}: permission denied", file.display());
        let pending = world.usage(User::Service, "pending", &receiver);
        assert_eq!(pending.code, Some(1), "{pending:?}");
        assert!(pending.stdout.contains(&error), "{pending:?}");
        let total = "\nfiles that cannot be read: 1; ";
        assert!(pending.stdout.contains(total), "{pending:?}");
        let verified = world.usage(User::Service, "verify", &receiver);
        assert_eq!(verified.code, Some(1), "{verified:?}");
        assert!(
            verified.stdout.contains(file.to_str().unwrap()),
            "{verified:?}"
        );
        let before = receiver.batches().len();
        let delivered = world.usage(User::Service, "deliver --to URL", &receiver);
        assert_eq!(delivered.code, Some(1), "{delivered:?}");
        assert!(delivered.stderr.contains(&error), "{delivered:?}");
        assert!(receiver.batches().len() > before, "{delivered:?}");
        assert!(file.exists());

        chown(&file, Some(SERVICE), Some(SERVICE)).expect("chown to the service's user");
        world.run(User::Service, "deliver --to URL --now", &receiver);
        assert_eq!(
            world.run(User::Service, "pending", &receiver).stdout,
            "no batches pending\n"
        );
        world.run(User::Service, "verify", &receiver);
    }
}

/// After any verb of one user, the other user must be able to run any verb and to start the
/// service. Files of root would prevent this.
#[test]
fn every_verb_of_root_leaves_a_data_directory_that_its_owner_can_use() {
    let receiver = UsageReceiver::always(200);
    for first in [User::Root, User::Service] {
        let second = match first {
            User::Root => User::Service,
            User::Service => User::Root,
        };
        for verb in VERBS {
            let Some(world) = World::new() else { return };
            let case = format!("{verb:?}, {first:?} first");
            world.run(first, "stage ../record.json", &receiver);
            world.run(first, verb, &receiver);
            assert_eq!(foreign_files(&world.sandbox.data()), NONE, "{case}");
            world.run(second, "stage ../record.json", &receiver);
            world.run(second, verb, &receiver);
            assert_eq!(foreign_files(&world.sandbox.data()), NONE, "{case}");
            world.run(User::Service, "verify", &receiver);
            world.assert_serves(&case, &receiver);
            let books = world.run(User::Root, "verify --json", &receiver).json();
            let staged = if verb.starts_with("stage") { 5 } else { 3 };
            assert_eq!(books["staged"], staged, "{case}: {books}");
        }
    }
}

#[test]
fn reading_verbs_change_no_file_as_either_user() {
    let receiver = UsageReceiver::always(200);
    let Some(world) = World::new() else { return };
    let data = world.sandbox.data();
    for words in [
        "",
        "stage ../record.json",
        "deliver --archive",
        "stage ../record.json",
    ] {
        if !words.is_empty() {
            world.run(User::Service, words, &receiver);
        }
        let before = tree(&data);
        for user in [User::Root, User::Service] {
            for verb in READERS {
                world.run(user, verb, &receiver);
                assert_eq!(tree(&data), before, "{verb:?} as {user:?} after {words:?}");
            }
        }
    }
}

/// Kills a reading command of root at each system call that could change a file. The data directory
/// must be unchanged each time.
#[test]
fn reading_verbs_of_root_change_no_file_when_killed() {
    let receiver = UsageReceiver::always(200);
    let Some(world) = World::new() else { return };
    if !testkit::has_tool("strace").unwrap() {
        return;
    }
    let data = world.sandbox.data();
    for words in ["deliver --archive", "stage ../record.json"] {
        world.run(User::Service, words, &receiver);
        let before = tree(&data);
        for verb in ["", "pending", "failed", "verify"] {
            let mut kills = 0;
            for number in 1..10_000 {
                let calls = "mkdir,mkdirat,openat,write,pwrite64,ftruncate,fchown,fchownat,flock,\
                             rename,renameat,renameat2,unlink,unlinkat,link,linkat";
                let inject = format!("inject={calls}:signal=KILL:when={number}");
                let mut command = Command::new("strace");
                command
                    .args(["-f", "-qq", "-o", "/dev/null", "-e", &inject])
                    .arg(&world.llmlb)
                    .arg("usage")
                    .args(verb.split_whitespace())
                    .env("LLMLB_DATA_DIR", &data);
                let ran = Finished::run(&mut command);
                assert_eq!(tree(&data), before, "{verb:?} killed at call {number}");
                if ran.code == Some(0) {
                    break;
                }
                kills += 1;
            }
            assert!(kills > 3, "{verb:?} was killed {kills} times");
        }
    }
    world.assert_serves("after the kills", &receiver);
}

/// One batch cannot be read. The batches that can be read must still be archived.
#[test]
fn unreadable_batch_does_not_stop_archiving() {
    let receiver = UsageReceiver::always(200);
    let Some(world) = World::new() else { return };
    world.run(User::Service, "stage ../record.json", &receiver);
    world.run(User::Service, "consolidate", &receiver);
    let file = world.sandbox.files("spool").remove(0);
    let file = world.sandbox.data().join("spool").join(file);
    chown(&file, Some(0), Some(0)).expect("chown to root");
    world.run(User::Service, "stage ../record.json", &receiver);
    let ran = world.usage(User::Service, "deliver --archive", &receiver);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let error = format!("1 batch pending: cannot read {}", file.display());
    assert!(ran.stderr.contains(&error), "{ran:?}");
    assert_eq!(world.sandbox.files("archive").len(), 1, "{ran:?}");
    chown(&file, Some(SERVICE), Some(SERVICE)).expect("chown to the service's user");
    world.run(User::Service, "deliver --archive", &receiver);
    assert_eq!(world.sandbox.files("archive").len(), 2);
}
