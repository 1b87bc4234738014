//! T7: bad files never block a key and never crash a process.

use std::fs;

use tenure::State;

use crate::Fixture;

#[test]
fn file_without_a_lock_is_stale_whatever_its_content() {
    let whole = {
        let fixture = Fixture::new();
        let _tenure = fixture.try_acquire().unwrap();
        fs::read(fixture.file()).unwrap()
    };
    let torn = &whole[..whole.len() / 2];
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("torn", torn.to_vec()),
        ("zeros", vec![0; 4096]),
        ("garbage", b"not json at all".to_vec()),
        ("not UTF-8", vec![0xff, 0xfe, 0x80, b'{']),
        ("foreign JSON", br#"{"name":"something else"}"#.to_vec()),
        ("an array", b"[1,2,3]".to_vec()),
        (
            "pid 0",
            br#"{"pid":0,"started_at":"2026-01-30T12:00:00Z"}"#.to_vec(),
        ),
        (
            "pid 1",
            br#"{"pid":1,"started_at":"2026-01-30T12:00:00Z"}"#.to_vec(),
        ),
        ("impossible pid", br#"{"pid":4294967295}"#.to_vec()),
        ("huge pid", br#"{"pid":99999999999999999999999}"#.to_vec()),
        (
            "the pid of this process",
            format!("{{\"pid\":{}}}", std::process::id()).into_bytes(),
        ),
        (
            "the future",
            br#"{"pid":5,"version":99,"shape":{"unknown":[1,2]}}"#.to_vec(),
        ),
        (
            "deep",
            [b"[".repeat(100_000), b"]".repeat(100_000)].concat(),
        ),
        ("a whole record of a dead owner", whole.clone()),
    ];
    for (case, bytes) in cases {
        let fixture = Fixture::new();
        fs::write(fixture.file(), &bytes).unwrap();
        let status = fixture.status();
        assert!(
            matches!(status.state(), State::Stale(_) | State::Unreadable(_)),
            "{case}: {status:?}"
        );
        let tenure = fixture
            .try_acquire()
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        let text = fs::read_to_string(fixture.file()).unwrap();
        assert!(
            serde_json::from_str::<serde_json::Value>(&text).is_ok(),
            "{case}: {text}"
        );
        tenure.release().unwrap();
        assert!(!fixture.file().exists(), "{case}");
    }
}

#[test]
fn huge_file_is_taken_over_without_being_read_whole() {
    let fixture = Fixture::new();
    fs::File::create(fixture.file())
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    #[cfg(target_os = "linux")]
    let before = peak_memory();
    assert!(matches!(fixture.status().state(), State::Unreadable(_)));
    let tenure = fixture.try_acquire().unwrap();
    assert!(fs::metadata(fixture.file()).unwrap().len() < 4096);
    assert!(fixture.try_acquire().unwrap_err().is_held());
    #[cfg(target_os = "linux")]
    assert!(
        peak_memory() - before < 256 << 10,
        "the whole file was read"
    );
    drop(tenure);
}

#[cfg(target_os = "linux")]
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("a peak").parse().expect("a number")
}

#[test]
fn record_with_a_start_time_in_the_future_is_taken_over() {
    let fixture = Fixture::new();
    fs::write(
        fixture.file(),
        r#"{"pid":77,"started_at":"2999-01-01T00:00:00Z"}"#,
    )
    .unwrap();
    assert!(matches!(fixture.status().state(), State::Stale(_)));
    drop(fixture.try_acquire().unwrap());
}

#[test]
fn unknown_fields_survive_a_rewrite() {
    let fixture = Fixture::new();
    let mut tenure = fixture.try_acquire().unwrap();
    let text = fs::read_to_string(fixture.file()).unwrap();
    // The file has a field that a newer version of the library wrote and this version does not
    // know. The record has no checksum, which is accepted.
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["from_the_future"] = serde_json::json!({"a": [1, "é", 12_345_678_901_234_567_890_u64]});
    for known in ["crc32", "version"] {
        json.as_object_mut().unwrap().remove(known);
    }
    fs::write(fixture.file(), json.to_string()).unwrap();
    tenure.set_field("pod_name", "pod-1").unwrap();
    let status = fixture.status();
    let record = status.holder().unwrap().record().unwrap();
    assert_eq!(
        record.field("from_the_future"),
        Some(&json["from_the_future"])
    );
    assert_eq!(record.field("pod_name").unwrap(), "pod-1");
}
