//! Backends whose models change while they run. (L6)

use std::sync::{Arc, Mutex};

use crate::backends::{CHAT, backend, ok, serve};
use crate::mock::{self, Mock};
use crate::process::until;
use crate::support::{Place, Server};

const OFTEN: &[(&str, &str)] = &[("LLMLB_PROBE_INTERVAL", "100ms")];

/// A backend whose list of models can be changed.
fn changing(models: &[&str]) -> (Mock, Arc<Mutex<String>>) {
    let list = Arc::new(Mutex::new(list(models)));
    let told = Arc::clone(&list);
    let mock = Mock::raw(
        "127.0.0.1:0".parse().unwrap(),
        move |request, stream| match request.path() {
            "/v1/models" => mock::json(stream, 200, &told.lock().unwrap()),
            path if path.starts_with("/v1/") => mock::json(stream, 200, "{}"),
            _ => mock::json(stream, 404, "{}"),
        },
    );
    (mock, list)
}

fn list(models: &[&str]) -> String {
    let models: Vec<_> = models
        .iter()
        .map(|id| format!(r#"{{"id":"{id}"}}"#))
        .collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, models.join(","))
}

fn status(server: &Server, model: &str) -> u16 {
    let answer = server.post(CHAT, &format!(r#"{{"model":"{model}"}}"#));
    answer.status()
}

#[test]
fn a_model_that_appears_is_served_and_one_that_disappears_is_not() {
    let place = Place::new();
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
    let place = Place::new();
    let (first, models) = changing(&["m"]);
    let second = backend(ok);
    let server = serve(&place, &[&first, &second], OFTEN);
    *models.lock().unwrap() = list(&["other"]);
    until("it is known", || status(&server, "other") == 200);
    let before = crate::backends::count(&second);
    for _ in 0..10 {
        assert_eq!(status(&server, "m"), 200);
    }
    assert_eq!(crate::backends::count(&second), before + 10);
}

#[test]
fn a_backend_that_serves_nothing_for_a_while_serves_again() {
    let place = Place::new();
    let (mock, models) = changing(&["m"]);
    let server = serve(&place, &[&mock], OFTEN);
    *models.lock().unwrap() = list(&[]);
    until("it serves nothing", || status(&server, "m") == 404);
    *models.lock().unwrap() = list(&["m"]);
    until("it serves again", || status(&server, "m") == 200);
}
