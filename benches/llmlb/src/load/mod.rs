//! The load generator: who asks when, and what came of it.

mod connection;
mod exchange;
mod seen;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::poll::Poll;
use crate::watch::Watched;
use connection::{Connection, Progress};
pub use exchange::Exchange;
pub use seen::Seen;

const ROOM: usize = 64 << 10;
/// How long before a start the clock is watched without a pause: timers are late.
const SPIN: Duration = Duration::from_micros(200);
/// How often the memory is looked at.
const SAMPLE: Duration = Duration::from_millis(500);

/// How many requests start when.
pub struct Plan {
    pub count: usize,
    /// Requests in a second; if none, each connection asks again once it is answered.
    pub rate: Option<f64>,
    /// The first request of each connection starts within this time, evenly spread.
    pub ramp: Duration,
    pub timeout: Duration,
}

impl Plan {
    /// When request `n` starts, counted from the beginning.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn start(&self, n: usize, connections: usize) -> Duration {
        match self.rate {
            Some(rate) => Duration::from_secs_f64(n as f64 / rate),
            None => self
                .ramp
                .mul_f64(n.min(connections) as f64 / connections as f64),
        }
    }
}

/// What became of a plan.
#[derive(Default)]
pub struct Run {
    /// By address.
    pub seen: Vec<Seen>,
    /// The most requests under way at a time.
    pub together: usize,
}

/// Connections to each address.
pub struct Load {
    poll: Poll,
    exchange: Exchange,
    /// One address after the other, over and over.
    connections: Vec<Connection>,
    addresses: usize,
}

impl Load {
    /// As many connections to each address; they are opened when they are needed.
    pub fn new(to: Vec<SocketAddr>, exchange: Exchange, each: usize) -> io::Result<Self> {
        let addresses = to.len();
        let all = to.into_iter().cycle().take(each * addresses).enumerate();
        Ok(Self {
            poll: Poll::new()?,
            exchange,
            connections: all.map(|(n, to)| Connection::new(n, to)).collect(),
            addresses,
        })
    }

    /// Carries a plan out, watching the memory of these processes.
    pub fn run(&mut self, plan: &Plan, watched: &mut [Watched]) -> io::Result<Run> {
        let all = self.connections.len();
        let (mut ready, mut room, mut run) = (Vec::new(), vec![0; ROOM], Run::default());
        run.seen.resize_with(self.addresses, Seen::default);
        // Of each address, those with nothing to do.
        let mut idle: Vec<Vec<usize>> = (0..self.addresses)
            .map(|first| (first..all).step_by(self.addresses).rev().collect())
            .collect();
        let (mut started, mut ended) = (0, 0);
        let (began, mut sampled) = (Instant::now(), None);
        while ended < plan.count {
            let now = Instant::now();
            if now - began > plan.timeout {
                let missing = plan.count - ended;
                run.seen[0].error(
                    missing,
                    &format!("{missing} requests had no answer in time"),
                );
                break;
            }
            if sampled.is_none_or(|sampled| now - sampled > SAMPLE) {
                watched.iter_mut().for_each(Watched::sample);
                sampled = Some(now);
            }
            let mut wait = SAMPLE;
            while started < plan.count {
                let now = Instant::now();
                let start = began + plan.start(started, all);
                if start > now {
                    wait = (start - now).saturating_sub(SPIN);
                    break;
                }
                let address = started % self.addresses;
                let Some(number) = idle[address].pop() else {
                    break;
                };
                started += 1;
                // Of an open loop, being late counts.
                let start = if plan.rate.is_some() { start } else { now };
                if let Err(error) =
                    self.connections[number].ask(&mut self.exchange, start, &self.poll)
                {
                    run.seen[address].error(1, &error.to_string());
                    ended += 1;
                    idle[address].push(number);
                }
            }
            run.together = run.together.max(started - ended);
            self.poll.wait(Some(wait), &mut ready)?;
            for &number in &ready {
                let address = number % self.addresses;
                match self.connections[number].progress(&self.exchange, &self.poll, &mut room) {
                    Ok(Progress::Partial) => continue,
                    Ok(Progress::Stray) => {
                        run.seen[address].error(1, "bytes that nobody asked for");
                        continue;
                    }
                    Ok(Progress::Done(times)) => run.seen[address].add(&times),
                    Err(error) => run.seen[address].error(1, &error),
                }
                ended += 1;
                idle[address].push(number);
            }
        }
        Ok(run)
    }
}
