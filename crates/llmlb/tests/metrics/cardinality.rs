//! Hostile names of models and keys neither add series without bound nor break the page.

use testkit::Request;
use testkit::backends::{backend_of, ok};

use crate::page::Page;

#[test]
fn models_that_no_backend_lists_are_one_series() {
    let sandbox = testkit::sandbox!();
    let backend = backend_of(&["m"], ok);
    let server = testkit::backends::serve(&sandbox, &[&backend], &[]);
    for number in 0..500 {
        let model = format!("no-such-model-{number}\"}} 1\nx");
        assert_eq!(
            server.send(&Request::chat(&model, "Hi")).unwrap().status(),
            404
        );
    }
    let page = Page::of(&server);
    for (name, series) in [
        ("llmlb_requests_total", 1),
        ("llmlb_refused_requests_total", 1),
        ("llmlb_tokens_total", 0),
        ("llmlb_request_duration_seconds_count", 0),
        ("llmlb_queue_seconds_count", 0),
    ] {
        assert_eq!(page.matching(name, &[]).count(), series, "{name}");
    }
    let unknown = page.sum("llmlb_requests_total", &[("model", "other")]);
    assert_eq!(unknown, Some(500.0));
    assert!(!page.text.contains("no-such-model"));
}

#[test]
fn names_that_a_backend_lists_are_escaped_and_bounded() {
    let sandbox = testkit::sandbox!();
    let hostile = [
        "quote\" backslash\\ brace} comma, equals=",
        "line\nfeed\u{1b}[2J\u{202e}",
        "ünï/模型:70b",
    ];
    let long = "x".repeat(150);
    let many: Vec<String> = (0..300).map(|number| format!("model-{number}")).collect();
    let names: Vec<&str> = hostile.into_iter().chain([&*long]).collect();
    let names: Vec<&str> = names
        .into_iter()
        .chain(many.iter().map(String::as_str))
        .collect();
    let backend = backend_of(&names, ok);
    let server = testkit::backends::serve(&sandbox, &[&backend], &[]);
    for name in &names {
        let status = server.send(&Request::chat(name, "Hi")).unwrap().status();
        assert_eq!(status, 200, "{name}");
    }
    let page = Page::of(&server);
    let models = page.values("llmlb_requests_total", "model");
    assert!(
        models.contains(hostile[0]) && models.contains(hostile[2]),
        "{models:?}"
    );
    assert!(models.contains("line?feed?[2J?"), "{models:?}");
    assert_eq!(models.len(), 201, "200 models and `other`");
    assert!(models.iter().all(|model| model.chars().count() <= 101));
    let all = page.sum("llmlb_requests_total", &[]);
    assert_eq!(all, Some(304.0));
    let other = page.sum("llmlb_requests_total", &[("model", "other")]);
    assert_eq!(other, Some(104.0));
}
