//! T3: the kernel decides. T4: readable while held. T5: refusals inform, and never wrongly.

use tenure::Proof;
#[cfg(unix)]
use tenure::State;

use crate::Scene;

#[test]
fn a_refusal_names_the_owner_its_program_and_since_when() {
    let scene = Scene::new();
    let owner = scene.owner();
    let error = scene.take().unwrap_err();
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
fn the_record_is_readable_while_it_is_held_and_has_the_promised_fields() {
    let scene = Scene::new();
    let port = tenure::Key::port(8000);
    let tenure = scene.store.claim(&port).try_acquire().unwrap();
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
fn the_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    let tenure = scene.take().unwrap();
    let mode = std::fs::metadata(tenure.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn looking_never_takes_the_key_away() {
    let scene = Scene::new();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    scene.status();
                }
            });
        }
        for _ in 0..500 {
            // Over a stale file too, where readers may have to try the lock for an instant.
            std::fs::write(scene.file(), "{\"pid\":1}").unwrap();
            drop(scene.take().expect("only readers are about"));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Another program has the lock, and the text in the file is an earlier owner's.
#[cfg(unix)]
#[test]
fn a_record_that_does_not_name_the_holder_is_reported_as_unknown() {
    let scene = Scene::new();
    let mut crashed = scene.owner();
    crashed.kill();
    // The lock is ours, as a file; the record names a process that is gone, then a live stranger.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(scene.file())
        .unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let stranger = crate::Stranger::new();
    let foreign = format!(
        "{{\"pid\":{},\"started_at\":\"2026-01-30T12:00:00Z\"}}",
        stranger.pid()
    );
    for text in [None, Some(""), Some("garbage"), Some(foreign.as_str())] {
        if let Some(text) = text {
            std::fs::write(scene.file(), text).unwrap();
        }
        let error = scene.take().unwrap_err();
        assert!(error.is_held());
        let holder = error.holder().unwrap();
        assert_eq!(
            (holder.pid(), holder.proof()),
            (None, Proof::Unknown),
            "{text:?}: {error}"
        );
        assert!(
            !error.to_string().contains(&stranger.pid().to_string()),
            "{error}"
        );
        assert!(matches!(scene.status().state(), State::Held(_)));
    }
}

/// A record of the shortest kind, by a program that holds the lock itself.
#[cfg(target_os = "linux")]
#[test]
fn a_foreign_owner_that_holds_the_lock_is_named() {
    let scene = Scene::new();
    let file = std::fs::File::create(scene.file()).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let me = std::process::id();
    let text = format!("{{\"pid\":{me},\"started_at\":\"2026-01-30T12:00:00Z\",\"port\":8000}}");
    std::fs::write(scene.file(), text).unwrap();
    assert_eq!(scene.take().unwrap_err().holder().unwrap().pid(), Some(me));
}

#[cfg(unix)]
#[test]
fn a_suspended_owner_stays_the_owner_and_is_said_to_be_suspended() {
    let scene = Scene::new();
    let owner = scene.owner();
    let pid = rustix::process::Pid::from_raw(i32::try_from(owner.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    tenure_tests::eventually("it is stopped", || {
        scene.status().holder().unwrap().is_suspended()
    });
    let error = scene.take().unwrap_err();
    assert_eq!(error.holder().unwrap().pid(), Some(owner.pid()));
    assert!(error.to_string().contains("suspended"), "{error}");
}

/// Somebody looks at a stale file and has a shared lock on it for an instant, again and again.
#[cfg(unix)]
#[test]
fn a_reader_that_has_the_lock_for_an_instant_does_not_get_us_refused() {
    use rustix::fs::{FlockOperation, flock};
    use std::sync::atomic::{AtomicBool, Ordering};
    let scene = Scene::new();
    let done = AtomicBool::new(false);
    std::fs::write(scene.file(), "{\"pid\":1}").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let Ok(file) = std::fs::File::open(scene.file()) else {
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
            std::fs::write(scene.file(), "{\"pid\":1}").unwrap();
            let taken = scene.take();
            if taken.is_err() {
                done.store(true, Ordering::Relaxed);
            }
            drop(taken.expect("only a reader is about"));
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The owner is held up between taking the lock and writing its record.
#[cfg(target_os = "linux")]
#[test]
fn an_owner_that_has_not_written_yet_is_named_once_it_has_and_unknown_before() {
    for (delay, named) in [("50ms", true), ("3s", false)] {
        let scene = Scene::new();
        // What an earlier owner left names a process that lives: this one.
        let stale = format!(
            "{{\"pid\":{},\"started_at\":\"2026-01-30T12:00:00Z\"}}",
            std::process::id()
        );
        std::fs::write(scene.file(), stale).unwrap();
        let mut slow = std::process::Command::new("strace");
        slow.args(["--quiet=all", "--output=/dev/null", "--trace=pwrite64"])
            .args([
                &format!("--inject=pwrite64:delay_enter={delay}"),
                crate::OWNER,
            ]);
        let mut owner = tenure_tests::Owner::start(slow, scene.dir(), "k");
        tenure_tests::eventually("it has the lock", || {
            matches!(scene.status().state(), State::Held(_))
        });
        let error = scene.take().unwrap_err();
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
