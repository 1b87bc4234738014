//! T3: ownership is the kernel's lock. T4: the lock record is readable while held. T5: refusals
//! name the owner, and never a wrong one.

use tenure::Proof;
#[cfg(unix)]
use tenure::State;

use crate::Fixture;

#[test]
fn refusal_names_the_owner_its_program_and_its_start_time() {
    let fixture = Fixture::new();
    let owner = fixture.owner();
    let error = fixture.try_acquire().unwrap_err();
    let holder = error.holder().unwrap();
    assert_eq!(holder.pid(), Some(owner.pid()));
    assert_eq!(holder.proof(), Proof::Verified);
    let record = holder.record().unwrap();
    assert_eq!(
        (record.program(), record.verb()),
        (Some("owner"), Some("test"))
    );
    assert!(record.user().is_some() && record.host().is_some() && record.token() > 0);
    let text = error.to_string();
    let since = record.started_at_text().unwrap();
    for part in [
        &format!("k is held by pid {} (owner test, user ", owner.pid()),
        " since ",
        &since,
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn lock_record_is_readable_while_held_and_has_the_promised_fields() {
    let fixture = Fixture::new();
    let port = tenure::Key::port(8000);
    let tenure = fixture.store.claim(&port).try_acquire().unwrap();
    let text = std::fs::read_to_string(tenure.path()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["pid"], std::process::id());
    assert_eq!(json["port"], 8000);
    let started_at = json["started_at"].as_str().unwrap();
    assert!(started_at.ends_with('Z') && started_at.parse::<jiff::Timestamp>().is_ok());
    for field in [
        "key", "host", "user", "program", "process", "token", "version", "crc32",
    ] {
        assert!(!json[field].is_null(), "{field} is missing in {text}");
    }
}

#[cfg(unix)]
#[test]
fn lock_file_is_accessible_to_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    let tenure = fixture.try_acquire().unwrap();
    let mode = std::fs::metadata(tenure.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn status_never_makes_a_claim_fail() {
    let fixture = Fixture::new();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    fixture.status();
                }
            });
        }
        for _ in 0..500 {
            // The claim must find a stale file, because only readers of stale files hold a shared
            // lock for an instant.
            std::fs::write(fixture.file(), "{\"pid\":1}").unwrap();
            drop(fixture.try_acquire().expect("only readers use the key"));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Another program has the lock, and the lock record is that of an earlier owner, who must not be
/// named as the holder.
#[cfg(unix)]
#[test]
fn holder_is_unknown_if_the_lock_record_names_another_process() {
    let fixture = Fixture::new();
    let mut crashed = fixture.owner();
    crashed.kill();
    // This test locks the file itself. The lock record names a process that has exited, then a live
    // unrelated one.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(fixture.file())
        .unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let unrelated = crate::UnrelatedProcess::new();
    let foreign = format!(
        "{{\"pid\":{},\"started_at\":\"2026-01-30T12:00:00Z\"}}",
        unrelated.pid()
    );
    for text in [None, Some(""), Some("garbage"), Some(foreign.as_str())] {
        if let Some(text) = text {
            std::fs::write(fixture.file(), text).unwrap();
        }
        let error = fixture.try_acquire().unwrap_err();
        assert!(error.is_held());
        let holder = error.holder().unwrap();
        assert_eq!(
            (holder.pid(), holder.proof()),
            (None, Proof::Unknown),
            "{text:?}: {error}"
        );
        assert!(
            !error.to_string().contains(&unrelated.pid().to_string()),
            "{error}"
        );
        assert!(matches!(fixture.status().state(), State::Held(_)));
    }
}

/// Another program, not this library, holds the lock and has written a lock record with only the
/// required fields.
#[cfg(target_os = "linux")]
#[test]
fn refusal_names_another_program_that_holds_the_lock() {
    let fixture = Fixture::new();
    let file = std::fs::File::create(fixture.file()).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let me = std::process::id();
    let text = format!("{{\"pid\":{me},\"started_at\":\"2026-01-30T12:00:00Z\",\"port\":8000}}");
    std::fs::write(fixture.file(), text).unwrap();
    assert_eq!(
        fixture.try_acquire().unwrap_err().holder().unwrap().pid(),
        Some(me)
    );
}

#[cfg(unix)]
#[test]
fn suspended_owner_keeps_the_key_and_is_reported_as_suspended() {
    let fixture = Fixture::new();
    let owner = fixture.owner();
    let pid = rustix::process::Pid::from_raw(i32::try_from(owner.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    tenure_tests::eventually("the owner is stopped", || {
        fixture.status().holder().unwrap().is_suspended()
    });
    let error = fixture.try_acquire().unwrap_err();
    assert_eq!(error.holder().unwrap().pid(), Some(owner.pid()));
    assert!(error.to_string().contains("suspended"), "{error}");
}

/// A reader repeatedly holds a shared lock on a stale file for an instant, as `status` does. A
/// claim in that instant must be repeated and not refused.
#[cfg(unix)]
#[test]
fn momentary_read_lock_does_not_refuse_a_claim() {
    use rustix::fs::{FlockOperation, flock};
    use std::sync::atomic::{AtomicBool, Ordering};
    let fixture = Fixture::new();
    let done = AtomicBool::new(false);
    std::fs::write(fixture.file(), "{\"pid\":1}").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let Ok(file) = std::fs::File::open(fixture.file()) else {
                    continue;
                };
                if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                drop(file);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        for _ in 0..100 {
            std::fs::write(fixture.file(), "{\"pid\":1}").unwrap();
            let taken = fixture.try_acquire();
            if taken.is_err() {
                done.store(true, Ordering::Relaxed);
            }
            drop(taken.expect("only a reader uses the key"));
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The owner is delayed between acquiring the lock and writing its lock record. A refusal waits a
/// short time for that record. If it is not written by then, the refusal names no process.
#[cfg(target_os = "linux")]
#[test]
fn owner_is_unknown_until_it_has_written_its_lock_record() {
    for (delay, named) in [("50ms", true), ("3s", false)] {
        let fixture = Fixture::new();
        // The lock record of the earlier owner names this process, which is alive, so a wrong
        // refusal would name it.
        let stale = format!(
            "{{\"pid\":{},\"started_at\":\"2026-01-30T12:00:00Z\"}}",
            std::process::id()
        );
        std::fs::write(fixture.file(), stale).unwrap();
        let mut slow = std::process::Command::new("strace");
        slow.args(["--quiet=all", "--output=/dev/null", "--trace=pwrite64"])
            .args([
                &format!("--inject=pwrite64:delay_enter={delay}"),
                crate::OWNER,
            ]);
        let mut owner = tenure_tests::Owner::start(slow, fixture.dir(), "k");
        tenure_tests::eventually("the owner has the lock", || {
            matches!(fixture.status().state(), State::Held(_))
        });
        let error = fixture.try_acquire().unwrap_err();
        let pid = error.holder().unwrap().pid();
        assert_ne!(pid, Some(std::process::id()), "{error}");
        if named {
            let answer = owner.answer();
            let owner_pid = answer.split(' ').nth(1).unwrap().parse().ok();
            assert_eq!(pid, owner_pid, "{error}");
        } else {
            assert_eq!(pid, None, "{error}");
        }
    }
}
