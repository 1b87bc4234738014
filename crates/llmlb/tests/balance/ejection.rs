//! Ejection of backends. Responses that one client can provoke do not eject a backend. (promise L8)

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use testkit::{
    Connection, FakeLlm, LlmlbServer, Received, Sandbox,
    backends::{
        ASK, CHAT, Occupied, UNPROBED, backend, backend_of, close, code, count, ok, serve,
        serve_file, served_by,
    },
    until, wire,
};

/// Returns a request with a prompt that differs for each number.
fn prompt(number: usize) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{number}"}}]}}"#)
}

fn responding(status: u16) -> FakeLlm {
    backend(move |_, stream| wire::json(stream, status, "{}"))
}

fn failing_on(text: &'static str) -> FakeLlm {
    backend(move |request: &Received, stream: &mut TcpStream| {
        let status = if request.text().contains(text) {
            500
        } else {
            200
        };
        wire::json(stream, status, "{}");
    })
}

/// Returns the field `ejected` of each backend, in the order of the configuration.
fn ejected(server: &LlmlbServer) -> Vec<bool> {
    let status = server.status();
    let backends = status["backends"].as_array().unwrap().iter();
    backends
        .map(|backend| backend["ejected"].as_bool().unwrap())
        .collect()
}

/// Sends the prompts in turn until this backend has received this many requests.
fn send_until(server: &LlmlbServer, backend: &FakeLlm, requests: usize, prompts: &[usize]) {
    let mut prompts = prompts.iter().cycle();
    until("the backend has its requests", || {
        let number = prompts.next().unwrap();
        server.post(CHAT, &prompt(*number));
        count(backend) >= requests
    });
}

#[test]
fn requests_to_other_endpoints_do_not_eject_a_backend() {
    for status in [401, 403, 500] {
        let sandbox = testkit::sandbox!();
        let (first, other) = (responding(status), backend(ok));
        let server = serve(&sandbox, &[&first, &other], UNPROBED);
        for number in 0..6 {
            let answer = server.get(&format!("/v1/files?page={number}"));
            assert_eq!(answer.status(), status);
            let answer = server.post("/v1/batches", &format!(r#"{{"number":{number}}}"#));
            assert_eq!(answer.status(), status);
        }
        assert_eq!(count(&first), 12);
        assert_eq!(ejected(&server), [false, false], "{status}");
    }
}

#[test]
fn repeated_failing_prompt_does_not_eject_a_backend() {
    for status in [401, 403, 500] {
        let sandbox = testkit::sandbox!();
        let (bad, good) = (responding(status), backend(ok));
        let server = serve(&sandbox, &[&bad, &good], UNPROBED);
        send_until(&server, &bad, 10, &[1, 2]);
        assert_eq!(ejected(&server), [false, false], "{status}");
    }
}

#[test]
fn three_different_failing_prompts_eject_a_backend() {
    for status in [401, 403, 500] {
        let sandbox = testkit::sandbox!();
        let (bad, good) = (responding(status), backend(ok));
        let server = serve(&sandbox, &[&bad, &good], UNPROBED);
        send_until(&server, &bad, 3, &[1]);
        assert_eq!(ejected(&server), [false, false], "{status}");
        let mut number = 1;
        until("the backend is ejected", || {
            number += 1;
            server.post(CHAT, &prompt(number));
            ejected(&server) == [true, false]
        });
        // Another thread writes the log, so the line may appear after the ejection.
        until("the log names the status", || {
            let log = server.process.stderr();
            let mut lines = log.lines().filter(|line| line.contains(" ejected for "));
            lines.any(|line| line.contains(&status.to_string()))
        });
    }
}

/// Returns a backend whose responses begin and are cut.
fn cutting() -> FakeLlm {
    backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "1");
        close(stream);
    })
}

/// Sends a prompt and reads the response, which may be cut.
fn send_and_read(server: &LlmlbServer, number: usize) {
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, &prompt(number));
    let head = client.head();
    assert_eq!(head.status(), 200);
    let _ = head.body(&mut client.reader);
}

#[test]
fn cut_responses_to_three_prompts_eject_a_backend() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (cutting(), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    until("the response to one prompt was cut often", || {
        send_and_read(&server, 1);
        count(&bad) >= 6
    });
    assert_eq!(ejected(&server), [false, false]);
    let mut number = 1;
    until("the backend is ejected", || {
        number += 1;
        send_and_read(&server, number);
        ejected(&server) == [true, false]
    });
    let log = server.process.until_output(" ejected for ");
    let line = log.lines().find(|line| line.contains(" ejected for "));
    assert!(line.unwrap().ends_with("the last one cut"), "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn prompt_that_fails_for_two_clients_ejects_a_backend() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (responding(500), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    let send_from = |last: u8| {
        let address = std::net::Ipv4Addr::new(127, 0, 0, last);
        let mut client = crate::fairness::connect_from(address, &server);
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().status(), 200);
    };
    until("one client has got several failures", || {
        send_from(2);
        count(&bad) >= 5
    });
    assert_eq!(ejected(&server), [false, false]);
    until("the backend is ejected", || {
        send_from(3);
        ejected(&server) == [true, false]
    });
}

#[test]
fn success_between_failures_prevents_the_ejection() {
    let sandbox = testkit::sandbox!();
    let (bad, other) = (failing_on("crash"), backend(ok));
    let server = serve(&sandbox, &[&bad, &other], UNPROBED);
    for number in 0..5 {
        let before = count(&bad);
        until("the backend fails a request", || {
            let crash = format!(r#"{{"model":"m","x":"crash {number}"}}"#);
            assert_eq!(server.post(CHAT, &crash).status(), 200);
            count(&bad) > before
        });
        until("the backend serves a request", || {
            served_by(&server.post(CHAT, ASK)) == bad.address.to_string()
        });
    }
    assert_eq!(ejected(&server), [false, false]);
}

#[test]
fn last_backend_of_a_model_is_not_ejected_by_failing_prompts() {
    let sandbox = testkit::sandbox!();
    let only = responding(500);
    let server = serve(&sandbox, &[&only], UNPROBED);
    for number in 0..20 {
        assert_eq!(server.post(CHAT, &prompt(number)).status(), 500);
    }
    assert_eq!(ejected(&server), [false]);
    // The model `only-here` is served by the failing backend alone, so failures must not eject that
    // backend although another backend serves `m`.
    let both = backend_of(&["m", "only-here"], |_, stream| {
        wire::json(stream, 500, "{}");
    });
    let good = backend(ok);
    let server = serve(&sandbox, &[&both, &good], UNPROBED);
    let mut number = 0;
    until("the backend has failed often", || {
        number += 1;
        assert_eq!(server.post(CHAT, &prompt(number)).status(), 200);
        count(&both) >= 20
    });
    assert_eq!(ejected(&server), [false, false]);
}

#[test]
fn prompts_that_fail_on_every_backend_eject_none() {
    let sandbox = testkit::sandbox!();
    let twins = [failing_on("crash"), failing_on("crash")];
    let server = serve(&sandbox, &[&twins[0], &twins[1]], UNPROBED);
    for number in 0..30 {
        let crash = format!(r#"{{"model":"m","x":"crash {number}"}}"#);
        assert_eq!(server.post(CHAT, &crash).status(), 500);
        assert_eq!(ejected(&server), [false, false]);
    }
    // A prompt that fails on both backends is probably the cause itself, so neither backend is
    // ejected. Check that each prompt was tried on both.
    assert_eq!(twins.each_ref().map(count), [30, 30]);
}

fn rate_limited(headers: String) -> FakeLlm {
    backend(move |_, stream| {
        let response = format!("HTTP/1.1 429 X\r\n{headers}content-length: 2\r\n\r\n{{}}");
        let _ = stream.write_all(response.as_bytes());
    })
}

fn retry_after_date() -> String {
    let date = SystemTime::now() + Duration::from_secs(30);
    let date = httpdate::fmt_http_date(date);
    format!("retry-after: {date}\r\n")
}

#[test]
fn retry_after_in_seconds_or_as_a_date_ejects_a_backend() {
    for headers in ["retry-after: 30\r\n".to_owned(), retry_after_date()] {
        let sandbox = testkit::sandbox!();
        let (busy, other) = (rate_limited(headers), backend(ok));
        let server = serve(&sandbox, &[&busy, &other], UNPROBED);
        until("the rate-limited backend responds", || {
            server.post(CHAT, ASK).status() == 429
        });
        assert_eq!(ejected(&server), [true, false]);
        for number in 0..50 {
            assert_eq!(server.post(CHAT, &prompt(number)).status(), 200);
        }
        assert_eq!(count(&busy), 1);
    }
}

#[test]
fn rate_limit_without_a_time_does_not_eject_a_backend() {
    for headers in ["", "retry-after: soon\r\n", "retry-after: 0\r\n"] {
        let sandbox = testkit::sandbox!();
        let (busy, mut other) = (rate_limited(headers.to_owned()), Occupied::new());
        let server = other.beside(&sandbox, &busy);
        for number in 0..20 {
            let answer = server.post(CHAT, &prompt(number));
            // If the backend were ejected, the response would be `queue_full` instead of its own.
            assert_eq!((answer.status(), answer.text().as_str()), (429, "{}"));
        }
        assert_eq!(ejected(&server), [false, false], "{headers}");
    }
}

#[test]
fn retry_after_does_not_eject_the_last_backend_or_count_for_other_endpoints() {
    let sandbox = testkit::sandbox!();
    let only = rate_limited(retry_after_date());
    let server = serve(&sandbox, &[&only], UNPROBED);
    for _ in 0..5 {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 429);
        assert!(answer.head.header("retry-after").is_some());
    }
    assert_eq!(ejected(&server), [false]);
    // A 429 on `/v1/files` must not stop inference requests to the same backend.
    let other = backend(ok);
    let server = serve(&sandbox, &[&only, &other], UNPROBED);
    assert_eq!(server.get("/v1/files").status(), 429);
    assert_eq!(ejected(&server), [false, false]);
}

/// Starts a server in front of a backend with a configured key.
fn serve_with_key(sandbox: &Sandbox, backend: &FakeLlm) -> LlmlbServer {
    let file = format!(
        "[upstream]\nprobe_interval = \"1h\"\n\
         [[backend]]\nname = \"cloud\"\nurl = \"{}\"\napi_key_env = \"CLOUD_KEY\"\n",
        backend.url()
    );
    std::fs::write(sandbox.path("llmlb.toml"), file).unwrap();
    let mut command = sandbox.command("serve -p 0");
    sandbox.serve_with(command.env("CLOUD_KEY", "sk-secret"))
}

#[test]
fn rejected_backend_key_is_a_502() {
    for status in [401, 403] {
        let sandbox = testkit::sandbox!();
        let cloud = backend(move |_, stream| {
            wire::json(stream, status, r#"{"error":"Incorrect key sk-se***et"}"#);
        });
        let server = serve_with_key(&sandbox, &cloud);
        for _ in 0..3 {
            let answers = [
                server.post(CHAT, ASK),
                server.get("/v1/files"),
                server.post("/v1/batches", "{}"),
            ];
            for answer in answers {
                assert_eq!(answer.status(), 502, "{answer:?}");
                assert_eq!(code(&answer), "backend_auth");
                assert!(!answer.text().contains("sk-se"), "{answer:?}");
                assert_eq!(answer.head.header("www-authenticate"), None);
            }
        }
        assert_eq!(count(&cloud), 9);
        let status = status.to_string();
        until("the failed attempts are logged", || {
            let log = server.process.stderr();
            let failed = format!(" failed=cloud error={status} ");
            log.lines().filter(|line| line.contains(&failed)).count() == 9
        });
        let log = server.process.stderr();
        let warnings = log.lines().filter(|line| line.contains("api_key_env"));
        let warnings: Vec<_> = warnings.collect();
        assert_eq!(warnings.len(), 1, "{log}");
        assert!(warnings[0].contains("backend cloud") && warnings[0].contains(&status));
        let last = server.status()["backends"][0]["last_error"].clone();
        assert_eq!(last["status"].to_string(), status, "{last}");
    }
}

#[test]
fn rejected_backend_key_is_a_502_when_probes_are_rejected_too() {
    for status in [401, 403] {
        let sandbox = testkit::sandbox!();
        let is_rejected = Arc::new(AtomicBool::new(status == 403));
        let rejects = Arc::clone(&is_rejected);
        let cloud = FakeLlm::handling_all(move |_, stream| {
            if rejects.load(Ordering::Relaxed) {
                wire::json(stream, status, "{}");
            } else {
                wire::json(stream, 200, r#"{"data":[{"id":"m"}]}"#);
            }
        });
        let file = format!(
            "[upstream]\nprobe_interval = \"100ms\"\n\
             [[backend]]\nname = \"cloud\"\nurl = \"{}\"\napi_key_env = \"CLOUD_KEY\"\n",
            cloud.url()
        );
        std::fs::write(sandbox.path("llmlb.toml"), file).unwrap();
        let mut command = sandbox.command("serve -p 0");
        let server = sandbox.serve_with(command.env("CLOUD_KEY", "sk-secret"));
        let up = || server.status()["backends"][0]["up"].clone();
        // With 401 the backend accepts the key at first, so its models are known when it begins to
        // reject the key. With 403 the backend rejects the key from the start.
        until("the first probe has its result", || up() == (status == 401));
        is_rejected.store(true, Ordering::Relaxed);
        until("the backend is marked down", || up() == false);
        for answer in [server.post(CHAT, ASK), server.get("/v1/files")] {
            assert_eq!(
                (answer.status(), code(&answer)),
                (502, "backend_auth".into())
            );
        }
        let error = server.status()["backends"][0]["error"].to_string();
        assert!(error.contains("rejects the key"), "{error}");
        is_rejected.store(false, Ordering::Relaxed);
        until("the backend serves a request", || {
            server.post(CHAT, ASK).status() == 200
        });
    }
}

#[test]
fn rejection_by_a_backend_without_a_key_is_forwarded_unchanged() {
    for status in [401, 403] {
        let sandbox = testkit::sandbox!();
        let open = backend(move |_, stream| {
            let response = format!(
                "HTTP/1.1 {status} X\r\nwww-authenticate: Bearer\r\ncontent-length: 9\r\n\r\nbackend's"
            );
            let _ = stream.write_all(response.as_bytes());
        });
        let file = format!("[[backend]]\nname = \"open\"\nurl = \"{}\"\n", open.url());
        let server = serve_file(&sandbox, &file);
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), status);
        assert_eq!(answer.text(), "backend's");
    }
}
