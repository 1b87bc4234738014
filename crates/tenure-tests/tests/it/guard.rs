//! T10: guards behave. T12: and leave nothing open.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Once;

use tenure::{Key, Tenure};
use tracing::field::{Field, Visit};

use crate::Scene;

/// What this thread logs while it captures.
struct Log;

thread_local! {
    static CAPTURED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Everything that is logged meanwhile by this thread.
pub(crate) fn logged<T>(act: impl FnOnce() -> T) -> (T, String) {
    // One subscriber for the whole process: those for a scope miss events when others come and go.
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
    CAPTURED.set(Some(String::new()));
    let result = act();
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
fn a_tenure_can_be_stored_and_sent() {
    fn storable<T: Send + Sync + 'static>(_: &T) {}
    let scene = Scene::new();
    let tenure = scene.take().unwrap();
    storable(&tenure);
    let mut kept: Vec<Tenure> = vec![tenure];
    let dropped = std::thread::spawn(move || kept.pop()).join().unwrap();
    assert!(scene.take().unwrap_err().is_held());
    drop(dropped);
    drop(scene.take().unwrap());
}

#[test]
fn one_process_cannot_take_a_key_twice() {
    let scene = Scene::new();
    let _tenure = scene.take().unwrap();
    let error = scene.take().unwrap_err();
    assert_eq!(error.holder().unwrap().pid(), Some(std::process::id()));
}

#[test]
fn keys_do_not_stand_in_each_others_way() {
    let scene = Scene::new();
    let dir = scene.dir().join("data");
    std::fs::create_dir(&dir).unwrap();
    let keys = [
        Key::name("a").unwrap(),
        Key::name("b").unwrap(),
        Key::port(80),
        Key::port(81),
        Key::service("serve", 80).unwrap(),
        Key::directory(&dir),
        Key::file(scene.dir().join("f.lock")).unwrap(),
    ];
    let held: Vec<Tenure> = keys
        .iter()
        .map(|key| scene.store.claim(key).try_acquire().unwrap())
        .collect();
    assert!(
        keys.iter()
            .all(|key| scene.store.claim(key).try_acquire().unwrap_err().is_held())
    );
    let listed = scene.store.list().unwrap();
    assert_eq!(
        listed.len(),
        5,
        "those in the store's own directory: {listed:?}"
    );
    assert!(listed.iter().all(|status| status.holder().is_some()));
    drop(held);
    assert!(scene.store.list().unwrap().is_empty());
    assert!(!dir.join(".tenure.lock").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn ten_thousand_cycles_and_refusals_leak_no_descriptor() {
    let scene = Scene::new();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let held = Key::name("held").unwrap();
    let _tenure = scene.store.claim(&held).try_acquire().unwrap();
    let before = open();
    for _ in 0..10_000 {
        drop(scene.take().unwrap());
        scene.store.claim(&held).try_acquire().unwrap_err();
    }
    // Other tests of this process open and close files meanwhile.
    assert!(open() < before + 100, "{before} before, {} after", open());
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_that_is_started_meanwhile_does_not_inherit_the_lock() {
    let scene = Scene::new();
    let tenure = scene.take().unwrap();
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
                .contains(&*scene.dir().to_string_lossy())
        });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!inherited);
}

#[cfg(unix)]
#[test]
fn a_watch_tells_once_when_the_file_is_lost_and_never_otherwise() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    let scene = Scene::new();
    let tenure = scene.take().unwrap();
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
    std::fs::remove_file(scene.file()).unwrap();
    tenure_tests::eventually("it is told", || calls.load(Ordering::Relaxed) > 0);
    std::thread::sleep(Duration::from_millis(50));
    drop(watching);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}
