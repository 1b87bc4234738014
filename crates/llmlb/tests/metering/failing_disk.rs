//! System calls on the data directory fail: status shows it, the log has one line when it begins and
//! one when it ends, and everything is over by itself when the disk is well again. While syncs fail, a
//! server that must record refuses. (S9, L9)

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::ask::{CHAT, ask, chat};
use crate::records;
use testkit::{
    LlmlbServer, Sandbox,
    api_server::{Backend, Reports, Sort},
    until,
};

/// Makes system calls of a process fail while it exists.
struct FailingCalls(Child);

impl FailingCalls {
    /// All calls with these names, or those on this file alone.
    fn of(server: &LlmlbServer, calls: &str, file: Option<&Path>) -> Self {
        let pid = server.process.pid().to_string();
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-qq", "-o", "/dev/null"])
            .args(["-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:error=EIO"), "-p", &pid]);
        if let Some(file) = file {
            strace.arg("-P").arg(file);
        }
        let child = strace
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for FailingCalls {
    fn drop(&mut self) {
        // It detaches and leaves the server as it was.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

fn serve(place: &Sandbox, backend: &Backend, on_failure: &str, every: &str) -> LlmlbServer {
    let mut command = place.command(&format!("serve -p 0 --backend {}", backend.mock.url()));
    command
        .env("LLMLB_USAGE_ON_FAILURE", on_failure)
        .env("LLMLB_USAGE_EVERY", every);
    place.serve_with(&mut command)
}

fn backend() -> Backend {
    Backend::start(Sort {
        name: "b",
        models: &["m"],
        reports: Reports::IfAsked,
        key: None,
    })
}

#[test]
fn a_failed_background_sync_is_shown_and_refuses_if_that_was_asked_for() {
    if !testkit::has_tool("strace").unwrap()
        || !testkit::has_root("strace attaches to a server").unwrap()
    {
        return;
    }
    for on_failure in ["serve", "refuse"] {
        let place = testkit::sandbox!();
        let backend = backend();
        let server = serve(&place, &backend, on_failure, "24h");
        let ask = |id: &str| ask(&server, id, CHAT, &chat("[tokens 3]", false)).status();
        let error = || {
            server.status()["usage"]["error"]
                .as_str()
                .map(str::to_owned)
        };
        assert_eq!(ask("before"), 200);
        let failing = FailingCalls::of(&server, "fdatasync", None);
        let mut number = 0;
        until("a sync fails and status shows it", || {
            number += 1;
            ask(&format!("during-{number}"));
            error().is_some_and(|error| error.contains("input/output error"))
        });
        let expected = if on_failure == "refuse" { 503 } else { 200 };
        assert_eq!(ask("while it fails"), expected, "{on_failure}");
        let said = "staged records may not be on the disk";
        let log = server.process.stderr();
        assert_eq!(log.matches(said).count(), 1, "{log}");
        drop(failing);
        until("the disk is well again", || error().is_none());
        let said = "all staged records are on the disk again";
        until("it says so", || server.process.stderr().contains(said));
        assert_eq!(server.process.stderr().matches(said).count(), 1);
        assert_eq!(ask("after"), 200, "{on_failure}");
        for id in ["before", "during-1", "after"] {
            until("it is recorded", || {
                !records::of_request(&place, id).is_empty()
            });
        }
    }
}

/// Lines of the log, without their times, that are about a disk which fails or is well again.
fn disk_lines(log: &str) -> Vec<String> {
    let text = |line: &str| line.split_once(" llmlb: ").map(|(_, text)| text.to_owned());
    let is_about_it = |line: &String| {
        let is_reminder = line.contains("still, after ");
        !is_reminder && (line.contains("input/output error") || line.contains(" again"))
    };
    log.lines().filter_map(text).filter(is_about_it).collect()
}

/// Issue 14: each fault has one line when it begins, one when it ends, and status shows it meanwhile.
#[test]
fn a_disk_that_fails_is_in_the_log_when_that_begins_and_ends_and_in_status_meanwhile() {
    if !testkit::has_tool("strace").unwrap()
        || !testkit::has_root("strace attaches to a server").unwrap()
    {
        return;
    }
    let disk = (
        "warning: usage: cannot ",
        "the data directory is usable again",
    );
    let unreadable = (
        "warning: usage: staged entries that cannot be read",
        "all staged entries can be read again",
    );
    let unsynced = (
        "staged records may not be on the disk",
        "all staged records are on the disk again",
    );
    let lost = ("error: usage: cannot write to", "records are staged again");
    for (calls, is_one_file, expected) in [
        ("getdents64", false, vec![disk]),
        ("openat,read", true, vec![unreadable]),
        ("rename,renameat,renameat2", false, vec![disk, unsynced]),
        ("pwrite64", false, vec![disk, lost]),
        ("unlink,unlinkat", false, vec![disk]),
    ] {
        let place = testkit::sandbox!();
        let backend = backend();
        let server = serve(&place, &backend, "serve", "1s");
        let ask = |id: &str| ask(&server, id, CHAT, &chat("[tokens 3]", false)).status();
        let error = || {
            let error = &server.status()["usage"]["error"];
            error.as_str().map(str::to_owned)
        };
        assert_eq!(ask("before"), 200);
        // Any program may drop a record.
        let single = place.path("data/_staging/01890a5d-ac96-774b-bcce-b302099a8057.json");
        let only = is_one_file.then_some(single.as_path());
        let failing = FailingCalls::of(&server, calls, only);
        let is_in_log = |text: &str| server.process.stderr().contains(text);
        let mut number = 0;
        until(&format!("{calls} begins to fail in the log"), || {
            number += 1;
            assert_eq!(ask(&format!("during-{number}")), 200, "{calls}");
            if number == 2 {
                std::fs::write(&single, r#"{"tokens":1}"#).unwrap();
            }
            expected.iter().all(|(began, _)| is_in_log(began))
        });
        until("status shows it", || {
            error().is_some_and(|error| error.contains("input/output error"))
        });
        // More runs and more records, and no more lines.
        for _ in 0..3 {
            ask("meanwhile");
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        drop(failing);
        until(&format!("{calls} ends to fail in the log"), || {
            ask("after");
            expected.iter().all(|(_, ended)| is_in_log(ended))
        });
        until("status is empty", || error().is_none());
        let lines = disk_lines(&server.process.stderr());
        for line in &lines {
            let times = lines.iter().filter(|other| *other == line).count();
            assert_eq!(times, 1, "{calls}: {line}\n{lines:#?}");
        }
        for text in expected.iter().flat_map(|(began, ended)| [began, ended]) {
            let times = lines.iter().filter(|line| line.contains(text)).count();
            assert_eq!(times, 1, "{calls}: {text}\n{lines:#?}");
        }
    }
}
