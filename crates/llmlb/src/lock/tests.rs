use std::error::Error as _;
use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use super::*;

fn fresh() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::in_dir(dir.path());
    (dir, store)
}

fn leave(store: &Store, port: u16, content: impl AsRef<[u8]>) {
    fs::write(store.path_of(&key(port)), content).unwrap();
}

const FIELDS: ServerFields = ServerFields {
    address: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 32768),
    drain_timeout: Duration::from_secs(30),
};

#[test]
fn second_acquire_is_refused_with_the_pid_and_start_of_the_holder() {
    let (_dir, store) = fresh();
    let lock = ServerLock::acquire_in(&store, 32768, Some(FIELDS)).unwrap();
    let refused = ServerLock::acquire_in(&store, 32768, None).unwrap_err();
    let LockError::AlreadyRunning { pid, .. } = &refused else {
        panic!("{refused:?}");
    };
    assert_eq!(*pid, Some(std::process::id()));
    let written = fs::read_to_string(lock.path()).unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(
        refused.to_string(),
        format!(
            "Server already running on port 32768 (PID: {}, started: {})",
            std::process::id(),
            written["started_at"].as_str().unwrap()
        )
    );
    assert_eq!(
        refused.hint().as_deref(),
        Some("stop it with `llmlb stop -p 32768`")
    );
    assert!(refused.source().is_some());
    // While a server holds the lock, the lock of another port can be acquired.
    drop(ServerLock::acquire_in(&store, 32769, None).unwrap());
    lock.release().unwrap();
    drop(ServerLock::acquire_in(&store, 32768, None).unwrap());
}

#[test]
fn holder_without_a_matching_record_is_reported_as_unknown() {
    let (_dir, store) = fresh();
    let lock = ServerLock::acquire_in(&store, 8000, None).unwrap();
    // Replace the lock record by one that names another process, which does not hold the lock.
    leave(
        &store,
        8000,
        r#"{"pid":1,"started_at":"2026-01-30T12:00:00Z","port":8000}"#,
    );
    let refused = ServerLock::acquire_in(&store, 8000, None).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Server already running on port 8000 (PID: unknown, started: unknown)"
    );
    assert!(refused.hint().unwrap().contains("an unknown process"));
    let read = read_in(&store, 8000).unwrap_err();
    assert!(matches!(read, LockError::Corrupted { .. }), "{read:?}");
    drop(lock);
}

#[test]
fn lock_file_is_readable_while_held_and_equals_info() {
    let (_dir, store) = fresh();
    assert_eq!(read_in(&store, 32768).unwrap(), None);
    let mut lock = ServerLock::acquire_in(&store, 32768, Some(FIELDS)).unwrap();
    assert_eq!(read_in(&store, 32768).unwrap().as_ref(), Some(lock.info()));
    let info = lock.info();
    assert_eq!((info.pid, info.port), (std::process::id(), 32768));
    assert_eq!(info.program.as_deref(), Some("llmlb"));
    assert_eq!(info.verb.as_deref(), Some("serve"));
    assert_eq!(info.version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(info.address, Some(FIELDS.address));
    assert_eq!(info.drain_timeout, Some(FIELDS.drain_timeout));

    let text = fs::read_to_string(lock.path()).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written["address"], "127.0.0.1:32768");
    assert_eq!(written["drain_timeout_ms"], 30_000);
    assert_eq!(written["llmlb_version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(written["stop"], "llmlb stop -p 32768");
    // Other programs can deserialize `LockInfo` from the lock file directly: unknown fields are
    // ignored.
    assert_eq!(&serde_json::from_str::<LockInfo>(&text).unwrap(), info);

    lock.tenure_mut().set_field("note", "more").unwrap();
    assert_eq!(read_in(&store, 32768).unwrap().as_ref(), Some(lock.info()));
    lock.release().unwrap();
    assert_eq!(read_in(&store, 32768).unwrap(), None);
    assert!(!store.path_of(&key(32768)).exists());
}

#[test]
fn lock_info_survives_a_json_round_trip() {
    for text in [
        r#"{"pid":12345,"started_at":"2026-01-30T12:00:00Z","port":8000}"#,
        r#"{"pid":12345,"started_at":"2026-01-30T12:00:00.25Z","port":8000,"host":"h","user":"u","program":"llmlb","verb":"serve","llmlb_version":"0.1.0","address":"[::1]:8000","drain_timeout_ms":1500}"#,
    ] {
        let info: LockInfo = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&info).unwrap(), text);
    }
    for bad in [
        "{}",
        r#"{"pid":-1,"started_at":"2026-01-30T12:00:00Z","port":8000}"#,
        r#"{"pid":1,"started_at":"yesterday","port":8000}"#,
        r#"{"pid":1,"started_at":"2026-01-30T12:00:00Z","port":80000}"#,
    ] {
        assert!(serde_json::from_str::<LockInfo>(bad).is_err(), "{bad}");
    }
}

#[test]
fn record_with_only_the_required_fields_is_read_and_taken_over() {
    let (_dir, store) = fresh();
    let text = r#"{"pid":2147483000,"started_at":"2026-01-30T12:00:00Z","port":8000}"#;
    leave(&store, 8000, text);
    let mut info = read_in(&store, 8000).unwrap().unwrap();
    // `info.user` is the owner of the lock file, even if the lock record names another user.
    assert!(info.user.take().is_some() || cfg!(windows));
    assert_eq!(serde_json::to_string(&info).unwrap(), text);
    let lock = ServerLock::acquire_in(&store, 8000, None).unwrap();
    assert_eq!(lock.info().pid, std::process::id());
}

#[test]
fn invalid_fields_count_as_missing() {
    let (_dir, store) = fresh();
    leave(
        &store,
        8000,
        r#"{"pid":7,"started_at":"2026-01-30T12:00:00Z","address":"here","drain_timeout_ms":"long","llmlb_version":2}"#,
    );
    let mut info = read_in(&store, 8000).unwrap().unwrap();
    info.user = None;
    assert_eq!(
        serde_json::to_string(&info).unwrap(),
        r#"{"pid":7,"started_at":"2026-01-30T12:00:00Z","port":8000}"#
    );
}

#[test]
fn invalid_record_is_corrupted_and_does_not_block_acquire() {
    let (_dir, store) = fresh();
    drop(ServerLock::acquire_in(&store, 1, None).unwrap());
    let lock = ServerLock::acquire_in(&store, 8001, None).unwrap();
    let whole = fs::read(lock.path()).unwrap();
    let cases: [(&[u8], &str); 5] = [
        (b"", "it is empty"),
        (b"garbage", "it is not a JSON object"),
        (b"{}", "it has no number `pid`"),
        (
            &whole[..whole.len() / 2],
            "it was only partly written (its checksum does not match)",
        ),
        (
            b"{\"pid\":7,\"port\":8000}",
            "the field `started_at` is missing or invalid",
        ),
    ];
    for (content, reason) in cases {
        leave(&store, 8000, content);
        match read_in(&store, 8000) {
            Err(LockError::Corrupted { path, why }) => {
                assert_eq!((path, why.as_str()), (store.path_of(&key(8000)), reason));
            }
            other => panic!("{reason}: {other:?}"),
        }
        drop(ServerLock::acquire_in(&store, 8000, None).unwrap());
    }
}

#[test]
fn directory_at_the_lock_path_is_neither_read_nor_replaced() {
    let (_dir, store) = fresh();
    let path = store.path_of(&key(8000));
    fs::create_dir(&path).unwrap();
    let read = read_in(&store, 8000).unwrap_err();
    assert!(matches!(read, LockError::ReadFailed { .. }), "{read:?}");
    assert!(read.to_string().contains(path.to_str().unwrap()), "{read}");
    let refused = ServerLock::acquire_in(&store, 8000, None).unwrap_err();
    assert!(
        matches!(refused, LockError::AcquireFailed { port: 8000, .. }),
        "{refused:?}"
    );
    assert!(refused.source().is_some());
    assert_eq!(refused.hint(), None);
}

#[test]
fn server_lock_is_send() {
    fn is_send<T: Send>() {}
    is_send::<ServerLock>();
    is_send::<LockError>();
}
