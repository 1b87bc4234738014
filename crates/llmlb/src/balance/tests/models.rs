//! Routes of models and aliases, and the list of models.

use super::*;
use crate::config::Kind;

#[test]
fn model_is_served_by_the_backends_that_have_it_and_are_up() {
    let (pool, a, b) = pool();
    assert_eq!(serving(&pool, Some("both")), "a b");
    assert_eq!(serving(&pool, Some("one")), "a");
    assert_eq!(serving(&pool, Some("other")), "unknown");
    pool.set_state(&a, down());
    assert_eq!(serving(&pool, Some("both")), "b");
    pool.set_state(&b, down());
    assert_eq!(serving(&pool, Some("both")), "all down");
}

#[test]
fn model_stays_known_while_its_only_backend_is_down() {
    let (pool, a, _) = pool();
    pool.set_state(&a, down());
    pool.set_state(&a, BackendState::Down("still gone".to_owned()));
    assert_eq!(serving(&pool, Some("one")), "all down");
    assert_eq!(pool.table().model_names(None), ["both", "one"]);
    pool.set_state(&a, up(&["both"]));
    assert_eq!(serving(&pool, Some("one")), "unknown");
}

#[test]
fn model_is_not_unknown_before_all_backends_were_probed() {
    let pool = Pool::new(pool_config(), []);
    assert_eq!(serving(&pool, Some("m")), "not yet", "no backends");
    let pool = Pool::new(pool_config(), [backend("a"), backend("b")]);
    let [a, b] = &pool.table().backends[..] else {
        panic!("two were given");
    };
    pool.set_state(a, up(&["m"]));
    assert_eq!(serving(&pool, Some("m")), "a");
    assert_eq!(serving(&pool, Some("other")), "not yet");
    pool.set_state(b, up(&[]));
    assert_eq!(serving(&pool, Some("other")), "unknown");
    pool.set_state(b, down());
    assert_eq!(serving(&pool, Some("other")), "unknown", "was probed once");
}

#[test]
fn short_name_is_the_latest_version() {
    let (pool, a, b) = pool();
    pool.set_state(&a, up(&["llama3:latest", "phi:14b"]));
    assert_eq!(serving(&pool, Some("llama3")), "a");
    assert_eq!(serving(&pool, Some("llama3:latest")), "a");
    assert_eq!(serving(&pool, Some("phi")), "unknown");
    assert_eq!(serving(&pool, Some("llama3:8b")), "unknown");
    pool.set_state(&b, up(&["llama3"]));
    assert_eq!(serving(&pool, Some("llama3")), "b", "exact name first");
}

#[test]
fn known_backend_is_not_added_again() {
    let (pool, ..) = pool();
    assert!(pool.has_backend_at(&BackendUrl::parse("http://a").unwrap()));
    assert!(pool.add(backend("a")).is_none());
    assert!(pool.add(backend("c")).is_some());
    assert_eq!(pool.table().backends.len(), 3);
}

#[test]
fn configured_models_are_known_before_their_backend_is_up() {
    let mut fixed = config("a");
    fixed.models = Some(vec!["claude".to_owned()]);
    let pool = Pool::new(pool_config(), [Backend::new(fixed)]);
    assert_eq!(serving(&pool, Some("claude")), "all down");
}

#[test]
fn request_without_a_model_is_sent_to_the_first_backend_that_is_up() {
    let (pool, a, b) = pool();
    for _ in 0..9 {
        assert_eq!(chosen(&pool, None).backend().name, "a");
    }
    assert_eq!(serving(&pool, None), "a b", "in order");
    pool.set_state(&a, down());
    assert_eq!(serving(&pool, None), "b");
    pool.set_state(&b, down());
    assert_eq!(serving(&pool, None), "all down");
}

/// Entries of `/v1/models`.
fn listed(table: &Table) -> Vec<serde_json::Value> {
    let list: serde_json::Value = serde_json::from_slice(&table.list()).unwrap();
    list["data"].as_array().unwrap().clone()
}

#[test]
fn model_is_listed_once_as_its_first_backend_describes_it() {
    let (pool, a, _) = pool();
    let ids = |table: &Table| -> Vec<_> {
        let models = listed(table).into_iter();
        models.map(|model| model["id"].to_string()).collect()
    };
    assert_eq!(ids(&pool.table()), [r#""both""#, r#""one""#]);
    pool.set_state(&a, down());
    assert_eq!(
        ids(&pool.table()),
        [r#""both""#],
        "models of a backend that is down are not listed"
    );
}

#[test]
fn backend_gets_its_own_name_of_the_model() {
    let (pool, a, _) = pool();
    pool.set_state(&a, up(&["llama3:latest"]));
    assert_eq!(chosen(&pool, Some("llama3")).model(), Some("llama3:latest"));
    assert_eq!(chosen(&pool, Some("llama3:latest")).model(), None);
    assert_eq!(chosen(&pool, Some("both")).model(), None);
}

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
        pool.set_state(backend, up(models));
    }
    pool
}

/// Candidates of a model, each as `backend:name` with the backend's own name of the model.
fn candidates(pool: &Pool, model: &str) -> Vec<String> {
    let route = pool.route(Some(model)).unwrap();
    let candidates = route.candidates.iter();
    let named = candidates.map(|one| {
        let name = &one.backend.name;
        format!("{name}:{}", one.model.as_deref().unwrap_or("-"))
    });
    named.collect()
}

#[test]
fn alias_is_served_by_all_backends_that_have_one_of_its_models() {
    let pool = with_aliases(
        &[("smart", &["org/big", "big", "small"])],
        &[&["small", "big"], &["org/big"], &["other"], &["big:latest"]],
    );
    assert_eq!(
        candidates(&pool, "smart"),
        ["b0:big", "b1:org/big", "b3:big:latest"],
        "the first model of the list that the backend has"
    );
    assert_eq!(serving(&pool, Some("big")), "b0", "that name stays");
    assert_eq!(serving(&pool, Some("none")), "unknown");
}

#[test]
fn alias_hides_a_model_of_the_same_name_unless_its_list_has_it() {
    let backends: &[&[&str]] = &[&["gpt-4"], &["llama"]];
    let pool = with_aliases(&[("gpt-4", &["llama"])], backends);
    assert_eq!(candidates(&pool, "gpt-4"), ["b1:llama"]);
    let pool = with_aliases(&[("gpt-4", &["llama", "gpt-4"])], backends);
    assert_eq!(candidates(&pool, "gpt-4"), ["b0:-", "b1:llama"]);
    let pool = with_aliases(&[("x", &["llama"])], &[&["x:latest"], &["llama"]]);
    assert_eq!(
        candidates(&pool, "x"),
        ["b1:llama"],
        "`x` does not stand for `x:latest`"
    );
}

#[test]
fn alias_without_candidates_is_unknown_and_one_whose_backend_is_down_is_not() {
    let pool = with_aliases(&[("fast", &["phi"]), ("slow", &["none"])], &[&["phi"]]);
    assert_eq!(serving(&pool, Some("slow")), "unknown");
    pool.set_state(&pool.table().backends[0], down());
    assert_eq!(serving(&pool, Some("fast")), "all down");
    assert_eq!(pool.table().model_names(None), ["fast", "phi"]);
}

#[test]
fn aliases_are_listed_like_their_models_while_a_backend_serves_them() {
    let pool = with_aliases(
        &[("fast", &["phi"]), ("llama", &["phi"]), ("none", &["x"])],
        &[&["llama", "phi"], &["phi"]],
    );
    let [first, second] = &pool.table().backends[..] else {
        panic!("two were given");
    };
    let phi = Model::new("phi", None, r#""owned_by":"microsoft","size":7"#);
    let reported = vec![Model::configured("llama", "meta"), phi];
    pool.set_state(first, BackendState::Up(Arc::new(Models::new(reported))));
    let shown = |pool: &Pool| -> Vec<String> {
        let models = listed(&pool.table()).into_iter();
        let shown = models.map(|one| format!("{} {} {}", one["id"], one["owned_by"], one["size"]));
        shown.map(|text| text.replace('"', "")).collect()
    };
    assert_eq!(
        shown(&pool),
        ["phi microsoft 7", "fast microsoft 7", "llama microsoft 7"]
    );
    pool.set_state(first, down());
    pool.set_state(second, down());
    assert_eq!(shown(&pool), [""; 0]);
}

#[test]
fn backend_is_used_only_for_its_only_models() {
    let mut limited = config("a");
    limited.only_models = Some(vec!["gpt-*".to_owned(), "o3".to_owned()]);
    let a = Backend::new(limited.clone());
    let reported = ["gpt-4", "gpt-", "xgpt-4", "o3", "o3-mini"].map(|id| Model::new(id, None, ""));
    let offered = a.allowed_models(Models::new(reported.to_vec()));
    let ids: Vec<_> = offered.iter().map(|model| &*model.id).collect();
    assert_eq!(ids, ["gpt-4", "gpt-", "o3"]);

    limited.models = Some(vec!["gpt-5".to_owned(), "phi".to_owned()]);
    let pool = Pool::new(pool_config(), [Backend::new(limited)]);
    assert_eq!(serving(&pool, Some("gpt-5")), "all down");
    assert_eq!(serving(&pool, Some("phi")), "unknown");
}

#[test]
fn key_is_sent_in_the_header_field_of_the_backends_kind() {
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
fn probed_kind_does_not_replace_a_configured_one() {
    let probed = backend("a");
    assert_eq!(probed.kind(), None);
    for kind in [Kind::Vllm, Kind::Ollama] {
        probed.note_kind(kind);
        assert_eq!(probed.kind(), Some(kind), "a probed kind can change");
    }
    let mut configured = config("b");
    configured.kind = Some(Kind::LmStudio);
    let configured = Backend::new(configured);
    configured.note_kind(Kind::Vllm);
    assert_eq!(configured.kind(), Some(Kind::LmStudio));
}

#[test]
fn thread_sees_the_current_table_of_each_pool() {
    let (first, a, _) = pool();
    let (second, ..) = pool();
    first.set_state(&a, up(&["new"]));
    for _ in 0..3 {
        assert_eq!(serving(&first, Some("new")), "a");
        assert_eq!(serving(&second, Some("new")), "unknown");
    }
    let elsewhere = std::thread::scope(|scope| {
        let names = scope.spawn(|| serving(&first, Some("new")));
        names.join().unwrap()
    });
    assert_eq!(elsewhere, "a");
}
