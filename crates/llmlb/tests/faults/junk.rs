//! Junk of every kind in every directory: nothing of it is destroyed, and nothing stops.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::books::Policy;
use crate::fault::{Fault, Mix};
use crate::reckoning::Reckoning;
use crate::world::World;
use testkit::random::Random;

const DIRS: [&str; 7] = [
    "", "_staging", "spool", "sent", "failed", "archive", "usage",
];

/// What lies there and is none of ours.
#[derive(Debug, Default)]
struct Junk {
    /// By what it is, where these bytes were put.
    files: BTreeMap<Vec<u8>, Vec<PathBuf>>,
    links: Vec<PathBuf>,
}

/// Names that look like ours, and names that nobody likes.
fn names(random: &mut Random) -> Vec<OsString> {
    let id = || Uuid::now_v7().to_string();
    let mut batch = || format!("{}-00000001-{:016x}.json", id(), random.next());
    let mut names: Vec<OsString> = [
        format!("{}.json", id()),
        format!("{}.jsonl", id()),
        format!("{}.jsonl.open", id()),
        format!("{}.torn", id()),
        batch(),
        batch() + ".reason.json",
        batch() + ".state.json",
        format!("{}-99999999-{}.json", id(), "f".repeat(16)),
        "2026-01-01.json".to_owned(),
        "99999-99-99.json".to_owned(),
        "totals.json".to_owned(),
        "README".to_owned(),
        " ".to_owned(),
        "a\nb\u{1b}[31m.json".to_owned(),
        format!("{}.json", "n".repeat(250)),
        "00000000-0000-0000-0000-000000000000.json".to_owned(),
    ]
    .map(OsString::from)
    .to_vec();
    names.push(OsString::from_vec(b"\xff\xfe.json".to_vec()));
    names
}

fn contents(random: &mut Random) -> Vec<Vec<u8>> {
    let id = Uuid::now_v7();
    let mut contents = vec![
        Vec::new(),
        b"{".to_vec(),
        b"[]\n".to_vec(),
        b"null".to_vec(),
        br#"{"id":7}"#.to_vec(),
        br#"{"id":"x"}"#.to_vec(),
        br#"{"id":7,"version":1,"idempotency_key":"x","entries":[],"records":{},"crc":"00000000"}"#
            .to_vec(),
        br#"{"id":7,"version":999,"idempotency_key":"x","entries":[],"records":[]}"#.to_vec(),
        format!(r#"{{"id":"{id}","id":"{id}"}}"#).into_bytes(),
        vec![0; 70_000],
        vec![b'\n'; 50],
        vec![b'['; 200_000],
        b"{\"a\":".repeat(50_000),
        "\u{feff}{}".as_bytes().to_vec(),
    ];
    contents.extend((1..4).map(|size| random.bytes(size * 1000)));
    contents
}

impl Junk {
    fn file(&mut self, path: PathBuf, content: Vec<u8>) {
        match fs::File::create_new(&path) {
            Ok(_) => fs::write(&path, &content).unwrap(),
            // This name lies there from another round.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return,
            Err(error) => panic!("{}: {error}", path.display()),
        }
        self.files.entry(content).or_default().push(path);
    }

    fn link(&mut self, path: PathBuf, target: &OsStr) {
        symlink(target, &path).unwrap();
        self.links.push(path);
    }

    /// Every name with some content, as a directory, and as a link to various things.
    fn scatter(&mut self, world: &World, random: &mut Random) {
        let outside = world.path("outside");
        fs::create_dir_all(&outside).unwrap();
        let victim = outside.join("victim");
        fs::write(&victim, "somebody else's").unwrap();
        for dir in DIRS.map(|dir| world.data().join(dir)) {
            fs::create_dir_all(&dir).unwrap();
            let contents = contents(random);
            for (place, content) in contents.iter().enumerate() {
                let names = names(random);
                self.file(dir.join(&names[place % names.len()]), content.clone());
                let other = usize::try_from(random.below(names.len() as u64)).unwrap();
                self.file(dir.join(&names[other]), content.clone());
            }
            for (place, name) in names(random).iter().enumerate().take(8) {
                let path = dir.join(name);
                match place % 5 {
                    0 => self.link(path, OsStr::new("nowhere")),
                    1 => self.link(path, victim.as_os_str()),
                    2 => self.link(path, outside.as_os_str()),
                    3 => self.link(path.clone(), path.file_name().unwrap()),
                    _ => {
                        fs::create_dir(&path).unwrap();
                        self.file(path.join("inside"), random.bytes(50));
                    }
                }
            }
            for name in names(random).iter().take(6) {
                let path = dir.join(name);
                fs::create_dir(&path).unwrap();
                self.file(path.join("inside"), random.bytes(50));
            }
            // Half of what a crashed program wrote. It was never whole, and may go.
            let half = OsString::from_vec([b".", names(random)[4].as_bytes(), b".tmp"].concat());
            fs::write(dir.join(half), r#"{"version":1,"idempo"#).unwrap();
        }
    }

    /// What is not there any more, anywhere in the data directory.
    fn missing(&self, world: &World) -> Vec<String> {
        let mut counts: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let mut links = 0;
        walk(world.data(), &mut |path| {
            if path.is_symlink() {
                links += 1;
            } else if let Ok(bytes) = fs::read(path) {
                *counts.entry(bytes).or_default() += 1;
            }
        });
        let mut missing = Vec::new();
        for (bytes, paths) in &self.files {
            let there = counts.get(bytes).copied().unwrap_or(0);
            // Nothing is lost with an empty file.
            if there < paths.len() && !bytes.is_empty() {
                let start = String::from_utf8_lossy(&bytes[..bytes.len().min(20)]);
                let gone = paths.iter().filter(|path| !path.exists());
                let gone: Vec<_> = gone.collect();
                missing.push(format!(
                    "{there} of {} with {start:?}, of those not in their place any more: {gone:?}",
                    paths.len()
                ));
            }
        }
        if links < self.links.len() {
            let gone = self.links.iter().filter(|path| !path.is_symlink());
            missing.extend(gone.map(|path| format!("a link: {}", path.display())));
        }
        if fs::read(world.path("outside/victim")).unwrap() != b"somebody else's" {
            missing.push("what was outside".to_owned());
        }
        missing
    }
}

fn walk(dir: &Path, each: &mut dyn FnMut(&Path)) {
    for file in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_dir() {
            walk(&file.path(), each);
        } else {
            each(&file.path());
        }
    }
}

fn count(world: &World) -> usize {
    let mut count = 0;
    walk(world.data(), &mut |_| count += 1);
    count
}

#[test]
fn junk_in_every_directory_is_kept_and_stops_nobody() {
    let mut world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    let mut junk = Junk::default();
    let mut random = Random::of_run(3);
    // Before anything was ever there, and again between good files.
    for round in 0..3 {
        if round == 1 {
            world.stage_fresh(100, 0).assert_code(0);
            world.run("consolidate");
        }
        junk.scatter(&world, &mut random);
        world.stage_fresh(100, 0).assert_code(0);
        world.drop_files(5, 0);
        world.run("consolidate");
        world.run("deliver --now --batch-size 20");
        for words in [
            "pending",
            "failed",
            "verify",
            "resend",
            "resend --all --dry-run",
            "pending --json",
            "failed --json",
            "verify --json",
        ] {
            world.run(words);
        }
        assert_eq!(
            world.acknowledged().len(),
            world.receiver.state().books.billed.len()
        );
    }
    let missing = junk.missing(&world);
    assert_eq!(missing, [""; 0], "destroyed");
    // A second look at the same junk makes no new files, and a deliverer lives with it.
    let before = count(&world);
    world.run("deliver --now --batch-size 20").assert_code(0);
    let deliverer = world.start_deliverer();
    world.stage_fresh(100, 0).assert_code(0);
    testkit::until("it delivers among the junk", || {
        world.acknowledged().len() == world.receiver.state().books.billed.len()
    });
    world.kills += 1;
    deliverer.kill();
    world.run("deliver --now --batch-size 20").assert_code(0);
    let after = count(&world);
    let batches = 100 / 20;
    assert!(
        after <= before + 4 * batches,
        "{before} files became {after}"
    );
    let files: usize = junk.files.values().map(Vec::len).sum();
    let what = format!("junk: {files} files and {} links", junk.links.len());
    Reckoning::among_junk(&what, &world).must_be_clean();
}

/// Files of ours that somebody has overwritten.
const OURS: [&str; 9] = [
    "_staging/.consolidation.written",
    "_staging/.reserve",
    "spool/.pause.json",
    "sent/sent-00000001.jsonl",
    "sent/sent-00000007.jsonl",
    "usage/taken-00000001.jsonl",
    "usage/taken-00000007.jsonl",
    "usage/TODAY.json",
    "sent/sent-99999999.jsonl",
];

fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// Something is put in the place of each file of ours: what is staged is delivered once, if not
/// at once then as soon as what is in the way, which is named, is gone.
fn in_the_place_of_ours(what: &str, put: impl Fn(&Path, &mut Random), may_stop: bool) {
    let mut random = Random::of_run(9);
    let mut stopped = Vec::new();
    for ours in OURS {
        let world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
        world.stage_fresh(50, 0).assert_code(0);
        world.deliver_now().assert_code(0);
        world.stage_fresh(50, 0).assert_code(0);
        let path = world.data().join(ours.replace("TODAY", &today()));
        let _ = fs::remove_file(&path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        put(&path, &mut random);
        let mut last = world.deliver_now();
        for words in ["pending", "failed", "verify"] {
            world.run(words);
        }
        world.stage_fresh(50, 0).assert_code(0);
        for _ in 0..2 {
            last = world.deliver_now();
        }
        if world.waiting() > 0 {
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(
                may_stop && last.stderr.contains(&*name),
                "{what} {ours}: {last:#?}"
            );
            assert_eq!(fs::read(path.join("inside")).unwrap(), b"somebody else's");
            fs::remove_dir_all(&path).unwrap();
            stopped.push(ours);
        }
        world.drain();
        Reckoning::among_junk(&format!("{what} {ours}"), &world).assert_clean();
        assert_eq!(world.waiting(), 0, "{what} {ours}");
    }
    println!(
        "{what} each of {} files of ours: none lost, none twice; stopped until it was gone: {stopped:?}",
        OURS.len()
    );
}

#[test]
fn files_of_ours_that_somebody_has_overwritten() {
    let garbage = |path: &Path, random: &mut Random| fs::write(path, random.bytes(3000)).unwrap();
    in_the_place_of_ours("garbage in the place of", garbage, false);
    let nothing = |path: &Path, _: &mut Random| fs::write(path, "").unwrap();
    in_the_place_of_ours("nothing in", nothing, false);
    let other = |path: &Path, _: &mut Random| fs::write(path, "{\"version\":1}\n[]\n").unwrap();
    in_the_place_of_ours("other JSON in", other, false);
}

#[test]
fn directories_in_the_place_of_files_of_ours() {
    let directory = |path: &Path, _: &mut Random| {
        fs::create_dir(path).unwrap();
        fs::write(path.join("inside"), "somebody else's").unwrap();
    };
    in_the_place_of_ours("a directory in the place of", directory, true);
}

/// A batch was sent, and the note that says so is damaged: the receiver may have it, so it is not
/// split when it is rejected.
#[test]
fn a_damaged_note_of_an_attempt_is_no_reason_to_bill_twice() {
    let damages: [(&str, &[u8]); 4] = [
        ("garbage", b"\x00\xff{"),
        ("nothing", b""),
        ("other JSON", b"{\"version\":1}\n"),
        (
            "JSON of another version",
            b"{\"version\":2,\"attempts\":0,\"crc\":\"00000000\"}\n",
        ),
    ];
    for (what, bytes) in damages {
        let policy = Policy::ByBatch { known: 409 };
        let world = World::new(policy, Mix::of(&[(1, Fault::HangThenCommit)]));
        world.stage_fresh(10, 0).assert_code(0);
        let deliverer = world.start_deliverer();
        testkit::until("it is sent", || world.receiver.state().tally.requests > 0);
        deliverer.kill();
        world.receiver.wait_until_idle();
        assert_eq!(world.receiver.state().books.billed.len(), 10);
        let spool = world.data().join("spool");
        let notes = crate::world::names(&spool, |name| name.ends_with(".state.json"));
        assert_eq!(notes.len(), 1);
        fs::write(spool.join(&notes[0]), bytes).unwrap();
        world.receiver.state().mix = Mix::of(&[(1, Fault::TooLarge(1))]);
        world.deliver_now().assert_code(1);
        let found = Reckoning::among_junk(&format!("the note of an attempt: {what}"), &world);
        found.must_be_clean();
        assert_eq!(found.ambiguous_batches, 1, "{found}");
    }
}
