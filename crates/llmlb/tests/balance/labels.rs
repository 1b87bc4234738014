//! Clients see the configured names or numbers of backends, and never their addresses. (promise L11)

use testkit::{
    backends::{ASK, CHAT, asked, backend, backend_at, ok, serve_file, served_by},
    until,
};

#[test]
fn backend_without_a_name_is_labelled_with_its_number() {
    let sandbox = testkit::sandbox!();
    let (first, second, third) = (backend(ok), backend(ok), backend(ok));
    let file = format!(
        "[[backend]]\nurl = \"{}\"\n[[backend]]\nurl = \"{}\"\nname = \"gpu\"\n\
         [[backend]]\nurl = \"{}\"\n",
        first.url(),
        second.url(),
        third.url()
    );
    let server = serve_file(&sandbox, &file);
    for (mock, label) in [
        (&first, "backend-1"),
        (&second, "gpu"),
        (&third, "backend-3"),
    ] {
        until("the backend serves a request", || {
            let before = asked(mock).len();
            let answer = server.post(CHAT, ASK);
            assert_eq!(answer.status(), 200);
            let is_served = asked(mock).len() > before;
            assert_eq!(is_served, served_by(&answer) == label);
            is_served
        });
    }
    // The operator needs the address, so `/status` and the log must show it.
    let status = server.status();
    assert_eq!(status["backends"][0]["name"], first.address.to_string());
    let line = format!(" backend={} ", first.address);
    until("the request is logged", || {
        server.process.stderr().contains(&line)
    });
}

#[test]
fn label_differs_from_the_names_of_other_backends() {
    let sandbox = testkit::sandbox!();
    let (first, second) = (backend(ok), backend(ok));
    let file = format!(
        "[[backend]]\nurl = \"{}\"\nname = \"backend-2\"\n[[backend]]\nurl = \"{}\"\n",
        first.url(),
        second.url()
    );
    let server = serve_file(&sandbox, &file);
    for (mock, label) in [(&first, "backend-2"), (&second, "backend-2-2")] {
        until("the backend serves a request", || {
            let before = asked(mock).len();
            let answer = server.post(CHAT, ASK);
            let is_served = asked(mock).len() > before;
            assert_eq!(is_served, served_by(&answer) == label);
            is_served
        });
    }
}

#[test]
fn errors_and_model_lists_contain_no_addresses() {
    let sandbox = testkit::sandbox!();
    let address = testkit::backends::address();
    let file = format!(
        "[upstream]\nprobe_interval = \"1h\"\n\
         [[backend]]\nurl = \"http://{address}\"\nmodels = [\"m\"]\n\
         [[backend]]\nurl = \"http://127.0.0.1:1\"\n"
    );
    let closing = backend_at(address, &["m"], |_, stream| {
        testkit::backends::close(stream);
    });
    let server = serve_file(&sandbox, &file);
    let port = address.port().to_string();
    let list = server.get("/v1/models").text();
    assert!(list.contains(r#""owned_by":"backend-1""#), "{list}");
    // Cause three errors: a backend that closes the connection, a model that only an unreachable
    // backend with an unknown model list might serve, and a stopped backend. None of the error
    // messages may contain an address.
    let cut = server.post(CHAT, ASK);
    let unknown = server.post(CHAT, r#"{"model":"other"}"#);
    closing.stop();
    let gone = server.post(CHAT, ASK);
    for (answer, status, label) in [
        (cut, 502, "backend backend-1: "),
        (unknown, 503, "backend-2"),
        (gone, 503, "backend backend-1: "),
    ] {
        assert_eq!(answer.status(), status, "{answer:?}");
        let text = answer.text();
        assert!(text.contains(label) && !text.contains(&port), "{text}");
        assert!(!text.contains("127.0.0.1"), "{text}");
    }
}
