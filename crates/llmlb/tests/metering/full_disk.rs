//! No space left: requests go on or are refused, as was decided; the loss is counted and told; it
//! is over by itself. (S9, L9)

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::ask::{CHAT, Over, ask, chat};
use crate::records;
use crate::small_disk::{SmallDisk, run_elsewhere};
use testkit::{
    Answer, LlmlbServer, Sandbox,
    api_server::{Backend, Reports, Sort},
    backends::code,
    until,
};

struct World {
    place: Sandbox,
    disk: SmallDisk,
    server: LlmlbServer,
    _backend: Backend,
}

impl World {
    fn new(on_failure: &str) -> Self {
        let place = testkit::sandbox!();
        // Far more than what a fast machine records meanwhile: only the test fills it.
        let disk = SmallDisk::mount(&place, 64);
        let backend = Backend::start(Sort {
            name: "b",
            models: &["m"],
            reports: Reports::IfAsked,
            key: None,
        });
        let mut command = place.command(&format!("serve -p 0 --backend {}", backend.mock.url()));
        command
            .env("LLMLB_USAGE_ON_FAILURE", on_failure)
            // Nobody makes room meanwhile.
            .env("LLMLB_USAGE_EVERY", "24h");
        let server = place.serve_with(&mut command);
        Self {
            place,
            disk,
            server,
            _backend: backend,
        }
    }

    fn ask(&self, id: &str) -> Answer {
        ask_some(&self.server, id)
    }

    /// What a file says about it.
    fn written_down(&self) -> u64 {
        let text = std::fs::read_to_string(self.place.path("data/lost.jsonl"));
        let text = text.unwrap_or_default();
        let lines = text.lines().map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["records"].as_u64().unwrap()
        });
        lines.sum()
    }

    /// What the server says about its metering.
    fn lost(&self) -> u64 {
        let status = self.server.status();
        status["usage"]["lost"]
            .as_u64()
            .unwrap_or_else(|| panic!("{status:#}"))
    }

    /// How often it has said that records are staged again.
    fn times_well(&self) -> u64 {
        let log = self.server.process.stderr();
        log.matches("records are staged again").count() as u64
    }

    fn is_recorded(&self, id: &str) -> bool {
        !records::of_request(&self.place, id).is_empty()
    }
}

fn ask_some(server: &LlmlbServer, id: &str) -> Answer {
    let question = chat("[tokens 3]", id.ends_with("streamed"));
    ask(server, id, CHAT, &question)
}

#[test]
fn requests_go_on_while_the_disk_is_full_and_the_loss_is_told() {
    run_elsewhere("full_disk::goes_on");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn goes_on() {
    let world = World::new("serve");
    let (mut served, mut number) = (BTreeSet::new(), 0);
    let mut next = |world: &World| {
        number += 1;
        let id = format!(
            "r-{number}-{}",
            if number % 2 == 0 { "streamed" } else { "plain" }
        );
        let answer = world.ask(&id);
        assert_eq!(answer.status(), 200, "{answer:?}");
        served.insert(id.clone());
        id
    };
    for times in 1..=3 {
        for _ in 0..20 {
            let id = next(&world);
            assert!(world.is_recorded(&id), "{id}");
        }
        let safe: BTreeSet<_> = ids(&world.place);
        world.disk.fill();
        // What is open may have some room left.
        until("a record is lost", || {
            let id = next(&world);
            !world.is_recorded(&id)
        });
        for _ in 0..20 {
            next(&world);
        }
        let status = world.server.status();
        assert!(status["usage"]["error"].is_string(), "{status:#}");
        // Once for each time that it begins, not for each record.
        let log = world.server.process.stderr();
        let begins = log
            .lines()
            .filter(|line| line.contains("; records lost since the start"));
        let begins = begins
            .filter(|line| !line.contains("usage: still,"))
            .count() as u64;
        assert_eq!(begins, times, "{log}");
        // Nothing that was there is gone.
        assert!(ids(&world.place).is_superset(&safe));
        world.disk.empty();
        until("records are staged again", || {
            let id = next(&world);
            world.is_recorded(&id)
        });
        // Records that were not on the disk yet when it was full are written again.
        until("status shows no error", || {
            world.server.status()["usage"]["error"].is_null()
        });
        until("it says so", || world.times_well() >= times);
        // Every request is either there or counted as lost.
        let kept = ids(&world.place).len() as u64;
        assert_eq!(kept + world.lost(), served_count(&world), "kept {kept}");
        assert!(ids(&world.place).is_superset(&safe));
        // And that outlives the server.
        until("it is written down", || {
            world.written_down() == world.lost()
        });
        let told = world.place.run("usage verify").stderr;
        let count = format!("{} records could not be staged", world.lost());
        assert!(told.contains(&count), "{told}");
    }
    let kept = ids(&world.place);
    assert!(kept.is_subset(&served));
    let lost = world.lost();
    assert_eq!(kept.len() as u64 + lost, served.len() as u64);
    // What was kept is delivered, and the books balance.
    assert!(
        world
            .place
            .run(&format!("stop -p {}", world.server.port()))
            .code
            == Some(0)
    );
    delivered(&world.place, &kept);
}

/// How many requests the server has served.
fn served_count(world: &World) -> u64 {
    world.server.status()["requests"].as_u64().unwrap()
}

fn ids(place: &Sandbox) -> BTreeSet<String> {
    let all = records::all(place);
    let id = |record: &serde_json::Value| record["request_id"].as_str().unwrap().to_owned();
    all.iter().map(id).collect()
}

/// A receiver gets these, once, from wherever they got to.
fn delivered(place: &Sandbox, expected: &BTreeSet<String>) {
    let receiver = testkit::UsageReceiver::accepting().unwrap();
    let archived = place.path("data/archive");
    if std::fs::read_dir(&archived).is_ok_and(|mut files| files.next().is_some()) {
        let outcome = place.run("usage resend --archived --all");
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    receiver.deliver(place);
    let records = receiver.distinct_records();
    let id = |record: &serde_json::Value| record["request_id"].as_str().unwrap().to_owned();
    let got: BTreeSet<_> = records.iter().map(id).collect();
    assert_eq!((&got, records.len()), (expected, expected.len()));
    assert_eq!(receiver.repeated_records(), 0);
    let verified = place.run("usage verify");
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

#[test]
fn a_disk_that_is_full_every_other_moment_loses_nothing_that_is_not_counted() {
    run_elsewhere("full_disk::under_load");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn under_load() {
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
                    let answer = ask_some(server, &format!("r-{client}-{number}-{kind}"));
                    assert_eq!(answer.status(), 200, "{answer:?}");
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let _over = Over(&is_over);
        for _ in 0..4 {
            let more = served.load(Ordering::SeqCst) + 50;
            until("they go on", || served.load(Ordering::SeqCst) > more);
            // What is there now stays.
            seen.lock().unwrap().extend(ids(&world.place));
            let lost = world.lost();
            world.disk.fill();
            until("some are lost", || world.lost() > lost + 10);
            world.disk.empty();
            until("it is well again", || {
                world.server.status()["usage"]["error"].is_null()
            });
        }
    });
    world.server.until_in_flight(0);
    let kept = ids(&world.place);
    let lost = world.lost();
    println!(
        "served {}, kept {}, lost {lost}",
        served.load(Ordering::SeqCst),
        kept.len()
    );
    assert_eq!(kept.len() as u64 + lost, served.load(Ordering::SeqCst));
    assert!(kept.is_superset(&seen.lock().unwrap()));
    assert!(
        world
            .place
            .run(&format!("stop -p {}", world.server.port()))
            .code
            == Some(0)
    );
    delivered(&world.place, &kept);
}

#[test]
fn if_so_decided_nothing_is_served_that_cannot_be_recorded() {
    run_elsewhere("full_disk::refuses");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn refuses() {
    let world = World::new("refuse");
    let mut number = 0;
    let mut next = |world: &World| {
        number += 1;
        let id = format!("r-{number}");
        let answer = world.ask(&id);
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
        until("it refuses", || !next(&world).0);
        // As long as it lasts nobody is served whose record is lost. If there is room for a moment,
        // somebody is let in again, and may be the one for whom there is none.
        let before = (world.lost(), world.times_well());
        for _ in 0..300 {
            let (is_served, is_recorded) = next(&world);
            assert!(is_served || !is_recorded);
            thread::sleep(Duration::from_millis(5));
        }
        let (lost, times_well) = (world.lost() - before.0, world.times_well() - before.1);
        assert!(lost <= times_well, "lost {lost}, well again {times_well}");
        // The server still says how it is, and what there is.
        assert_eq!(world.server.get("/healthz").status(), 200);
        assert_eq!(world.server.get("/v1/models").status(), 200);
        world.disk.empty();
        until("it serves again", || next(&world) == (true, true));
    }
}

#[test]
fn a_directory_that_cannot_be_had_at_the_start_is_had_later() {
    run_elsewhere("full_disk::starts_full");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn starts_full() {
    let place = testkit::sandbox!();
    let disk = SmallDisk::mount(&place, 16);
    disk.fill();
    let backend = Backend::start(Sort {
        name: "b",
        models: &["m"],
        reports: Reports::IfAsked,
        key: None,
    });
    let server = place.serve(&format!("--backend {}", backend.mock.url()));
    let answer = ask(&server, "lost", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!(server.status()["usage"]["lost"], 1);
    disk.empty();
    let mut number = 0;
    until("records are kept", || {
        number += 1;
        let id = format!("r-{number}");
        assert_eq!(ask(&server, &id, CHAT, &chat("Hello", true)).status(), 200);
        !records::of_request(&place, &id).is_empty()
    });
}

#[test]
fn archive_of_a_tenth_of_the_disk_is_reported_with_the_setting_that_limits_it() {
    run_elsewhere("full_disk::large_archive");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn large_archive() {
    let place = testkit::sandbox!();
    let _disk = SmallDisk::mount(&place, 16);
    std::fs::create_dir(place.path("data/archive")).unwrap();
    std::fs::write(place.path("data/archive/of-others"), vec![7; 2 << 20]).unwrap();
    let server = place.serve("--backend http://127.0.0.1:9");
    let text = "archive/ has 2 MiB in 1 file; usage.archive_max_size and usage.archive_max_age \
                limit it";
    until("it is reported", || {
        server.status()["usage"]["kept"]["large"] == serde_json::json!([text])
    });
    let log = server.process.stderr();
    assert!(log.contains(&format!("warning: usage: {text}")), "{log}");
    let (port, status) = (server.port(), "status -p");
    let shown = place.run(&format!("{status} {port}")).stdout;
    assert!(shown.contains(&format!("\n    {text}\n")), "{shown}");
}

/// A directory that is no directory: said at once, and at the start if nothing may go unrecorded.
#[test]
fn a_data_directory_that_is_none_is_told() {
    let place = testkit::sandbox!();
    std::fs::write(place.path("data"), "a file").unwrap();
    let backend = Backend::start(Sort {
        name: "b",
        models: &["m"],
        reports: Reports::IfAsked,
        key: None,
    });
    let words = format!("serve -p 0 --backend {}", backend.mock.url());
    let mut command = place.command(&words);
    let refused = place
        .start(command.env("LLMLB_USAGE_ON_FAILURE", "refuse"))
        .finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("cannot record usage"),
        "{refused:?}"
    );
    assert_eq!(place.lock_files(), [""; 0]);
    let server = place.serve_with(&mut place.command(&words));
    let log = server.process.stderr();
    assert!(log.contains("cannot record usage"), "{log}");
    assert_eq!(ask(&server, "a", CHAT, &chat("Hello", false)).status(), 200);
    assert_eq!(server.status()["usage"]["lost"], 1);
}
