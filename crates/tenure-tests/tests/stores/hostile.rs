//! Tests of stores whose content was written by another program. Such content must not crash this
//! library, and its control characters must not reach a terminal.

use tenure::{Error, Status, Store};

use crate::under_test::{Server, StoreUnderTest, TTL, name};

/// Text that would control the terminal of a user who lists the leases.
const ESCAPE: &str = "\u{1b}[2Jx\u{202e}";

/// T5: a record of another program is shown without its raw text, and no content makes a claim,
/// `status` or `list` crash or hide the other leases.
pub(crate) fn garbage_in_the_store_is_neither_fatal_nor_printed(store: &StoreUnderTest) {
    let own = store.another();
    let fine = own.claim("fine").try_acquire().unwrap();
    let mut keys = Vec::new();
    for (index, record) in records().into_iter().enumerate() {
        let key = format!("bad{index}");
        plant(&own, &key, &record);
        keys.push(key);
    }
    keys.extend(plant_foreign(&own));
    // A claim on a key with foreign content may wait for a TTL, so all keys are probed at the same
    // time.
    std::thread::scope(|scope| {
        for key in &keys {
            scope.spawn(|| probe(&own.open(), key));
        }
    });
    let opened = own.open();
    let list = opened
        .list()
        .map_err(|error: Error| error.to_string())
        .unwrap();
    for status in &list {
        assert_clean(&shown(status));
    }
    let found = list.iter().find(|status| *status.key() == name("fine"));
    let token = found.unwrap().holder().unwrap().record().unwrap().token();
    assert_eq!(token, fine.token());
    assert!(!fine.lost());
}

/// Makes a claim on a key and inspects it. The outcome may be an error, whose text must be safe to
/// print.
fn probe(store: &Store, key: &str) {
    let claim = store.claim(&name(key)).ttl(TTL);
    match claim.acquire_within(TTL / 2, |holder| assert_clean(&holder.to_string())) {
        Ok(tenure) => assert!(tenure.token() > 0, "{key}"),
        Err(error) => {
            let text = error.to_string();
            assert_clean(&text);
            assert!(!text.contains("unexpected response"), "{key}: {text}");
        }
    }
    match store.status(&name(key)) {
        Ok(status) => assert_clean(&shown(&status)),
        Err(error) => assert_clean(&error.to_string()),
    }
    if let Err(error) = store.stop(&name(key)).timeout(TTL / 10).run() {
        assert_clean(&error.to_string());
    }
}

fn shown(status: &Status) -> String {
    let mut text = status.key().to_string();
    if let Some(holder) = status.holder() {
        text += &holder.to_string();
        if let Some(record) = holder.record() {
            text += &record.to_json().to_string();
        }
    }
    text
}

fn assert_clean(text: &str) {
    let bad = text
        .chars()
        .find(|char| char.is_control() || *char == '\u{202e}');
    // Newlines are the only allowed control characters: an error puts its hint on a line of its
    // own.
    assert!(bad.is_none_or(|char| char == '\n'), "{text:?}");
}

/// Lock records of a hostile program: garbage, misleading texts and very long ones.
fn records() -> Vec<Vec<u8>> {
    let escapes = format!(
        r#"{{"pid":1,"started_at":"2026-01-30T12:00:00Z","host":{0},"user":{0},"program":{0},"verb":{0},"stop":{0},"x":{0}}}"#,
        serde_json::to_string(ESCAPE).unwrap()
    );
    vec![
        Vec::new(),
        b"garbage".to_vec(),
        ESCAPE.as_bytes().to_vec(),
        vec![0xff; 100],
        escapes.into_bytes(),
        br#"{"pid":-5,"started_at":17,"token":"x"}"#.to_vec(),
        vec![b'['; 100_000],
        vec![b'x'; 300_000],
    ]
}

/// Stores a lease of another owner with this record.
fn plant(store: &StoreUnderTest, key: &str, record: &[u8]) {
    match &store.server {
        Server::Files(dir) => {
            std::fs::write(dir.path().join(format!("name_{key}.lock")), record).unwrap();
        }
        #[cfg(feature = "redis")]
        Server::Redis(server) => {
            redis::command(
                server,
                &[
                    b"HSET",
                    redis::lease(key).as_bytes(),
                    b"owner",
                    ESCAPE.as_bytes(),
                    b"token",
                    b"5",
                    b"record",
                    record,
                ],
            );
        }
        #[cfg(feature = "etcd")]
        Server::Etcd(server) => {
            // The record is an argument of etcdctl, and arguments can neither contain a zero byte
            // nor exceed a maximum length. Invalid UTF-8 is replaced and long records are
            // shortened.
            let record = String::from_utf8_lossy(&record[..record.len().min(50_000)]).into_owned();
            server.etcdctl(&["put", "--", &etcd::name(key, "owner"), ESCAPE]);
            server.etcdctl(&["put", "--", &etcd::name(key, "record"), &record]);
        }
        #[cfg(feature = "dynamodb")]
        Server::DynamoDb(server) => dynamodb::plant(server, key, record),
    }
}

/// Stores content that is not a lease at all. Returns the keys.
fn plant_foreign(store: &StoreUnderTest) -> Vec<String> {
    match &store.server {
        Server::Files(dir) => {
            std::fs::create_dir(dir.path().join("name_directory.lock")).unwrap();
            vec!["directory".to_owned()]
        }
        #[cfg(feature = "redis")]
        Server::Redis(server) => redis::plant_foreign(server),
        #[cfg(feature = "etcd")]
        Server::Etcd(server) => etcd::plant_foreign(server),
        #[cfg(feature = "dynamodb")]
        Server::DynamoDb(server) => dynamodb::plant_foreign(server),
    }
}

#[cfg(feature = "redis")]
mod redis {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use tenure_tests::servers::RedisServer;

    pub(super) fn lease(key: &str) -> String {
        format!("tenure:{{name_{key}}}:lease")
    }

    fn token(key: &str) -> String {
        format!("tenure:{{name_{key}}}:token")
    }

    pub(super) fn command(server: &RedisServer, words: &[&[u8]]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend(*word);
            request.extend(b"\r\n");
        }
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.write_all(&request).unwrap();
        let mut reply = [0; 64];
        let length = stream.read(&mut reply).unwrap();
        let text = String::from_utf8_lossy(&reply[..length]).into_owned();
        assert!(!text.starts_with('-'), "{text}");
    }

    pub(super) fn plant_foreign(server: &RedisServer) -> Vec<String> {
        server.command(&["SET", &lease("text"), "x"]);
        server.command(&["LPUSH", &lease("list"), "x"]);
        server.command(&["SET", &lease("\u{1b}[2Jescape"), "x"]);
        server.command(&["HSET", &lease("\u{1b}[2Jhash"), "owner", "x"]);
        server.command(&["HSET", &lease("fields"), "a", "b"]);
        server.command(&[
            "HSET",
            &lease("number"),
            "owner",
            "x",
            "token",
            "\u{1b}[2J",
            "ttl",
            "\u{1b}",
        ]);
        for (key, value) in [
            ("t-text", "x\u{1b}[2J"),
            ("t-nan", "nan"),
            ("t-inf", "inf"),
            ("t-huge", "1e300"),
            ("t-negative", "-7"),
        ] {
            server.command(&["SET", &token(key), value]);
        }
        server.command(&["LPUSH", &token("t-list"), "x"]);
        [
            "text",
            "list",
            "fields",
            "number",
            "t-text",
            "t-nan",
            "t-inf",
            "t-huge",
            "t-negative",
            "t-list",
        ]
        .map(str::to_owned)
        .into()
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    use tenure_tests::servers::EtcdServer;

    pub(super) fn name(key: &str, part: &str) -> String {
        format!("tenure/name_{key}/{part}")
    }

    pub(super) fn plant_foreign(server: &EtcdServer) -> Vec<String> {
        server.etcdctl(&["put", "--", "tenure/", "x"]);
        server.etcdctl(&["put", "--", "tenure/\u{1b}[2Jx/owner", "x"]);
        server.etcdctl(&["put", "--", &name("only-record", "record"), "x"]);
        server.etcdctl(&["put", "--", &name("only-stop", "stop"), "x"]);
        server.etcdctl(&["put", "--", &name("only-owner", "owner"), ""]);
        server.etcdctl(&["put", "--", &name("deeper/still", "owner"), "x"]);
        ["only-record", "only-stop", "only-owner"]
            .map(str::to_owned)
            .into()
    }
}

#[cfg(feature = "dynamodb")]
mod dynamodb {
    use serde_json::{Value, json};
    use tenure_tests::servers::DynamoDbServer;

    use super::ESCAPE;

    fn put(server: &DynamoDbServer, item: &Value) {
        let table = DynamoDbServer::TABLE;
        let stored = server.request("PutItem", &json!({"TableName": table, "Item": item}));
        assert!(stored.get("__type").is_none(), "{stored}");
    }

    pub(super) fn plant(server: &DynamoDbServer, key: &str, record: &[u8]) {
        put(
            server,
            &json!({
                "key": {"S": format!("name_{key}")}, "token": {"N": "5"}, "owner": {"S": ESCAPE},
                "version": {"S": ESCAPE}, "ttl_ms": {"N": "1000"}, "record": {"B": base64(record)},
            }),
        );
    }

    pub(super) fn plant_foreign(server: &DynamoDbServer) -> Vec<String> {
        let foreign = [
            ("empty", json!({})),
            (
                "types",
                json!({"owner": {"N": "1"}, "token": {"S": "x"}, "version": {"L": []}}),
            ),
            (
                "huge-token",
                json!({"token": {"N": "99999999999999999999999"}}),
            ),
            (
                "negative",
                json!({"token": {"N": "-7"}, "ttl_ms": {"N": "-1"}}),
            ),
            (
                "fraction",
                json!({"token": {"N": "1.5"}, "owner": {"S": "x"}, "version": {"S": "v"}}),
            ),
            (
                "forever",
                json!({"owner": {"S": "x"}, "version": {"S": "v"}, "ttl_ms": {"N": "1e30"}}),
            ),
        ];
        for (key, mut item) in foreign.clone() {
            item["key"] = json!({"S": format!("name_{key}")});
            put(server, &item);
        }
        put(server, &json!({"key": {"S": ESCAPE}, "owner": {"S": "x"}}));
        foreign.map(|(key, _)| key.to_owned()).into()
    }

    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for part in bytes.chunks(3) {
            let mut group = [0; 3];
            group[..part.len()].copy_from_slice(part);
            let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
            for digit in 0..4 {
                let value = (bits >> (18 - 6 * digit)) & 63;
                text.push(if digit > part.len() {
                    '='
                } else {
                    char::from(DIGITS[value as usize])
                });
            }
        }
        text
    }
}
