//! Full disk: requests are served or refused, as `usage.on_failure` says. Lost records are counted and
//! reported, and the server recovers by itself when there is space again. (promises S9, L9)

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::records;
use crate::requests::{CHAT, SetOnDrop, chat, post};
use crate::small_disk::{SmallDisk, run_in_mount_namespace};
use crate::stream::counting_backend;
use testkit::{
    Answer, LlmlbServer, Sandbox,
    api_server::{Backend, Reports},
    backends::code,
    until,
};

struct World {
    sandbox: Sandbox,
    disk: SmallDisk,
    server: LlmlbServer,
    _backend: Backend,
}

impl World {
    fn new(on_failure: &str) -> Self {
        let sandbox = testkit::sandbox!();
        // The disk is so large that the records of the test do not fill it. Only the test decides
        // when it is full.
        let disk = SmallDisk::mount(&sandbox, 64);
        let backend = counting_backend(Reports::IfAsked);
        let mut command = sandbox.command(&format!("serve -p 0 --backend {}", backend.mock.url()));
        command
            .env("LLMLB_USAGE_ON_FAILURE", on_failure)
            // Disable consolidation during the test, because it would free space on the disk that
            // the test has filled.
            .env("LLMLB_USAGE_EVERY", "24h");
        let server = sandbox.serve_with(&mut command);
        Self {
            sandbox,
            disk,
            server,
            _backend: backend,
        }
    }

    fn post(&self, id: &str) -> Answer {
        send_chat(&self.server, id)
    }

    /// Number of lost records according to `lost.jsonl`.
    fn lost_on_disk(&self) -> u64 {
        let text = std::fs::read_to_string(self.sandbox.path("data/lost.jsonl"));
        let text = text.unwrap_or_default();
        let lines = text.lines().map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["records"].as_u64().unwrap()
        });
        lines.sum()
    }

    /// Number of lost records according to `/status`.
    fn lost(&self) -> u64 {
        let status = self.server.status();
        status["usage"]["lost"]
            .as_u64()
            .unwrap_or_else(|| panic!("{status:#}"))
    }

    /// Number of log lines that report a recovery from a full disk: records are staged again.
    fn recoveries(&self) -> u64 {
        let log = self.server.process.stderr();
        log.matches("records are staged again").count() as u64
    }

    fn is_recorded(&self, id: &str) -> bool {
        !records::of_request(&self.sandbox, id).is_empty()
    }
}

fn send_chat(server: &LlmlbServer, id: &str) -> Answer {
    let request_body = chat("[tokens 3]", id.ends_with("streamed"));
    post(server, id, CHAT, &request_body)
}

#[test]
fn requests_are_served_while_the_disk_is_full_and_the_loss_is_reported() {
    run_in_mount_namespace("full_disk::serves_on_a_full_disk");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn serves_on_a_full_disk() {
    let world = World::new("serve");
    let (mut served, mut number) = (BTreeSet::new(), 0);
    let mut next = |world: &World| {
        number += 1;
        let id = format!(
            "r-{number}-{}",
            if number % 2 == 0 { "streamed" } else { "plain" }
        );
        let answer = world.post(&id);
        assert_eq!(answer.status(), 200, "{answer:?}");
        served.insert(id.clone());
        id
    };
    for times in 1..=3 {
        for _ in 0..20 {
            let id = next(&world);
            assert!(world.is_recorded(&id), "{id}");
        }
        let safe: BTreeSet<_> = ids(&world.sandbox);
        world.disk.fill();
        // The open entry may have space for a few more records, so send requests until one is not
        // recorded.
        until("a record is lost", || {
            let id = next(&world);
            !world.is_recorded(&id)
        });
        for _ in 0..20 {
            next(&world);
        }
        let status = world.server.status();
        assert!(status["usage"]["error"].is_string(), "{status:#}");
        // The loss of records must be logged when it begins, and not for every lost record,
        // otherwise the log would fill a disk too.
        let log = world.server.process.stderr();
        let begins = log
            .lines()
            .filter(|line| line.contains("; records lost since the start"));
        let begins = begins
            .filter(|line| !line.contains("usage: problem persists"))
            .count() as u64;
        assert_eq!(begins, times, "{log}");
        // Records that were staged in front of the failure must survive the full disk.
        assert!(ids(&world.sandbox).is_superset(&safe));
        world.disk.empty();
        until("records are staged again", || {
            let id = next(&world);
            world.is_recorded(&id)
        });
        // Some records were accepted but not synced when the disk became full. They must be written
        // again, and only then may `/status` report no error.
        until("status shows no error", || {
            world.server.status()["usage"]["error"].is_null()
        });
        until("the recovery is logged", || world.recoveries() >= times);
        // Every request is either recorded or counted as lost.
        let kept = ids(&world.sandbox).len() as u64;
        assert_eq!(kept + world.lost(), served_count(&world), "kept {kept}");
        assert!(ids(&world.sandbox).is_superset(&safe));
        // The server writes the number of lost records to `lost.jsonl`, so that `usage verify` can
        // report it when the server has ended.
        until("the loss is in lost.jsonl", || {
            world.lost_on_disk() == world.lost()
        });
        let report = world.sandbox.run("usage verify").stderr;
        let count = format!("{} records could not be staged", world.lost());
        assert!(report.contains(&count), "{report}");
    }
    let kept = ids(&world.sandbox);
    assert!(kept.is_subset(&served));
    let lost = world.lost();
    assert_eq!(kept.len() as u64 + lost, served.len() as u64);
    // After the full disk, every recorded request must be delivered, and the books must balance.
    assert_delivered(&world, &kept);
}

fn served_count(world: &World) -> u64 {
    world.server.status()["requests"].as_u64().unwrap()
}

fn ids(sandbox: &Sandbox) -> BTreeSet<String> {
    let all = records::all(sandbox);
    let id = |record: &serde_json::Value| record["request_id"].as_str().unwrap().to_owned();
    all.iter().map(id).collect()
}

/// Stops the server and delivers all records, also those that it has archived. Asserts that the
/// receiver gets exactly the expected ones, each once.
fn assert_delivered(world: &World, expected: &BTreeSet<String>) {
    let sandbox = &world.sandbox;
    let stopped = sandbox.run(&format!("stop -p {}", world.server.port()));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    let receiver = testkit::UsageReceiver::accepting().unwrap();
    let archived = sandbox.path("data/archive");
    if std::fs::read_dir(&archived).is_ok_and(|mut files| files.next().is_some()) {
        let outcome = sandbox.run("usage resend --archived --all");
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    receiver.deliver(sandbox);
    let records = receiver.distinct_records();
    let id = |record: &serde_json::Value| record["request_id"].as_str().unwrap().to_owned();
    let got: BTreeSet<_> = records.iter().map(id).collect();
    assert_eq!((&got, records.len()), (expected, expected.len()));
    assert_eq!(receiver.repeated_records(), 0);
    let verified = sandbox.run("usage verify");
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

#[test]
fn every_record_is_kept_or_counted_as_lost_while_the_disk_is_full_now_and_then() {
    run_in_mount_namespace("full_disk::serves_under_load_on_a_full_disk");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn serves_under_load_on_a_full_disk() {
    let world = World::new("serve");
    let (is_over, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let seen = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for client in 0..4 {
            let (server, is_over, served) = (&world.server, &is_over, &served);
            scope.spawn(move || {
                for number in 0.. {
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    let kind = if number % 2 == 0 { "streamed" } else { "plain" };
                    let answer = send_chat(server, &format!("r-{client}-{number}-{kind}"));
                    assert_eq!(answer.status(), 200, "{answer:?}");
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let _over = SetOnDrop(&is_over);
        for _ in 0..4 {
            let more = served.load(Ordering::SeqCst) + 50;
            until("requests are served", || {
                served.load(Ordering::SeqCst) > more
            });
            // Remember the records that are readable now: each must still exist after the disk was
            // full.
            seen.lock().unwrap().extend(ids(&world.sandbox));
            let lost = world.lost();
            world.disk.fill();
            until("records are lost", || world.lost() > lost + 10);
            world.disk.empty();
            until("status shows no error", || {
                world.server.status()["usage"]["error"].is_null()
            });
        }
    });
    world.server.until_in_flight(0);
    let kept = ids(&world.sandbox);
    let lost = world.lost();
    println!(
        "served {}, kept {}, lost {lost}",
        served.load(Ordering::SeqCst),
        kept.len()
    );
    assert_eq!(kept.len() as u64 + lost, served.load(Ordering::SeqCst));
    assert!(kept.is_superset(&seen.lock().unwrap()));
    assert_delivered(&world, &kept);
}

#[test]
fn requests_are_refused_while_the_disk_is_full_if_so_configured() {
    run_in_mount_namespace("full_disk::refuses_on_a_full_disk");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn refuses_on_a_full_disk() {
    let world = World::new("refuse");
    let mut number = 0;
    let mut next = |world: &World| {
        number += 1;
        let id = format!("r-{number}");
        let answer = world.post(&id);
        if answer.status() == 503 {
            assert_eq!(code(&answer), "metering_unavailable");
            assert!(answer.head.header("retry-after").is_some(), "{answer:?}");
        } else {
            assert_eq!(answer.status(), 200, "{answer:?}");
        }
        (answer.status() == 200, world.is_recorded(&id))
    };
    for _ in 0..2 {
        assert_eq!(next(&world), (true, true));
        world.disk.fill();
        until("a request is refused", || !next(&world).0);
        // While the disk is full, no request is served whose record is lost, with one exception: after a
        // short recovery one request may be accepted for whose record there is no space.
        let before = (world.lost(), world.recoveries());
        for _ in 0..300 {
            let (is_served, is_recorded) = next(&world);
            assert!(is_served || !is_recorded);
            thread::sleep(Duration::from_millis(5));
        }
        let (lost, recoveries) = (world.lost() - before.0, world.recoveries() - before.1);
        assert!(
            lost <= recoveries,
            "lost {lost}, recovered {recoveries} times"
        );
        // Health checks and model lists need no record, so the server must still serve them while
        // it refuses inference requests.
        assert_eq!(world.server.get("/healthz").status(), 200);
        assert_eq!(world.server.get("/v1/models").status(), 200);
        world.disk.empty();
        until("requests are served again", || next(&world) == (true, true));
    }
}

#[test]
fn data_directory_on_a_full_disk_is_used_as_soon_as_there_is_space() {
    run_in_mount_namespace("full_disk::starts_on_a_full_disk");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn starts_on_a_full_disk() {
    let sandbox = testkit::sandbox!();
    let disk = SmallDisk::mount(&sandbox, 16);
    disk.fill();
    let backend = counting_backend(Reports::IfAsked);
    let server = sandbox.serve(&format!("--backend {}", backend.mock.url()));
    let answer = post(&server, "lost", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!(server.status()["usage"]["lost"], 1);
    disk.empty();
    let mut number = 0;
    until("records are kept", || {
        number += 1;
        let id = format!("r-{number}");
        assert_eq!(post(&server, &id, CHAT, &chat("Hello", true)).status(), 200);
        !records::of_request(&sandbox, &id).is_empty()
    });
}

#[test]
fn archive_larger_than_a_tenth_of_the_disk_is_reported_with_the_settings_that_limit_it() {
    run_in_mount_namespace("full_disk::reports_a_large_archive");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn reports_a_large_archive() {
    let sandbox = testkit::sandbox!();
    let _disk = SmallDisk::mount(&sandbox, 16);
    std::fs::create_dir(sandbox.path("data/archive")).unwrap();
    std::fs::write(sandbox.path("data/archive/of-others"), vec![7; 2 << 20]).unwrap();
    let server = sandbox.serve("--backend http://127.0.0.1:9");
    let text = "archive/ has 2 MiB in 1 file; usage.archive_max_size and usage.archive_max_age \
                limit it";
    until("the archive is reported", || {
        server.status()["usage"]["kept"]["large"] == serde_json::json!([text])
    });
    let log = server.process.stderr();
    assert!(log.contains(&format!("warning: usage: {text}")), "{log}");
    let (port, status) = (server.port(), "status -p");
    let shown = sandbox.run(&format!("{status} {port}")).stdout;
    assert!(shown.contains(&format!("\n    {text}\n")), "{shown}");
}

/// A data directory that is a file is an error at the start with `usage.on_failure = "refuse"`.
/// Otherwise the server starts and logs it.
#[test]
fn data_directory_that_is_a_file_is_reported() {
    let sandbox = testkit::sandbox!();
    std::fs::write(sandbox.path("data"), "a file").unwrap();
    let backend = counting_backend(Reports::IfAsked);
    let words = format!("serve -p 0 --backend {}", backend.mock.url());
    let mut command = sandbox.command(&words);
    let refused = sandbox
        .start(command.env("LLMLB_USAGE_ON_FAILURE", "refuse"))
        .finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("cannot record usage"),
        "{refused:?}"
    );
    assert_eq!(sandbox.lock_files(), [""; 0]);
    let server = sandbox.serve_with(&mut sandbox.command(&words));
    let log = server.process.stderr();
    assert!(log.contains("cannot record usage"), "{log}");
    assert_eq!(
        post(&server, "a", CHAT, &chat("Hello", false)).status(),
        200
    );
    assert_eq!(server.status()["usage"]["lost"], 1);
}
