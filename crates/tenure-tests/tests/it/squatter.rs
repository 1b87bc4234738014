//! The deletion guard's name, bound by somebody else.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use tenure_tests::run_as::{Commons, RunAs, STRANGER};

use crate::{Scene, Stranger, root};

/// The names that an owner of the scene's key binds, without the leading zero byte.
fn guard_names(scene: &Scene) -> Vec<String> {
    let owner = scene.owner();
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

/// Another user's process that binds the names and listens, each with a line full of friends if
/// `full`.
fn squat(names: &[String], full: bool) -> Stranger {
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
    Stranger(squatter)
}

#[test]
fn another_users_socket_does_not_keep_us_out() {
    if !root("acting as another user") {
        return;
    }
    for full in [false, true] {
        let scene = Scene::new();
        let mut squatter = squat(&guard_names(&scene), full);
        let (tenure, text) = crate::guard::logged(|| scene.take().expect("ignored"));
        let warning = "WARN no deletion guard can be had: another user";
        assert!(text.contains(warning), "{text}");
        assert!(
            scene.take().unwrap_err().is_held(),
            "the file lock still decides"
        );
        drop(tenure);
        let stopped = scene.store.stop(&scene.key).force(true).run().unwrap();
        assert!(matches!(stopped, tenure::Stopped::NotRunning));
        assert!(squatter.lives(), "it was not touched");
    }
}

/// The same for a user who cannot look into the squatter's process.
#[test]
fn another_users_full_line_does_not_keep_a_user_out() {
    let Some(commons) = Commons::new() else {
        return;
    };
    let dir = commons.dir("theirs", STRANGER, 0o755);
    let program = commons.copy_of(crate::OWNER);
    let user = || {
        let command = RunAs::user(STRANGER).command(&program);
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
        assert!(squatter.lives());
    }
}

/// Connections that owners do not accept fill the line; the user is known all the same.
#[test]
fn full_line_of_root_keeps_a_user_out_of_a_deleted_file() {
    let Some(commons) = Commons::new() else {
        return;
    };
    let dir = commons.dir("theirs", STRANGER, 0o755);
    let file = dir.join("f.lock");
    let program = commons.copy_of(crate::OWNER);
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
    let command = RunAs::user(STRANGER).command(&program);
    let answer = tenure_tests::Owner::start(command, &dir, file.to_str().unwrap()).answer();
    assert!(answer.starts_with("refused "), "{answer}");
    assert!(answer.contains("user root"), "{answer}");
    assert_eq!(owner.tell("lost"), "true");
}

#[test]
fn names_that_are_bound_but_do_not_answer_keep_nobody_out() {
    let scene = Scene::new();
    let silent: Vec<OwnedFd> = guard_names(&scene)
        .iter()
        .map(|name| {
            let socket = unix_socket();
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            socket
        })
        .collect();
    let tenure = scene.take().unwrap();
    assert!(scene.take().unwrap_err().is_held());
    drop(tenure);
    drop(silent);
}

/// Not for the children of other tests, which would keep its name bound.
fn unix_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .expect("a socket")
}

/// One name is enough to keep a second owner out when the file is deleted.
#[test]
fn with_one_name_taken_the_other_still_guards() {
    let scene = Scene::new();
    for name in guard_names(&scene) {
        let silent = unix_socket();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::bind(&silent, &address).unwrap();
        let owner = scene.owner();
        std::fs::remove_file(scene.file()).unwrap();
        let error = scene.take().expect_err("the other name guards");
        assert_eq!(error.holder().unwrap().pid(), Some(owner.pid()), "{name}");
    }
}

/// Every `socket` call of the owner fails, as in a sandbox that allows none.
#[test]
fn where_sockets_are_forbidden_the_file_alone_decides() {
    let scene = Scene::new();
    let mut sandboxed = Command::new("strace");
    sandboxed
        .args(["--quiet=all", "--output=/dev/null", "--trace=socket"])
        .args(["--inject=socket:error=EAFNOSUPPORT", crate::OWNER]);
    let mut owner = tenure_tests::Owner::start(sandboxed, scene.dir(), "k");
    let answer = owner.answer();
    assert!(answer.starts_with("held "), "{answer}");
    assert!(scene.take().unwrap_err().is_held());
    assert_eq!(owner.tell("release"), "released");
    drop(scene.take().unwrap());
}
