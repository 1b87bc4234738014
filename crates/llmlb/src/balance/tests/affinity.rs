//! Prompts are sent to the backend that received their beginning.

use std::collections::{BTreeMap, HashMap};

use super::*;

fn hints(blocks: &[u64]) -> SelectHints<'_> {
    SelectHints {
        blocks,
        ..SelectHints::default()
    }
}

fn ask(pool: &Pool, blocks: &[u64], tried: &[BackendId]) -> Slot {
    slot(choose(pool, Some("m"), &hints(blocks), tried))
}

#[test]
fn prompt_is_sent_to_the_backend_of_its_longest_known_beginning() {
    let (pool, _) = alike(&[(1, None); 8]);
    for conversation in 0..50_u64 {
        // All conversations begin with block 0, like a common system prompt. Each request changes
        // the backend that is remembered for this block, but the longer beginning decides.
        let blocks: Vec<u64> = (0..10).map(|block| block * (conversation + 1)).collect();
        let first = ask(&pool, &blocks[..4], &[]).backend().id;
        for length in [4, 6, 10] {
            let again = ask(&pool, &blocks[..length], &[]).backend().id;
            assert_eq!(again, first);
        }
    }
}

fn ask_at(pool: &Pool, blocks: &[u64], backend: &Backend) -> Slot {
    let ids = pool
        .table()
        .backends
        .iter()
        .map(|one| one.id)
        .collect::<Vec<_>>();
    let others: Vec<_> = ids.into_iter().filter(|id| *id != backend.id).collect();
    ask(pool, blocks, &others)
}

#[test]
fn longer_beginning_counts_more_than_a_shorter_one() {
    let (pool, backends) = alike(&[(1, None), (1, None)]);
    drop(ask_at(&pool, &[1, 2, 3], &backends[0]));
    drop(ask_at(&pool, &[1, 2], &backends[1]));
    for _ in 0..10 {
        assert_eq!(ask(&pool, &[1, 2, 3], &[]).backend().id, backends[0].id);
        drop(ask_at(&pool, &[1, 2], &backends[1]));
        assert_eq!(ask(&pool, &[1, 2, 5], &[]).backend().id, backends[1].id);
    }
}

#[test]
fn overloaded_backend_gets_no_prompts_by_affinity() {
    let (pool, backends) = alike(&[(1, None); 4]);
    let home = &backends[2];
    let mut held = vec![ask_at(&pool, &[1, 2], home)];
    // `home` has one request, the other backends none. Affinity uses a backend up to 1.25 times the
    // average load plus one request: `home` gets a second request, but not a third.
    held.push(ask(&pool, &[1, 2], &[]));
    assert_eq!(home.outstanding(), 2);
    assert_ne!(ask(&pool, &[1, 2], &[]).backend().id, home.id);
    // With more load on the other backends the average rises, and affinity sends more requests to
    // `home`.
    for backend in &backends {
        while backend.outstanding() < 8 {
            held.push(ask_at(&pool, &[], backend));
        }
    }
    drop(ask_at(&pool, &[1, 2], home));
    loop {
        let next = ask(&pool, &[1, 2], &[]);
        if next.backend().id != home.id {
            break;
        }
        held.push(next);
    }
    // The other three backends have 8 requests each. With 13 requests on `home` the average is
    // 9.25, and 13 is above the limit of 1.25 x 9.25 + 1. With 12 requests `home` was still below
    // its limit.
    assert_eq!(home.outstanding(), 13);
}

#[test]
fn average_of_many_candidates_is_cached_for_two_milliseconds() {
    let (pool, _) = alike(&[(1, None); 100]);
    let route = pool.route(Some("m")).unwrap();
    let mut random = Random::seeded(4);
    let mut ask = |blocks: &[u64], now| {
        slot(pool.choose_at(&route, &hints(blocks), &[], Moment(now), &mut random))
    };
    let home = ask(&[1], 1000);
    let id = home.backend().id;
    let held: Vec<_> = (0..1000).map(|_| ask(&[], 1000)).collect();
    let is_home = |slot: &Slot| slot.backend().id == id;
    let busy = held.iter().filter(|slot| is_home(slot)).count();
    assert!((5..=13).contains(&busy), "{busy}");
    // Each backend has about ten requests, so the load of the prompt's backend is near the average
    // and affinity may use it. This request also caches the average.
    let near = ask(&[1], 2000);
    assert!(is_home(&near));
    drop(held);
    let more = [ask(&[1], 2002), ask(&[1], 2002)];
    assert!(more.iter().all(is_home), "cached average");
    assert!(
        !is_home(&ask(&[1], 2003)),
        "new average: the others are idle"
    );
}

#[test]
fn unavailable_backend_gets_no_prompts_by_affinity() {
    let (pool, _) = alike(&[(1, Some(1)), (1, Some(1))]);
    let held = ask(&pool, &[5, 6], &[]);
    let home = Arc::clone(held.backend());
    assert_ne!(
        ask(&pool, &[5, 6], &[]).backend().id,
        home.id,
        "at its limit"
    );
    drop(held);

    let learn = || drop(ask_at(&pool, &[5, 6], &home));
    learn();
    assert_eq!(ask(&pool, &[5, 6], &[]).backend().id, home.id);
    assert_ne!(
        ask(&pool, &[5, 6], &[home.id]).backend().id,
        home.id,
        "tried"
    );
    learn();
    for _ in 0..3 {
        home.stats.note_failed(Moment::now());
    }
    assert_ne!(ask(&pool, &[5, 6], &[]).backend().id, home.id, "failing");
}

#[test]
fn prompts_from_before_a_restart_do_not_count() {
    let (pool, _) = alike(&[(1, None); 8]);
    let blocks: Vec<Vec<u64>> = (0..64).map(|n| vec![n * 1000, n * 1000 + 1]).collect();
    let home = |blocks: &Vec<u64>| ask(&pool, blocks, &[]).backend().id;
    let before: Vec<_> = blocks.iter().map(home).collect();
    for backend in &pool.table().backends {
        pool.set_state(backend, down());
        pool.set_state(backend, up(&["m"]));
    }
    let after: Vec<_> = blocks.iter().map(home).collect();
    let same = before.iter().zip(&after).filter(|(a, b)| a == b).count();
    assert!(same < 25, "{same} of 64 is not chance");
    assert_eq!(blocks.iter().map(home).collect::<Vec<_>>(), after);
}

#[test]
fn prompts_of_requests_that_waited_are_remembered() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let (pool, backends) = alike(&[(1, Some(1)); 8]);
    let route = pool.route(Some("m")).unwrap();
    for block in 0..6_u64 {
        let mut held: Vec<_> = (0..8).map(|_| chosen(&pool, Some("m"))).collect();
        let home = runtime.block_on(async {
            let prompt = [block];
            let hints = hints(&prompt);
            let (slot, ()) = tokio::join!(pool.wait(&route, &hints, &[]), async {
                drop(held.pop());
            });
            Arc::clone(slot.unwrap().backend())
        });
        drop(held);
        assert_eq!(ask(&pool, &[block], &[]).backend().id, home.id);
    }
    assert!(backends.iter().all(|one| one.outstanding() == 0));
}

/// A simulated prefix cache of a backend. It saves the work for the blocks at the beginning of a
/// prompt that it still has.
#[derive(Default)]
struct Cache {
    /// Time of the last use of each cached block.
    used: HashMap<u64, u64>,
    /// Cached blocks by the time of their last use. A full cache drops the least recently used
    /// block.
    order: BTreeMap<u64, u64>,
    uses: u64,
}

impl Cache {
    const ROOM: usize = 400;

    /// Adds the blocks of a prompt. Returns how many blocks at its beginning the cache had.
    fn take_in(&mut self, prompt: &[u64]) -> usize {
        let known = prompt.iter().take_while(|one| self.used.contains_key(one));
        let known = known.count();
        for block in prompt {
            self.uses += 1;
            if let Some(before) = self.used.insert(*block, self.uses) {
                self.order.remove(&before);
            }
            self.order.insert(self.uses, *block);
            if self.order.len() > Self::ROOM {
                let (_, oldest) = self.order.pop_first().unwrap();
                self.used.remove(&oldest);
            }
        }
        known
    }
}

/// Result of a simulation.
struct Day {
    /// Share of all prompt blocks, from 0 to 1, that the selected backend's cache already had,
    /// together with all blocks in front of them.
    hits: f64,
    /// Maximum, over all selections, of the selected backend's load minus the bound of 1.25 x
    /// average load + 1. Positive if a selection exceeded the bound.
    worst: f64,
}

/// Simulates conversations that grow with every turn, on eight backends with small caches.
#[expect(clippy::cast_precision_loss, reason = "the counts are far below 2^53")]
fn simulate(seed: u64, with_affinity: bool) -> Day {
    const BACKENDS: usize = 8;
    const CONVERSATIONS: usize = 60;
    const IN_FLIGHT: usize = 64;
    let (pool, backends) = alike(&[(1, None); BACKENDS]);
    let route = pool.route(Some("m")).unwrap();
    let mut caches: Vec<Cache> = (0..BACKENDS).map(|_| Cache::default()).collect();
    let mut random = Random::seeded(seed);
    let mut next_block = 1_000_u64;
    let mut conversations: Vec<Vec<u64>> = vec![Vec::new(); CONVERSATIONS];
    let mut in_flight: Vec<Slot> = Vec::new();
    let (mut hits, mut total, mut worst) = (0, 0, f64::MIN);
    for turn in 0..6_000_u64 {
        let which = random.below(60) as usize;
        let prompt = &mut conversations[which];
        if prompt.is_empty() || prompt.len() > 40 {
            // A new conversation begins with one of four system prompts of three blocks.
            let system = u64::from(random.below(4)) * 10;
            *prompt = vec![system + 1, system + 2, system + 3];
        }
        for _ in 0..=random.below(4) {
            next_block += 1;
            prompt.push(next_block);
        }
        let hints = if with_affinity {
            hints(prompt)
        } else {
            hints(&[])
        };
        let outstanding: Vec<_> = backends.iter().map(|one| one.outstanding()).collect();
        let average = outstanding.iter().sum::<usize>() as f64 / BACKENDS as f64;
        let slot = slot(pool.choose_at(&route, &hints, &[], Moment(turn), &mut random));
        let backend = slot.backend().id.0 as usize;
        worst = worst.max(outstanding[backend] as f64 - (1.25 * average + 1.0));
        hits += caches[backend].take_in(prompt);
        total += prompt.len();
        in_flight.push(slot);
        while in_flight.len() > IN_FLIGHT {
            let done = random.below(u32::try_from(in_flight.len()).unwrap());
            drop(in_flight.swap_remove(done as usize));
        }
    }
    Day {
        hits: f64::from(u32::try_from(hits).unwrap()) / f64::from(u32::try_from(total).unwrap()),
        worst,
    }
}

#[test]
fn affinity_raises_the_cache_hit_rate_and_keeps_the_load_even() {
    for seed in [1, 2, 3] {
        let (with, without) = (simulate(seed, true), simulate(seed, false));
        println!(
            "seed {seed}: {:.0} % of blocks cached with affinity (load {:+.2} to the bound), \
             {:.0} % without ({:+.2})",
            100.0 * with.hits,
            with.worst,
            100.0 * without.hits,
            without.worst
        );
        assert!(with.hits > 0.7, "{}", with.hits);
        assert!(
            with.hits > without.hits + 0.3,
            "{} {}",
            with.hits,
            without.hits
        );
        assert!(with.worst <= 0.0, "{}", with.worst);
    }
}
