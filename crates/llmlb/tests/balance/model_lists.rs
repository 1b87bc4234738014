//! Model lists that are large, or that change only in fields which do not matter. (promises L6, L11)

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use testkit::{FakeLlm, LlmlbServer, backends::serve, until, wire};

/// Returns a backend and the number of its probes. `list` makes the model list for each probe.
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
fn changed_creation_times_do_not_change_the_model_list() {
    let sandbox = testkit::sandbox!();
    // llama.cpp and vLLM report the time of the probe as `created`. Such lists must not count as
    // changed, or the model list would be replaced after every probe.
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
    let server = serve(&sandbox, &[&mock], &[("LLMLB_PROBE_INTERVAL", "100ms")]);
    let first = models(&server);
    assert_eq!(first[0]["created"], 1000);
    assert_eq!(first[0]["meta"]["n_ctx_train"], 4096);
    assert_eq!(first[1]["max_model_len"], 8192);
    until("the backend is probed several times", || {
        probes.load(Ordering::SeqCst) > 5
    });
    assert_eq!(models(&server), first);
    let log = server.process.stderr();
    assert!(!log.contains("now serves"), "{log}");
}

#[test]
fn changed_order_does_not_change_the_model_list() {
    let sandbox = testkit::sandbox!();
    let (mock, probes) = listing(|number| {
        let (a, b) = (r#""id":"a""#, r#""id":"b""#);
        let (first, second) = if number % 2 == 0 { (a, b) } else { (b, a) };
        let third = if number > 5 { r#",{"id":"c"}"# } else { "" };
        let list =
            format!(r#"{{{first},"created":{number}}},{{{second},"created":{number}}}{third}"#);
        format!(r#"{{"data":[{list}]}}"#)
    });
    let server = serve(&sandbox, &[&mock], &[("LLMLB_PROBE_INTERVAL", "100ms")]);
    until("the third model is listed", || models(&server).len() == 3);
    let before = probes.load(Ordering::SeqCst);
    until("the backend is probed again", || {
        probes.load(Ordering::SeqCst) > before + 3
    });
    for model in models(&server).iter().filter(|model| model["id"] != "c") {
        assert_eq!(model["created"], 0, "{model}");
    }
    let log = server.process.stderr();
    assert_eq!(log.matches("now serves").count(), 1, "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn model_list_beyond_max_models_is_truncated_and_uses_little_memory() {
    let sandbox = testkit::sandbox!();
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
    let before = crate::memory::peak(&serve(&sandbox, &[&small], &settings));
    let status = |server: &LlmlbServer, name: &str| {
        let body = format!(r#"{{"model":"{name}"}}"#);
        server.post(testkit::backends::CHAT, &body).status()
    };
    let server = serve(&sandbox, &[&mock], &settings);
    until("the backend serves a request", || {
        status(&server, "0") == 200
    });
    assert_eq!(models(&server).len(), 10_000);
    assert_eq!(status(&server, "270f"), 200);
    assert_eq!(status(&server, "2710"), 404);
    // The bound allows for the list, a copy while its buffer grows, and the part that is kept.
    let growth = crate::memory::peak(&server) - before;
    assert!(growth < 80 << 20, "memory grew by {} MiB", growth >> 20);
    let log = server.process.stderr();
    let warning = "lists 500000 models; only the first 10000 are used (upstream.max_models)";
    assert!(log.contains(warning), "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn large_model_descriptions_are_dropped_from_the_list() {
    let sandbox = testkit::sandbox!();
    let long = "x".repeat(3 << 20);
    let list = format!(
        r#"{{"data":[{{"id":"a","owned_by":"{long}","object":"model","x":[{}0]}},
           {{"id":"{long}"}},{{"id":"b","meta":{{{}"n":1}}}}]}}"#,
        "0,".repeat(200_000),
        r#""k":[[]],"#.repeat(20_000)
    );
    let (mock, _) = listing(move |_| list.clone());
    let server = serve(&sandbox, &[&mock], &[("LLMLB_PROBE_TIMEOUT", "1m")]);
    let answer = server.get("/v1/models");
    assert!(answer.text().len() < 1000, "{answer:?}");
    let ids: Vec<_> = models(&server)
        .iter()
        .map(|model| model["id"].clone())
        .collect();
    assert_eq!(ids, ["a", "b"]);
}
