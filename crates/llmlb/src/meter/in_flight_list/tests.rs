//! Tests of in-flight lists as a server writes them and as the next start reads them, complete or
//! damaged.

use serde_json::Value;

use super::recover::Recovered;
use super::row::{
    clear, read, write_backend, write_model, write_record, write_request, write_state,
};
use super::*;
use crate::dice::Dice;
use crate::endpoint::Api;
use crate::meter::usage::{TokenUsage, UsageSource};

const INSTANCE: &str = "gpu-1:32768";

fn words() -> Vec<AtomicU64> {
    (0..ROW_WORDS).map(|_| AtomicU64::new(0)).collect()
}

fn bytes(words: &[AtomicU64]) -> [u8; ROW_BYTES] {
    let words = words.iter().map(|word| word.load(Ordering::Relaxed));
    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    bytes.try_into().unwrap()
}

fn request(record_id: Uuid) -> Request<'static> {
    Request {
        record_id,
        request_id: "req-1",
        path: "/v1/chat/completions",
        api: Api::Chat,
        key: Some("alice"),
        team: Some("research"),
    }
}

fn state() -> RequestState {
    RequestState {
        usage: TokenUsage {
            prompt: 9,
            completion: 4,
            cached: 8,
            reasoning: 1,
            total: 13,
            source: UsageSource::Estimated,
        },
        is_stream: true,
        status: 200,
        bytes: 5120,
        first_byte_ms: Some(0),
    }
}

fn fill(words: &[AtomicU64], id: Uuid) {
    write_request(words, &request(id));
    write_model(words, "fast");
    write_backend(words, "gpu-2", None);
    write_backend(words, "gpu-1", Some("llama3:8b"));
    write_state(words, &state());
}

fn value(row: &[u8; ROW_BYTES]) -> Value {
    let record = read(row).unwrap().record(INSTANCE);
    serde_json::from_str(record.json()).unwrap()
}

#[test]
fn record_has_the_id_and_all_that_is_known_of_the_request() {
    let words = words();
    let id = Uuid::try_parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap();
    fill(&words, id);
    let expected: Value = serde_json::from_str(
        r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","time":"2023-06-30T03:34:18.518Z",
        "request_id":"req-1","key":"alice","team":"research","model":"fast","served_model":"llama3:8b",
        "backend":"gpu-1","api":"chat","path":"/v1/chat/completions","stream":true,"status":200,
        "outcome":"interrupted","attempts":[],"prompt_tokens":9,"completion_tokens":4,
        "cached_tokens":8,"reasoning_tokens":1,"tokens":13,"estimated_tokens":13,
        "tokens_from":"estimated","ms":0,"first_byte_ms":0,"bytes":5120,
        "instance":"gpu-1:32768"}"#,
    )
    .unwrap();
    assert_eq!(value(&bytes(&words)), expected);
    clear(&words);
    assert_eq!(read(&bytes(&words)), None);
    // The next request in the same row must have nothing of this request.
    write_request(&words, &request(id));
    let next = value(&bytes(&words));
    for name in ["model", "backend", "status", "first_byte_ms"] {
        assert_eq!(next[name], Value::Null, "{name}");
    }
    assert_eq!(next["tokens"], 0);
    assert_eq!(next["tokens_from"], "none");
}

#[test]
fn names_are_truncated_at_a_character() {
    let words = words();
    write_request(&words, &request(Uuid::now_v7()));
    for long in ["x", "é", "😀", "\""] {
        let name = long.repeat(100_000);
        write_model(&words, &name);
        write_backend(&words, &name, Some(&name));
        let value = value(&bytes(&words));
        for field in ["model", "backend", "served_model"] {
            if field != "served_model" {
                let length = value[field].as_str().unwrap().len();
                assert!((196..=300).contains(&length), "{field}: {length}");
            }
            let text = value[field].as_str().unwrap_or(&name);
            assert!(name.starts_with(text), "{field}");
        }
    }
}

/// A process can be killed between any two stores. Replay the stores of a request in their order,
/// and read the row after each of them: every state must be readable.
#[test]
fn row_is_readable_after_every_store() {
    let (before, after) = (words(), words());
    let id = Uuid::now_v7();
    write_request(&before, &request(id));
    write_model(&before, "fast");
    write_backend(&before, "gpu-2", None);
    write_request(&after, &request(id));
    write_model(&after, "fast");
    write_backend(&after, "gpu-2", None);
    write_backend(&after, "gpu-1", Some("llama3:8b"));
    let (mut row, target) = (bytes(&before), bytes(&after));
    let mut changed: Vec<usize> = (0..ROW_BYTES)
        .filter(|at| row[*at] != target[*at])
        .collect();
    changed.retain(|at| !(24..32).contains(at));
    for at in changed {
        row[at] = target[at];
        assert_eq!(value(&row)["backend"], "gpu-2");
    }
    row[24..32].copy_from_slice(&target[24..32]);
    assert_eq!(value(&row)["backend"], "gpu-1");
}

#[test]
fn damaged_sections_are_omitted_and_numbers_are_bounded() {
    let words = words();
    fill(&words, Uuid::now_v7());
    let whole = bytes(&words);
    for at in (16 * 8..(16 + 7) * 8).filter(|at| *at != 16 * 8 + 7) {
        let mut torn = whole;
        torn[at] ^= 0x40;
        if let Some(request) = read(&torn) {
            // Bytes in a section after the end of the texts are ignored.
            assert_eq!(Some(request), read(&whole), "{at}");
        }
    }
    let mut torn = whole;
    torn[72 * 8 + 9] ^= 1;
    assert_eq!(value(&torn)["model"], Value::Null);
    let mut huge = whole;
    huge[4 * 8..9 * 8].fill(0xff);
    let value = value(&huge);
    assert_eq!(value["prompt_tokens"], 1_000_000_000);
    assert_eq!(value["tokens"], 2_000_000_000u64);
}

#[test]
fn any_bytes_are_read_without_a_panic() {
    let mut dice = Dice::new(17);
    let words = words();
    fill(&words, Uuid::now_v7());
    let whole = bytes(&words);
    for _ in 0..20_000 {
        let mut row = whole;
        for _ in 0..=dice.below(8) {
            let at = dice.below(ROW_BYTES);
            row[at] = u8::try_from(dice.below(256)).unwrap();
        }
        if let Some(request) = read(&row) {
            let record = request.record(INSTANCE);
            assert!(spool::Record::parse(record.json()).is_ok());
        }
    }
}

struct World {
    data: tempfile::TempDir,
    staging: Staging,
}

use spool::Staging;

impl World {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let staging = Staging::open(data.path().join("_staging")).unwrap();
        Self { data, staging }
    }

    fn list(&self) -> Arc<InFlightList> {
        let list = InFlightList::create(self.data.path(), Some("here"), INSTANCE).unwrap();
        Arc::new(list)
    }

    fn recover(&self) -> Recovered {
        recover(self.data.path(), Some("here"), &self.staging)
    }

    fn lists(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.data.path().join(DIR)).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }

    /// Writes an in-flight list as a killed server leaves it: with rows, and without a lock.
    fn leave(&self, ids: &[Uuid]) -> PathBuf {
        let list = self.list();
        let pool = Arc::new(RowPool::new(Arc::clone(&list)));
        let rows: Vec<_> = ids
            .iter()
            .map(|id| pool.add(&request(*id)).unwrap())
            .collect();
        let bytes = std::fs::read(list.path()).unwrap();
        drop((rows, pool, list));
        let path = self.data.path().join(DIR).join("left.list");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn staged(&self) -> Vec<Value> {
        self.staging.seal().unwrap();
        let mut found = Vec::new();
        for file in std::fs::read_dir(self.data.path().join("_staging")).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap_or_default();
            for line in text.lines() {
                let start = line.find("{\"id\"");
                let value = start.and_then(|at| {
                    let mut values = serde_json::Deserializer::from_str(&line[at..]).into_iter();
                    values.next().and_then(Result::ok)
                });
                found.extend(value);
            }
        }
        found
    }
}

#[test]
fn list_is_recovered_once_its_owner_has_ended_and_then_removed() {
    let world = World::new();
    let ids: Vec<Uuid> = (0..100).map(|_| Uuid::now_v7()).collect();
    let live = world.list();
    let path = world.leave(&ids);
    assert_eq!(
        world.recover(),
        Recovered {
            requests: 100,
            failed: 0
        }
    );
    assert!(!path.exists());
    assert_eq!(world.lists(), [live.path()], "a list in use is not touched");
    let mut staged: Vec<String> = world
        .staged()
        .iter()
        .map(|record| record["id"].as_str().unwrap().to_owned())
        .collect();
    staged.sort_unstable();
    let mut expected: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    expected.sort_unstable();
    assert_eq!(staged, expected);
    assert_eq!(world.recover(), Recovered::default());
    drop(live);
    assert!(
        world.lists().is_empty(),
        "a server that stops leaves no list"
    );
}

/// A kill after the usage record was persisted and before the row was freed leaves the request in
/// both files. It must be counted once.
#[test]
fn record_that_was_persisted_just_before_the_kill_is_counted_once() {
    let world = World::new();
    let mut records = Vec::new();
    let list = world.list();
    let pool = Arc::new(RowPool::new(Arc::clone(&list)));
    let rows: Vec<_> = (0..3)
        .map(|_| {
            let id = Uuid::now_v7();
            let record = format!("{{\"id\":\"{id}\",\"outcome\":\"complete\",\"tokens\":7}}");
            let record = spool::Record::parse(&record).unwrap();
            let row = pool.add(&request(id)).unwrap();
            row.note_record(&record);
            records.push(record);
            row
        })
        .collect();
    let bytes = std::fs::read(list.path()).unwrap();
    drop((rows, pool, list));
    world
        .staging
        .stage(&records[0], spool::Durability::Process)
        .unwrap();
    world.staging.seal().unwrap();
    let mut options = spool::Options::default();
    options.grouping = crate::meter::grouping();
    let consolidate = || spool::consolidate(world.data.path(), &options).unwrap();
    assert_eq!(consolidate().records, 1);
    world
        .staging
        .stage(&records[1], spool::Durability::Process)
        .unwrap();
    for (new, repeated) in [(2, 2), (0, 3)] {
        std::fs::write(world.data.path().join(DIR).join("left.list"), &bytes).unwrap();
        assert_eq!(
            world.recover(),
            Recovered {
                requests: 3,
                failed: 0
            }
        );
        world.staging.seal().unwrap();
        let done = consolidate();
        assert_eq!(
            (done.records, done.repeated, done.aside),
            (new, repeated, 0)
        );
    }
    let books = spool::verify(world.data.path(), &spool::Watch::silent()).unwrap();
    assert!(books.problems.is_empty());
    assert_eq!((books.staged, books.failed, books.repeated), (3, 0, 5));
}

#[test]
fn final_record_with_another_id_and_a_record_that_is_too_long_are_not_used() {
    let words = words();
    fill(&words, Uuid::now_v7());
    let other = spool::Record::parse(&format!("{{\"id\":\"{}\"}}", Uuid::now_v7())).unwrap();
    write_record(&words, &other);
    assert_eq!(value(&bytes(&words))["outcome"], "interrupted");
    let id = Uuid::now_v7();
    fill(&words, id);
    let long = format!("{{\"id\":\"{id}\",\"x\":\"{}\"}}", "x".repeat(3000));
    write_record(&words, &spool::Record::parse(&long).unwrap());
    assert_eq!(value(&bytes(&words))["outcome"], "interrupted");
}

#[test]
fn list_with_a_request_is_kept_when_its_server_stops() {
    let world = World::new();
    let list = world.list();
    let pool = Arc::new(RowPool::new(Arc::clone(&list)));
    let row = pool.add(&request(Uuid::now_v7())).unwrap();
    list.close();
    assert_eq!(world.lists().len(), 1);
    drop(row);
    // Windows removes a file when it is neither mapped nor open.
    drop(pool);
    drop(list);
    assert!(world.lists().is_empty());
}

#[test]
fn rows_are_reused_and_the_list_stays_small() {
    let world = World::new();
    let list = world.list();
    let pool = Arc::new(RowPool::new(Arc::clone(&list)));
    for _ in 0..1000 {
        let rows: Vec<_> = (0..40)
            .map(|_| pool.add(&request(Uuid::now_v7())))
            .collect();
        assert!(rows.iter().all(Option::is_some));
    }
    let length = std::fs::metadata(list.path()).unwrap().len();
    assert_eq!(length, 2 * SEGMENT_BYTES as u64);
}

#[cfg(unix)]
#[test]
fn list_that_another_user_may_have_written_is_kept() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    let world = World::new();
    let path = world.leave(&[Uuid::now_v7()]);
    let dir = world.data.path().join(DIR);
    let failed = Recovered {
        requests: 0,
        failed: 1,
    };
    set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    assert_eq!(world.recover(), failed);
    set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    assert_eq!(world.recover(), failed);
    InFlightList::create(world.data.path(), Some("here"), INSTANCE).unwrap_err();
    assert!(world.staged().is_empty());
    set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
    assert_eq!(world.recover().requests, 1);
    assert!(!path.exists());
}

#[test]
fn damaged_foreign_and_newer_lists_are_kept_and_empty_ones_removed() {
    let world = World::new();
    let dir = world.data.path().join(DIR);
    data_file::make_dir(&dir).unwrap();
    let header = |version: u32, instance: &str| {
        let header = Header {
            version,
            host: "here".to_owned(),
            pid: 1,
            process: String::new(),
            instance: instance.to_owned(),
        };
        serde_json::to_vec(&header).unwrap()
    };
    let kept = [
        ("garbage.list", b"\x01\x02garbage".to_vec()),
        ("newer.list", header(2, INSTANCE)),
        ("instance.list", header(1, "a\"b")),
        ("notes.txt", b"not ours".to_vec()),
    ];
    for (name, bytes) in &kept {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    std::fs::create_dir(dir.join("directory.list")).unwrap();
    for (name, bytes) in [
        ("empty.list", Vec::new()),
        ("zeros.list", vec![0; 4096]),
        (
            "cut.list",
            [header(1, INSTANCE), vec![0; ROW_BYTES + 7]].concat(),
        ),
        ("incomplete.new", b"{".to_vec()),
    ] {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    assert_eq!(
        world.recover(),
        Recovered {
            requests: 0,
            failed: 4
        }
    );
    let mut left: Vec<_> = world.lists();
    left.sort_unstable();
    let names: Vec<_> = left
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "directory.list",
            "garbage.list",
            "instance.list",
            "newer.list",
            "notes.txt"
        ]
    );
}

#[test]
#[cfg(unix)]
fn list_behind_a_link_is_not_read() {
    let world = World::new();
    let path = world.leave(&[Uuid::now_v7()]);
    let elsewhere = world.data.path().join("elsewhere");
    std::fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    assert_eq!(
        world.recover(),
        Recovered {
            requests: 0,
            failed: 1
        }
    );
    assert!(elsewhere.exists() && path.is_symlink());
}
