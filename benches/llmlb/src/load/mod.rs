//! The load generator: starts requests on schedule and checks the responses.

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
/// Time before the start of a request in which the clock is polled, because timers expire late.
const SPIN: Duration = Duration::from_micros(200);
/// Interval of memory samples.
const SAMPLE: Duration = Duration::from_millis(500);

/// Schedule of requests.
pub struct Plan {
    pub count: usize,
    /// Requests per second. Without a rate, each connection sends again as soon as it has a response.
    pub rate: Option<f64>,
    /// The first request of each connection starts within this time, evenly spread.
    pub ramp: Duration,
    pub timeout: Duration,
}

impl Plan {
    /// Returns the time from the beginning to the start of request `n`.
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

/// Results of a schedule.
#[derive(Default)]
pub struct Run {
    /// Results by address.
    pub seen: Vec<Seen>,
    /// Maximum number of concurrent requests.
    pub together: usize,
}

/// Connections to each address.
pub struct Load {
    poll: Poll,
    exchange: Exchange,
    /// Connections, which alternate between the addresses.
    connections: Vec<Connection>,
    addresses: usize,
}

impl Load {
    /// Creates `each` connections to every address, which are opened at their first request.
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

    /// Runs a schedule, and samples the memory of these processes.
    pub fn run(&mut self, plan: &Plan, watched: &mut [Watched]) -> io::Result<Run> {
        let all = self.connections.len();
        let (mut ready, mut room, mut run) = (Vec::new(), vec![0; ROOM], Run::default());
        run.seen.resize_with(self.addresses, Seen::default);
        // Idle connections by address.
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
                    &format!("{missing} requests timed out"),
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
                // In an open loop, a late start counts as latency.
                let start = if plan.rate.is_some() { start } else { now };
                if let Err(error) =
                    self.connections[number].send_request(&mut self.exchange, start, &self.poll)
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
                        run.seen[address].error(1, "bytes without a request");
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
