//! T11: tokens increase.

use std::fs;

use crate::Fixture;

#[test]
fn each_acquisition_has_a_larger_token() {
    let fixture = Fixture::new();
    let mut last = 0;
    for _ in 0..2_000 {
        let tenure = fixture.try_acquire().unwrap();
        assert!(tenure.token() > last);
        last = tenure.token();
    }
    for _ in 0..5 {
        let mut owner = fixture.owner();
        owner.kill();
        let tenure = fixture.try_acquire().unwrap();
        assert!(tenure.token() > last + 1);
        last = tenure.token();
    }
}

/// The lock file of a crashed owner has a token that is ahead of the clock. The tokens of later
/// owners must be larger nevertheless.
#[test]
fn token_increases_after_the_clock_is_set_back() {
    let fixture = Fixture::new();
    let ahead = 9_000_000_000_000_000_u64;
    fs::write(fixture.file(), format!("{{\"pid\":77,\"token\":{ahead}}}")).unwrap();
    let mut last = ahead;
    for _ in 0..3 {
        let tenure = fixture
            .store
            .claim(&fixture.key)
            .keep_file(true)
            .try_acquire()
            .unwrap();
        assert!(tenure.token() > last);
        last = tenure.token();
    }
}

#[test]
fn kept_file_is_marked_as_released_and_its_key_is_free() {
    let fixture = Fixture::new();
    let tenure = fixture
        .store
        .claim(&fixture.key)
        .keep_file(true)
        .try_acquire()
        .unwrap();
    let token = tenure.token();
    tenure.release().unwrap();
    assert!(
        fs::read_to_string(fixture.file())
            .unwrap()
            .contains("released_at")
    );
    assert!(matches!(fixture.status().state(), tenure::State::Free));
    assert!(fixture.try_acquire().unwrap().token() > token);
}

#[test]
fn invalid_token_in_a_record_is_ignored() {
    let fixture = Fixture::new();
    fs::write(
        fixture.file(),
        format!("{{\"pid\":77,\"token\":{}}}", u64::MAX),
    )
    .unwrap();
    let first = fixture
        .store
        .claim(&fixture.key)
        .keep_file(true)
        .try_acquire()
        .unwrap()
        .token();
    let second = fixture.try_acquire().unwrap().token();
    assert!(second > first && first < u64::MAX / 2);
}
