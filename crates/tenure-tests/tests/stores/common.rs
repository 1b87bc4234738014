//! Steps that the tests of several stores share.

use std::thread;
use std::time::{Duration, Instant};

use tenure::{Error, Key, Stopped, Store, Tenure};
use tenure_tests::eventually;

/// TTL of the leases in most tests: short, because tests wait for leases to expire.
pub(crate) const TTL: Duration = Duration::from_secs(2);

pub(crate) fn try_acquire(store: &Store, name: &str) -> Result<Tenure, Error> {
    store
        .claim(&Key::name(name).unwrap())
        .ttl(TTL)
        .try_acquire()
}

/// Acquires a key, and checks that a second claim is refused with the holder and that the next owner
/// has a larger token.
pub(crate) fn check_acquire_refuse_release(url: &str) {
    let (store, other) = (Store::connect(url).unwrap(), Store::connect(url).unwrap());
    let first = try_acquire(&store, "refused").unwrap();
    let error = try_acquire(&other, "refused").unwrap_err();
    assert!(error.is_held(), "{error}");
    let holder = error.holder().unwrap();
    let record = holder.record().unwrap();
    assert_eq!(record.pid(), std::process::id());
    assert_eq!(record.token(), first.token());

    let status = other.status(&Key::name("refused").unwrap()).unwrap();
    let record = status.holder().unwrap().record().unwrap();
    assert_eq!(record.pid(), std::process::id());
    let listed = other.list().unwrap();
    assert!(
        listed
            .iter()
            .any(|status| status.key().to_string() == "refused")
    );

    let token = first.token();
    first.release().unwrap();
    let second = try_acquire(&other, "refused").unwrap();
    assert!(second.token() > token, "{} > {token}", second.token());
    second.release().unwrap();
    let status = other.status(&Key::name("refused").unwrap()).unwrap();
    assert!(status.holder().is_none());
}

/// Checks that a waiting claim acquires the key within `limit` after its release.
pub(crate) fn check_hand_over(url: &str, limit: Duration) {
    let (store, other) = (Store::connect(url).unwrap(), Store::connect(url).unwrap());
    let first = try_acquire(&store, "handed-over").unwrap();
    let waiting = thread::spawn(move || {
        let mut reported = 0;
        let second = other
            .claim(&Key::name("handed-over").unwrap())
            .ttl(TTL)
            .acquire_within(Duration::from_secs(20), |_| reported += 1)
            .unwrap();
        assert_eq!(reported, 1);
        (Instant::now(), second)
    });
    // Sleep for longer than the TTL. The owner must keep the key meanwhile, because it renews its
    // lease.
    thread::sleep(TTL + Duration::from_millis(500));
    assert!(!first.lost());
    assert!(!waiting.is_finished());
    let released = Instant::now();
    first.release().unwrap();
    let (acquired, second) = waiting.join().unwrap();
    let took = acquired - released;
    assert!(took < limit, "{took:?}");
    second.release().unwrap();
}

/// Checks that an owner which does not release its key blocks it for its TTL only.
pub(crate) fn check_expiry(url: &str, limit: Duration) {
    let (store, other) = (Store::connect(url).unwrap(), Store::connect(url).unwrap());
    let first = try_acquire(&store, "expired").unwrap();
    let state = first.lease_state().unwrap();
    // `leave` ends the renewal without deleting the lease, so the store sees the same as after a
    // crash of the owner.
    first.leave().unwrap();
    let left = Instant::now();
    let second = other
        .claim(&Key::name("expired").unwrap())
        .ttl(TTL)
        .acquire_within(Duration::from_secs(20), |_| {})
        .unwrap();
    assert!(state.is_lost());
    let took = left.elapsed();
    assert!(took < limit, "{took:?}");
    second.release().unwrap();
}

/// Checks that a stop request reaches its owner within one renewal, and that the next owner does not
/// see it.
pub(crate) fn check_stop_request(url: &str) {
    let (store, other) = (Store::connect(url).unwrap(), Store::connect(url).unwrap());
    let key = Key::name("stopped").unwrap();
    let mut first = try_acquire(&store, "stopped").unwrap();
    let request = first.stop_request().unwrap();
    let owner = thread::spawn(move || {
        assert!(request.wait(Duration::from_secs(10)));
        first.release().unwrap();
    });
    let stopped = other.stop(&key).timeout(Duration::from_secs(10)).run();
    assert!(
        matches!(stopped, Ok(Stopped::Released { .. })),
        "{stopped:?}"
    );
    owner.join().unwrap();
    let mut second = try_acquire(&store, "stopped").unwrap();
    let request = second.stop_request().unwrap();
    assert!(!request.wait(TTL));
    second.release().unwrap();
}

/// Checks that other processes see a changed lock record, and that it survives renewals.
pub(crate) fn check_record_update(url: &str) {
    let (store, other) = (Store::connect(url).unwrap(), Store::connect(url).unwrap());
    let key = Key::name("updated").unwrap();
    let mut tenure = try_acquire(&store, "updated").unwrap();
    tenure.set_field("shard", 7).unwrap();
    thread::sleep(TTL);
    let status = other.status(&key).unwrap();
    let record = status.holder().unwrap().record().unwrap();
    assert_eq!(
        record.field("shard").map(ToString::to_string).as_deref(),
        Some("7")
    );
    assert!(!tenure.lost());
    tenure.release().unwrap();
}

/// Checks that an owner notices that its key was deleted with other means.
pub(crate) fn check_deletion_is_noticed(url: &str, delete: impl FnOnce(&str)) {
    let store = Store::connect(url).unwrap();
    let tenure = try_acquire(&store, "deleted").unwrap();
    delete("name_deleted");
    let start = Instant::now();
    eventually("the owner notices the deletion", || tenure.lost());
    assert!(start.elapsed() < TTL, "{:?}", start.elapsed());
    let _ = tenure.release();
    // The former owner has released a lease that it had lost. The release must not have changed the
    // key, so the next owner can acquire and keep it.
    let next = try_acquire(&store, "deleted").unwrap();
    assert!(!next.lost());
    next.release().unwrap();
}
