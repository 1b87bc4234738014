//! Tests of the helpers that start the servers of lease stores.
#![cfg(unix)]

use serde_json::json;
use tenure_tests::servers::{DynamoDbServer, EtcdServer, RedisServer};

#[test]
fn redis_keeps_acknowledged_writes_when_it_is_killed() {
    let Some(mut server) = RedisServer::start() else {
        return;
    };
    assert_eq!(server.command(&["SET", "a", "1"]), "+OK\r\n");
    server.kill9();
    server.restart();
    assert_eq!(server.command(&["GET", "a"]), "$1\r\n1\r\n");
}

#[test]
fn etcd_keeps_acknowledged_writes_when_it_is_killed() {
    let Some(mut server) = EtcdServer::start() else {
        return;
    };
    server.etcdctl(&["put", "a", "1"]);
    server.kill9();
    server.restart();
    assert_eq!(server.etcdctl(&["get", "a", "--print-value-only"]), "1\n");
}

#[test]
fn dynamodb_serves_while_an_idle_connection_is_open() {
    let Some(server) = DynamoDbServer::start() else {
        return;
    };
    let _idle = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let tables = server.request("ListTables", &json!({}));
    assert_eq!(tables["TableNames"], json!([DynamoDbServer::TABLE]));
}
