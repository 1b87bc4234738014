//! A model is recorded by the name that the client used, and by that of the backend.

use serde_json::json;

use crate::ask::{CHAT, ask, chat, send_with};
use crate::records;
use testkit::{
    Connection,
    backends::{UNPROBED, backend_of, close, ok, serve, serve_file, served_by},
    until, wire,
};

#[test]
fn an_alias_is_recorded_beside_what_the_backend_calls_the_model() {
    let place = testkit::sandbox!();
    let (one, two) = (backend_of(&["small-1"], ok), backend_of(&["small-2"], ok));
    let server = serve_file(
        &place,
        &format!(
            "[[backend]]\nname = \"one\"\nurl = \"{}\"\n[[backend]]\nname = \"two\"\nurl = \"{}\"\n\
             [aliases]\nsmall = [\"small-1\", \"small-2\"]\n[upstream]\nprobe_interval = \"1h\"\n",
            one.url(),
            two.url()
        ),
    );
    let mut question = chat("Hello", false);
    question["model"] = json!("small");
    let mut asked = 0;
    let mut seen = std::collections::BTreeSet::new();
    until("both have served", || {
        asked += 1;
        let id = format!("r-{asked}");
        let answer = ask(&server, &id, CHAT, &question);
        assert_eq!(answer.status(), 200);
        let record = records::one(&place, &id);
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
    // By its own name there is nothing to add.
    question["model"] = json!("small-1");
    ask(&server, "own", CHAT, &question);
    let record = records::one(&place, "own");
    assert_eq!(record["model"], "small-1", "{record:#}");
    assert!(record.get("served_model").is_none(), "{record:#}");
}

#[test]
fn after_a_failure_the_name_is_that_of_the_backend_that_served() {
    let place = testkit::sandbox!();
    let bad = backend_of(&["a"], |_, stream| close(stream));
    let good = backend_of(&["b"], |_, stream| wire::json(stream, 200, "{}"));
    let server = serve_file(
        &place,
        &format!(
            "[[backend]]\nurl = \"{}\"\n[[backend]]\nurl = \"{}\"\n[aliases]\nm = [\"a\", \"b\"]\n\
             [upstream]\nprobe_interval = \"1h\"\n",
            bad.url(),
            good.url()
        ),
    );
    let mut asked = 0;
    until("the bad one is tried", || {
        asked += 1;
        let id = format!("r-{asked}");
        assert_eq!(ask(&server, &id, CHAT, &chat("Hello", false)).status(), 200);
        let record = records::one(&place, &id);
        assert_eq!(record["served_model"], "b", "{record:#}");
        assert_eq!(record["model"], "m", "{record:#}");
        record["attempts"][0]["backend"] == bad.address.to_string()
    });
}

#[test]
fn a_model_that_the_query_names_is_recorded_like_any_other() {
    let place = testkit::sandbox!();
    let (other, mock) = (backend_of(&["other"], ok), backend_of(&["real"], ok));
    let server = serve_file(
        &place,
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
        let record = records::one(&place, id);
        assert_eq!(record["model"], name, "{record:#}");
        let told = record.get("served_model").and_then(|name| name.as_str());
        assert_eq!(told, served, "{record:#}");
        assert_eq!(record["backend"], "b", "{record:#}");
    }
}

#[test]
fn a_request_without_an_id_is_recorded_by_the_one_it_was_given() {
    let place = testkit::sandbox!();
    let mock = backend_of(&["m"], ok);
    let server = serve(&place, &[&mock], UNPROBED);
    let answer = server.post(CHAT, &chat("Hello", false).to_string());
    let id = answer.head.header("x-request-id").unwrap();
    let record = records::one(&place, &id);
    assert_eq!(record["model"], "m", "{record:#}");
}
