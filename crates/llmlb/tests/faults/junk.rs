//! Foreign files of every kind in every directory: they are preserved, and delivery continues.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::{Fault, Mix};
use crate::world::World;
use testkit::random::Random;

const DIRS: [&str; 7] = [
    "", "_staging", "spool", "sent", "failed", "archive", "usage",
];

/// Files and links that spool did not create.
#[derive(Debug, Default)]
struct Junk {
    /// Paths by content.
    files: BTreeMap<Vec<u8>, Vec<PathBuf>>,
    links: Vec<PathBuf>,
}

/// Names that look like those of spool, and unusual names.
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
            // Junk with this name was created in an earlier round, and the list of files to check
            // has it already.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return,
            Err(error) => panic!("{}: {error}", path.display()),
        }
        self.files.entry(content).or_default().push(path);
    }

    fn link(&mut self, path: PathBuf, target: &OsStr) {
        symlink(target, &path).unwrap();
        self.links.push(path);
    }

    /// Creates every name as a file, as a directory and as a link to different targets.
    fn scatter(&mut self, world: &World, random: &mut Random) {
        let outside = world.path("outside");
        fs::create_dir_all(&outside).unwrap();
        let victim = outside.join("victim");
        fs::write(&victim, "foreign").unwrap();
        for dir in DIRS.map(|dir| world.data().join(dir)) {
            fs::create_dir_all(&dir).unwrap();
            let contents = contents(random);
            for (index, content) in contents.iter().enumerate() {
                let names = names(random);
                self.file(dir.join(&names[index % names.len()]), content.clone());
                let other = usize::try_from(random.below(names.len() as u64)).unwrap();
                self.file(dir.join(&names[other]), content.clone());
            }
            for (index, name) in names(random).iter().enumerate().take(8) {
                let path = dir.join(name);
                match index % 5 {
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
            // The temporary file of a crashed program was never complete. Spool may delete it, so it is not
            // counted as junk that must be preserved.
            let half = OsString::from_vec([b".", names(random)[4].as_bytes(), b".tmp"].concat());
            fs::write(dir.join(half), r#"{"version":1,"idempo"#).unwrap();
        }
    }

    /// Returns descriptions of the junk that is no longer in the data directory.
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
            let found = counts.get(bytes).copied().unwrap_or(0);
            // Spool may delete empty files, so a missing one is not reported.
            if found < paths.len() && !bytes.is_empty() {
                let start = String::from_utf8_lossy(&bytes[..bytes.len().min(20)]);
                let moved = paths.iter().filter(|path| !path.exists());
                let moved: Vec<_> = moved.collect();
                missing.push(format!(
                    "{found} of {} with {start:?}, no longer at: {moved:?}",
                    paths.len()
                ));
            }
        }
        if links < self.links.len() {
            let moved = self.links.iter().filter(|path| !path.is_symlink());
            missing.extend(moved.map(|path| format!("a link: {}", path.display())));
        }
        if fs::read(world.path("outside/victim")).unwrap() != b"foreign" {
            missing.push("the file outside of the data directory".to_owned());
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
fn junk_in_every_directory_is_preserved_and_does_not_stop_delivery() {
    let mut world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    let mut junk = Junk::default();
    let mut random = Random::of_run(3);
    // The first round scatters junk in an empty data directory. Later rounds scatter it among files
    // of spool.
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
        for arguments in [
            "pending",
            "failed",
            "verify",
            "resend",
            "resend --all --dry-run",
            "pending --json",
            "failed --json",
            "verify --json",
        ] {
            world.run(arguments);
        }
        assert_eq!(
            world.acknowledged().len(),
            world.receiver.state().billing.billed.len()
        );
    }
    let missing = junk.missing(&world);
    assert_eq!(missing, [""; 0], "junk was deleted");
    // A further run over the same junk must not create files, for example by setting junk aside
    // again. A deliverer that runs continuously must still work.
    let before = count(&world);
    world.run("deliver --now --batch-size 20").assert_code(0);
    let deliverer = world.start_deliverer();
    world.stage_fresh(100, 0).assert_code(0);
    testkit::until("all records are delivered", || {
        world.acknowledged().len() == world.receiver.state().billing.billed.len()
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
    let title = format!("junk: {files} files and {} links", junk.links.len());
    Audit::among_junk(&title, &world).print_and_assert_clean();
}

/// Files of spool that the tests replace, one at a time, with garbage, an empty file, other JSON or
/// a directory. Staged records must still be delivered once.
const SPOOL_FILES: [&str; 9] = [
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

/// Replaces each file of spool in turn. Staged records must be delivered once. If `may_stop`, delivery
/// may stop with an error that names the file until the file is removed.
fn assert_delivery_with_replaced_files(
    title: &str,
    replace: impl Fn(&Path, &mut Random),
    may_stop: bool,
) {
    let mut random = Random::of_run(9);
    let mut stopped = Vec::new();
    for file in SPOOL_FILES {
        let world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
        world.stage_fresh(50, 0).assert_code(0);
        world.deliver_now().assert_code(0);
        world.stage_fresh(50, 0).assert_code(0);
        let path = world.data().join(file.replace("TODAY", &today()));
        let _ = fs::remove_file(&path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        replace(&path, &mut random);
        let mut last = world.deliver_now();
        for arguments in ["pending", "failed", "verify"] {
            world.run(arguments);
        }
        world.stage_fresh(50, 0).assert_code(0);
        for _ in 0..2 {
            last = world.deliver_now();
        }
        if world.waiting() > 0 {
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(
                may_stop && last.stderr.contains(&*name),
                "{title} {file}: {last:#?}"
            );
            assert_eq!(fs::read(path.join("inside")).unwrap(), b"foreign");
            fs::remove_dir_all(&path).unwrap();
            stopped.push(file);
        }
        world.drain();
        Audit::among_junk(&format!("{title} {file}"), &world).assert_clean();
        assert_eq!(world.waiting(), 0, "{title} {file}");
    }
    println!(
        "{title} each of {} files of spool: none lost, none twice; stopped until it was removed: {stopped:?}",
        SPOOL_FILES.len()
    );
}

#[test]
fn staged_records_are_delivered_once_when_files_of_spool_are_overwritten() {
    let garbage = |path: &Path, random: &mut Random| fs::write(path, random.bytes(3000)).unwrap();
    assert_delivery_with_replaced_files("garbage instead of", garbage, false);
    let nothing = |path: &Path, _: &mut Random| fs::write(path, "").unwrap();
    assert_delivery_with_replaced_files("an empty file instead of", nothing, false);
    let other = |path: &Path, _: &mut Random| fs::write(path, "{\"version\":1}\n[]\n").unwrap();
    assert_delivery_with_replaced_files("other JSON instead of", other, false);
}

#[test]
fn staged_records_are_delivered_once_when_directories_replace_files_of_spool() {
    let directory = |path: &Path, _: &mut Random| {
        fs::create_dir(path).unwrap();
        fs::write(path.join("inside"), "foreign").unwrap();
    };
    assert_delivery_with_replaced_files("a directory instead of", directory, true);
}

/// A batch was sent and its state file is damaged. The receiver may have billed the batch, so it is not
/// split when it is rejected.
#[test]
fn batch_with_a_damaged_state_file_is_not_billed_twice() {
    let damages: [(&str, &[u8]); 4] = [
        ("garbage", b"\x00\xff{"),
        ("nothing", b""),
        ("other JSON", b"{\"version\":1}\n"),
        (
            "JSON of another version",
            b"{\"version\":2,\"attempts\":0,\"crc\":\"00000000\"}\n",
        ),
    ];
    for (damage, bytes) in damages {
        let policy = Policy::ByBatch { known: 409 };
        let world = World::new(policy, Mix::new(&[(1, Fault::HangThenCommit)]));
        world.stage_fresh(10, 0).assert_code(0);
        let deliverer = world.start_deliverer();
        testkit::until("the batch is sent", || {
            world.receiver.state().tally.requests > 0
        });
        deliverer.kill();
        world.receiver.wait_until_idle();
        assert_eq!(world.receiver.state().billing.billed.len(), 10);
        let spool = world.data().join("spool");
        let states = crate::world::names(&spool, |name| name.ends_with(".state.json"));
        assert_eq!(states.len(), 1);
        fs::write(spool.join(&states[0]), bytes).unwrap();
        world.receiver.state().mix = Mix::new(&[(1, Fault::TooLarge(1))]);
        world.deliver_now().assert_code(1);
        let found = Audit::among_junk(&format!("state file of a batch: {damage}"), &world);
        found.print_and_assert_clean();
        assert_eq!(found.ambiguous_batches, 1, "{found}");
    }
}
