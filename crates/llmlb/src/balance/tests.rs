//! What is known about the backends, without any of them.

use super::*;
use crate::config::{self, BackendUrl};

fn backend(name: &str, fixed: Option<&[&str]>) -> Backend {
    let url = BackendUrl::parse(&format!("http://{name}")).unwrap();
    Backend::new(config::Backend {
        models: fixed.map(|ids| ids.iter().map(ToString::to_string).collect()),
        ..config::Backend::at(name.to_owned(), url)
    })
}

fn terms() -> Terms {
    Terms {
        aliases: Vec::new(),
        queue: 10,
        queue_timeout: Duration::from_secs(1),
    }
}

fn up(models: &[&str]) -> State {
    let described = models.iter().map(|id| describe(id, "test")).collect();
    State::Up(Arc::new(described))
}

fn down() -> State {
    State::Down("gone".to_owned())
}

/// Two backends: `a` serves `both` and `one`, `b` serves `both`.
fn pool() -> (Pool, Arc<Backend>, Arc<Backend>) {
    let pool = Pool::new(terms(), [backend("a", None), backend("b", None)]);
    let [a, b] = &pool.table().backends[..] else {
        panic!("two were given");
    };
    pool.note(a, up(&["both", "one"]));
    pool.note(b, up(&["both"]));
    let (a, b) = (Arc::clone(a), Arc::clone(b));
    (pool, a, b)
}

/// The names of who may serve a model; what else came of asking.
fn who(pool: &Pool, model: Option<&str>) -> String {
    let route = match pool.route(model) {
        Ok(route) => route,
        Err(Absent::NotYet) => return "not yet".to_owned(),
        Err(Absent::Unknown) => return "unknown".to_owned(),
    };
    let mut names = Vec::new();
    let mut tried = Vec::new();
    while let Choice::Slot(slot) = pool.choose(&route, &Wish::default(), &tried) {
        tried.push(slot.backend().id);
        names.push(slot.backend().name.clone());
    }
    names.sort_unstable();
    if names.is_empty() {
        return "all down".to_owned();
    }
    names.join(" ")
}

#[test]
fn a_model_is_served_by_those_that_have_it_and_are_up() {
    let (pool, a, b) = pool();
    assert_eq!(who(&pool, Some("both")), "a b");
    assert_eq!(who(&pool, Some("one")), "a");
    assert_eq!(who(&pool, Some("other")), "unknown");
    pool.note(&a, down());
    assert_eq!(who(&pool, Some("both")), "b");
    pool.note(&b, down());
    assert_eq!(who(&pool, Some("both")), "all down");
}

#[test]
fn a_model_stays_known_while_its_only_backend_is_down_and_is_forgotten_when_that_drops_it() {
    let (pool, a, _) = pool();
    pool.note(&a, down());
    pool.note(&a, State::Down("still gone".to_owned()));
    assert_eq!(who(&pool, Some("one")), "all down");
    assert_eq!(pool.table().model_names(), ["both", "one"]);
    pool.note(&a, up(&["both"]));
    assert_eq!(who(&pool, Some("one")), "unknown");
}

#[test]
fn a_model_is_not_unknown_before_everyone_has_answered() {
    let pool = Pool::new(terms(), []);
    assert_eq!(who(&pool, Some("m")), "not yet", "there is nobody to ask");
    let pool = Pool::new(terms(), [backend("a", None), backend("b", None)]);
    let [a, b] = &pool.table().backends[..] else {
        panic!("two were given");
    };
    pool.note(a, up(&["m"]));
    assert_eq!(who(&pool, Some("m")), "a");
    assert_eq!(who(&pool, Some("other")), "not yet");
    pool.note(b, up(&[]));
    assert_eq!(who(&pool, Some("other")), "unknown");
    pool.note(b, down());
    assert_eq!(who(&pool, Some("other")), "unknown", "it has said so once");
}

#[test]
fn a_short_name_is_the_latest_version() {
    let (pool, a, b) = pool();
    pool.note(&a, up(&["llama3:latest", "phi:14b"]));
    assert_eq!(who(&pool, Some("llama3")), "a");
    assert_eq!(who(&pool, Some("llama3:latest")), "a");
    assert_eq!(who(&pool, Some("phi")), "unknown");
    assert_eq!(who(&pool, Some("llama3:8b")), "unknown");
    pool.note(&b, up(&["llama3"]));
    assert_eq!(
        who(&pool, Some("llama3")),
        "b",
        "whoever has that very name"
    );
}

#[test]
fn a_backend_that_is_known_is_not_added_again() {
    let (pool, ..) = pool();
    assert!(pool.knows(&BackendUrl::parse("http://a").unwrap()));
    assert!(pool.add(backend("a", None)).is_none());
    assert!(pool.add(backend("c", None)).is_some());
    assert_eq!(pool.table().backends.len(), 3);
}

#[test]
fn fixed_models_are_known_before_their_backend_was_ever_up() {
    let pool = Pool::new(terms(), [backend("a", Some(&["claude"]))]);
    assert_eq!(who(&pool, Some("claude")), "all down");
}

#[test]
fn a_request_without_a_model_goes_to_the_first_that_is_up() {
    let (pool, a, b) = pool();
    let route = pool.route(None).unwrap();
    for _ in 0..9 {
        assert!(
            matches!(pool.choose(&route, &Wish::default(), &[]), Choice::Slot(slot) if slot.backend().name == "a")
        );
    }
    assert_eq!(who(&pool, None), "a b", "one after the other");
    pool.note(&a, down());
    assert_eq!(who(&pool, None), "b");
    pool.note(&b, down());
    assert_eq!(who(&pool, None), "all down");
}

#[test]
fn each_model_is_listed_once_as_its_first_backend_describes_it() {
    let (pool, a, _) = pool();
    let ids = |table: &Table| -> Vec<_> {
        let models = table.models.iter();
        models.map(|model| model["id"].to_string()).collect()
    };
    assert_eq!(ids(&pool.table()), [r#""both""#, r#""one""#]);
    pool.note(&a, down());
    assert_eq!(
        ids(&pool.table()),
        [r#""both""#],
        "what is down is not offered"
    );
}

#[test]
fn a_slot_counts_until_it_is_dropped() {
    let (pool, a, b) = pool();
    let route = pool.route(Some("one")).unwrap();
    let Choice::Slot(slot) = pool.choose(&route, &Wish::default(), &[]) else {
        panic!("it is up");
    };
    assert_eq!((a.outstanding(), a.requests()), (1, 1));
    let route = pool.route(Some("both")).unwrap();
    for _ in 0..5 {
        let Choice::Slot(slot) = pool.choose(&route, &Wish::default(), &[]) else {
            panic!("both are up");
        };
        assert_eq!(slot.backend().name, b.name, "the idle one");
    }
    drop(slot);
    assert_eq!((a.outstanding(), a.requests()), (0, 1));
}
