//! What clients learn of the backends: names that the operator gave, and no addresses. (L11)

use testkit::{
    backends::{ASK, CHAT, asked, backend, backend_at, ok, serve_file, served_by},
    until,
};

#[test]
fn clients_see_an_ordinal_of_a_backend_without_a_name() {
    let place = testkit::sandbox!();
    let (first, second, third) = (backend(ok), backend(ok), backend(ok));
    let file = format!(
        "[[backend]]\nurl = \"{}\"\n[[backend]]\nurl = \"{}\"\nname = \"gpu\"\n\
         [[backend]]\nurl = \"{}\"\n",
        first.url(),
        second.url(),
        third.url()
    );
    let server = serve_file(&place, &file);
    for (mock, label) in [
        (&first, "backend-1"),
        (&second, "gpu"),
        (&third, "backend-3"),
    ] {
        until("it is asked", || {
            let before = asked(mock).len();
            let answer = server.post(CHAT, ASK);
            assert_eq!(answer.status(), 200);
            let is_asked = asked(mock).len() > before;
            assert_eq!(is_asked, served_by(&answer) == label);
            is_asked
        });
    }
    // The operator sees the address.
    let status = server.status();
    assert_eq!(status["backends"][0]["name"], first.address.to_string());
    let line = format!(" backend={} ", first.address);
    until("it is logged", || server.process.stderr().contains(&line));
}

#[test]
fn a_label_is_never_the_name_of_another_backend() {
    let place = testkit::sandbox!();
    let (first, second) = (backend(ok), backend(ok));
    let file = format!(
        "[[backend]]\nurl = \"{}\"\nname = \"backend-2\"\n[[backend]]\nurl = \"{}\"\n",
        first.url(),
        second.url()
    );
    let server = serve_file(&place, &file);
    for (mock, label) in [(&first, "backend-2"), (&second, "backend-2-2")] {
        until("it is asked", || {
            let before = asked(mock).len();
            let answer = server.post(CHAT, ASK);
            let is_asked = asked(mock).len() > before;
            assert_eq!(is_asked, served_by(&answer) == label);
            is_asked
        });
    }
}

#[test]
fn errors_and_model_lists_do_not_name_addresses() {
    let place = testkit::sandbox!();
    let address = testkit::backends::address();
    let file = format!(
        "[upstream]\nprobe_interval = \"1h\"\n\
         [[backend]]\nurl = \"http://{address}\"\nmodels = [\"m\"]\n\
         [[backend]]\nurl = \"http://127.0.0.1:1\"\n"
    );
    let hanging_up = backend_at(address, &["m"], |_, stream| {
        testkit::backends::close(stream);
    });
    let server = serve_file(&place, &file);
    let port = address.port().to_string();
    let list = server.get("/v1/models").text();
    assert!(list.contains(r#""owned_by":"backend-1""#), "{list}");
    // It closes connections; it does not say what it serves; it is gone.
    let cut = server.post(CHAT, ASK);
    let unknown = server.post(CHAT, r#"{"model":"other"}"#);
    hanging_up.stop();
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
