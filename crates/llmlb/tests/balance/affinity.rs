//! Requests whose prompts have the same beginning go to the same backend, which has it in its
//! cache. (promise L7)

use std::collections::HashSet;
use testkit::{
    LlmlbServer,
    backends::{CHAT, backend, count, ok, serve, served_by},
};

/// Returns a prompt of some kilobytes. Prompts with different numbers have different beginnings.
fn prompt(number: usize) -> String {
    let words: Vec<_> = (0..600).map(|word| format!("{number}-{word}")).collect();
    format!(r#""You are assistant {number}. {}""#, words.join(" "))
}

fn ask(server: &LlmlbServer, messages: &str) -> String {
    let body = format!(r#"{{"model":"m","messages":[{messages}]}}"#);
    let answer = server.post(CHAT, &body);
    assert_eq!(answer.status(), 200);
    served_by(&answer)
}

#[test]
fn long_prompt_goes_to_the_same_backend_when_repeated() {
    let sandbox = testkit::sandbox!();
    let backends = [(); 4].map(|()| backend(ok));
    let server = serve(&sandbox, &backends.each_ref(), &[]);
    let mut chosen = HashSet::new();
    for number in 0..16 {
        let prompt = prompt(number);
        let message = format!(r#"{{"role":"system","content":{prompt}}}"#);
        let first = ask(&server, &message);
        for question in 0..5 {
            let more = format!(r#"{message},{{"role":"user","content":"{question}?"}}"#);
            assert_eq!(ask(&server, &more), first, "prompt {number}");
        }
        chosen.insert(first);
    }
    assert!(chosen.len() > 1, "all prompts went to one backend");
}

#[test]
fn growing_conversation_stays_on_its_backend() {
    let sandbox = testkit::sandbox!();
    let backends = [(); 4].map(|()| backend(ok));
    let server = serve(&sandbox, &backends.each_ref(), &[]);
    let message = |turn| format!(r#"{{"role":"user","content":{}}}"#, prompt(turn));
    let mut messages = vec![message(1)];
    let first = ask(&server, &messages.join(","));
    for turn in 2..12 {
        messages.push(message(turn));
        assert_eq!(ask(&server, &messages.join(",")), first, "turn {turn}");
    }
}

#[test]
fn prompt_of_many_clients_does_not_overload_one_backend() {
    let sandbox = testkit::sandbox!();
    // The responses do not end before the test does, so that all 30 requests stay outstanding.
    let backends = [(); 3].map(|()| {
        backend(|_, stream| {
            testkit::wire::begin_stream(stream);
            testkit::wire::chunk(stream, "1");
            let _ = std::io::Read::read(stream, &mut [0]);
        })
    });
    let server = serve(&sandbox, &backends.each_ref(), &[]);
    let body = format!(r#"{{"model":"m","messages":[{}]}}"#, prompt(1));
    let clients: Vec<_> = (0..30)
        .map(|_| {
            let mut client = testkit::Connection::open(server.address);
            client.send_post(CHAT, &body);
            assert_eq!(client.head().status(), 200);
            client
        })
        .collect();
    let counts = backends.each_ref().map(count);
    // By affinity, a backend gets requests only up to 1.25 times the mean number of outstanding
    // requests per backend, plus one. With 30 requests on 3 backends this is 13.5.
    assert!(counts.iter().all(|count| *count <= 15), "{counts:?}");
    assert!(counts.iter().all(|count| *count >= 5), "{counts:?}");
    drop(clients);
    server.until_in_flight(0);
}

#[test]
fn known_prompt_moves_to_another_backend_when_its_own_is_gone() {
    let sandbox = testkit::sandbox!();
    let backends = [(); 2].map(|()| backend(ok));
    let server = serve(
        &sandbox,
        &backends.each_ref(),
        &[("LLMLB_PROBE_INTERVAL", "1h")],
    );
    let first = ask(&server, &prompt(1));
    for backend in &backends {
        if backend.address.to_string() == first {
            backend.stop();
        }
    }
    let second = ask(&server, &prompt(1));
    assert_ne!(second, first);
    for _ in 0..5 {
        assert_eq!(ask(&server, &prompt(1)), second);
    }
}
