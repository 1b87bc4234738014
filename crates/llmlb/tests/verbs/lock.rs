//! L1, as far as the lock goes: a server of another process is in the way, and says who it is.

use tenure::{Key, Store};

use crate::support::Place;

#[test]
fn a_port_that_another_process_has_is_refused_and_that_process_is_named() {
    let place = Place::new();
    let mut server = place.stand_in(4001, "ignore");
    let store = Store::in_dir(place.path());
    let key = Key::service("serve", 4001).expect("a valid key");
    let refused = store.claim(&key).try_acquire().expect_err("it is held");
    let holder = refused.holder().and_then(tenure::Holder::pid);
    assert_eq!(holder, Some(server.pid()));
    server.kill();
    let taken = store.claim(&key).try_acquire();
    assert!(
        taken.is_ok(),
        "a killed server is in nobody's way: {taken:?}"
    );
}
