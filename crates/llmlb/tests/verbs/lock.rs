//! Lock of a port that another process holds. (promise L1)

use tenure::{Key, Store};

use crate::support::LockDir;

#[test]
fn lock_of_a_port_held_by_another_process_is_refused_with_its_pid() {
    let lock_dir = LockDir::new();
    let mut server = lock_dir.stand_in(4001, "ignore");
    let store = Store::in_dir(lock_dir.path());
    let key = Key::service("serve", 4001).expect("a valid key");
    let refused = store
        .claim(&key)
        .try_acquire()
        .expect_err("the key is held");
    let holder = refused.holder().and_then(tenure::Holder::pid);
    assert_eq!(holder, Some(server.pid()));
    server.kill();
    let acquired = store.claim(&key).try_acquire();
    assert!(
        acquired.is_ok(),
        "the key of a killed server is free: {acquired:?}"
    );
}
