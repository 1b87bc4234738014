//! Keys held as leases in a store: exit codes, refusals, status and stop requests.

use std::process::Stdio;

use tenure_tests::servers::RedisServer;

use crate::process::{Launch, until};
use crate::redis::LeaseSandbox;
use crate::support::{Sandbox, TENURE, exit_with, json};
use crate::unix::{Terminal, send};

/// Script that reports each signal it receives, and exits with 42 when it reads a line.
const REPORTER: &str = "
    for name in HUP INT TERM USR1; do trap \"echo $name\" $name; done
    echo ready
    until read line; do :; done
    exit 42";

fn reporter(sandbox: &LeaseSandbox) -> Launch {
    let launch = sandbox.tenure("run", "--ttl 3 x -- sh -c").arg(REPORTER);
    launch.stdin(Stdio::piped())
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host has a name");
    name.trim().to_owned()
}

#[test]
fn run_on_a_lease_exits_with_the_code_of_the_command_and_releases_the_key() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    for code in [0, 7, 75, 255] {
        let outcome = sandbox.tenure("run", "x --").args(exit_with(code)).finish();
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert_eq!(outcome.stderr, "");
        assert_eq!(sandbox.status("x")["state"], "free");
    }
    let killed = sandbox.tenure("run", "x -- sh -c").arg("kill -SEGV $$");
    assert_eq!(killed.finish().code, Some(128 + libc::SIGSEGV));
    assert!(
        !sandbox.sandbox.locks().exists(),
        "a lease needs no lock file"
    );
}

#[test]
fn command_that_cannot_be_started_exits_with_126_or_127_and_releases_the_lease() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let missing = sandbox.tenure("run", "x -- no-such-program-anywhere");
    // PATH is set, because the code would be 126 instead of 127 if the PATH of the test contained a
    // directory that may not be searched.
    let missing = missing.env("PATH", sandbox.sandbox.path("")).finish();
    assert_eq!(missing.code, Some(127), "{missing:?}");
    assert!(
        missing.stderr.contains("no-such-program-anywhere"),
        "{missing:?}"
    );
    let directory = sandbox.tenure("run", "x --").arg("/").finish();
    assert_eq!(directory.code, Some(126), "{directory:?}");
    assert_eq!(sandbox.status("x")["state"], "free");
}

// T5: the refusal names pid, program, user, host, start time and the command that stops the owner.
#[test]
fn held_lease_exits_with_75_and_names_the_owner_and_its_host() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let owner = sandbox.hold(sandbox.tenure("run", "x -- sleep 300"));
    let refused = sandbox.tenure("run", "x -- true").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    for part in [
        format!("pid {} on host {}", owner.wrapper, host()),
        format!("tenure run, running sleep, pid {}", owner.command),
        "user ".to_owned(),
        "since 20".to_owned(),
        format!("`tenure stop --store {} x`", sandbox.redis.url()),
    ] {
        assert!(refused.stderr.contains(&part), "{part:?} in {refused:?}");
    }
    let other = sandbox.tenure("run", "-E 9 --quiet x -- true").finish();
    assert_eq!((other.code, other.stderr), (Some(9), String::new()));
    let variable = sandbox.sandbox.tenure("run x -- true");
    let variable = variable.env("TENURE_STORE", sandbox.redis.url()).finish();
    assert_eq!(variable.code, Some(75), "{variable:?}");
}

#[test]
fn password_of_a_store_is_never_printed() {
    const PASSWORD: &str = "s3cr3t-w0rd";
    let sandbox = Sandbox::new();
    let Some(redis) = RedisServer::start_with(&["--requirepass", PASSWORD]) else {
        return;
    };
    let url_with = |password: &str| format!("redis://:{password}@127.0.0.1:{}", redis.port());
    let with_password = |words: &str| {
        let launch = sandbox.tenure(words);
        launch.env("TENURE_STORE", url_with(PASSWORD))
    };
    let _owner = with_password("run -v x -- sleep 300").start();
    until("the key is held", || {
        with_password("status x").finish().code == Some(0)
    });
    let refused = with_password("run x -- true").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    for part in ["`tenure stop x`", "TENURE_STORE"] {
        assert!(refused.stderr.contains(part), "{part:?} in {refused:?}");
    }
    let wrong = sandbox
        .tenure("run x -- true")
        .env("TENURE_STORE", url_with("wr0ng-w0rd"))
        .finish();
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    let status = with_password("status --json").finish();
    assert_eq!(json(&status)["locks"][0]["state"], "held", "{status:?}");
    for outcome in [&refused, &wrong, &status] {
        let printed = format!("{}{}", outcome.text(), outcome.stderr);
        assert!(!printed.contains("w0rd"), "{printed}");
    }
}

#[test]
fn unreachable_store_exits_with_1_and_is_named() {
    let Some(mut sandbox) = LeaseSandbox::new() else {
        return;
    };
    sandbox.redis.kill9();
    for (verb, words) in [("run", "x -- true"), ("status", "x"), ("stop", "x")] {
        let outcome = sandbox.tenure(verb, words).finish();
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        let address = sandbox.redis.url();
        for part in [address.as_str(), "refused", "hint: check"] {
            assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
        }
    }
}

#[test]
fn status_shows_the_host_and_the_validity_of_a_lease() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let owner = sandbox.hold(sandbox.tenure("run", "--ttl 60 x -- sleep 300"));
    let status = sandbox.status("x");
    assert_eq!(status["proof"], "lease");
    assert_eq!(status["host"], host());
    assert_eq!(status["record"]["pid"], owner.wrapper);
    let left = status["expires_in_ms"].as_u64().expect("a number");
    assert!((1..=60_000).contains(&left), "{status}");
    let table = sandbox.tenure("status", "").finish();
    assert_eq!(table.code, Some(0), "{table:?}");
    for part in [
        "held (lease)",
        &format!("{} on {}", owner.wrapper, host()),
        "valid for ",
    ] {
        assert!(table.text().contains(part), "{part:?} in {table:?}");
    }
    let free = sandbox.tenure("status", "y").finish();
    assert_eq!(free.code, Some(3), "{free:?}");
}

// The request is stored in Redis. The owner finds it at its next renewal, as it would on another
// machine: `stop` signals no process.
#[test]
fn stop_request_sends_sigterm_to_the_command_once() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let mut owner = sandbox.hold(reporter(&sandbox));
    owner.process.until_stdout_has("ready\n");
    let stop = sandbox.tenure("stop", "x").start();
    owner.process.until_stdout_has("TERM\n");
    // The lease is renewed several times before the command exits. Each renewal finds the request
    // again, which must not send a second SIGTERM.
    let renewed = || sandbox.status("x")["expires_in_ms"].as_u64().unwrap_or(0);
    for _ in 0..2 {
        until("the lease becomes older", || renewed() < 2_300);
        until("the lease is renewed", || renewed() > 2_700);
    }
    owner.process.write_line("go");
    let outcome = owner.process.finish();
    assert_eq!(outcome.text(), "ready\nTERM\n");
    assert_eq!(outcome.code, Some(42), "{outcome:?}");
    let stop = stop.finish();
    assert_eq!(stop.code, Some(0), "{stop:?}");
    let expected = format!("x: stopped pid {} on {}\n", owner.wrapper, host());
    assert_eq!(stop.text(), expected);
    let again = sandbox.tenure("stop", "x").finish();
    assert_eq!(
        (again.code, again.text().as_str()),
        (Some(0), "x: not held\n")
    );
}

#[test]
fn signal_to_the_wrapper_reaches_a_command_on_a_lease_once() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGINT, "INT"),
        (libc::SIGUSR1, "USR1"),
    ] {
        let mut owner = sandbox.hold(reporter(&sandbox));
        owner.process.until_stdout_has("ready\n");
        send(owner.wrapper, signal);
        owner.process.until_stdout_has(&format!("{name}\n"));
        owner.process.write_line("go");
        let outcome = owner.process.finish();
        assert_eq!(outcome.text(), format!("ready\n{name}\n"));
        assert_eq!(outcome.code, Some(42), "{outcome:?}");
    }
}

#[test]
fn signal_during_the_start_of_the_watchdog_is_not_lost() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    for turn in 0..20 {
        let process = sandbox.tenure("run", "--ttl 2 x -- sleep 300").start();
        until("the lease is acquired", || {
            sandbox.status("x")["state"] == "held"
        });
        for _ in 0..turn * 500 {
            std::hint::spin_loop();
        }
        send(process.id(), libc::SIGTERM);
        process.finish();
        // A signal that ends the wrapper before its handlers are installed leaves the lease until
        // it expires. Wait for that before the next turn.
        let next = sandbox.tenure("run", "--wait --quiet --ttl 1 x -- true");
        assert_eq!(next.finish().code, Some(0), "turn {turn}");
    }
}

#[test]
fn control_c_reaches_a_command_on_a_lease_once() {
    const TIMES: usize = 5;
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let noted = sandbox.sandbox.path("noted");
    let script = "trap 'echo interrupt >> \"$0\"' INT
                  echo ready
                  until read line; do :; done
                  exit 42";
    let launch = sandbox.tenure("run", "x -- sh -c").arg(script).arg(&noted);
    let mut terminal = Terminal::start(launch);
    terminal.until_shown("ready");
    let noted = || std::fs::read_to_string(&noted).unwrap_or_default();
    for times in 1..=TIMES {
        terminal.press("\x03");
        until("the interrupt is noted", || {
            noted().lines().count() >= times
        });
    }
    terminal.press("go\n");
    assert_eq!(terminal.finish(), Some(42));
    assert_eq!(noted(), "interrupt\n".repeat(TIMES));
}

// The terminal does not signal a command that has left its group, so the signal is forwarded.
#[test]
fn control_c_reaches_a_command_on_a_lease_that_left_the_group_once() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let noted = sandbox.sandbox.path("noted");
    let script = "trap 'echo interrupt >> \"$0\"' INT
                  echo ready
                  until [ -e \"$0.go\" ]; do sleep 0.02; done
                  exit 42";
    let launch = sandbox.tenure("run", "x -- setsid sh -c").arg(script);
    let mut terminal = Terminal::start(launch.arg(&noted));
    terminal.until_shown("ready");
    terminal.press("\x03");
    until("the interrupt is noted", || noted.exists());
    std::fs::write(sandbox.sandbox.path("noted.go"), "").unwrap();
    assert_eq!(terminal.finish(), Some(42));
    assert_eq!(std::fs::read_to_string(&noted).unwrap(), "interrupt\n");
}

// The command must have the signal masks of the wrapper's caller, although the watchdog, its
// parent, ignores many signals.
#[test]
fn command_on_a_lease_has_the_same_signal_masks_as_without_the_wrapper() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let masks = |ignored: &str, prefix: &str| {
        // Signals 32 and 33, which the C library reserves for itself, so programs cannot set them.
        const INTERNAL: u64 = 0b11 << 31;
        let script = format!("trap '' {ignored}; exec {prefix} grep ^Sig[BIC] /proc/self/status");
        let launch = sandbox.sandbox.program("sh").arg("-c").arg(script);
        let launch = launch.env("TENURE", TENURE);
        let outcome = launch.env("TENURE_STORE", sandbox.redis.url()).finish();
        let parse = |line: &str| {
            let (name, mask) = line.split_once(":\t")?;
            let mask = u64::from_str_radix(mask, 16).ok()?;
            Some((name.to_owned(), mask & !INTERNAL))
        };
        let masks: Vec<_> = outcome.text().lines().filter_map(parse).collect();
        assert_eq!(masks.len(), 3, "{outcome:?}");
        masks
    };
    for ignored in ["HUP", "INT QUIT PIPE", "TERM USR1 TSTP WINCH CHLD"] {
        let without = masks(ignored, "");
        let with = masks(ignored, "\"$TENURE\" run x --");
        assert_eq!(with, without, "ignored: {ignored}");
    }
}

#[test]
fn wrong_combinations_with_a_store_are_wrong_usage() {
    let sandbox = Sandbox::new();
    // No Redis server is needed: wrong usage is reported before the store is contacted, and the URL
    // leads to no server.
    for (words, part) in [
        ("run --ttl 5 x -- true", "--ttl"),
        (
            "run --store redis://127.0.0.1:1 --file f -- true",
            "--store",
        ),
        ("status --store redis://127.0.0.1:1 --file f", "--store"),
        ("stop --store redis://127.0.0.1:1 --file f", "--store"),
        ("stop --store redis://127.0.0.1:1 --force x", "--force"),
        ("run --store redis://127.0.0.1:1 --ttl 0.1 x -- true", "TTL"),
        ("run --store nonsense x -- true", "nonsense"),
        ("run --store mongodb://h x -- true", "mongodb"),
    ] {
        let outcome = sandbox.tenure(words).finish();
        assert_eq!(outcome.code, Some(2), "{words:?}: {outcome:?}");
        assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
    }
    // The path of `--file` names a lock file, even if TENURE_STORE is set.
    let file = sandbox.path("own.lock");
    let by_file = sandbox.tenure("run --file").arg(&file).words("-- true");
    let by_file = by_file.env("TENURE_STORE", "redis://127.0.0.1:1").finish();
    assert_eq!(by_file.code, Some(0), "{by_file:?}");
    let empty = sandbox.tenure("run x -- true").env("TENURE_STORE", "");
    assert_eq!(empty.finish().code, Some(0));
}
