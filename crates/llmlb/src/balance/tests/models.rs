//! Who serves what, and what is listed.

use super::*;
use crate::config::Kind;

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
    assert_eq!(pool.table().model_names(None), ["both", "one"]);
    pool.note(&a, up(&["both"]));
    assert_eq!(who(&pool, Some("one")), "unknown");
}

#[test]
fn a_model_is_not_unknown_before_everyone_has_answered() {
    let pool = Pool::new(pool_config(), []);
    assert_eq!(who(&pool, Some("m")), "not yet", "there is nobody to ask");
    let pool = Pool::new(pool_config(), [backend("a"), backend("b")]);
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
    assert!(pool.add(backend("a")).is_none());
    assert!(pool.add(backend("c")).is_some());
    assert_eq!(pool.table().backends.len(), 3);
}

#[test]
fn fixed_models_are_known_before_their_backend_was_ever_up() {
    let mut fixed = config("a");
    fixed.models = Some(vec!["claude".to_owned()]);
    let pool = Pool::new(pool_config(), [Backend::new(fixed)]);
    assert_eq!(who(&pool, Some("claude")), "all down");
}

#[test]
fn a_request_without_a_model_goes_to_the_first_that_is_up() {
    let (pool, a, b) = pool();
    for _ in 0..9 {
        assert_eq!(chosen(&pool, None).backend().name, "a");
    }
    assert_eq!(who(&pool, None), "a b", "one after the other");
    pool.note(&a, down());
    assert_eq!(who(&pool, None), "b");
    pool.note(&b, down());
    assert_eq!(who(&pool, None), "all down");
}

/// What `/v1/models` shows.
fn listed(table: &Table) -> Vec<serde_json::Value> {
    let list: serde_json::Value = serde_json::from_slice(&table.list()).unwrap();
    list["data"].as_array().unwrap().clone()
}

#[test]
fn each_model_is_listed_once_as_its_first_backend_describes_it() {
    let (pool, a, _) = pool();
    let ids = |table: &Table| -> Vec<_> {
        let models = listed(table).into_iter();
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
fn a_backend_is_asked_by_its_own_name_for_the_model() {
    let (pool, a, _) = pool();
    pool.note(&a, up(&["llama3:latest"]));
    assert_eq!(chosen(&pool, Some("llama3")).model(), Some("llama3:latest"));
    assert_eq!(chosen(&pool, Some("llama3:latest")).model(), None);
    assert_eq!(chosen(&pool, Some("both")).model(), None);
}

/// A pool whose aliases are `fast` and `smart`, and one backend for each list of models.
fn with_aliases(aliases: &[(&str, &[&str])], backends: &[&[&str]]) -> Pool {
    let alias = |(name, models): &(&str, &[&str])| Alias {
        name: (*name).to_owned(),
        models: models.iter().map(ToString::to_string).collect(),
    };
    let config = PoolConfig {
        aliases: aliases.iter().map(alias).collect(),
        ..pool_config()
    };
    let pool = Pool::new(
        config,
        (0..backends.len()).map(|n| backend(&format!("b{n}"))),
    );
    for (backend, models) in pool.table().backends.iter().zip(backends) {
        pool.note(backend, up(models));
    }
    pool
}

/// Who serves a model, each with the name that it is asked by.
fn asked_as(pool: &Pool, model: &str) -> Vec<String> {
    let route = pool.route(Some(model)).unwrap();
    let candidates = route.candidates.iter();
    let named = candidates.map(|one| {
        let name = &one.backend.name;
        format!("{name}:{}", one.model.as_deref().unwrap_or("-"))
    });
    named.collect()
}

#[test]
fn an_alias_is_served_by_everyone_who_has_one_of_its_models_each_by_its_own_name() {
    let pool = with_aliases(
        &[("smart", &["org/big", "big", "small"])],
        &[&["small", "big"], &["org/big"], &["other"], &["big:latest"]],
    );
    assert_eq!(
        asked_as(&pool, "smart"),
        ["b0:big", "b1:org/big", "b3:big:latest"],
        "the first of the list that it has"
    );
    assert_eq!(who(&pool, Some("big")), "b0", "that name stays");
    assert_eq!(who(&pool, Some("none")), "unknown");
}

#[test]
fn an_alias_hides_a_model_of_the_same_name_unless_it_is_in_the_list() {
    let backends: &[&[&str]] = &[&["gpt-4"], &["llama"]];
    let pool = with_aliases(&[("gpt-4", &["llama"])], backends);
    assert_eq!(asked_as(&pool, "gpt-4"), ["b1:llama"]);
    let pool = with_aliases(&[("gpt-4", &["llama", "gpt-4"])], backends);
    assert_eq!(asked_as(&pool, "gpt-4"), ["b0:-", "b1:llama"]);
    let pool = with_aliases(&[("x", &["llama"])], &[&["x:latest"], &["llama"]]);
    assert_eq!(
        asked_as(&pool, "x"),
        ["b1:llama"],
        "nor is it short for one"
    );
}

#[test]
fn an_alias_that_stands_for_nothing_is_unknown_and_one_whose_backend_is_down_is_not() {
    let pool = with_aliases(&[("fast", &["phi"]), ("slow", &["none"])], &[&["phi"]]);
    assert_eq!(who(&pool, Some("slow")), "unknown");
    pool.note(&pool.table().backends[0], down());
    assert_eq!(who(&pool, Some("fast")), "all down");
    assert_eq!(pool.table().model_names(None), ["fast", "phi"]);
}

#[test]
fn aliases_are_listed_like_their_models_while_somebody_serves_them() {
    let pool = with_aliases(
        &[("fast", &["phi"]), ("llama", &["phi"]), ("none", &["x"])],
        &[&["llama", "phi"], &["phi"]],
    );
    let [first, second] = &pool.table().backends[..] else {
        panic!("two were given");
    };
    let phi = Model::new("phi", None, r#""owned_by":"microsoft","size":7"#);
    let told = vec![Model::configured("llama", "meta"), phi];
    pool.note(first, State::Up(Arc::new(Models::new(told))));
    let shown = |pool: &Pool| -> Vec<String> {
        let models = listed(&pool.table()).into_iter();
        let told = models.map(|one| format!("{} {} {}", one["id"], one["owned_by"], one["size"]));
        told.map(|text| text.replace('"', "")).collect()
    };
    assert_eq!(
        shown(&pool),
        ["phi microsoft 7", "fast microsoft 7", "llama microsoft 7"]
    );
    pool.note(first, down());
    pool.note(second, down());
    assert_eq!(shown(&pool), [""; 0]);
}

#[test]
fn a_backend_is_used_for_the_models_that_it_is_allowed_for() {
    let mut limited = config("a");
    limited.only_models = Some(vec!["gpt-*".to_owned(), "o3".to_owned()]);
    let a = Backend::new(limited.clone());
    let told = ["gpt-4", "gpt-", "xgpt-4", "o3", "o3-mini"].map(|id| Model::new(id, None, ""));
    let offered = a.offered(Models::new(told.to_vec()));
    let ids: Vec<_> = offered.iter().map(|model| &*model.id).collect();
    assert_eq!(ids, ["gpt-4", "gpt-", "o3"]);

    limited.models = Some(vec!["gpt-5".to_owned(), "phi".to_owned()]);
    let pool = Pool::new(pool_config(), [Backend::new(limited)]);
    assert_eq!(who(&pool, Some("gpt-5")), "all down");
    assert_eq!(who(&pool, Some("phi")), "unknown");
}

#[test]
fn a_key_goes_where_the_backend_wants_it() {
    let header = |kind| {
        let mut config = config("a");
        config.kind = kind;
        config.api_key = Some(config::Secret::new("sk-1".to_owned()));
        let (name, value) = Backend::new(config).settings.credential.unwrap();
        assert!(value.is_sensitive());
        format!("{name}: {}", value.to_str().unwrap())
    };
    assert_eq!(header(None), "authorization: Bearer sk-1");
    assert_eq!(header(Some(Kind::OpenAi)), "authorization: Bearer sk-1");
    assert_eq!(header(Some(Kind::Anthropic)), "x-api-key: sk-1");
    assert!(backend("a").settings.credential.is_none());
}

#[test]
fn what_a_backend_is_found_to_be_does_not_change_what_was_said() {
    let found = backend("a");
    assert_eq!(found.kind(), None);
    for kind in [Kind::Vllm, Kind::Ollama] {
        found.note_kind(kind);
        assert_eq!(found.kind(), Some(kind), "it may be another one by now");
    }
    let mut said = config("b");
    said.kind = Some(Kind::LmStudio);
    let said = Backend::new(said);
    said.note_kind(Kind::Vllm);
    assert_eq!(said.kind(), Some(Kind::LmStudio));
}

#[test]
fn a_thread_sees_the_table_that_holds_now_of_the_pool_that_it_asks() {
    let (first, a, _) = pool();
    let (second, ..) = pool();
    first.note(&a, up(&["new"]));
    for _ in 0..3 {
        assert_eq!(who(&first, Some("new")), "a");
        assert_eq!(who(&second, Some("new")), "unknown");
    }
    let elsewhere = std::thread::scope(|scope| {
        let selection = scope.spawn(|| who(&first, Some("new")));
        selection.join().unwrap()
    });
    assert_eq!(elsewhere, "a");
}
