//! Backends, aliases and limits that a new configuration changes.

use super::*;
use crate::balance::Reconfigured;

/// Replaces the backends of a pool. New backends are up and serve `models`. Returns the removed ones.
fn reconfigure(pool: &Pool, backends: Vec<config::Backend>, models: &[&str]) -> Vec<Arc<Backend>> {
    let mut planned = pool.plan(backends.into_iter().map(Backend::new));
    for one in planned.iter_mut().filter(|one| one.is_new) {
        one.state = Some(up(models));
    }
    pool.reconfigure(Reconfigured {
        backends: planned,
        keeps_discovered: false,
        aliases: Vec::new(),
        settings: RequestSettings::default_for_tests(),
        queue: 10,
        queue_timeout: Duration::from_secs(60),
    })
}

fn names(pool: &Pool) -> Vec<String> {
    let backends = &pool.table().backends;
    backends.iter().map(|one| one.name.clone()).collect()
}

#[test]
fn removed_backend_is_not_selected_on_a_route_from_before() {
    let (pool, a, _) = pool();
    let old = pool.route(Some("both")).unwrap();
    let held = chosen(&pool, Some("one"));
    let removed = reconfigure(&pool, vec![config("b"), config("c")], &["both"]);
    assert_eq!(removed.len(), 1);
    assert!(a.is_removed());
    assert_eq!((held.backend().id, a.outstanding()), (a.id, 1));
    for _ in 0..50 {
        let slot = slot(pool.choose(&old, &SelectHints::default(), &[]));
        assert_eq!(slot.backend().name, "b", "the old route does not know c");
    }
    // No backend is left that serves the model `one`, but the pool still has the others.
    assert!(pool.route(Some("one")).is_err());
    assert_eq!(names(&pool), ["b", "c"]);
    a.set_refuses_connections(true);
    assert!(
        pool.last_resort(&old, &SelectHints::default(), &[])
            .is_none()
    );
    drop(held);
    assert_eq!(a.outstanding(), 0);
}

#[test]
fn ids_are_never_given_twice_and_a_url_keeps_its_id() {
    let (pool, a, b) = pool();
    reconfigure(&pool, vec![config("c")], &["both"]);
    let c = pool.table().backends[0].id;
    assert!(c != a.id && c != b.id);
    reconfigure(
        &pool,
        vec![config("d"), config("b"), config("a")],
        &["both"],
    );
    let table = pool.table();
    let ids: Vec<BackendId> = table.backends.iter().map(|one| one.id).collect();
    assert_eq!(ids[1..], [b.id, a.id]);
    assert!(![a.id, b.id, c].contains(&ids[0]));
    assert!(!a.is_removed(), "the same state under the same id");
    // The order of the configuration must be kept, because it decides which backend gets requests
    // without a model.
    assert_eq!(chosen(&pool, None).backend().name, "d");
}

#[test]
fn state_of_a_backend_outlives_its_removal() {
    let (pool, a, _) = pool();
    a.stats.note_latency(Duration::from_secs(3), Moment::now());
    for _ in 0..3 {
        a.stats.note_failed(Moment::now());
    }
    reconfigure(&pool, vec![config("b")], &[]);
    let heavy = config::Backend {
        weight: 7,
        name: "again".to_owned(),
        ..config("a")
    };
    reconfigure(&pool, vec![heavy, config("b")], &[]);
    let again = Arc::clone(&pool.table().backends[0]);
    assert_eq!((again.id, again.settings.weight), (a.id, 7));
    assert!(again.is_ejected() && again.is_up());
    assert_eq!(again.stats.latency(Moment::now()), 3_000_000);
    assert_eq!(serving(&pool, Some("one")), "again");
}

#[test]
fn affinity_survives_changes_of_other_backends() {
    let (pool, backends) = alike(&[(1, None), (1, None), (1, None)]);
    let blocks = [11, 12];
    let hints = SelectHints {
        blocks: &blocks,
        ..SelectHints::default()
    };
    let home = slot(choose(&pool, Some("m"), &hints, &[])).backend().id;
    let others = (0..3).filter(|number| backends[*number].id != home);
    let kept = backends.iter().position(|one| one.id == home).unwrap();
    let first = others.clone().next().unwrap();
    let list = vec![
        config("new"),
        config(&format!("b{kept}")),
        config(&format!("b{first}")),
    ];
    reconfigure(&pool, list, &["m"]);
    for _ in 0..20 {
        assert_eq!(
            slot(choose(&pool, Some("m"), &hints, &[])).backend().id,
            home
        );
    }
}

#[test]
fn settings_of_models_apply_without_a_new_probe() {
    let (pool, _, _) = pool();
    let only = config::Backend {
        only_models: Some(vec!["one".to_owned()]),
        ..config("a")
    };
    reconfigure(&pool, vec![only, config("b")], &[]);
    assert_eq!(serving(&pool, Some("both")), "b");
    assert_eq!(serving(&pool, Some("one")), "a");
    let fixed = config::Backend {
        models: Some(vec!["other".to_owned()]),
        ..config("b")
    };
    reconfigure(&pool, vec![config("a"), fixed], &[]);
    assert_eq!(serving(&pool, Some("other")), "b");
}

#[tokio::test(start_paused = true)]
async fn waiting_request_is_routed_anew_or_fails() {
    let (pool, backends) = alike(&[(1, Some(1))]);
    let pool = Arc::new(pool);
    let held = chosen(&pool, Some("m"));
    let wait = |address_number| {
        let pool = Arc::clone(&pool);
        async move {
            let hints = SelectHints {
                client: address(address_number),
                ..SelectHints::default()
            };
            let route = pool.route(Some("m")).unwrap();
            let slot = pool.wait(&route, &hints, &[]).await;
            slot.map(|slot| slot.backend().name.clone())
        }
    };
    let set = tokio::task::LocalSet::new();
    set.run_until(async {
        let first = tokio::task::spawn_local(wait(1));
        tokio::task::yield_now().await;
        assert_eq!(pool.waiting(), 1);
        reconfigure(&pool, vec![config("new")], &["m"]);
        assert_eq!(first.await.unwrap().unwrap(), "new");
        // The new backend does not serve the model of the next waiting request.
        let limited = config::Backend {
            max_concurrent: Some(1),
            ..config("new")
        };
        reconfigure(&pool, vec![limited], &["m"]);
        let occupied = chosen(&pool, Some("m"));
        let second = tokio::task::spawn_local(wait(2));
        tokio::task::yield_now().await;
        assert_eq!(pool.waiting(), 1);
        reconfigure(&pool, vec![config("unrelated")], &["x"]);
        assert_eq!(second.await.unwrap().unwrap_err(), WaitError::Down);
        drop(occupied);
    })
    .await;
    drop(held);
    assert_eq!(backends[0].outstanding(), 0);
}
