//! Root and the service's user work on one data directory in turn. With the documented systemd units
//! the directory belongs to the service's user, and root is the only person who can run commands.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::Place;
use testkit::{Finished, UsageReceiver};

const SERVICE: u32 = 65534;

/// Every verb, as it is typed. `URL` stands for a receiver.
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

/// Those that only read.
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

/// A data directory of the service's user, in a directory that everybody can read.
struct World {
    place: Place,
    llmlb: PathBuf,
}

impl World {
    /// `None`: this user cannot become another one.
    fn new() -> Option<Self> {
        if !testkit::has_root("who can become another user").unwrap() {
            return None;
        }
        let place = Place::new();
        let record = r#"{"model":"m","tokens":1}"#;
        let dir = place.file("record.json", record);
        let dir = dir.parent().expect("its directory").to_owned();
        let llmlb = dir.join("llmlb");
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("readable");
        // A process of its own copies it: a child that another test starts meanwhile would inherit
        // the descriptor, and a program that is open for writing cannot be run.
        let mut install = Command::new("install");
        let copied = install.args(["-m", "755", env!("CARGO_BIN_EXE_llmlb")]);
        assert!(copied.arg(&llmlb).status().expect("install").success());
        fs::create_dir(place.data()).expect("a data directory");
        fs::set_permissions(place.data(), PermissionsExt::from_mode(0o700)).expect("private");
        chown(place.data(), Some(SERVICE), Some(SERVICE)).expect("it is the service's");
        Some(Self { place, llmlb })
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
            .env("LLMLB_DATA_DIR", self.place.data())
            .env_remove("NOTIFY_SOCKET")
            .current_dir(self.place.data())
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

    /// The service starts with the receiver of the directory, if it has one, records a request and ends.
    fn serves(&self, why: &str, receiver: &UsageReceiver) {
        let locks = self.place.data().join("../locks");
        let _ = fs::create_dir(&locks);
        chown(&locks, Some(SERVICE), Some(SERVICE)).expect("the service's locks");
        let mut command = self.command(User::Service, &["serve", "-p", "0"]);
        command
            .args(["--backend", "http://127.0.0.1:9"])
            .env("LLMLB_LOCK_DIR", locks)
            .env("LLMLB_USAGE_ON_FAILURE", "refuse")
            .env("LLMLB_USAGE_EVERY", "1h");
        if self.place.data().join("destination.json").exists() {
            command.env("LLMLB_USAGE_URL", &receiver.url);
        }
        let server = self.place.serve_command(&mut command);
        let body = r#"{"model":"m","messages":[]}"#;
        server.ask("POST /v1/chat/completions", body);
        assert_eq!(server.usage()["recorded"], 1, "{why}");
        assert_eq!(server.stop(), Some(0), "{why}: {}", server.log());
        let said = server.log();
        assert!(!said.contains("usage: "), "{why}: {said}");
    }
}

/// Path, owner, size and time of the last change of everything in a directory.
type Tree = Vec<(PathBuf, u32, u64, i64, i64)>;

fn tree(dir: &Path) -> Tree {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let about = fs::symlink_metadata(&path).expect("it is there");
        if about.is_dir() {
            let files = fs::read_dir(&path).expect("readable");
            left.extend(files.map(|file| file.expect("a file").path()));
        }
        let (size, uid) = (about.len(), about.uid());
        found.push((path, uid, size, about.mtime(), about.mtime_nsec()));
    }
    found.sort();
    found
}

const NONE: [PathBuf; 0] = [];

/// Files that do not belong to the service's user.
fn others_files(dir: &Path) -> Vec<PathBuf> {
    let others = tree(dir).into_iter().filter(|(_, uid, ..)| *uid != SERVICE);
    others.map(|(path, ..)| path).collect()
}

/// A file that cannot be read, as on a disk with errors, keeps nothing else back. (S9)
#[test]
fn entry_or_batch_that_cannot_be_read_is_shown_and_stops_nothing_else() {
    let receiver = UsageReceiver::always(200);
    let Some(world) = World::new() else { return };
    for (part, made) in [
        ("_staging", "stage ../record.json"),
        ("spool", "consolidate"),
    ] {
        world.run(User::Service, "stage ../record.json", &receiver);
        world.run(User::Service, made, &receiver);
        let file = world.place.files(part).remove(0);
        let file = world.place.data().join(part).join(file);
        chown(&file, Some(0), Some(0)).expect("it is root's");
        world.run(User::Service, "stage ../record.json", &receiver);

        let why = format!("cannot read {}: permission denied", file.display());
        let pending = world.usage(User::Service, "pending", &receiver);
        assert_eq!(pending.code, Some(1), "{pending:?}");
        assert!(pending.stdout.contains(&why), "{pending:?}");
        let told = "\n1 cannot be read; ";
        assert!(pending.stdout.contains(told), "{pending:?}");
        let verified = world.usage(User::Service, "verify", &receiver);
        assert_eq!(verified.code, Some(1), "{verified:?}");
        assert!(
            verified.stdout.contains(file.to_str().unwrap()),
            "{verified:?}"
        );
        let before = receiver.batches().len();
        let delivered = world.usage(User::Service, "deliver --to URL", &receiver);
        assert_eq!(delivered.code, Some(1), "{delivered:?}");
        assert!(delivered.stderr.contains(&why), "{delivered:?}");
        assert!(receiver.batches().len() > before, "{delivered:?}");
        assert!(file.exists());

        chown(&file, Some(SERVICE), Some(SERVICE)).expect("it is the service's");
        world.run(User::Service, "deliver --to URL --now", &receiver);
        assert_eq!(
            world.run(User::Service, "pending", &receiver).stdout,
            "no batches pending\n"
        );
        world.run(User::Service, "verify", &receiver);
    }
}

/// Whichever user types which verb first, the other one can type any, and the service starts.
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
            let why = format!("{verb:?}, {first:?} first");
            world.run(first, "stage ../record.json", &receiver);
            world.run(first, verb, &receiver);
            assert_eq!(others_files(&world.place.data()), NONE, "{why}");
            world.run(second, "stage ../record.json", &receiver);
            world.run(second, verb, &receiver);
            assert_eq!(others_files(&world.place.data()), NONE, "{why}");
            world.run(User::Service, "verify", &receiver);
            world.serves(&why, &receiver);
            let books = world.run(User::Root, "verify --json", &receiver).json();
            let staged = if verb.starts_with("stage") { 5 } else { 3 };
            assert_eq!(books["staged"], staged, "{why}: {books}");
        }
    }
}

#[test]
fn readers_change_nothing_whoever_runs_them() {
    let receiver = UsageReceiver::always(200);
    let Some(world) = World::new() else { return };
    let data = world.place.data();
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

/// Killed at every single system call that could change something.
#[test]
fn readers_of_root_leave_nothing_behind_when_they_are_killed() {
    let receiver = UsageReceiver::always(200);
    let Some(world) = World::new() else { return };
    if !testkit::has_tool("strace").unwrap() {
        return;
    }
    let data = world.place.data();
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
    world.serves("after the kills", &receiver);
}

/// Without a receiver, too: the other batches are archived.
#[test]
fn batch_that_cannot_be_read_does_not_stop_archiving() {
    let receiver = UsageReceiver::always(200);
    let Some(world) = World::new() else { return };
    world.run(User::Service, "stage ../record.json", &receiver);
    world.run(User::Service, "consolidate", &receiver);
    let file = world.place.files("spool").remove(0);
    let file = world.place.data().join("spool").join(file);
    chown(&file, Some(0), Some(0)).expect("it is root's");
    world.run(User::Service, "stage ../record.json", &receiver);
    let ran = world.usage(User::Service, "deliver --archive", &receiver);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let why = format!("1 batch pending: cannot read {}", file.display());
    assert!(ran.stderr.contains(&why), "{ran:?}");
    assert_eq!(world.place.files("archive").len(), 1, "{ran:?}");
    chown(&file, Some(SERVICE), Some(SERVICE)).expect("it is the service's");
    world.run(User::Service, "deliver --archive", &receiver);
    assert_eq!(world.place.files("archive").len(), 2);
}
