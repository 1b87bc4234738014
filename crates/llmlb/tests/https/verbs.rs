//! `llmlb status` and `llmlb stop` with a server that serves https, and its drain. (promises L2,
//! L3, L4)

use std::net::TcpStream;

use testkit::backends::{CHAT, backend};
use testkit::{Connection, Gate, Received, read_chunk, until, wire};

use crate::world;

#[test]
fn status_shows_the_health_and_the_certificate() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[]) else {
        return;
    };
    let log = world.server.log();
    let url = format!("listening on https://{}", world.server.address);
    assert!(log.contains(&url), "{log}");
    let (status, code) = sandbox.status(world.server.port());
    assert_eq!(code, Some(0));
    assert_eq!(status["health"], "ok", "{status}");
    assert_eq!(status["proof"], "verified");
    let tls = &status["tls"];
    assert_eq!(tls["names"], serde_json::json!(["localhost", "127.0.0.1"]));
    assert_eq!(tls["client_certificates"], false);
    assert_eq!(tls["error"], serde_json::Value::Null);
    for time in ["not_before", "not_after", "loaded_at"] {
        assert!(tls[time].is_string(), "{tls}");
    }
    let text = sandbox.run(&format!("status -p {}", world.server.port()));
    let line = "  tls        certificate for localhost, 127.0.0.1, expires in 47 h";
    assert!(text.stdout.contains(line), "{}", text.stdout);
}

#[test]
fn stop_drains_a_stream_over_tls() {
    let sandbox = testkit::sandbox!();
    let gate = Gate::new();
    let held = gate.clone();
    let streaming = backend(move |_: &Received, stream: &mut TcpStream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        held.wait();
        wire::chunk(stream, "data: [DONE]\n\n");
        wire::end_stream(stream);
    });
    let Some(world) = world::start_before(&sandbox, &[], streaming) else {
        return;
    };
    let mut client = Connection::open(world.tunnel);
    client.send_post(CHAT, r#"{"model":"m","stream":true}"#);
    assert_eq!(client.head().status(), 200);
    read_chunk(&mut client.reader).unwrap().unwrap();
    let mut idle = Connection::open(world.tunnel);
    idle.send_get("/healthz");
    assert_eq!(idle.answer().status(), 200);

    let port = world.server.port();
    let stopping = sandbox.start(&mut sandbox.command(&format!("stop -p {port}")));
    until("the server drains", || {
        world.server.log().contains("draining")
    });
    gate.open();
    let last = read_chunk(&mut client.reader).unwrap().unwrap();
    assert_eq!(last, b"data: [DONE]\n\n");
    assert_eq!(read_chunk(&mut client.reader), Some(None));
    assert!(idle.is_closed());
    let stopped = stopping.finish();
    assert_eq!(stopped.code, Some(0), "{}", stopped.output());
    assert!(
        stopped.stdout.contains("Stopped the server"),
        "{}",
        stopped.stdout
    );
    assert_eq!(world.server.process.end(), Some(0));
}

#[test]
fn second_server_on_the_port_is_refused() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[]) else {
        return;
    };
    let port = world.server.port();
    let second = sandbox.run(&format!("serve -p {port}"));
    assert_eq!(second.code, Some(1));
    let pid = world.server.pid();
    let line = format!("Server already running on port {port} (PID: {pid}");
    assert!(second.stderr.contains(&line), "{}", second.stderr);
}
