//! Producers that stage the next record as soon as the last one is acknowledged, and their results.

use std::cell::Cell;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use spool::Record;
use uuid::Uuid;

use crate::record_with;

/// A generator of UUIDs of version 7 without a system call for each.
pub struct Ids {
    base: u128,
    count: Cell<u128>,
}

impl Default for Ids {
    fn default() -> Self {
        Self {
            base: Uuid::now_v7().as_u128(),
            count: Cell::new(0),
        }
    }
}

impl Ids {
    pub fn next(&self) -> Uuid {
        self.count.set(self.count.get() + 1);
        // The count is added to the time of the id, so all ids are different.
        Uuid::from_u128(self.base.wrapping_add(self.count.get() << 80))
    }
}

/// Result of one round, of all producers together.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Records per second.
    pub rate: f64,
    /// Median latency of a record, in microseconds.
    pub p50: f64,
    pub p99: f64,
}

/// Stages records from a number of threads until the time is over. Every record has a new id, whose
/// cost is the same for all contestants.
pub fn produce(producers: usize, time: Duration, stage: impl Fn(&Record) + Sync) -> Measured {
    let start = Barrier::new(producers);
    let (mut waits, mut rate) = (Vec::new(), 0.0);
    thread::scope(|scope| {
        let running: Vec<_> = (0..producers)
            .map(|_| {
                scope.spawn(|| {
                    let (ids, mut waits) = (Ids::default(), Vec::with_capacity(1 << 16));
                    start.wait();
                    let began = Instant::now();
                    let mut now = began;
                    while now - began < time {
                        stage(&record_with(ids.next()));
                        let after = Instant::now();
                        waits.push((after - now).as_secs_f32());
                        now = after;
                    }
                    let took = began.elapsed().as_secs_f64();
                    (waits, took)
                })
            })
            .collect();
        for producer in running {
            let (own, took) = producer.join().expect("a producer");
            rate += count(own.len()) / took;
            waits.extend(own);
        }
    });
    waits.sort_by(f32::total_cmp);
    let at = |part: usize| f64::from(waits[(waits.len() - 1) * part / 100]) * 1e6;
    Measured {
        rate,
        p50: at(50),
        p99: at(99),
    }
}

/// The median of each figure.
pub fn median(rounds: &[Measured]) -> Measured {
    let of = |figure: fn(&Measured) -> f64| {
        let mut all: Vec<_> = rounds.iter().map(figure).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Measured {
        rate: of(|one| one.rate),
        p50: of(|one| one.p50),
        p99: of(|one| one.p99),
    }
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).expect("fewer than four billion"))
}
