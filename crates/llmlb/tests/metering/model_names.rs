//! A record has the model's name that the client used, and the backend's name for it if they differ.

use serde_json::json;

use crate::records;
use crate::requests::{CHAT, chat, post, send_with};
use testkit::{
    Connection,
    backends::{UNPROBED, backend_of, close, ok, serve, serve_file, served_by},
    until, wire,
};

#[test]
fn alias_is_recorded_with_the_backends_name_of_the_model() {
    let sandbox = testkit::sandbox!();
    let (one, two) = (backend_of(&["small-1"], ok), backend_of(&["small-2"], ok));
    let server = serve_file(
        &sandbox,
        &format!(
            "[[backend]]\nname = \"one\"\nurl = \"{}\"\n[[backend]]\nname = \"two\"\nurl = \"{}\"\n\
             [aliases]\nsmall = [\"small-1\", \"small-2\"]\n[upstream]\nprobe_interval = \"1h\"\n",
            one.url(),
            two.url()
        ),
    );
    let mut request_body = chat("Hello", false);
    request_body["model"] = json!("small");
    let mut requests = 0;
    let mut seen = std::collections::BTreeSet::new();
    until("both backends have served", || {
        requests += 1;
        let id = format!("r-{requests}");
        let answer = post(&server, &id, CHAT, &request_body);
        assert_eq!(answer.status(), 200);
        let record = records::one(&sandbox, &id);
        let expected = if served_by(&answer) == "one" {
            "small-1"
        } else {
            "small-2"
        };
        assert_eq!(record["model"], "small", "{record:#}");
        assert_eq!(record["served_model"], expected, "{record:#}");
        assert_eq!(record["backend"], served_by(&answer), "{record:#}");
        seen.insert(expected);
        seen.len() == 2
    });
    // `served_model` is omitted if the client used the backend's own name.
    request_body["model"] = json!("small-1");
    post(&server, "own", CHAT, &request_body);
    let record = records::one(&sandbox, "own");
    assert_eq!(record["model"], "small-1", "{record:#}");
    assert!(record.get("served_model").is_none(), "{record:#}");
}

#[test]
fn retried_request_is_recorded_with_the_model_name_of_the_backend_that_served() {
    let sandbox = testkit::sandbox!();
    let bad = backend_of(&["a"], |_, stream| close(stream));
    let good = backend_of(&["b"], |_, stream| wire::json(stream, 200, "{}"));
    let server = serve_file(
        &sandbox,
        &format!(
            "[[backend]]\nurl = \"{}\"\n[[backend]]\nurl = \"{}\"\n[aliases]\nm = [\"a\", \"b\"]\n\
             [upstream]\nprobe_interval = \"1h\"\n",
            bad.url(),
            good.url()
        ),
    );
    let mut requests = 0;
    until("the bad backend is tried", || {
        requests += 1;
        let id = format!("r-{requests}");
        assert_eq!(
            post(&server, &id, CHAT, &chat("Hello", false)).status(),
            200
        );
        let record = records::one(&sandbox, &id);
        assert_eq!(record["served_model"], "b", "{record:#}");
        assert_eq!(record["model"], "m", "{record:#}");
        record["attempts"][0]["backend"] == bad.address.to_string()
    });
}

#[test]
fn model_named_in_the_query_is_recorded() {
    let sandbox = testkit::sandbox!();
    let (other, mock) = (backend_of(&["other"], ok), backend_of(&["real"], ok));
    let server = serve_file(
        &sandbox,
        &format!(
            "[[backend]]\nurl = \"{}\"\n[[backend]]\nname = \"b\"\nurl = \"{}\"\n\
             [aliases]\nvoice = \"real\"\n",
            other.url(),
            mock.url()
        ),
    );
    for (id, name, served) in [("alias", "voice", Some("real")), ("own", "real", None)] {
        let mut connection = Connection::open(server.address);
        let path = format!("/v1/realtime?model={name}");
        send_with(&mut connection, "GET", id, &path, "", "");
        assert_eq!(connection.answer().status(), 200);
        let record = records::one(&sandbox, id);
        assert_eq!(record["model"], name, "{record:#}");
        let recorded = record.get("served_model").and_then(|name| name.as_str());
        assert_eq!(recorded, served, "{record:#}");
        assert_eq!(record["backend"], "b", "{record:#}");
    }
}

#[test]
fn request_without_an_id_is_recorded_with_the_id_of_its_response() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["m"], ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = server.post(CHAT, &chat("Hello", false).to_string());
    let id = answer.head.header("x-request-id").unwrap();
    let record = records::one(&sandbox, &id);
    assert_eq!(record["model"], "m", "{record:#}");
}
