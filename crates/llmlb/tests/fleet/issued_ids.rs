//! Servers that share a Redis route requests to the backend that issued an id, whichever server
//! received it. (promise L6)

use std::net::TcpStream;

use testkit::{
    FakeLlm, LlmlbServer, Received, Sandbox,
    backends::{backend_of, serve, served_by},
    until, wire,
};

use crate::redis_server::RedisServer;

fn issuing_backend(name: &'static str) -> FakeLlm {
    let model = format!("only-{name}");
    let id = move |_: &Received, stream: &mut TcpStream| {
        wire::json(stream, 200, &format!("{{\"id\":\"file-{name}\"}}"));
    };
    backend_of(&[&model], id)
}

fn keys(redis: &RedisServer) -> Vec<String> {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut command = redis::cmd("KEYS");
    command
        .arg("llmlb:issued:*")
        .query(&mut connection)
        .unwrap()
}

fn upload(server: &LlmlbServer, model: &str) {
    let body = format!("{{\"model\":\"{model}\"}}");
    assert_eq!(server.post("/v1/files", &body).status(), 200);
}

#[test]
fn id_is_found_by_another_server_with_another_data_directory() {
    let sandboxes = [testkit::sandbox!(), testkit::sandbox!()];
    let Some(redis) = RedisServer::start(sandboxes[0].root()) else {
        return;
    };
    let (a, b) = (issuing_backend("a"), issuing_backend("b"));
    let url = redis.url();
    let settings = [("LLMLB_FLEET_STORE", url.as_str())];
    let start = |sandbox: &Sandbox| serve(sandbox, &[&a, &b], &settings);
    let servers = sandboxes.each_ref().map(start);
    upload(&servers[0], "only-b");
    until("the id is in Redis", || keys(&redis).len() == 1);
    assert!(!keys(&redis)[0].contains("file-b"), "only a hash is stored");
    let answer = servers[1].get("/v1/files/file-b");
    assert_eq!(served_by(&answer), b.address.to_string());
    let unknown = servers[1].get("/v1/files/file-unknown");
    assert_eq!(served_by(&unknown), a.address.to_string());
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let left: i64 = redis::cmd("TTL")
        .arg(&keys(&redis)[0])
        .query(&mut connection)
        .unwrap();
    assert!((1..=30 * 24 * 3600).contains(&left), "{left}");
}

#[test]
fn requests_are_served_while_redis_is_down() {
    let sandboxes = [testkit::sandbox!(), testkit::sandbox!()];
    let Some(redis) = RedisServer::start(sandboxes[0].root()) else {
        return;
    };
    let (a, b) = (issuing_backend("a"), issuing_backend("b"));
    let url = redis.url();
    let settings = [("LLMLB_FLEET_STORE", url.as_str())];
    let start = |sandbox: &Sandbox| serve(sandbox, &[&a, &b], &settings);
    let servers = sandboxes.each_ref().map(start);
    drop(redis);
    upload(&servers[0], "only-b");
    // Without Redis, each server knows only the ids that it received itself. The first server
    // routes the request correctly; the second one does not know the id and uses the first backend.
    let own = servers[0].get("/v1/files/file-b");
    assert_eq!(served_by(&own), b.address.to_string());
    for _ in 0..20 {
        let answer = servers[1].get("/v1/files/file-b");
        assert_eq!(served_by(&answer), a.address.to_string());
    }
    let log = servers[1].log();
    assert!(
        log.contains("cannot share issued ids in redis://127.0.0.1:"),
        "{log}"
    );
    assert!(!log.contains("hunter2"), "{log}");
}
