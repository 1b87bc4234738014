//! The second guard's name, bound by somebody else.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use tenure_tests::eventually;

use crate::{Scene, root};

/// The name that an owner of the scene's key binds, without the leading zero byte.
fn guard_name(scene: &Scene) -> String {
    let _tenure = scene.take().unwrap();
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(scene.dir()).unwrap());
    let part = format!(":{inode:x}/name_k.lock");
    let line = table
        .lines()
        .find(|line| line.ends_with(&part))
        .expect("the guard is listed");
    line.rsplit_once('@').unwrap().1.to_owned()
}

#[test]
fn another_users_socket_does_not_keep_us_out() {
    if !root("acting as another user") {
        return;
    }
    let scene = Scene::new();
    let name = guard_name(&scene);
    let script = format!(
        "import socket,time; s=socket.socket(socket.AF_UNIX); s.bind('\\0{name}'); s.listen(1); time.sleep(60)"
    );
    let mut squatter = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            &script,
        ])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the squatter listens", || {
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        table
            .lines()
            .any(|line| line.ends_with(&name) && line.contains(" 00010000 "))
    });
    let log = crate::guard::Log::default();
    let tenure = tracing::subscriber::with_default(log.clone(), || scene.take().expect("ignored"));
    assert!(
        log.text().contains("WARN another user has bound"),
        "{}",
        log.text()
    );
    assert!(
        scene.take().unwrap_err().is_held(),
        "the file lock still decides"
    );
    drop(tenure);
    squatter.kill().unwrap();
    squatter.wait().unwrap();
}

#[test]
fn a_name_that_is_bound_but_does_not_answer_keeps_nobody_out() {
    let scene = Scene::new();
    let name = guard_name(&scene);
    let silent: OwnedFd =
        rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(
        &silent,
        &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap(),
    )
    .unwrap();
    let tenure = scene.take().unwrap();
    assert!(scene.take().unwrap_err().is_held());
    drop(tenure);
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
