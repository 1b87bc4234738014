//! Checks in which the server of a store is killed. Each check starts a server of its own, since
//! the other checks need theirs.

use tenure_tests::eventually;

use crate::under_test::{StoreUnderTest, TTL, name};

/// T10: without its server, a guard is dropped without a panic, `release` reports the failure, and
/// `lost` returns true before the lease can have expired.
pub(crate) fn guard_survives_the_loss_of_its_server(store: &StoreUnderTest) {
    if !store.has_leases() {
        return;
    }
    let mut own = store.another();
    let opened = own.open();
    let claim = |key: &str| opened.claim(&name(key)).ttl(TTL);
    let dropped = claim("dropped").try_acquire().unwrap();
    let released = claim("released").try_acquire().unwrap();
    let kept = claim("kept").try_acquire().unwrap();
    own.kill();
    drop(dropped);
    let error = released.release().unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let error = claim("another").try_acquire().unwrap_err();
    assert!(error.is_unreachable() && !error.is_held(), "{error}");
    assert!(opened.status(&name("kept")).unwrap_err().is_unreachable());
    eventually("the lease is lost", || kept.lost());
    drop(kept);
}

/// T1, T11: a restarted server has the lease of its owner, which renews it, and its tokens increase.
pub(crate) fn lease_survives_a_restart_of_the_server(store: &StoreUnderTest) {
    if !store.keeps_data() {
        return;
    }
    let mut own = store.another();
    let opened = own.open();
    let claim = || opened.claim(&name("restart")).ttl(TTL * 2);
    let tenure = claim().try_acquire().unwrap();
    let token = tenure.token();
    own.restart();
    let error = own.claim("restart").try_acquire().unwrap_err();
    assert!(error.is_held(), "{error}");
    std::thread::sleep(TTL);
    assert!(!tenure.lost());
    tenure.release().unwrap();
    let next = claim().acquire_within(TTL * 2, |_| {}).unwrap();
    assert!(next.token() > token);
}
