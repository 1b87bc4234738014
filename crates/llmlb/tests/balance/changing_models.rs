//! Backends whose models change while they run. (L6)

use std::sync::{Arc, Mutex};
use testkit::{
    FakeLlm, LlmlbServer,
    backends::{CHAT, backend, ok, serve},
    until, wire,
};

const OFTEN: &[(&str, &str)] = &[("LLMLB_PROBE_INTERVAL", "100ms")];

/// A backend whose list of models can be changed.
fn changing(models: &[&str]) -> (FakeLlm, Arc<Mutex<String>>) {
    let list = Arc::new(Mutex::new(list(models)));
    let told = Arc::clone(&list);
    let mock = FakeLlm::handling_all(move |request, stream| match request.target() {
        "/v1/models" => wire::json(stream, 200, &told.lock().unwrap()),
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
fn a_model_that_appears_is_served_and_one_that_disappears_is_not() {
    let place = testkit::sandbox!();
    let (mock, models) = changing(&["old", "both"]);
    let server = serve(&place, &[&mock], OFTEN);
    assert_eq!(status(&server, "old"), 200);
    assert_eq!(status(&server, "new"), 404);
    *models.lock().unwrap() = list(&["both", "new"]);
    until("the new one is served", || status(&server, "new") == 200);
    assert_eq!(status(&server, "old"), 404);
    assert_eq!(status(&server, "both"), 200);
    let ids = server.get("/v1/models").text();
    assert!(
        ids.contains(r#""new""#) && !ids.contains(r#""old""#),
        "{ids}"
    );
}

#[test]
fn a_model_that_one_backend_loses_is_asked_from_the_other() {
    let place = testkit::sandbox!();
    let (first, models) = changing(&["m"]);
    let second = backend(ok);
    let server = serve(&place, &[&first, &second], OFTEN);
    *models.lock().unwrap() = list(&["other"]);
    until("it is known", || status(&server, "other") == 200);
    let before = testkit::backends::count(&second);
    for _ in 0..10 {
        assert_eq!(status(&server, "m"), 200);
    }
    assert_eq!(testkit::backends::count(&second), before + 10);
}

#[test]
fn a_backend_that_serves_nothing_for_a_while_serves_again() {
    let place = testkit::sandbox!();
    let (mock, models) = changing(&["m"]);
    let server = serve(&place, &[&mock], OFTEN);
    *models.lock().unwrap() = list(&[]);
    until("it serves nothing", || status(&server, "m") == 404);
    *models.lock().unwrap() = list(&["m"]);
    until("it serves again", || status(&server, "m") == 200);
}
