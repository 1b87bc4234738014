//! Model lists that change while the backends run. (promise L6)

use std::sync::{Arc, Mutex};
use testkit::{
    FakeLlm, LlmlbServer,
    backends::{CHAT, backend, ok, serve},
    until, wire,
};

const PROBED_FAST: &[(&str, &str)] = &[("LLMLB_PROBE_INTERVAL", "100ms")];

/// Returns a backend and its model list, which the test can change.
fn changing(models: &[&str]) -> (FakeLlm, Arc<Mutex<String>>) {
    let list = Arc::new(Mutex::new(list(models)));
    let served = Arc::clone(&list);
    let mock = FakeLlm::handling_all(move |request, stream| match request.target() {
        "/v1/models" => wire::json(stream, 200, &served.lock().unwrap()),
        path if path.starts_with("/v1/") => wire::json(stream, 200, "{}"),
        _ => wire::json(stream, 404, "{}"),
    });
    (mock, list)
}

fn list(models: &[&str]) -> String {
    let models: Vec<_> = models
        .iter()
        .map(|id| format!(r#"{{"id":"{id}"}}"#))
        .collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, models.join(","))
}

fn status(server: &LlmlbServer, model: &str) -> u16 {
    let answer = server.post(CHAT, &format!(r#"{{"model":"{model}"}}"#));
    answer.status()
}

#[test]
fn model_is_served_while_a_backend_lists_it() {
    let sandbox = testkit::sandbox!();
    let (mock, models) = changing(&["old", "both"]);
    let server = serve(&sandbox, &[&mock], PROBED_FAST);
    assert_eq!(status(&server, "old"), 200);
    assert_eq!(status(&server, "new"), 404);
    *models.lock().unwrap() = list(&["both", "new"]);
    until("the new model is served", || status(&server, "new") == 200);
    assert_eq!(status(&server, "old"), 404);
    assert_eq!(status(&server, "both"), 200);
    let ids = server.get("/v1/models").text();
    assert!(
        ids.contains(r#""new""#) && !ids.contains(r#""old""#),
        "{ids}"
    );
}

#[test]
fn model_dropped_by_one_backend_is_served_by_the_other() {
    let sandbox = testkit::sandbox!();
    let (first, models) = changing(&["m"]);
    let second = backend(ok);
    let server = serve(&sandbox, &[&first, &second], PROBED_FAST);
    *models.lock().unwrap() = list(&["other"]);
    until("the new list is known", || status(&server, "other") == 200);
    let before = testkit::backends::count(&second);
    for _ in 0..10 {
        assert_eq!(status(&server, "m"), 200);
    }
    assert_eq!(testkit::backends::count(&second), before + 10);
}

#[test]
fn backend_with_an_empty_model_list_serves_again_when_it_lists_models() {
    let sandbox = testkit::sandbox!();
    let (mock, models) = changing(&["m"]);
    let server = serve(&sandbox, &[&mock], PROBED_FAST);
    *models.lock().unwrap() = list(&[]);
    until("the empty list is known", || status(&server, "m") == 404);
    *models.lock().unwrap() = list(&["m"]);
    until("the model is served again", || status(&server, "m") == 200);
}
