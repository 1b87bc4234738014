//! Tests of the order in which waiting requests are served. Texts stand for requests, and for the
//! lanes that group the requests which wait for the same backends.

use super::*;

type Names = FairQueue<&'static str, String>;

/// A client without a credential.
fn at(address: u64) -> ClientKey {
    ClientKey {
        address,
        credential: 0,
    }
}

fn with_key(address: u64, credential: u64) -> ClientKey {
    ClientKey {
        address,
        credential,
    }
}

#[track_caller]
fn join(fair: &mut Names, lane: &'static str, client: ClientKey, name: &str) -> Ticket {
    let (ticket, evicted) = fair.join(lane, client, name.to_owned()).unwrap();
    assert_eq!(evicted, None);
    ticket
}

fn pop(fair: &mut Names, may: impl Fn(&&'static str) -> bool) -> String {
    match fair.next(may) {
        Some(lane) => fair.pop(lane).unwrap(),
        None => "none".to_owned(),
    }
}

fn pop_any(fair: &mut Names) -> String {
    pop(fair, |_| true)
}

fn assert_empty(fair: &Names) {
    assert_eq!(fair.len(), 0);
    assert!(fair.lanes.is_empty() && fair.addresses.is_empty() && fair.by_count.0.is_empty());
}

#[test]
fn client_with_a_thousand_requests_delays_another_client_by_one() {
    let mut fair = Names::new(2000);
    for number in 0..1000 {
        join(&mut fair, "m", at(1), &format!("many {number}"));
    }
    assert_eq!(pop_any(&mut fair), "many 0");
    join(&mut fair, "m", at(2), "single");
    join(&mut fair, "m", at(3), "other");
    let popped: Vec<_> = (0..4).map(|_| pop_any(&mut fair)).collect();
    assert_eq!(popped, ["many 1", "single", "other", "many 2"]);
}

#[test]
fn credentials_share_the_turn_of_their_address() {
    let mut fair = Names::new(2000);
    for number in 0..1000 {
        let client = with_key(1, number);
        join(&mut fair, "m", client, &format!("invented {number}"));
    }
    join(&mut fair, "m", at(2), "single");
    join(&mut fair, "m", at(2), "single again");
    let popped: Vec<_> = (0..4).map(|_| pop_any(&mut fair)).collect();
    let expected = ["invented 0", "single", "invented 1", "single again"];
    assert_eq!(popped, expected);
}

#[test]
fn credentials_of_one_address_take_turns() {
    let mut fair = Names::new(100);
    for number in 0..3 {
        let client = with_key(1, 7);
        join(&mut fair, "m", client, &format!("greedy {number}"));
    }
    join(&mut fair, "m", with_key(1, 8), "modest");
    join(&mut fair, "n", with_key(1, 9), "in another lane");
    let popped: Vec<_> = (0..5).map(|_| pop_any(&mut fair)).collect();
    let expected = [
        "greedy 0",
        "modest",
        "in another lane",
        "greedy 1",
        "greedy 2",
    ];
    assert_eq!(popped, expected);
    assert_empty(&fair);
}

#[test]
fn clients_take_turns_in_any_number_of_lanes() {
    let mut fair = Names::new(100);
    for round in 0..3 {
        join(&mut fair, "a", at(1), &format!("1a{round}"));
        join(&mut fair, "b", at(1), &format!("1b{round}"));
        join(&mut fair, "b", at(2), &format!("2b{round}"));
    }
    let popped: Vec<_> = (0..6)
        .map(|_| pop(&mut fair, |lane| *lane == "b"))
        .collect();
    assert_eq!(popped, ["1b0", "2b0", "1b1", "2b1", "1b2", "2b2"]);
    assert_eq!(pop(&mut fair, |lane| *lane == "b"), "none");
    join(&mut fair, "a", at(2), "2a");
    let popped: Vec<_> = (0..4).map(|_| pop_any(&mut fair)).collect();
    assert_eq!(popped, ["1a0", "2a", "1a1", "1a2"]);
    assert_empty(&fair);
}

#[test]
fn client_that_returns_after_being_served_goes_to_the_end() {
    let mut fair = Names::new(100);
    join(&mut fair, "m", at(1), "first");
    join(&mut fair, "m", at(2), "second");
    assert_eq!(pop_any(&mut fair), "first");
    join(&mut fair, "m", at(1), "first again");
    assert_eq!(pop_any(&mut fair), "second");
    assert_eq!(pop_any(&mut fair), "first again");
}

#[test]
fn request_that_leaves_is_forgotten() {
    let mut fair = Names::new(3);
    let tickets = ["x", "y", "z"].map(|name| join(&mut fair, "m", at(1), name));
    assert_eq!(fair.leave(at(1), tickets[0]), Some("x".to_owned()));
    assert_eq!(fair.leave(at(1), tickets[0]), None, "already left");
    assert_eq!(fair.leave(at(2), tickets[1]), None, "another client's");
    assert_eq!(
        fair.leave(with_key(1, 5), tickets[1]),
        None,
        "another credential's"
    );
    join(&mut fair, "m", at(2), "now");
    assert_eq!(pop_any(&mut fair), "y");
    assert_eq!(fair.leave(at(1), tickets[1]), None, "already served");
    assert_eq!(fair.leave(at(1), tickets[2]), Some("z".to_owned()));
    assert_eq!(pop_any(&mut fair), "now");
    assert_eq!(pop_any(&mut fair), "none");
    assert_empty(&fair);
}

#[test]
fn full_queue_evicts_the_newest_request_of_the_address_with_the_most() {
    let mut fair = Names::new(4);
    join(&mut fair, "m", with_key(1, 10), "1 oldest");
    join(&mut fair, "n", with_key(1, 11), "1 middle");
    let newest = join(&mut fair, "m", with_key(1, 10), "1 newest");
    join(&mut fair, "m", at(2), "2");
    let mut join = |client, name: &str| {
        let joined = fair.join("m", client, name.to_owned());
        joined.map(|(_, evicted)| evicted.unwrap())
    };
    let own = join(with_key(1, 10), "1 more");
    assert_eq!(own, None, "its own credential has the most");
    assert_eq!(join(at(3), "3").unwrap(), "1 newest");
    assert_eq!(join(at(4), "4").unwrap(), "1 middle");
    assert_eq!(join(at(5), "5"), None, "each address has one request");
    assert_eq!(join(at(2), "2 more"), None, "each address has one request");
    assert_eq!(fair.leave(with_key(1, 10), newest), None, "already evicted");
    let popped: Vec<_> = (0..5).map(|_| pop_any(&mut fair)).collect();
    assert_eq!(popped, ["1 oldest", "2", "3", "4", "none"]);
    assert_empty(&fair);
}

#[test]
fn full_queue_evicts_the_newest_request_of_the_credential_with_the_most() {
    let mut fair = Names::new(4);
    join(&mut fair, "m", with_key(1, 10), "heavy oldest");
    join(&mut fair, "n", with_key(1, 10), "heavy middle");
    join(&mut fair, "m", with_key(1, 10), "heavy newest");
    join(&mut fair, "m", with_key(1, 11), "light");
    let mut join = |client, name: &str| {
        let joined = fair.join("m", client, name.to_owned());
        joined.map(|(_, evicted)| evicted.unwrap())
    };
    // A request of a new address evicts the newest request of the heavy credential as well.
    assert_eq!(join(at(2), "other address").unwrap(), "heavy newest");
    assert_eq!(join(with_key(1, 11), "light again"), None, "two of each");
    assert_eq!(join(with_key(1, 12), "new").unwrap(), "heavy middle");
    assert_eq!(join(with_key(1, 13), "newer"), None, "one of each");
    let popped: Vec<_> = (0..5).map(|_| pop_any(&mut fair)).collect();
    assert_eq!(
        popped,
        ["heavy oldest", "other address", "light", "new", "none"]
    );
    assert_empty(&fair);
}

#[test]
fn invented_credentials_take_nothing_from_another_address() {
    let mut fair = Names::new(4);
    join(&mut fair, "m", at(2), "victim 0");
    join(&mut fair, "m", at(2), "victim 1");
    join(&mut fair, "m", with_key(1, 0), "invented");
    join(&mut fair, "m", with_key(1, 0), "invented");
    for credential in 1..100 {
        if let Some((_, evicted)) = fair.join("m", with_key(1, credential), "invented".to_owned()) {
            assert_eq!(evicted.unwrap(), "invented");
        }
    }
    let popped: Vec<_> = (0..4).map(|_| pop_any(&mut fair)).collect();
    let expected = ["victim 0", "invented", "victim 1", "invented"];
    assert_eq!(popped, expected);
}

#[test]
fn full_queue_evicts_the_newest_request_of_equal_addresses() {
    let mut fair = Names::new(6);
    for (number, address) in (0..).zip([1, 3, 2, 3, 2, 1]) {
        join(&mut fair, "m", at(address), &number.to_string());
    }
    let mut evicted = |address| {
        let joined = fair.join("m", at(address), "new".to_owned());
        joined.map(|(_, evicted)| evicted.unwrap())
    };
    assert_eq!(evicted(4).unwrap(), "5");
    assert_eq!(evicted(5).unwrap(), "4");
    assert_eq!(evicted(6).unwrap(), "3");
    assert_eq!(evicted(7), None);
}

#[test]
fn queue_without_room_admits_no_request() {
    let mut fair = Names::new(0);
    assert!(fair.join("m", at(1), String::new()).is_none());
    assert_empty(&fair);
}

#[test]
fn whole_lane_can_be_popped_and_the_others_stay() {
    let mut fair = Names::new(9);
    for client in 1..=2 {
        join(&mut fair, "a", at(client), "a1");
        join(&mut fair, "a", with_key(client, 5), "a2");
        join(&mut fair, "b", at(client), &format!("b of {client}"));
    }
    let lane = fair.next(|lane| *lane == "a").unwrap();
    assert_eq!(fair.pop_all(lane), ["a1", "a2", "a1", "a2"]);
    assert_eq!(fair.len(), 2);
    assert_eq!(pop_any(&mut fair), "b of 1");
    assert_eq!(pop_any(&mut fair), "b of 2");
    assert_empty(&fair);
}
