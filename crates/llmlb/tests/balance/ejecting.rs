//! Responses that a client can provoke do not take a backend from other clients. (L8)

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

/// A prompt of its own for each number.
fn prompt(number: usize) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{number}"}}]}}"#)
}

/// A backend that responds with this status, and no more.
fn answering(status: u16) -> FakeLlm {
    backend(move |_, stream| wire::json(stream, status, "{}"))
}

/// A backend that responds 500 to requests with this text in them.
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

/// Which of the backends are ejected, in the order of the configuration.
fn ejected(server: &LlmlbServer) -> Vec<bool> {
    let status = server.status();
    let backends = status["backends"].as_array().unwrap().iter();
    backends
        .map(|one| one["ejected"].as_bool().unwrap())
        .collect()
}

/// Sends each of the prompts until this backend has received so many requests.
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
        let place = testkit::sandbox!();
        let (first, other) = (answering(status), backend(ok));
        let server = serve(&place, &[&first, &other], UNPROBED);
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
fn one_prompt_that_fails_does_not_eject_a_backend() {
    for status in [401, 403, 500] {
        let place = testkit::sandbox!();
        let (bad, good) = (answering(status), backend(ok));
        let server = serve(&place, &[&bad, &good], UNPROBED);
        send_until(&server, &bad, 10, &[1, 2]);
        assert_eq!(ejected(&server), [false, false], "{status}");
    }
}

#[test]
fn three_prompts_that_fail_eject_a_backend() {
    for status in [401, 403, 500] {
        let place = testkit::sandbox!();
        let (bad, good) = (answering(status), backend(ok));
        let server = serve(&place, &[&bad, &good], UNPROBED);
        send_until(&server, &bad, 3, &[1]);
        assert_eq!(ejected(&server), [false, false], "{status}");
        let mut number = 1;
        until("it is ejected", || {
            number += 1;
            server.post(CHAT, &prompt(number));
            ejected(&server) == [true, false]
        });
        let log = server.process.stderr();
        let line = log.lines().find(|line| line.contains(" ejected for "));
        assert!(line.unwrap().contains(&status.to_string()), "{log}");
    }
}

/// A backend whose responses begin well and end early.
fn cutting() -> FakeLlm {
    backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "1");
        close(stream);
    })
}

/// Sends a prompt and reads as much of the response as there is.
fn read_prompt(server: &LlmlbServer, number: usize) {
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, &prompt(number));
    let head = client.head();
    assert_eq!(head.status(), 200);
    let _ = head.body(&mut client.reader);
}

#[test]
fn responses_to_three_prompts_that_end_early_eject_a_backend() {
    let place = testkit::sandbox!();
    let (bad, good) = (cutting(), backend(ok));
    let server = serve(&place, &[&bad, &good], UNPROBED);
    until("one prompt was cut often", || {
        read_prompt(&server, 1);
        count(&bad) >= 6
    });
    assert_eq!(ejected(&server), [false, false]);
    let mut number = 1;
    until("it is ejected", || {
        number += 1;
        read_prompt(&server, number);
        ejected(&server) == [true, false]
    });
    let log = server.process.stderr();
    let line = log.lines().find(|line| line.contains(" ejected for "));
    assert!(line.unwrap().ends_with("the last one cut"), "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn one_prompt_of_two_clients_that_fails_ejects_a_backend() {
    let place = testkit::sandbox!();
    let (bad, good) = (answering(500), backend(ok));
    let server = serve(&place, &[&bad, &good], UNPROBED);
    let ask = |last: u8| {
        let address = std::net::Ipv4Addr::new(127, 0, 0, last);
        let mut client = crate::fairness::connect_from(address, &server);
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().status(), 200);
    };
    until("one client has seen it fail", || {
        ask(2);
        count(&bad) >= 5
    });
    assert_eq!(ejected(&server), [false, false]);
    until("it is ejected", || {
        ask(3);
        ejected(&server) == [true, false]
    });
}

#[test]
fn success_in_between_prevents_the_ejection() {
    let place = testkit::sandbox!();
    let (bad, other) = (failing_on("crash"), backend(ok));
    let server = serve(&place, &[&bad, &other], UNPROBED);
    for number in 0..5 {
        let before = count(&bad);
        until("it fails and succeeds", || {
            let crash = format!(r#"{{"model":"m","x":"crash {number}"}}"#);
            assert_eq!(server.post(CHAT, &crash).status(), 200);
            count(&bad) > before
        });
        until("it succeeds", || {
            served_by(&server.post(CHAT, ASK)) == bad.address.to_string()
        });
    }
    assert_eq!(ejected(&server), [false, false]);
}

#[test]
fn last_backend_of_a_model_is_never_ejected_by_what_clients_provoke() {
    let place = testkit::sandbox!();
    let only = answering(500);
    let server = serve(&place, &[&only], UNPROBED);
    for number in 0..20 {
        assert_eq!(server.post(CHAT, &prompt(number)).status(), 500);
    }
    assert_eq!(ejected(&server), [false]);
    // Another backend has the model that fails, but not the other one.
    let both = backend_of(&["m", "only-here"], |_, stream| {
        wire::json(stream, 500, "{}");
    });
    let good = backend(ok);
    let server = serve(&place, &[&both, &good], UNPROBED);
    let mut number = 0;
    until("it has failed often", || {
        number += 1;
        assert_eq!(server.post(CHAT, &prompt(number)).status(), 200);
        count(&both) >= 20
    });
    assert_eq!(ejected(&server), [false, false]);
}

#[test]
fn prompts_that_fail_everywhere_eject_no_backend() {
    let place = testkit::sandbox!();
    let twins = [failing_on("crash"), failing_on("crash")];
    let server = serve(&place, &[&twins[0], &twins[1]], UNPROBED);
    for number in 0..30 {
        let crash = format!(r#"{{"model":"m","x":"crash {number}"}}"#);
        assert_eq!(server.post(CHAT, &crash).status(), 500);
        assert_eq!(ejected(&server), [false, false]);
    }
    // Each of them was tried on both.
    assert_eq!(twins.each_ref().map(count), [30, 30]);
}

/// A backend that responds 429 with these headers.
fn exhausted(headers: String) -> FakeLlm {
    backend(move |_, stream| {
        let response = format!("HTTP/1.1 429 X\r\n{headers}content-length: 2\r\n\r\n{{}}");
        let _ = stream.write_all(response.as_bytes());
    })
}

fn in_half_a_minute() -> String {
    let date = SystemTime::now() + Duration::from_secs(30);
    let date = httpdate::fmt_http_date(date);
    format!("retry-after: {date}\r\n")
}

#[test]
fn retry_after_gives_a_backend_a_rest_in_seconds_and_until_a_date() {
    for headers in ["retry-after: 30\r\n".to_owned(), in_half_a_minute()] {
        let place = testkit::sandbox!();
        let (busy, other) = (exhausted(headers), backend(ok));
        let server = serve(&place, &[&busy, &other], UNPROBED);
        until("it says that it is busy", || {
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
        let place = testkit::sandbox!();
        let (busy, mut other) = (exhausted(headers.to_owned()), Occupied::new());
        let server = other.beside(&place, &busy);
        for number in 0..20 {
            let answer = server.post(CHAT, &prompt(number));
            // Were it ejected, the queue of the other one would be full.
            assert_eq!((answer.status(), answer.text().as_str()), (429, "{}"));
        }
        assert_eq!(ejected(&server), [false, false], "{headers}");
    }
}

#[test]
fn retry_after_takes_neither_the_last_backend_nor_counts_elsewhere() {
    let place = testkit::sandbox!();
    let only = exhausted(in_half_a_minute());
    let server = serve(&place, &[&only], UNPROBED);
    for _ in 0..5 {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 429);
        assert!(answer.head.header("retry-after").is_some());
    }
    assert_eq!(ejected(&server), [false]);
    // The limit of another endpoint says nothing about inference.
    let other = backend(ok);
    let server = serve(&place, &[&only, &other], UNPROBED);
    assert_eq!(server.get("/v1/files").status(), 429);
    assert_eq!(ejected(&server), [false, false]);
}

/// A server whose backend has a key, and one that has none.
fn serve_with_key(place: &Sandbox, backend: &FakeLlm) -> LlmlbServer {
    let file = format!(
        "[upstream]\nprobe_interval = \"1h\"\n\
         [[backend]]\nname = \"cloud\"\nurl = \"{}\"\napi_key_env = \"CLOUD_KEY\"\n",
        backend.url()
    );
    std::fs::write(place.path("llmlb.toml"), file).unwrap();
    let mut command = place.command("serve -p 0");
    place.serve_with(command.env("CLOUD_KEY", "sk-secret"))
}

#[test]
fn rejection_of_our_own_key_is_a_bad_gateway() {
    for status in [401, 403] {
        let place = testkit::sandbox!();
        let cloud = backend(move |_, stream| {
            wire::json(stream, status, r#"{"error":"Incorrect key sk-se***et"}"#);
        });
        let server = serve_with_key(&place, &cloud);
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
        until("it is logged", || {
            let log = server.process.stderr();
            let failed = format!(" failed=cloud error={status} ");
            log.lines().filter(|line| line.contains(&failed)).count() == 9
        });
        let log = server.process.stderr();
        let named = log.lines().filter(|line| line.contains("api_key_env"));
        let named: Vec<_> = named.collect();
        assert_eq!(named.len(), 1, "{log}");
        assert!(named[0].contains("backend cloud") && named[0].contains(&status));
        let last = server.status()["backends"][0]["last_error"].clone();
        assert_eq!(last["status"].to_string(), status, "{last}");
    }
}

#[test]
fn rejection_of_our_own_key_is_a_bad_gateway_also_after_probes() {
    for status in [401, 403] {
        let place = testkit::sandbox!();
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
        std::fs::write(place.path("llmlb.toml"), file).unwrap();
        let mut command = place.command("serve -p 0");
        let server = place.serve_with(command.env("CLOUD_KEY", "sk-secret"));
        let up = || server.status()["backends"][0]["up"].clone();
        // The models are known if the key was accepted before.
        until("it is known", || up() == (status == 401));
        is_rejected.store(true, Ordering::Relaxed);
        until("it is down", || up() == false);
        for answer in [server.post(CHAT, ASK), server.get("/v1/files")] {
            assert_eq!(
                (answer.status(), code(&answer)),
                (502, "backend_auth".into())
            );
        }
        let error = server.status()["backends"][0]["error"].to_string();
        assert!(error.contains("rejects the key"), "{error}");
        is_rejected.store(false, Ordering::Relaxed);
        until("it is up", || server.post(CHAT, ASK).status() == 200);
    }
}

#[test]
fn rejection_by_a_backend_without_a_key_passes_unchanged() {
    for status in [401, 403] {
        let place = testkit::sandbox!();
        let open = backend(move |_, stream| {
            let response = format!(
                "HTTP/1.1 {status} X\r\nwww-authenticate: Bearer\r\ncontent-length: 9\r\n\r\nits words"
            );
            let _ = stream.write_all(response.as_bytes());
        });
        let file = format!("[[backend]]\nname = \"open\"\nurl = \"{}\"\n", open.url());
        let server = serve_file(&place, &file);
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), status);
        assert_eq!(answer.text(), "its words");
    }
}
