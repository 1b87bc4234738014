//! Every sync fails: status shows it, a server that must record refuses, and both are over by
//! themselves when the disk is well again. (S9, L9)

use std::process::{Child, Command, Stdio};

use crate::ask::{CHAT, ask, chat};
use crate::backend::{Backend, Reports, Sort};
use crate::process::until;
use crate::records;
use crate::support::{Place, Server};

/// Makes every `fdatasync` of a process fail while it exists.
struct FailingSyncs(Child);

impl FailingSyncs {
    fn of(server: &Server) -> Self {
        let pid = server.process.pid().to_string();
        let child = Command::new("strace")
            .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"])
            .args(["-e", "inject=fdatasync:error=EIO", "-p", &pid])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for FailingSyncs {
    fn drop(&mut self) {
        // It detaches and leaves the server as it was.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

fn serve(place: &Place, backend: &Backend, on_failure: &str) -> Server {
    let mut command = place.command(&format!("serve -p 0 --backend {}", backend.mock.url()));
    command
        .env("LLMLB_USAGE_ON_FAILURE", on_failure)
        .env("LLMLB_USAGE_EVERY", "24h");
    place.serve_with(&mut command)
}

#[test]
fn a_failed_background_sync_is_shown_and_refuses_if_that_was_asked_for() {
    if !testkit::has_tool("strace").unwrap()
        || !testkit::has_root("strace attaches to a server").unwrap()
    {
        return;
    }
    for on_failure in ["serve", "refuse"] {
        let place = Place::new();
        let backend = Backend::start(Sort {
            name: "b",
            models: &["m"],
            reports: Reports::IfAsked,
            key: None,
        });
        let server = serve(&place, &backend, on_failure);
        let ask = |id: &str| ask(&server, id, CHAT, &chat("[tokens 3]", false)).status();
        let error = || {
            server.status()["usage"]["error"]
                .as_str()
                .map(str::to_owned)
        };
        assert_eq!(ask("before"), 200);
        let failing = FailingSyncs::of(&server);
        let mut number = 0;
        until("a sync fails and status shows it", || {
            number += 1;
            ask(&format!("during-{number}"));
            error().is_some_and(|error| error.contains("input/output error"))
        });
        let expected = if on_failure == "refuse" { 503 } else { 200 };
        assert_eq!(ask("while it fails"), expected, "{on_failure}");
        let said = "staged records may not be on the disk";
        let log = server.process.err();
        assert_eq!(log.matches(said).count(), 1, "{log}");
        drop(failing);
        until("the disk is well again", || error().is_none());
        let said = "all staged records are on the disk again";
        until("it says so", || server.process.err().contains(said));
        assert_eq!(server.process.err().matches(said).count(), 1);
        assert_eq!(ask("after"), 200, "{on_failure}");
        for id in ["before", "during-1", "after"] {
            until("it is recorded", || {
                !records::of_request(&place, id).is_empty()
            });
        }
    }
}
