//! Producers that stage as fast as they are acknowledged, and what they saw.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use spool::Record;

use crate::record;

/// What the producers of one round saw together.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Records in a second.
    pub rate: f64,
    /// How long a record took, in microseconds.
    pub p50: f64,
    pub p99: f64,
}

/// Lets a number of threads stage until the time is over. Each has made its record before: what is
/// measured is the way to the disk.
pub fn produce(producers: usize, time: Duration, stage: impl Fn(&Record) + Sync) -> Measured {
    let start = Barrier::new(producers);
    let (mut waits, mut rate) = (Vec::new(), 0.0);
    thread::scope(|scope| {
        let running: Vec<_> = (0..producers)
            .map(|_| {
                scope.spawn(|| {
                    let (record, mut waits) = (record(), Vec::with_capacity(1 << 16));
                    start.wait();
                    let began = Instant::now();
                    let mut now = began;
                    while now - began < time {
                        stage(&record);
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
