//! Reasons and times in explanations and usage records.

use std::io::Read;

use testkit::{
    Connection,
    backends::{UNPROBED, address, backend, count, named_by_address, serve, serve_file},
    until, wire,
};

use crate::support::{ask, explained, fail_over, failing, good, send};

#[test]
fn request_with_one_backend_names_the_only_candidate() {
    let sandbox = testkit::sandbox!();
    let only = good();
    let server = serve(&sandbox, &[&only], UNPROBED);
    assert_eq!(ask(&server, "a").status(), 200);
    let record = sandbox.record_of("a").unwrap().unwrap();
    assert_eq!(record["why"], "only_candidate", "{record:#}");
    assert_eq!(record["candidates"], 1, "{record:#}");
    assert_eq!(record.get("queue_ms"), None, "{record:#}");
    let request = explained(&sandbox, &server, "a");
    for name in [
        "id",
        "why",
        "candidates",
        "backend",
        "status",
        "outcome",
        "tokens",
    ] {
        assert_eq!(request[name], record[name], "{name}: {request:#}");
    }
    assert_eq!(request["compared"][0]["backend"], only.address.to_string());
    assert_eq!(request["compared"][0]["state"], "healthy");
    assert_eq!(request["queue_ms"], 0);
}

#[test]
fn failed_attempts_have_reasons_and_times() {
    let sandbox = testkit::sandbox!();
    let (bad, fine) = (failing(503), good());
    let server = serve(&sandbox, &[&bad, &fine], UNPROBED);
    let id = fail_over(&server, &bad);
    let record = sandbox.record_of(&id).unwrap().unwrap();
    assert_eq!(record["why"], "fail_over", "{record:#}");
    assert_eq!(record["candidates"], 2, "{record:#}");
    let attempt = &record["attempts"][0];
    assert_eq!(attempt["error"], "503", "{record:#}");
    assert_eq!(attempt["why"], "load", "{record:#}");
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    assert!(
        number(&attempt["at_ms"]) <= number(&record["ms"]),
        "{record:#}"
    );
    assert!(
        number(&attempt["ms"]) <= number(&record["ms"]),
        "{record:#}"
    );
    let request = explained(&sandbox, &server, &id);
    assert_eq!(request["attempts"][0]["backend"], bad.address.to_string());
    let compared = request["compared"].as_array().unwrap();
    let state = |address: String| {
        let mut compared = compared.iter();
        let one = compared.find(|one| one["backend"] == address.as_str());
        one.unwrap()["state"].clone()
    };
    assert_eq!(state(bad.address.to_string()), "tried", "{request:#}");
    assert_eq!(state(fine.address.to_string()), "healthy", "{request:#}");
}

#[test]
fn repeated_long_prompt_goes_to_its_backend_for_affinity() {
    let sandbox = testkit::sandbox!();
    let (one, other) = (good(), good());
    let server = serve(&sandbox, &[&one, &other], UNPROBED);
    let prompt = "The same long beginning. ".repeat(200);
    for id in ["first", "second"] {
        let mut client = Connection::open(server.address);
        send(&mut client, id, "", &prompt);
        assert_eq!(client.answer().status(), 200);
    }
    let record = |id: &str| sandbox.record_of(id).unwrap().unwrap();
    assert_eq!(record("first")["why"], "load");
    assert_eq!(record("second")["why"], "affinity");
    assert_eq!(record("second")["backend"], record("first")["backend"]);
}

#[test]
fn request_that_waited_has_its_time_in_the_queue() {
    let sandbox = testkit::sandbox!();
    let slow = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "1");
        let _ = stream.read(&mut [0]);
    });
    let file = format!(
        "[upstream]\nprobe_interval = \"1h\"\n{}max_concurrent = 1\n",
        named_by_address([slow.address].into_iter())
    );
    let server = serve_file(&sandbox, &file);
    let mut first = Connection::open(server.address);
    send(&mut first, "first", "", "hello");
    assert_eq!(first.head().status(), 200);
    let mut second = Connection::open(server.address);
    send(&mut second, "second", "", "hello");
    until("the second request waits", || {
        server.status()["waiting"] == 1
    });
    // The wait is longer than the resolution of the field.
    std::thread::sleep(std::time::Duration::from_millis(20));
    drop(first);
    assert_eq!(second.head().status(), 200);
    drop(second);
    let request = explained(&sandbox, &server, "second");
    assert!(request["queue_ms"].as_u64().unwrap() >= 10, "{request:#}");
    assert!(
        request["sent_ms"].as_u64() >= request["queue_ms"].as_u64(),
        "{request:#}"
    );
    assert_eq!(request["outcome"], "cancelled");
    until("the second request is recorded", || {
        sandbox.record_of("second").unwrap().is_some()
    });
    let record = sandbox.record_of("second").unwrap().unwrap();
    assert_eq!(record["queue_ms"], request["queue_ms"], "{record:#}");
}

#[test]
fn client_that_disconnects_in_the_queue_has_its_time_there() {
    let sandbox = testkit::sandbox!();
    let slow = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "1");
        let _ = stream.read(&mut [0]);
    });
    let file = format!(
        "[upstream]\nprobe_interval = \"1h\"\n{}max_concurrent = 1\n",
        named_by_address([slow.address].into_iter())
    );
    let server = serve_file(&sandbox, &file);
    let mut first = Connection::open(server.address);
    send(&mut first, "first", "", "hello");
    assert_eq!(first.head().status(), 200);
    let mut second = Connection::open(server.address);
    send(&mut second, "second", "", "hello");
    until("the second request waits", || {
        server.status()["waiting"] == 1
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    drop(second);
    let request = explained(&sandbox, &server, "second");
    assert!(request["queue_ms"].as_u64().unwrap() >= 10, "{request:#}");
    assert_eq!(request["backend"], serde_json::Value::Null);
    assert_eq!(request["attempts"], serde_json::json!([]));
}

#[test]
fn last_resort_is_named() {
    let sandbox = testkit::sandbox!();
    let at = address();
    let file = format!(
        "[upstream]\nprobe_interval = \"1h\"\n{}models = [\"m\"]\n",
        named_by_address([at].into_iter())
    );
    let server = serve_file(&sandbox, &file);
    assert_eq!(ask(&server, "a").status(), 503);
    let request = explained(&sandbox, &server, "a");
    assert_eq!(request["attempts"][0]["why"], "last_resort", "{request:#}");
    assert_eq!(request["code"], "all_backends_down");
    let up = testkit::backends::backend_at(at, &["m"], testkit::backends::ok);
    assert_eq!(ask(&server, "b").status(), 200);
    let request = explained(&sandbox, &server, "b");
    assert_eq!(request["why"], "last_resort", "{request:#}");
    assert_eq!(count(&up), 1);
}
