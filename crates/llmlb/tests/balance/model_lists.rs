//! Model lists that are large, or that change where it does not matter. (L6, L11)

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use testkit::{FakeLlm, LlmlbServer, backends::serve, until, wire};

/// A backend whose list of models is made anew for each probe, which are counted.
fn listing(list: impl Fn(usize) -> String + Send + Sync + 'static) -> (FakeLlm, Arc<AtomicUsize>) {
    let probes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&probes);
    let mock = FakeLlm::handling_all(move |request, stream| match request.target() {
        "/v1/models" => {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            wire::json(stream, 200, &list(number));
        }
        _ => wire::json(stream, 200, "{}"),
    });
    (mock, probes)
}

fn models(server: &LlmlbServer) -> Vec<Value> {
    let list = server.get("/v1/models").json();
    list["data"].as_array().unwrap().clone()
}

#[test]
fn a_list_whose_creation_times_change_is_the_same_list() {
    let place = testkit::sandbox!();
    // As llama.cpp and vLLM describe their models: with the time of the request.
    let (mock, probes) = listing(|number| {
        format!(
            r#"{{"object":"list","models":[{{"name":"m{number}"}}],"data":[
               {{"id":"m","object":"model","created":{},"owned_by":"llamacpp",
                 "meta":{{"n_ctx_train":4096,"size":12}},"status":{{"value":"{number}"}},
                 "permission":[{{"id":"modelperm-{number}"}}]}},
               {{"id":"n","created":{number},"max_model_len":8192}}]}}"#,
            1000 + number
        )
    });
    let server = serve(&place, &[&mock], &[("LLMLB_PROBE_INTERVAL", "100ms")]);
    let first = models(&server);
    assert_eq!(first[0]["created"], 1000);
    assert_eq!(first[0]["meta"]["n_ctx_train"], 4096);
    assert_eq!(first[1]["max_model_len"], 8192);
    until("it was probed often", || probes.load(Ordering::SeqCst) > 5);
    assert_eq!(models(&server), first);
    let said = server.process.stderr();
    assert!(!said.contains("now serves"), "{said}");
}

#[test]
fn a_list_in_another_order_is_the_same_list_and_a_new_model_keeps_the_others_as_they_were() {
    let place = testkit::sandbox!();
    let (mock, probes) = listing(|number| {
        let (a, b) = (r#""id":"a""#, r#""id":"b""#);
        let (first, second) = if number % 2 == 0 { (a, b) } else { (b, a) };
        let third = if number > 5 { r#",{"id":"c"}"# } else { "" };
        let list =
            format!(r#"{{{first},"created":{number}}},{{{second},"created":{number}}}{third}"#);
        format!(r#"{{"data":[{list}]}}"#)
    });
    let server = serve(&place, &[&mock], &[("LLMLB_PROBE_INTERVAL", "100ms")]);
    until("the third model is listed", || models(&server).len() == 3);
    let seen = probes.load(Ordering::SeqCst);
    until("it was probed again", || {
        probes.load(Ordering::SeqCst) > seen + 3
    });
    for model in models(&server).iter().filter(|model| model["id"] != "c") {
        assert_eq!(model["created"], 0, "{model}");
    }
    let said = server.process.stderr();
    assert_eq!(said.matches("now serves").count(), 1, "{said}");
}

/// The most memory that a server had, in bytes.
#[cfg(target_os = "linux")]
fn peak(server: &LlmlbServer) -> usize {
    let status = format!("/proc/{}/status", server.process.pid());
    let status = std::fs::read_to_string(status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.unwrap().split_whitespace().next().unwrap();
    number.parse::<usize>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn a_list_of_half_a_million_models_takes_little_memory_and_the_first_ones_are_used() {
    let place = testkit::sandbox!();
    let (mock, _) = listing(|_| {
        let ids: Vec<_> = (0..500_000)
            .map(|n| format!("{{\"id\":\"{n:x}\"}}"))
            .collect();
        format!(r#"{{"data":[{}]}}"#, ids.join(","))
    });
    let settings = [
        ("LLMLB_PROBE_INTERVAL", "100ms"),
        ("LLMLB_PROBE_TIMEOUT", "1m"),
    ];
    let small = testkit::backends::backend(testkit::backends::ok);
    let before = peak(&serve(&place, &[&small], &settings));
    let status = |server: &LlmlbServer, name: &str| {
        let body = format!(r#"{{"model":"{name}"}}"#);
        server.post(testkit::backends::CHAT, &body).status()
    };
    let server = serve(&place, &[&mock], &settings);
    until("it is up", || status(&server, "0") == 200);
    assert_eq!(models(&server).len(), 10_000);
    assert_eq!(status(&server, "270f"), 200);
    assert_eq!(status(&server, "2710"), 404);
    // The list itself, once more while it grows, and what is kept of it.
    let more = peak(&server) - before;
    assert!(more < 80 << 20, "{} MiB more", more >> 20);
    let said = server.process.stderr();
    let words = "lists 500000 models; only the first 10000 are used (upstream.max_models)";
    assert!(said.contains(words), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn descriptions_of_megabytes_are_not_kept() {
    let place = testkit::sandbox!();
    let long = "x".repeat(3 << 20);
    let list = format!(
        r#"{{"data":[{{"id":"a","owned_by":"{long}","object":"model","x":[{}0]}},
           {{"id":"{long}"}},{{"id":"b","meta":{{{}"n":1}}}}]}}"#,
        "0,".repeat(200_000),
        r#""k":[[]],"#.repeat(20_000)
    );
    let (mock, _) = listing(move |_| list.clone());
    let server = serve(&place, &[&mock], &[("LLMLB_PROBE_TIMEOUT", "1m")]);
    let answer = server.get("/v1/models");
    assert!(answer.text().len() < 1000, "{answer:?}");
    let ids: Vec<_> = models(&server)
        .iter()
        .map(|one| one["id"].clone())
        .collect();
    assert_eq!(ids, ["a", "b"]);
}
