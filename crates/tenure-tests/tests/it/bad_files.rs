//! T7: bad files never block and never crash.

use std::fs;

use tenure::State;

use crate::Scene;

#[test]
fn whatever_the_file_holds_it_is_stale_if_nobody_has_the_lock() {
    let whole = {
        let scene = Scene::new();
        let _tenure = scene.take().unwrap();
        fs::read(scene.file()).unwrap()
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
            "our own pid",
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
    for (what, bytes) in cases {
        let scene = Scene::new();
        fs::write(scene.file(), &bytes).unwrap();
        let status = scene.status();
        assert!(
            matches!(status.state(), State::Stale(_) | State::Unreadable(_)),
            "{what}: {status:?}"
        );
        let tenure = scene
            .take()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let text = fs::read_to_string(scene.file()).unwrap();
        assert!(
            serde_json::from_str::<serde_json::Value>(&text).is_ok(),
            "{what}: {text}"
        );
        tenure.release().unwrap();
        assert!(!scene.file().exists(), "{what}");
    }
}

#[test]
fn a_file_of_a_gibibyte_is_neither_read_whole_nor_in_the_way() {
    let scene = Scene::new();
    fs::File::create(scene.file())
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    #[cfg(target_os = "linux")]
    let before = peak_memory();
    assert!(matches!(scene.status().state(), State::Unreadable(_)));
    let tenure = scene.take().unwrap();
    assert!(fs::metadata(scene.file()).unwrap().len() < 4096);
    assert!(scene.take().unwrap_err().is_held());
    #[cfg(target_os = "linux")]
    assert!(
        peak_memory() - before < 256 << 10,
        "the file was read whole"
    );
    drop(tenure);
}

/// In KiB.
#[cfg(target_os = "linux")]
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("a peak").parse().expect("a number")
}

#[test]
fn a_record_from_the_future_by_the_clock_is_no_obstacle() {
    let scene = Scene::new();
    fs::write(
        scene.file(),
        r#"{"pid":77,"started_at":"2999-01-01T00:00:00Z"}"#,
    )
    .unwrap();
    assert!(matches!(scene.status().state(), State::Stale(_)));
    drop(scene.take().unwrap());
}

#[test]
fn fields_that_this_version_does_not_know_survive_a_rewrite() {
    let scene = Scene::new();
    let mut tenure = scene.take().unwrap();
    let text = fs::read_to_string(scene.file()).unwrap();
    // As a newer version of the same owner would have written it, without a checksum of ours.
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["from_the_future"] = serde_json::json!({"a": [1, "é", 12_345_678_901_234_567_890_u64]});
    for known in ["crc32", "version"] {
        json.as_object_mut().unwrap().remove(known);
    }
    fs::write(scene.file(), json.to_string()).unwrap();
    tenure.set_field("pod_name", "pod-1").unwrap();
    let status = scene.status();
    let record = status.holder().unwrap().record().unwrap();
    assert_eq!(
        record.field("from_the_future"),
        Some(&json["from_the_future"])
    );
    assert_eq!(record.field("pod_name").unwrap(), "pod-1");
}
