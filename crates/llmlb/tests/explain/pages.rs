//! The page `/explain`: who may read it, and its bounds.

use testkit::{
    Connection, Request,
    backends::{UNPROBED, serve},
};

use crate::support::{ask, explained, failing, good};

#[test]
fn page_is_not_served_through_a_proxy() {
    let sandbox = testkit::sandbox!();
    let only = good();
    let server = serve(&sandbox, &[&only], UNPROBED);
    ask(&server, "a");
    for path in ["/explain/a", "/explain"] {
        assert_eq!(server.get(path).status(), 200);
        let mut client = Connection::open(server.address);
        client.send(format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: 192.0.2.1\r\n\r\n"
        ));
        let answer = client.answer();
        assert_eq!(answer.status(), 403);
        assert_eq!(testkit::backends::code(&answer), "forbidden");
    }
    let request = Request::post("/explain/a", "{}");
    assert_eq!(server.send(&request).unwrap().status(), 404);
}

#[test]
fn failed_requests_are_listed_newest_first_and_not_flushed_by_successes() {
    let sandbox = testkit::sandbox!();
    let bad = failing(400);
    let server = serve(&sandbox, &[&bad], UNPROBED);
    for number in 0..60 {
        assert_eq!(ask(&server, &format!("bad-{number}")).status(), 400);
    }
    for _ in 0..2100 {
        assert_eq!(server.get("/v1/models").status(), 200);
    }
    let _ = explained(&sandbox, &server, "bad-59");
    let errors = server.get("/explain").json()["errors"].clone();
    let errors = errors.as_array().unwrap();
    assert_eq!(errors.len(), 50);
    for (place, error) in errors.iter().enumerate() {
        assert_eq!(error["id"], format!("bad-{}", 59 - place));
        assert_eq!(error["status"], 400);
        assert_eq!(error["model"], "m");
        assert_eq!(error["backend"], bad.address.to_string());
    }
}
