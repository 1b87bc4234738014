//! A configuration file that others could have written is refused: it can send any variable of the
//! environment to a backend of its choice. (L11)

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::{FakeLlm, Finished, Sandbox, wire};

const FILE: &str = "llmlb.toml";
/// A user that no machine has.
const STRANGER: u32 = 54_321;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    testkit::has_root("to give a file away").unwrap()
}

/// A place with a configuration file in its directory.
fn place() -> Sandbox {
    let place = testkit::sandbox!();
    fs::write(place.path(FILE), "[server]\nport = 0\n").unwrap();
    mode(&place.path(FILE), 0o644);
    place
}

#[track_caller]
fn refused(place: &Sandbox, words: &str, why: &str, advice: &str) {
    let Finished {
        code,
        stdout: out,
        stderr: err,
    } = place.run(words);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{words}: {err}");
    assert!(
        err.contains("llmlb: 1 problem in the configuration:"),
        "{err}"
    );
    assert!(err.contains(why), "{words}: {err}");
    assert!(err.contains(advice), "{words}: {err}");
}

#[track_caller]
fn accepted(place: &Sandbox, words: &str) {
    let outcome = place.run(words);
    assert_eq!(outcome.code, Some(0), "{words}: {}", outcome.stderr);
}

#[test]
fn a_file_of_another_user_is_refused_unless_it_is_named_and_allowed() {
    if !is_root() {
        return;
    }
    let place = place();
    let mock = FakeLlm::handling(&["m"], |_, stream| wire::json(stream, 200, "{}"));
    let file = format!(
        "[[backend]]\nurl = \"{}\"\napi_key_env = \"SECRET\"\n",
        mock.url()
    );
    fs::write(place.path(FILE), file).unwrap();
    chown(place.path(FILE), Some(STRANGER), None).unwrap();
    let why = "llmlb.toml: the file belongs to uid 54321, neither to this user nor to root";
    let advice = "--config llmlb.toml --allow-shared-config";
    for words in [
        "check",
        "serve -p 0",
        "check --config llmlb.toml",
        "serve --config llmlb.toml",
    ] {
        refused(&place, words, why, advice);
    }
    let mut command = place.command("check");
    let outcome = place.start(command.env("LLMLB_CONFIG", FILE)).finish();
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(why), "{}", outcome.stderr);
    assert_eq!(place.run("check --allow-shared-config").code, Some(2));
    assert_eq!(mock.probe_credentials(), "");

    let mut command = place.command("serve -p 0 --config llmlb.toml --allow-shared-config");
    let server = place.serve_with(command.env("SECRET", "sk-1"));
    assert_eq!(server.get("/v1/models").status(), 200);
    assert_eq!(mock.probe_credentials(), "Bearer sk-1");
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let place = place();
    let path = place.path(FILE);
    accepted(&place, "check");
    mode(&path, 0o646);
    let why = "llmlb.toml: every user may write the file";
    refused(&place, "check", why, "`chmod go-w llmlb.toml`");
    refused(&place, "serve -p 0", why, "`chmod go-w llmlb.toml`");
    accepted(&place, "check --config llmlb.toml --allow-shared-config");
    if is_root() {
        mode(&path, 0o664);
        chown(&path, None, Some(STRANGER)).unwrap();
        let why = "llmlb.toml: the file's group (gid 54321) may write it";
        refused(&place, "check", why, "`chmod go-w llmlb.toml`");
    }
    mode(&path, 0o644);
    accepted(&place, "check");
}

#[test]
fn a_file_in_a_directory_that_others_may_write_is_refused() {
    let place = place();
    let directory = place.path("open");
    fs::create_dir(&directory).unwrap();
    fs::rename(place.path(FILE), directory.join(FILE)).unwrap();
    let words = "check --config open/llmlb.toml";
    accepted(&place, words);
    mode(&directory, 0o777);
    let why = "open/llmlb.toml: every user may replace the file in ";
    refused(&place, words, why, "`chmod o-w ");
    // The directory of a link counts as well as the one that it leads to.
    fs::create_dir(place.path("closed")).unwrap();
    symlink("../open/llmlb.toml", place.path("closed/to_open.toml")).unwrap();
    refused(
        &place,
        "check --config closed/to_open.toml",
        "/open",
        "chmod o-w",
    );
    fs::write(place.path("closed/own.toml"), "").unwrap();
    symlink("../closed/own.toml", place.path("open/to_closed.toml")).unwrap();
    refused(
        &place,
        "check --config open/to_closed.toml",
        "open",
        "chmod o-w",
    );
    accepted(&place, "check --config closed/own.toml");
    // As in /tmp, no one but the owner may then replace a file.
    mode(&directory, 0o1777);
    accepted(&place, words);
}

#[test]
fn the_file_that_a_link_leads_to_decides() {
    if !is_root() {
        return;
    }
    let place = place();
    fs::rename(place.path(FILE), place.path("real.toml")).unwrap();
    symlink("real.toml", place.path(FILE)).unwrap();
    accepted(&place, "check");
    chown(place.path("real.toml"), Some(STRANGER), None).unwrap();
    refused(
        &place,
        "check",
        "llmlb.toml: the file belongs to uid 54321",
        "--allow-shared-config",
    );
}

/// A named pipe where the file would be.
fn pipe(place: &Sandbox) -> PathBuf {
    let path = place.path(FILE);
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    path
}

#[test]
fn a_pipe_of_another_user_does_not_hold_up_the_start() {
    if !is_root() {
        return;
    }
    let place = testkit::sandbox!();
    let path = pipe(&place);
    chown(&path, Some(STRANGER), None).unwrap();
    refused(
        &place,
        "check",
        "llmlb.toml: the file belongs to uid 54321",
        "--allow-shared-config",
    );
}

#[test]
fn a_pipe_of_this_user_is_read_to_its_end() {
    let place = testkit::sandbox!();
    let path = pipe(&place);
    let writer = std::thread::spawn(move || fs::write(path, "[server]\nport = 70000\n").unwrap());
    let outcome = place.run("check");
    writer.join().unwrap();
    assert!(
        outcome.stderr.contains("server.port: 70000"),
        "{}",
        outcome.stderr
    );
}
