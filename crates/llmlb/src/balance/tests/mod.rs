//! Tests of the pool without network.

mod affinity;
mod choosing;
mod draining;
mod ejecting;
mod models;
mod reconfigure;
mod speed;
mod storm;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use super::clock::Moment;
use super::random::Random;
use super::*;
use crate::backend_id::BackendId;
use crate::config::{self, BackendUrl};

fn config(name: &str) -> config::Backend {
    let url = BackendUrl::parse(&format!("http://{name}")).unwrap();
    config::Backend::new(name.to_owned(), url)
}

fn backend(name: &str) -> Backend {
    Backend::new(config(name))
}

fn pool_config() -> PoolConfig {
    PoolConfig {
        aliases: Vec::new(),
        settings: RequestSettings::default_for_tests(),
        queue: 10_000,
        queue_timeout: Duration::from_secs(60),
        host: None,
        issuer_queues: Vec::new(),
    }
}

fn up(models: &[&str]) -> BackendState {
    let described = models.iter().map(|id| Model::configured(id, "test"));
    BackendState::Up(Arc::new(Models::new(described.collect())))
}

fn down() -> BackendState {
    BackendState::Down("gone".to_owned())
}

/// A pool of two backends: `a` serves the models `both` and `one`, `b` serves only `both`.
fn pool() -> (Pool, Arc<Backend>, Arc<Backend>) {
    let pool = Pool::new(pool_config(), [backend("a"), backend("b")]);
    let [a, b] = &pool.table().backends[..] else {
        panic!("two were given");
    };
    pool.set_state(a, up(&["both", "one"]));
    pool.set_state(b, up(&["both"]));
    let (a, b) = (Arc::clone(a), Arc::clone(b));
    (pool, a, b)
}

/// A pool of backends that all serve the model `m`, with these weights and limits.
fn alike(backends: &[(u32, Option<u32>)]) -> (Pool, Vec<Arc<Backend>>) {
    alike_with(pool_config(), backends)
}

fn alike_with(pool: PoolConfig, backends: &[(u32, Option<u32>)]) -> (Pool, Vec<Arc<Backend>>) {
    let numbered = backends.iter().enumerate();
    let made = numbered.map(|(number, (weight, limit))| {
        Backend::new(config::Backend {
            weight: *weight,
            max_concurrent: *limit,
            ..config(&format!("b{number}"))
        })
    });
    let pool = Pool::new(pool, made);
    let backends = pool.table().backends.clone();
    for backend in &backends {
        pool.set_state(backend, up(&["m"]));
    }
    (pool, backends)
}

fn address(address: u64) -> ClientKey {
    ClientKey {
        address,
        credential: 0,
    }
}

fn choose(
    pool: &Pool,
    model: Option<&str>,
    hints: &SelectHints<'_>,
    tried: &[BackendId],
) -> Choice {
    pool.choose(&pool.route(model).unwrap(), hints, tried)
}

#[track_caller]
fn chosen(pool: &Pool, model: Option<&str>) -> Slot {
    slot(choose(pool, model, &SelectHints::default(), &[]))
}

#[track_caller]
fn slot(choice: Choice) -> Slot {
    match choice {
        Choice::Slot(slot) => slot,
        other => panic!("no slot: {other:?}"),
    }
}

fn serving(pool: &Pool, model: Option<&str>) -> String {
    let route = match pool.route(model) {
        Ok(route) => route,
        Err(RouteError::NotYet) => return "not yet".to_owned(),
        Err(RouteError::Unknown) => return "unknown".to_owned(),
    };
    let mut names = Vec::new();
    let mut tried = Vec::new();
    while let Choice::Slot(slot) = pool.choose(&route, &SelectHints::default(), &tried) {
        tried.push(slot.backend().id);
        names.push(slot.backend().name.clone());
    }
    names.sort_unstable();
    if names.is_empty() {
        return "all down".to_owned();
    }
    names.join(" ")
}
