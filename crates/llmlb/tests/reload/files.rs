//! Ways in which a configuration file changes: written in place, renamed, linked, deleted.
//! (promise L12)

use std::fs::{self, File};
use std::io::Write;
#[cfg(unix)]
use std::path::Path;
#[cfg(unix)]
use std::process::Command;

#[cfg(target_os = "linux")]
use rustix::process::Signal;
use testkit::backends::{ASK, CHAT, backend, ok, served_by};
#[cfg(unix)]
use testkit::eventually;
use testkit::until;

use crate::server::{ReloadingServer, table};

#[test]
fn file_that_is_written_in_place_is_read() {
    let (a, b) = (backend(ok), backend(ok));
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    fs::write(running.file(), table("b", &b, "")).unwrap();
    running.until_reloads(1);
    assert_eq!(running.backends(), ["b"]);
}

/// Kubernetes updates the files of a ConfigMap by switching a symbolic link to their directory.
#[cfg(unix)]
#[test]
fn switched_symbolic_link_is_read() {
    use std::os::unix::fs::symlink;
    let (a, b) = (backend(ok), backend(ok));
    let sandbox = testkit::sandbox!();
    for (dir, text) in [("v1", table("a", &a, "")), ("v2", table("b", &b, ""))] {
        fs::create_dir(sandbox.path(dir)).unwrap();
        sandbox.file(&format!("{dir}/llmlb.toml"), text);
    }
    symlink("v1", sandbox.path("..data")).unwrap();
    symlink("..data/llmlb.toml", sandbox.path("mounted.toml")).unwrap();
    let mut command = sandbox.command("serve -p 0 --config mounted.toml");
    let server = sandbox.serve_with(&mut command);
    let running = ReloadingServer { sandbox, server };
    assert_eq!(running.backends(), ["a"]);
    symlink("v2", running.sandbox.path("..data_tmp")).unwrap();
    let (from, to) = (
        running.sandbox.path("..data_tmp"),
        running.sandbox.path("..data"),
    );
    fs::rename(from, to).unwrap();
    running.until_reloads(1);
    assert_eq!(running.backends(), ["b"]);
    assert_eq!(running.config()["path"], "mounted.toml");
}

#[test]
fn file_that_is_written_slowly_is_used_once_it_is_complete() {
    let (a, b) = (backend(ok), backend(ok));
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let whole = table("b", &b, "models = [\n\"m\",\n]\n");
    let mut file = File::create(running.file()).unwrap();
    for piece in whole.as_bytes().chunks(7) {
        file.write_all(piece).unwrap();
        file.flush().unwrap();
        assert_eq!(running.server.post(CHAT, ASK).status(), 200);
    }
    drop(file);
    until("the whole file is used", || running.backends() == ["b"]);
    assert_eq!(served_by(&running.server.post(CHAT, ASK)), "b");
}

#[test]
fn removed_file_leaves_the_configuration_as_it_is() {
    let a = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    fs::remove_file(running.file()).unwrap();
    let refused = running.until_refused();
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains("does not exist any more"), "{error}");
    assert_eq!(running.server.post(CHAT, ASK).status(), 200);
    running.replace(&table("a", &a, ""));
    until("the file is read again", || {
        running.config()["refused"].is_null()
    });
    assert_eq!(running.reloads(), 0, "its content is the running one");
}

/// A pipe in place of the file would be waited for forever.
#[cfg(unix)]
#[test]
fn pipe_in_place_of_the_file_is_refused_and_the_next_file_is_read() {
    let (a, b) = (backend(ok), backend(ok));
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    fs::remove_file(running.file()).unwrap();
    make_pipe(&running.file());
    eventually("the pipe is refused", || {
        let refused = running.config()["refused"].clone();
        let error = refused["error"].as_str().unwrap_or_default();
        error.contains("a pipe cannot be read again").then_some(())
    });
    assert_eq!(running.backends(), ["a"]);
    running.reload(&table("b", &b, ""));
    assert_eq!(running.backends(), ["b"]);
}

/// The pipe of a shell's `--config <(command)` is empty once the server has read it.
#[cfg(target_os = "linux")]
#[test]
fn server_that_read_a_pipe_keeps_its_configuration() {
    let a = backend(ok);
    let sandbox = testkit::sandbox!();
    let pipe = sandbox.path("pipe");
    make_pipe(&pipe);
    let text = table("a", &a, "");
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::write(pipe, text).unwrap()
    });
    let llmlb = sandbox.llmlb().to_owned();
    // Without a controlling terminal, so that SIGHUP reloads.
    let words = [
        llmlb.to_str().unwrap(),
        "serve",
        "-p",
        "0",
        "--config",
        "pipe",
    ];
    let server = sandbox.serve_with(&mut sandbox.command_of("setsid", &words));
    writer.join().unwrap();
    // An open writer: reading the pipe again would find neither data nor its end.
    let _writer = File::options().read(true).write(true).open(&pipe).unwrap();
    let running = ReloadingServer { sandbox, server };
    running.server.process.signal(Signal::HUP).unwrap();
    let refused = running.until_refused();
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains("a pipe cannot be read again"), "{error}");
    assert_eq!(running.backends(), ["a"]);
    assert_eq!(running.reloads(), 0);
}

#[cfg(unix)]
fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

#[test]
fn file_with_the_same_settings_is_no_reload() {
    let a = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let hash = running.config()["hash"].clone();
    running.replace(&format!("# a comment\n{}", table("a", &a, "")));
    until("the file is read", || running.config()["hash"] != hash);
    assert_eq!(running.reloads(), 0);
}

#[test]
fn server_without_a_file_reads_one_that_appears() {
    let (a, b) = (backend(ok), backend(ok));
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve(&format!("--backend {}", a.url()));
    let running = ReloadingServer { sandbox, server };
    assert!(running.config()["path"].is_null());
    let text = format!("[server]\nqueue = 7\n{}", table("b", &b, ""));
    running.reload(&text);
    assert_eq!(running.config()["path"], "llmlb.toml");
    // `--backend` takes precedence over the `[[backend]]` tables of a file, also if the file
    // appears after the start.
    assert_eq!(running.backends(), [a.address.to_string()]);
}
