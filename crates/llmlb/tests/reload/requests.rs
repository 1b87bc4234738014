//! A request is served by one configuration, the old or the new one, never by a mixture. (promise L12)

use testkit::backends::{CHAT, asked, backend, ok, served_by};
use testkit::{Connection, until};

use crate::server::{ReloadingServer, table};

/// The body of a request arrives after a reload. Alias, backend and forwarded headers must all be
/// those of the new configuration, never a mixture.
#[test]
fn request_whose_body_arrives_after_a_reload_is_routed_by_the_new_configuration() {
    let (a, b) = (backend(ok), backend(ok));
    let old = "[upstream]\nforward_headers = [\"x-old\"]\n[aliases]\nsmart = \"m\"\n";
    let running =
        ReloadingServer::start(testkit::sandbox!(), &format!("{old}{}", table("a", &a, "")));
    let body = r#"{"model":"smart"}"#;
    let mut client = Connection::open(running.server.address);
    client.send(
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nx-old: 1\r\nx-new: 1\r\n\r\n",
            body.len()
        )
        .replace("host: x", "host: localhost"),
    );
    client.send(&body[..5]);
    until("the request is in flight", || {
        running.server.get("/status").json()["in_flight"] == 1
    });
    running.reload(&format!(
        "{}{}",
        old.replace("x-old", "x-new"),
        table("b", &b, "")
    ));
    client.send(&body[5..]);
    let answer = client.answer();
    assert_eq!((answer.status(), served_by(&answer).as_str()), (200, "b"));
    let sent = asked(&b).pop().unwrap();
    assert_eq!(sent.head.header("x-new").as_deref(), Some("1"));
    assert_eq!(sent.head.header("x-old"), None);
    assert_eq!(asked(&a).len(), 0);
}
