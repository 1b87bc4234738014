//! T10: semantics of the `Tenure` guard. T12: acquiring and releasing leak no descriptors.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Once;

use tenure::{Key, Tenure};
use tracing::field::{Field, Visit};

use crate::Fixture;

/// Subscriber that receives the `tracing` events of the whole test process. It appends an event to
/// the text in `CAPTURED` if [`logged`] is running on the event's thread.
struct Log;

thread_local! {
    static CAPTURED: RefCell<Option<String>> = const { RefCell::new(None) };
}

pub(crate) fn logged<T>(action: impl FnOnce() -> T) -> (T, String) {
    // One subscriber serves the whole process. Scoped subscribers miss events while other tests
    // install and remove theirs.
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
    CAPTURED.set(Some(String::new()));
    let result = action();
    (result, CAPTURED.take().unwrap())
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        } else {
            write!(self.0, " {}={value:?}", field.name()).unwrap();
        }
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn event(&self, event: &tracing::Event<'_>) {
        CAPTURED.with_borrow_mut(|captured| {
            if let Some(text) = captured {
                write!(text, "\n{} ", event.metadata().level()).unwrap();
                event.record(&mut Line(text));
            }
        });
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn tenure_can_be_stored_and_sent_to_another_thread() {
    fn storable<T: Send + Sync + 'static>(_: &T) {}
    let fixture = Fixture::new();
    let tenure = fixture.try_acquire().unwrap();
    storable(&tenure);
    let mut kept: Vec<Tenure> = vec![tenure];
    let dropped = std::thread::spawn(move || kept.pop()).join().unwrap();
    assert!(fixture.try_acquire().unwrap_err().is_held());
    drop(dropped);
    drop(fixture.try_acquire().unwrap());
}

#[test]
fn second_claim_in_the_same_process_is_refused() {
    let fixture = Fixture::new();
    let _tenure = fixture.try_acquire().unwrap();
    let error = fixture.try_acquire().unwrap_err();
    assert_eq!(error.holder().unwrap().pid(), Some(std::process::id()));
}

#[test]
fn different_keys_can_be_held_at_the_same_time() {
    let fixture = Fixture::new();
    let dir = fixture.dir().join("data");
    std::fs::create_dir(&dir).unwrap();
    let keys = [
        Key::name("a").unwrap(),
        Key::name("b").unwrap(),
        Key::port(80),
        Key::port(81),
        Key::service("serve", 80).unwrap(),
        Key::directory(&dir),
        Key::file(fixture.dir().join("f.lock")).unwrap(),
    ];
    let held: Vec<Tenure> = keys
        .iter()
        .map(|key| fixture.store.claim(key).try_acquire().unwrap())
        .collect();
    assert!(keys.iter().all(|key| {
        fixture
            .store
            .claim(key)
            .try_acquire()
            .unwrap_err()
            .is_held()
    }));
    let listed = fixture.store.list().unwrap();
    assert_eq!(
        listed.len(),
        5,
        "those in the store's own directory: {listed:?}"
    );
    assert!(listed.iter().all(|status| status.holder().is_some()));
    drop(held);
    assert!(fixture.store.list().unwrap().is_empty());
    assert!(!dir.join(".tenure.lock").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn acquire_release_and_refusal_leak_no_descriptor() {
    let fixture = Fixture::new();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let held = Key::name("held").unwrap();
    let _tenure = fixture.store.claim(&held).try_acquire().unwrap();
    let before = open();
    for _ in 0..10_000 {
        drop(fixture.try_acquire().unwrap());
        fixture.store.claim(&held).try_acquire().unwrap_err();
    }
    // Other tests of this process open and close files meanwhile, so a small difference is allowed.
    assert!(open() < before + 100, "{before} before, {} after", open());
}

#[cfg(target_os = "linux")]
#[test]
fn program_started_by_the_owner_does_not_inherit_the_lock() {
    let fixture = Fixture::new();
    let tenure = fixture.try_acquire().unwrap();
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    tenure.release().unwrap();
    let inherited = std::fs::read_dir(format!("/proc/{}/fd", child.id()))
        .unwrap()
        .any(|entry| {
            let link = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
            link.to_string_lossy()
                .contains(&*fixture.dir().to_string_lossy())
        });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!inherited);
}

#[cfg(unix)]
#[test]
fn watch_reports_a_lost_file_once_and_nothing_else() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    let fixture = Fixture::new();
    let tenure = fixture.try_acquire().unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let watch = |calls: &Arc<AtomicU32>| {
        let calls = Arc::clone(calls);
        let on_loss = move || {
            calls.fetch_add(1, Ordering::Relaxed);
        };
        tenure.watch(Duration::from_millis(5), on_loss).unwrap()
    };
    let quiet = watch(&calls);
    std::thread::sleep(Duration::from_millis(50));
    drop(quiet);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let watching = watch(&calls);
    std::fs::remove_file(fixture.file()).unwrap();
    tenure_tests::eventually("the watch calls on_loss", || {
        calls.load(Ordering::Relaxed) > 0
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(watching);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}
