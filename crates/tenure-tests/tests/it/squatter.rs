//! The second guard's name, bound by somebody else.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::{Scene, Stranger, root};

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

/// Another user's process that binds the name and listens, with a line of its own friends if `full`.
fn squat(name: &str, full: bool) -> Stranger {
    let script = format!(
        "import socket,time\n\
         s=socket.socket(socket.AF_UNIX); s.bind('\\0{name}'); s.listen(0)\n\
         friends=[]\n\
         while {full}:\n \
          f=socket.socket(socket.AF_UNIX); f.setblocking(False); friends.append(f)\n \
          if f.connect_ex('\\0{name}')!=0: break\n\
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
        let name = guard_name(&scene);
        let mut squatter = squat(&name, full);
        let log = crate::guard::Log::default();
        let tenure =
            tracing::subscriber::with_default(log.clone(), || scene.take().expect("ignored"));
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
        let stopped = scene.store.stop(&scene.key).force(true).run().unwrap();
        assert!(matches!(stopped, tenure::Stopped::NotRunning));
        assert!(squatter.lives(), "it was not touched");
    }
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
