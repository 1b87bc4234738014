//! SIGHUP reloads the configuration; with a controlling terminal it stops the server. (promises
//! L4, L12)

use std::process::Command;

use rustix::process::Signal;
use testkit::backends::{ASK, CHAT, backend, ok};
use testkit::until;

use crate::server::{ReloadingServer, table};

#[test]
fn sighup_reloads_and_is_answered_in_the_log() {
    let (a, b) = (backend(ok), backend(ok));
    let sandbox = testkit::sandbox!();
    sandbox.file("llmlb.toml", table("a", &a, ""));
    let llmlb = sandbox.llmlb().to_owned();
    // `setsid` starts the server without a controlling terminal even if the tests have one. With a
    // terminal, SIGHUP would end the server.
    let words = [llmlb.to_str().unwrap(), "serve", "-p", "0"];
    let server = sandbox.serve_with(&mut sandbox.command_of("setsid", &words));
    let running = ReloadingServer { sandbox, server };
    running.server.process.signal(Signal::HUP).unwrap();
    running
        .server
        .process
        .until_output("configuration reloaded from llmlb.toml: no changes");
    running.replace(&table("b", &b, ""));
    running.server.process.signal(Signal::HUP).unwrap();
    running.until_reloads(1);
    assert_eq!(running.backends(), ["b"]);
    // The content of this bad file was reported already. SIGHUP is an explicit request, so the
    // error must be logged again.
    running.replace("nonsense");
    running.until_refused();
    let words = "configuration not reloaded";
    let logged = || running.server.process.stderr().matches(words).count();
    until("the bad file is reported", || logged() == 1);
    running.server.process.signal(Signal::HUP).unwrap();
    until("the bad file is reported again", || logged() == 2);
    assert_eq!(running.server.post(CHAT, ASK).status(), 200);
}

/// `script` runs the server with a controlling terminal, and `env` with SIGHUP at its default, because it is
/// ignored where the tests run under `nohup`.
#[test]
fn sighup_drains_and_exits_with_a_controlling_terminal() {
    let a = backend(ok);
    let sandbox = testkit::sandbox!();
    sandbox.file("llmlb.toml", table("a", &a, ""));
    let line = format!("exec {} serve -p 0", sandbox.llmlb().display());
    let words = ["--default-signal=HUP", "script", "-qec", &line, "/dev/null"];
    let mut command = sandbox.command_of("env", &words);
    let process = sandbox.start(&mut command);
    process.until_output("listening on");
    let status = sandbox.run("status --json").json();
    let pid = status["servers"][0]["pid"].as_u64().unwrap().to_string();
    let sent = Command::new("kill").args(["-HUP", &pid]).status().unwrap();
    assert!(sent.success());
    let ended = process.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.output());
    assert!(
        ended
            .output()
            .contains("SIGHUP (the terminal was closed) received: draining"),
        "{}",
        ended.output()
    );
    assert_eq!(sandbox.lock_files(), [""; 0]);
}
