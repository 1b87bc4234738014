//! A configuration file that another user could have written is refused: it could send any environment
//! variable to a backend of that user's choice. (promise L11)

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::{FakeLlm, Finished, Sandbox, wire};

const FILE: &str = "llmlb.toml";
/// Id of a user that does not exist.
const STRANGER: u32 = 54_321;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    testkit::has_root("to change the owner of a file").unwrap()
}

/// Returns a sandbox with a configuration file in its working directory.
fn with_config() -> Sandbox {
    let sandbox = testkit::sandbox!();
    fs::write(sandbox.path(FILE), "[server]\nport = 0\n").unwrap();
    set_mode(&sandbox.path(FILE), 0o644);
    sandbox
}

#[track_caller]
fn assert_refused(sandbox: &Sandbox, words: &str, why: &str, advice: &str) {
    let Finished {
        code,
        stdout: out,
        stderr: err,
    } = sandbox.run(words);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{words}: {err}");
    assert!(
        err.contains("llmlb: 1 problem in the configuration:"),
        "{err}"
    );
    assert!(err.contains(why), "{words}: {err}");
    assert!(err.contains(advice), "{words}: {err}");
}

#[track_caller]
fn assert_accepted(sandbox: &Sandbox, words: &str) {
    let outcome = sandbox.run(words);
    assert_eq!(outcome.code, Some(0), "{words}: {}", outcome.stderr);
}

#[test]
fn config_file_of_another_user_is_refused_unless_named_and_allowed() {
    if !is_root() {
        return;
    }
    let sandbox = with_config();
    let mock = FakeLlm::handling(&["m"], |_, stream| wire::json(stream, 200, "{}"));
    let file = format!(
        "[[backend]]\nurl = \"{}\"\napi_key_env = \"SECRET\"\n",
        mock.url()
    );
    fs::write(sandbox.path(FILE), file).unwrap();
    chown(sandbox.path(FILE), Some(STRANGER), None).unwrap();
    let why = "llmlb.toml: the file belongs to uid 54321, neither to this user nor to root";
    let advice = "--config llmlb.toml --allow-shared-config";
    for words in [
        "check",
        "serve -p 0",
        "check --config llmlb.toml",
        "serve --config llmlb.toml",
    ] {
        assert_refused(&sandbox, words, why, advice);
    }
    let mut command = sandbox.command("check");
    let outcome = sandbox.start(command.env("LLMLB_CONFIG", FILE)).finish();
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(why), "{}", outcome.stderr);
    assert_eq!(sandbox.run("check --allow-shared-config").code, Some(2));
    assert_eq!(mock.probe_credentials(), "");

    let mut command = sandbox.command("serve -p 0 --config llmlb.toml --allow-shared-config");
    let server = sandbox.serve_with(command.env("SECRET", "sk-1"));
    assert_eq!(server.get("/v1/models").status(), 200);
    assert_eq!(mock.probe_credentials(), "Bearer sk-1");
}

#[test]
fn config_file_writable_by_others_is_refused() {
    let sandbox = with_config();
    let path = sandbox.path(FILE);
    assert_accepted(&sandbox, "check");
    set_mode(&path, 0o646);
    let why = "llmlb.toml: every user may write the file";
    assert_refused(&sandbox, "check", why, "`chmod go-w llmlb.toml`");
    assert_refused(&sandbox, "serve -p 0", why, "`chmod go-w llmlb.toml`");
    assert_accepted(&sandbox, "check --config llmlb.toml --allow-shared-config");
    if is_root() {
        set_mode(&path, 0o664);
        chown(&path, None, Some(STRANGER)).unwrap();
        let why = "llmlb.toml: the file's group (gid 54321) may write it";
        assert_refused(&sandbox, "check", why, "`chmod go-w llmlb.toml`");
    }
    set_mode(&path, 0o644);
    assert_accepted(&sandbox, "check");
}

#[test]
fn config_file_in_a_directory_writable_by_others_is_refused() {
    let sandbox = with_config();
    let directory = sandbox.path("open");
    fs::create_dir(&directory).unwrap();
    fs::rename(sandbox.path(FILE), directory.join(FILE)).unwrap();
    let words = "check --config open/llmlb.toml";
    assert_accepted(&sandbox, words);
    set_mode(&directory, 0o777);
    let why = "open/llmlb.toml: every user may replace the file in ";
    assert_refused(&sandbox, words, why, "`chmod o-w ");
    // Both the directory of the link and the directory of its target must be checked: whoever may
    // write either can replace the file.
    fs::create_dir(sandbox.path("closed")).unwrap();
    symlink("../open/llmlb.toml", sandbox.path("closed/to_open.toml")).unwrap();
    assert_refused(
        &sandbox,
        "check --config closed/to_open.toml",
        "/open",
        "chmod o-w",
    );
    fs::write(sandbox.path("closed/own.toml"), "").unwrap();
    symlink("../closed/own.toml", sandbox.path("open/to_closed.toml")).unwrap();
    assert_refused(
        &sandbox,
        "check --config open/to_closed.toml",
        "open",
        "chmod o-w",
    );
    assert_accepted(&sandbox, "check --config closed/own.toml");
    // In a directory with the sticky bit, such as /tmp, only the owner of a file may replace it, so
    // the file is accepted.
    set_mode(&directory, 0o1777);
    assert_accepted(&sandbox, words);
}

#[test]
fn target_of_a_linked_config_file_is_checked() {
    if !is_root() {
        return;
    }
    let sandbox = with_config();
    fs::rename(sandbox.path(FILE), sandbox.path("real.toml")).unwrap();
    symlink("real.toml", sandbox.path(FILE)).unwrap();
    assert_accepted(&sandbox, "check");
    chown(sandbox.path("real.toml"), Some(STRANGER), None).unwrap();
    assert_refused(
        &sandbox,
        "check",
        "llmlb.toml: the file belongs to uid 54321",
        "--allow-shared-config",
    );
}

/// Creates a named pipe at the path of the configuration file.
fn pipe(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.path(FILE);
    let status = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(status.success());
    path
}

#[test]
fn config_pipe_of_another_user_does_not_block_the_start() {
    if !is_root() {
        return;
    }
    let sandbox = testkit::sandbox!();
    let path = pipe(&sandbox);
    chown(&path, Some(STRANGER), None).unwrap();
    assert_refused(
        &sandbox,
        "check",
        "llmlb.toml: the file belongs to uid 54321",
        "--allow-shared-config",
    );
}

#[test]
fn config_pipe_of_this_user_is_read_to_its_end() {
    let sandbox = testkit::sandbox!();
    let path = pipe(&sandbox);
    let writer = std::thread::spawn(move || fs::write(path, "[server]\nport = 70000\n").unwrap());
    let outcome = sandbox.run("check");
    writer.join().unwrap();
    assert!(
        outcome.stderr.contains("server.port: 70000"),
        "{}",
        outcome.stderr
    );
}
