//! Socket names of the deletion guard that another process has bound.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use tenure_tests::run_as::{RunAs, SharedDir, UNNAMED_USER};

use crate::{Fixture, UnrelatedProcess, root};

/// Socket names that an owner of the fixture's key binds, without the leading zero byte.
fn guard_names(fixture: &Fixture) -> Vec<String> {
    let owner = fixture.owner();
    names_of(owner.pid())
}

fn names_of(pid: u32) -> Vec<String> {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| {
            let link = std::fs::read_link(entry.unwrap().path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let name = words.get(7)?.strip_prefix('@')?;
            sockets
                .iter()
                .any(|inode| inode == words[6])
                .then(|| name.to_owned())
        })
        .collect();
    assert_eq!(names.len(), 2, "{table}");
    names
}

/// Starts a process of another user that binds these socket names of the deletion guard and listens
/// on them. If `full`, the process also fills the connection queue of each socket.
fn squat(names: &[String], full: bool) -> UnrelatedProcess {
    let script = format!(
        "import socket,time\n\
         kept=[]\n\
         for name in {names:?}:\n \
          s=socket.socket(socket.AF_UNIX); s.bind('\\0'+name); s.listen(0); kept.append(s)\n \
          while {full}:\n  \
           f=socket.socket(socket.AF_UNIX); f.setblocking(False); kept.append(f)\n  \
           if f.connect_ex('\\0'+name)!=0: break\n\
         print('ready',flush=True); time.sleep(60)",
        full = if full { "True" } else { "False" }
    );
    let mut squatter = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["/usr/bin/python3", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(squatter.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    UnrelatedProcess(squatter)
}

#[test]
fn socket_of_an_unrelated_user_does_not_block_the_key() {
    if !root("acting as another user") {
        return;
    }
    for full in [false, true] {
        let fixture = Fixture::new();
        let mut squatter = squat(&guard_names(&fixture), full);
        let (tenure, text) =
            crate::guard::logged(|| fixture.try_acquire().expect("the socket is ignored"));
        let warning = "WARN no deletion guard: another user";
        assert!(text.contains(warning), "{text}");
        assert!(
            fixture.try_acquire().unwrap_err().is_held(),
            "the file lock still excludes a second owner"
        );
        drop(tenure);
        let stopped = fixture.store.stop(&fixture.key).force(true).run().unwrap();
        assert!(matches!(stopped, tenure::Stopped::NotRunning));
        assert!(
            squatter.is_running(),
            "the other user's process was signalled"
        );
    }
}

/// The user who acquires the key cannot inspect another user's process that has bound the socket
/// names of the deletion guard. The user id of each socket must suffice to ignore that process.
#[test]
fn full_queue_of_an_unrelated_user_does_not_block_the_key() {
    let Some(shared_dir) = SharedDir::new() else {
        return;
    };
    let dir = shared_dir.dir("theirs", UNNAMED_USER, 0o755);
    let program = shared_dir.copy_of(crate::OWNER);
    let user = || {
        let command = RunAs::user(UNNAMED_USER).command(&program);
        tenure_tests::Owner::start(command, &dir, "k")
    };
    let mut owner = user();
    assert!(owner.answer().starts_with("held "));
    let names = names_of(owner.pid());
    drop(owner);
    for full in [false, true] {
        let mut squatter = squat(&names, full);
        let answer = user().answer();
        assert!(answer.starts_with("held "), "{answer}");
        assert!(squatter.is_running());
    }
}

/// Owners never accept connections to the sockets of their deletion guard, so the connection queues
/// can fill up. A second owner must still be refused, and the refusal must name the owner's user.
#[test]
fn full_queue_of_root_still_refuses_a_user_after_the_file_is_deleted() {
    let Some(shared_dir) = SharedDir::new() else {
        return;
    };
    let dir = shared_dir.dir("theirs", UNNAMED_USER, 0o755);
    let file = dir.join("f.lock");
    let program = shared_dir.copy_of(crate::OWNER);
    let mut owner = tenure_tests::Owner::holding(crate::OWNER, &dir, file.to_str().unwrap());
    let mut line = Vec::new();
    for name in names_of(owner.pid()) {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        loop {
            let socket = unix_socket();
            rustix::io::ioctl_fionbio(&socket, true).unwrap();
            let connected = rustix::net::connect(&socket, &address);
            line.push(socket);
            if connected.is_err() {
                break;
            }
        }
    }
    std::fs::remove_file(&file).unwrap();
    let command = RunAs::user(UNNAMED_USER).command(&program);
    let answer = tenure_tests::Owner::start(command, &dir, file.to_str().unwrap()).answer();
    assert!(answer.starts_with("refused "), "{answer}");
    assert!(answer.contains("user root"), "{answer}");
    assert_eq!(owner.request("lost"), "true");
}

#[test]
fn bound_name_without_a_listener_does_not_block_the_key() {
    let fixture = Fixture::new();
    let silent: Vec<OwnedFd> = guard_names(&fixture)
        .iter()
        .map(|name| {
            let socket = unix_socket();
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            socket
        })
        .collect();
    let tenure = fixture.try_acquire().unwrap();
    assert!(fixture.try_acquire().unwrap_err().is_held());
    drop(tenure);
    drop(silent);
}

/// Returns a socket that children of other tests do not inherit. A child that inherited it would
/// keep its name bound.
fn unix_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .expect("a socket")
}

/// The deletion guard has two socket names. If another process has bound one of them, the remaining
/// name must still refuse a second owner after the lock file is deleted.
#[test]
fn second_name_still_refuses_when_the_first_is_bound_by_another_process() {
    let fixture = Fixture::new();
    for name in guard_names(&fixture) {
        let silent = unix_socket();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::bind(&silent, &address).unwrap();
        let owner = fixture.owner();
        std::fs::remove_file(fixture.file()).unwrap();
        let error = fixture.try_acquire().expect_err("the other name guards");
        assert_eq!(error.holder().unwrap().pid(), Some(owner.pid()), "{name}");
    }
}

/// Every `socket` call of the owner fails, as in a sandbox that forbids sockets. The lock must
/// still be acquired, without a deletion guard.
#[test]
fn key_is_acquired_without_a_deletion_guard_where_sockets_are_forbidden() {
    let fixture = Fixture::new();
    let mut sandboxed = Command::new("strace");
    sandboxed
        .args(["--quiet=all", "--output=/dev/null", "--trace=socket"])
        .args(["--inject=socket:error=EAFNOSUPPORT", crate::OWNER]);
    let mut owner = tenure_tests::Owner::start(sandboxed, fixture.dir(), "k");
    let answer = owner.answer();
    assert!(answer.starts_with("held "), "{answer}");
    assert!(fixture.try_acquire().unwrap_err().is_held());
    assert_eq!(owner.request("release"), "released");
    drop(fixture.try_acquire().unwrap());
}
