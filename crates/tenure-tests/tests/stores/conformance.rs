//! The same checks for every store. Most of them wait for a TTL, so the checks of one store run at
//! the same time, each with a key of its own. `ONLY_CHECKS=NAME` runs those whose name contains NAME.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure::{Proof, State, Stopped, Tenure};
use tenure_tests::fenced::{FencedResource, ResourceClient};
use tenure_tests::lease_storm::{Behaviour, LeaseStorm};
use tenure_tests::{Owner, eventually};

use crate::under_test::{Server, StoreUnderTest, TTL, name};
use crate::{TORTURE, hostile, without_server};

type Check = fn(&StoreUnderTest);

macro_rules! checks {
    ($($module:ident::$check:ident),* $(,)?) => {
        [$((stringify!($check), $module::$check as Check)),*]
    };
}

#[test]
fn file_store_conforms() {
    run(|| Some(Server::Files(tempfile::tempdir().unwrap())));
}

#[cfg(feature = "redis")]
#[test]
fn redis_store_conforms() {
    run(|| tenure_tests::servers::RedisServer::start().map(Server::Redis));
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_store_conforms() {
    run(|| tenure_tests::servers::EtcdServer::start().map(Server::Etcd));
}

#[cfg(feature = "dynamodb")]
#[test]
fn dynamodb_store_conforms() {
    run(|| tenure_tests::servers::DynamoDbServer::start().map(Server::DynamoDb));
}

/// Runs all checks on a store, and fails with the names of those that failed.
fn run(start: impl FnOnce() -> Option<Server>) {
    use crate::conformance as all;
    // Only one store is checked at a time. The TTLs are short, so servers that compete for the CPU
    // could let leases expire that are being renewed.
    static ONE_STORE: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_STORE);
    let Some(server) = start() else { return };
    let store = StoreUnderTest { server };
    let checks = checks![
        without_server::guard_survives_the_loss_of_its_server,
        hostile::garbage_in_the_store_is_neither_fatal_nor_printed,
        without_server::lease_survives_a_restart_of_the_server,
        all::refusal_names_the_holder,
        all::key_is_free_after_release,
        all::dropped_guard_releases_the_key,
        all::tokens_increase_over_release_and_crash,
        all::racing_threads_never_own_the_key_together,
        all::racing_processes_never_own_the_key_together,
        all::waiting_claim_ends_at_its_deadline_and_reports_the_holder_once,
        all::waiting_claim_acquires_the_key_after_release,
        all::waiting_claim_acquires_the_key_after_a_crash,
        all::renewal_keeps_a_lease_longer_than_its_ttl,
        all::late_write_of_a_suspended_owner_is_rejected,
        all::forked_child_neither_owns_nor_releases_the_lease,
        all::stop_request_is_honoured_at_the_next_renewal,
        all::stop_is_refused_for_an_owner_that_accepts_no_requests,
        all::list_and_status_show_the_holders,
        all::field_of_the_record_is_visible_to_others,
        all::guard_works_inside_an_async_runtime,
    ];
    let only = std::env::var("ONLY_CHECKS").unwrap_or_default();
    let queue = Mutex::new(checks.iter().filter(|(name, _)| name.contains(&only)));
    let failed = Mutex::new(Vec::new());
    let next = || lock(&queue).next();
    thread::scope(|scope| {
        for _ in 0..store.parallel_checks() {
            scope.spawn(|| {
                while let Some((name, check)) = next() {
                    if catch_unwind(AssertUnwindSafe(|| check(&store))).is_err() {
                        lock(&failed).push(*name);
                    }
                }
            });
        }
    });
    let failed = lock(&failed);
    assert!(failed.is_empty(), "failed checks: {failed:?}");
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// T5
fn refusal_names_the_holder(store: &StoreUnderTest) {
    let owner = store.owner("refusal");
    let error = store.claim("refusal").try_acquire().unwrap_err();
    assert!(error.is_held(), "{error}");
    let holder = error.holder().unwrap();
    let record = holder.record().unwrap();
    assert_eq!(record.pid(), owner.pid());
    assert_eq!(record.program(), Some("owner"));
    assert_eq!(record.verb(), Some("test"));
    assert!(record.host().is_some_and(|host| !host.is_empty()));
    assert!(record.user().is_some_and(|user| !user.is_empty()));
    assert!(record.started_at().is_some());
    assert!(record.token() > 0);
    let text = error.to_string();
    assert!(text.contains(&format!("pid {}", owner.pid())), "{text}");
    if store.has_leases() {
        assert_eq!(holder.proof(), Proof::Lease);
        assert!(text.contains(record.host().unwrap()), "{text}");
    }
}

fn key_is_free_after_release(store: &StoreUnderTest) {
    let first = store.claim("release").try_acquire().unwrap();
    assert!(!first.lost());
    assert!(store.claim("release").try_acquire().unwrap_err().is_held());
    first.release().unwrap();
    let status = store.open().status(&name("release")).unwrap();
    assert!(matches!(status.state(), State::Free), "{status:?}");
    let second = store.claim("release").try_acquire().unwrap();
    second.release().unwrap();
}

/// T10.
fn dropped_guard_releases_the_key(store: &StoreUnderTest) {
    drop(store.claim("drop").try_acquire().unwrap());
    let stored: Box<Tenure> = Box::new(store.claim("drop").try_acquire().unwrap());
    thread::spawn(move || drop(stored)).join().unwrap();
    drop(store.claim("drop").try_acquire().unwrap());
}

/// T11.
fn tokens_increase_over_release_and_crash(store: &StoreUnderTest) {
    let mut last = 0;
    for _ in 0..5 {
        let tenure = store.claim("tokens").try_acquire().unwrap();
        assert!(tenure.token() > last, "{} after {last}", tenure.token());
        last = tenure.token();
        tenure.release().unwrap();
    }
    let mut owner = store.owner("tokens");
    owner.kill();
    let next = acquire_within(store, "tokens", TTL * 4);
    assert!(next.token() > last + 1, "{} after {last}", next.token());
}

/// T1.
fn racing_threads_never_own_the_key_together(store: &StoreUnderTest) {
    let owners = AtomicU32::new(0);
    let shared = store.open();
    let until = Instant::now() + TTL;
    let acquired: u32 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|index| {
                // Two threads share a connection to the store and the other threads have their own,
                // so that both cases are covered.
                let store = if index < 2 {
                    shared.clone()
                } else {
                    store.open()
                };
                let owners = &owners;
                scope.spawn(move || {
                    let mut acquired = 0;
                    while Instant::now() < until {
                        let claim = store.claim(&name("threads")).ttl(TTL);
                        let Ok(tenure) = claim.acquire_within(TTL, |_| {}) else {
                            continue;
                        };
                        assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0, "two owners");
                        thread::sleep(Duration::from_millis(1));
                        assert!(!tenure.lost());
                        owners.fetch_sub(1, Ordering::SeqCst);
                        tenure.release().unwrap();
                        acquired += 1;
                    }
                    acquired
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert!(acquired >= 4, "{acquired}");
}

/// T1, T11: the witness must find no two owners at the same time, and the fenced resource no write
/// with an old token.
fn racing_processes_never_own_the_key_together(store: &StoreUnderTest) {
    let mut storm = LeaseStorm {
        program: TORTURE.into(),
        stores: vec![store.location(); 3],
        ttl: TTL,
        hold: Duration::from_millis(10),
        behaviour: Behaviour::Correct,
        clock_offset: None,
    }
    .start(true);
    eventually("processes acquire the key", || {
        storm.findings().verdict.intervals.len() > 3
    });
    storm.kill_and_replace(0);
    storm.kill_and_replace(1);
    let killed = tenure::boot_time();
    assert!(storm.wait_for_acquisition(killed, TTL * 4).is_some());
    thread::sleep(TTL / 2);
    let found = storm.finish();
    assert!(found.verdict.overlaps.is_empty(), "{:?}", found.verdict);
    assert_eq!(found.verdict.unordered_tokens, 0);
    assert_eq!((found.resource.late, found.resource.rejected), (0, 0));
    assert_eq!(found.errors, "");
}

fn waiting_claim_ends_at_its_deadline_and_reports_the_holder_once(store: &StoreUnderTest) {
    let owner = store.owner("deadline");
    let mut waits = Vec::new();
    let error = store
        .claim("deadline")
        .acquire_within(TTL, |holder| {
            waits.push(holder.record().map(tenure::Record::pid));
        })
        .unwrap_err();
    assert!(error.is_timeout() && error.is_held(), "{error}");
    assert_eq!(waits, [Some(owner.pid())]);
    assert_eq!(error.holder().unwrap().record().unwrap().pid(), owner.pid());
}

fn waiting_claim_acquires_the_key_after_release(store: &StoreUnderTest) {
    let mut owner = store.owner("wait");
    let mut waiting = store.start_owner("wait", &["--wait"]);
    assert_eq!(waiting.answer(), format!("waits {}", owner.pid()));
    assert_eq!(owner.request("release"), "released");
    assert!(waiting.answer().starts_with("held "));
}

/// T2: a waiting claim acquires the key after a crash of the owner. The test sets no time limit;
/// scripts/prove-stores measures the time.
fn waiting_claim_acquires_the_key_after_a_crash(store: &StoreUnderTest) {
    let mut owner = store.owner("crash");
    let mut waiting = store.start_owner("crash", &["--wait"]);
    assert_eq!(waiting.answer(), format!("waits {}", owner.pid()));
    owner.kill();
    assert!(waiting.answer().starts_with("held "));
}

fn renewal_keeps_a_lease_longer_than_its_ttl(store: &StoreUnderTest) {
    let tenure = store.claim("renewal").try_acquire().unwrap();
    thread::sleep(TTL * 3 / 2);
    assert!(!tenure.lost());
    assert!(store.claim("renewal").try_acquire().unwrap_err().is_held());
    tenure.release().unwrap();
}

/// T1, T11: a suspended owner of a lease is replaced, finds on resume that its lease is lost, and
/// its late write is rejected. A suspended owner of a lock file stays the owner.
fn late_write_of_a_suspended_owner_is_rejected(store: &StoreUnderTest) {
    let resource = FencedResource::start(true);
    let write = format!("write {}", resource.address());
    let mut owner = store.owner("suspended");
    assert_eq!(owner.request(&write), "accepted");
    signal(&owner, Signal::STOP);
    if !store.has_leases() {
        assert!(
            store
                .claim("suspended")
                .try_acquire()
                .unwrap_err()
                .is_held()
        );
        signal(&owner, Signal::CONT);
        assert_eq!(owner.request("lost"), "false");
        return;
    }
    let next = acquire_within(store, "suspended", TTL * 4);
    assert!(ResourceClient::connect(resource.address()).write(next.token()));
    signal(&owner, Signal::CONT);
    assert_eq!(owner.request("lost"), "true");
    assert_eq!(owner.request(&write), "rejected");
    let released = owner.request("release");
    assert!(!next.lost(), "the former owner ended the lease: {released}");
    let report = resource.report();
    assert_eq!((report.rejected, report.late), (1, 0));
    next.release().unwrap();
}

/// T10.
fn forked_child_neither_owns_nor_releases_the_lease(store: &StoreUnderTest) {
    let mut owner = store.owner("fork");
    let child: i32 = owner.request("fork-drop").parse().unwrap();
    let mut lines = [owner.request("fork-lost"), owner.answer()];
    lines.sort();
    let other: i32 = lines[0].parse().unwrap();
    thread::sleep(TTL * 3 / 2);
    assert_eq!(owner.request("lost"), "false");
    if store.has_leases() {
        assert_eq!(lines[1], "copy lost: true");
        assert!(store.claim("fork").try_acquire().unwrap_err().is_held());
        // The forked children still have copies of the owner's descriptors. The key must be free
        // after a release all the same, because no child renews the lease.
        assert_eq!(owner.request("release"), "released");
        store
            .claim("fork")
            .try_acquire()
            .unwrap()
            .release()
            .unwrap();
    }
    for child in [child, other] {
        let _ = kill_process(Pid::from_raw(child).unwrap(), Signal::KILL);
    }
}

fn stop_request_is_honoured_at_the_next_renewal(store: &StoreUnderTest) {
    if !store.has_leases() {
        return;
    }
    let mut owner = store.owner("stop");
    owner.send("stop-request");
    assert_eq!(owner.answer(), "waiting");
    let stopped = store.open().stop(&name("stop")).timeout(TTL).run().unwrap();
    let Stopped::Released { holder } = stopped else {
        panic_with(&format!("{stopped:?}"))
    };
    assert_eq!(holder.record().unwrap().pid(), owner.pid());
    assert_eq!(owner.answer(), "asked");
    let stopped = store.open().stop(&name("stop")).run().unwrap();
    assert!(matches!(stopped, Stopped::NotRunning), "{stopped:?}");
}

fn stop_is_refused_for_an_owner_that_accepts_no_requests(store: &StoreUnderTest) {
    if !store.has_leases() {
        return;
    }
    let mut owner = store.owner("no-stop");
    let error = store.open().stop(&name("no-stop")).run().unwrap_err();
    assert!(error.is_stop_refused(), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("pid {}", owner.pid())), "{text}");
    assert!(text.contains("stop it on its host"), "{text}");
    assert_eq!(owner.request("lost"), "false");
}

fn list_and_status_show_the_holders(store: &StoreUnderTest) {
    let owner = store.owner("list-a");
    let tenure = store.claim("list-b").try_acquire().unwrap();
    let opened = store.open();
    let list = opened.list().unwrap();
    let pid = |key: &str| {
        let status = list.iter().find(|status| *status.key() == name(key))?;
        Some(status.holder()?.record()?.pid())
    };
    assert_eq!(pid("list-a"), Some(owner.pid()));
    assert_eq!(pid("list-b"), Some(std::process::id()));
    let status = opened.status(&name("list-b")).unwrap();
    assert_eq!(
        status.holder().unwrap().record().unwrap().token(),
        tenure.token()
    );
    assert!(opened.status(&name("list-c")).unwrap().holder().is_none());
    assert!(
        opened
            .path_of(&name("list-b"))
            .to_str()
            .unwrap()
            .contains("list-b")
    );
}

fn field_of_the_record_is_visible_to_others(store: &StoreUnderTest) {
    let mut tenure = store.claim("field").try_acquire().unwrap();
    tenure.set_field("pod_name", "pod-7").unwrap();
    let status = store.open().status(&name("field")).unwrap();
    let record = status.holder().unwrap().record().unwrap();
    assert_eq!(record.field("pod_name"), Some(&"pod-7".into()));
    assert_eq!(record.token(), tenure.token());
}

/// Acquires, drops and releases keys on a thread of an async runtime. A store that waited for a
/// runtime of its own by `block_on` would panic there.
fn guard_works_inside_an_async_runtime(store: &StoreUnderTest) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let tenure = store.claim("async").try_acquire().unwrap();
        assert!(!tenure.lost());
        drop(tenure);
        store
            .claim("async")
            .try_acquire()
            .unwrap()
            .release()
            .unwrap();
    });
}

fn acquire_within(store: &StoreUnderTest, key: &str, limit: Duration) -> Tenure {
    store.claim(key).acquire_within(limit, |_| {}).unwrap()
}

fn signal(owner: &Owner, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(owner.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[expect(clippy::panic, reason = "the check fails with this text")]
fn panic_with(text: &str) -> ! {
    panic!("{text}");
}
