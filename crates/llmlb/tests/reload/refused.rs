//! A changed file with errors is refused, and the running configuration stays. (promise L12)

use testkit::backends::{ASK, CHAT, backend, ok};
use testkit::until;

use crate::server::{ReloadingServer, table};

#[test]
fn bad_file_is_refused_with_all_problems_by_line() {
    let a = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let bad = format!(
        "[server]\nqueue = -1\nworkerz = 2\n{}",
        table("a", &a, "weight = 0\n")
    );
    running.replace(&bad);
    let refused = running.until_refused();
    assert_eq!(refused["problems"], 3);
    let error = refused["error"].as_str().unwrap();
    assert!(error.starts_with("llmlb.toml:2: server.queue: "), "{error}");
    let log = running.server.process.stderr();
    for line in [
        "configuration not reloaded, the running one stays: 3 problems:",
        "llmlb.toml:2: server.queue: ",
        "llmlb.toml:3: server.workerz: unknown key",
        "llmlb.toml:7: backend.weight: ",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert_eq!(running.server.post(CHAT, ASK).status(), 200);
    assert_eq!(running.reloads(), 0);
    // The corrected file must be loaded, and `/status` must report no refused file any more.
    running.reload(&format!("[server]\nqueue = 1\n{}", table("a", &a, "")));
    assert!(running.config()["refused"].is_null());
}

#[test]
fn same_bad_content_is_logged_once() {
    let a = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let words = "configuration not reloaded";
    let logged = || running.server.process.stderr().matches(words).count();
    running.replace("nonsense\n");
    let first = running.until_refused();
    running.replace("nonsense\n");
    until("the file is read again", || {
        running.config()["refused"]["at"] != first["at"]
    });
    assert_eq!(logged(), 1);
    running.replace("nonsense # other content\n");
    until("other content is logged", || logged() == 2);
}

#[test]
fn backend_that_is_the_server_itself_is_refused() {
    let a = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let own = crate::server::tables(&[("a", a.address), ("me", running.server.address)], "");
    running.replace(&own);
    let refused = running.until_refused();
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains("is this server itself"), "{error}");
    assert_eq!(running.backends(), ["a"]);
}

#[cfg(unix)]
#[test]
fn file_that_others_may_write_is_refused_until_that_is_corrected() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    let (a, b) = (backend(ok), backend(ok));
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let new = running.sandbox.file("new.toml", table("b", &b, ""));
    set_permissions(&new, Permissions::from_mode(0o666)).unwrap();
    std::fs::rename(&new, running.file()).unwrap();
    let refused = running.until_refused();
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains("every user may write the file"), "{error}");
    assert_eq!(running.backends(), ["a"]);
    set_permissions(running.file(), Permissions::from_mode(0o644)).unwrap();
    running.until_reloads(1);
    assert_eq!(running.backends(), ["b"]);
}
