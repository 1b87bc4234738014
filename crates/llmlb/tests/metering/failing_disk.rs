//! System calls on the data directory fail. Status shows the failure, and the log has one line when it
//! begins and one when it ends. The server recovers by itself as soon as the calls succeed. While syncs
//! fail, a server with `usage.on_failure = "refuse"` refuses requests. (promises S9, L9)

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::records;
use crate::requests::{CHAT, chat, post};
use crate::stream::counting_backend;
use testkit::{
    LlmlbServer, Sandbox,
    api_server::{Backend, Reports},
    until,
};

/// Makes system calls of a server fail with an input/output error as long as this value exists.
struct FailingCalls(Child);

impl FailingCalls {
    /// Attaches strace to a server. If there is a `file`, only calls on that file fail.
    fn inject(server: &LlmlbServer, calls: &str, file: Option<&Path>) -> Self {
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
        // On SIGTERM strace detaches, and the calls of the server succeed again.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

fn serve(sandbox: &Sandbox, backend: &Backend, on_failure: &str, every: &str) -> LlmlbServer {
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", backend.mock.url()));
    command
        .env("LLMLB_USAGE_ON_FAILURE", on_failure)
        .env("LLMLB_USAGE_EVERY", every);
    sandbox.serve_with(&mut command)
}

#[test]
fn failed_background_sync_is_reported_and_refuses_requests_if_so_configured() {
    if !testkit::has_tool("strace").unwrap()
        || !testkit::has_root("strace attaches to a server").unwrap()
    {
        return;
    }
    for on_failure in ["serve", "refuse"] {
        let sandbox = testkit::sandbox!();
        let backend = counting_backend(Reports::IfAsked);
        let server = serve(&sandbox, &backend, on_failure, "24h");
        let post = |id: &str| post(&server, id, CHAT, &chat("[tokens 3]", false)).status();
        let error = || {
            server.status()["usage"]["error"]
                .as_str()
                .map(str::to_owned)
        };
        assert_eq!(post("before"), 200);
        let failing = FailingCalls::inject(&server, "fdatasync", None);
        let mut number = 0;
        until("a sync fails and status shows it", || {
            number += 1;
            post(&format!("during-{number}"));
            error().is_some_and(|error| error.contains("input/output error"))
        });
        let expected = if on_failure == "refuse" { 503 } else { 200 };
        assert_eq!(post("while it fails"), expected, "{on_failure}");
        let warning = "cannot sync or seal staged records";
        server.process.until_output(warning);
        let log = server.process.stderr();
        assert_eq!(log.matches(warning).count(), 1, "{log}");
        drop(failing);
        until("status shows no error", || error().is_none());
        let recovered = "all staged records are on the disk again";
        server.process.until_output(recovered);
        assert_eq!(server.process.stderr().matches(recovered).count(), 1);
        assert_eq!(post("after"), 200, "{on_failure}");
        for id in ["before", "during-1", "after"] {
            until("the request is recorded", || {
                !records::of_request(&sandbox, id).is_empty()
            });
        }
    }
}

/// Returns the log lines, without their times, that report a failing disk or its recovery.
/// Reminders of a failure that persists are omitted.
fn disk_lines(log: &str) -> Vec<String> {
    let text = |line: &str| line.split_once(" llmlb: ").map(|(_, text)| text.to_owned());
    let is_about_the_disk = |line: &String| {
        let is_reminder = line.contains("usage: problem persists");
        !is_reminder && (line.contains("input/output error") || line.contains(" again"))
    };
    log.lines()
        .filter_map(text)
        .filter(is_about_the_disk)
        .collect()
}

#[test]
fn failing_disk_is_logged_at_its_begin_and_end_and_shown_in_status_meanwhile() {
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
        "cannot sync or seal staged records",
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
        let sandbox = testkit::sandbox!();
        let backend = counting_backend(Reports::IfAsked);
        let server = serve(&sandbox, &backend, "serve", "1s");
        let post = |id: &str| post(&server, id, CHAT, &chat("[tokens 3]", false)).status();
        let error = || {
            let error = &server.status()["usage"]["error"];
            error.as_str().map(str::to_owned)
        };
        assert_eq!(post("before"), 200);
        // Path of a record that the test stages as a separate file, as other programs may do. If
        // `is_one_file`, only the server's calls on this file fail, and all other files stay
        // readable.
        let single = sandbox.path("data/_staging/01890a5d-ac96-774b-bcce-b302099a8057.json");
        let only = is_one_file.then_some(single.as_path());
        let failing = FailingCalls::inject(&server, calls, only);
        let is_in_log = |text: &str| server.process.stderr().contains(text);
        let mut number = 0;
        until(&format!("{calls} is logged as failing"), || {
            number += 1;
            assert_eq!(post(&format!("during-{number}")), 200, "{calls}");
            if number == 2 {
                std::fs::write(&single, r#"{"tokens":1}"#).unwrap();
            }
            expected.iter().all(|(began, _)| is_in_log(began))
        });
        until("status shows the error", || {
            error().is_some_and(|error| error.contains("input/output error"))
        });
        // While the calls keep failing, further requests must add no lines to the log: a repeated
        // error is logged once.
        for _ in 0..3 {
            post("meanwhile");
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        drop(failing);
        until(&format!("{calls} is logged as recovered"), || {
            post("after");
            expected.iter().all(|(_, ended)| is_in_log(ended))
        });
        until("status shows no error", || error().is_none());
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
