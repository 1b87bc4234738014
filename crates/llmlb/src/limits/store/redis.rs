//! Limits of API keys that the servers of a fleet enforce together, in Redis.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use redis::{Client, Connection, Pipeline, RedisError};
use tokio::sync::oneshot;

use super::super::KeyStates;
use super::super::key_state::KeyState;
use super::super::key_usage::{Contact, Figures, Now};
use super::script::{self, FleetFigures, Reply};
use super::{Decision, Question};
use crate::config::{FleetConfig, KeyLimits, Period};
use crate::episode::{Episode, Event};
use crate::issuer_store;

/// Maximum time that a request waits for Redis to decide. Then this server decides alone.
const MAX_WAIT: Duration = Duration::from_millis(50);
/// Time after a failure of Redis during which requests are decided without Redis.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after a slow decision of Redis during which requests are decided without Redis.
const SHORT_PAUSE: Duration = Duration::from_millis(200);
/// Maximum time to connect to Redis, and to wait for a response of Redis.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which a server publishes its figures in Redis, where they expire after ten seconds.
const BEAT: Duration = Duration::from_secs(1);
/// Number of publications (one each [`BEAT`]) after which all figures are published, changed or
/// not, because Redis may have lost some.
const FULL_BEAT: u32 = 10;
/// Maximum number of requests that wait for a decision of Redis. Further requests are decided
/// without Redis.
const MAX_QUESTIONS: usize = 1024;
/// Maximum number of API keys in one request to Redis, which bounds the time of its script.
const MAX_KEYS: usize = 64;
/// Script that counts the servers of the fleet that were seen in the last ten seconds, this server
/// included. The second number is 1 if
/// Redis did not know this server.
const COUNT_SERVERS: &str = "local now = redis.call('TIME')[1]
local is_new = redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 10)
redis.call('EXPIRE', KEYS[1], 120)
return { redis.call('ZCARD', KEYS[1]), is_new }";

/// Connection to the Redis in which the servers of a fleet enforce limits together.
#[derive(Debug)]
pub(in super::super) struct LimitStore {
    /// Channel for requests to be decided; `None` after [`Self::finish`].
    questions: Mutex<Option<SyncSender<Waiting>>>,
    state: Arc<StoreState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that requests share with the thread that talks to Redis.
#[derive(Debug)]
struct StoreState {
    started: Instant,
    /// Last known number of servers in the fleet.
    servers: AtomicU32,
    /// Time until which requests are decided without Redis, in milliseconds since `started`.
    paused_until: AtomicU64,
}

/// A request that waits for the decision of Redis.
struct Waiting {
    state: Arc<KeyState>,
    question: Question,
    reply: oneshot::Sender<Decision>,
}

impl LimitStore {
    /// Starts the thread that talks to Redis. `None` if the fleet has no Redis.
    pub(in super::super) fn start(
        config: &FleetConfig,
        instance: &str,
        states: &Arc<KeyStates>,
    ) -> io::Result<Option<Self>> {
        let Some(store) = config.store.as_ref().filter(|store| store.is_redis()) else {
            return Ok(None);
        };
        let (client, prefix) = issuer_store::open(store.url()).map_err(io::Error::other)?;
        let state = Arc::new(StoreState {
            started: Instant::now(),
            servers: AtomicU32::new(1),
            paused_until: AtomicU64::new(0),
        });
        let mut session = Session {
            client,
            prefix,
            server: instance.to_owned(),
            shown: store.shown().to_owned(),
            connection: None,
            sha: String::new(),
            failures: Episode::default(),
            states: Arc::clone(states),
            state: Arc::clone(&state),
            beats: 0,
        };
        let (sender, questions) = sync_channel(MAX_QUESTIONS);
        let thread = thread::Builder::new()
            .name("llmlb-limits".to_owned())
            .spawn(move || session.run(&questions))?;
        Ok(Some(Self {
            questions: Mutex::new(Some(sender)),
            state,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Returns the decision of Redis about a request; `None` if Redis does not decide in time, so
    /// that this server decides alone.
    pub(in super::super) async fn decide(
        &self,
        state: &Arc<KeyState>,
        question: Question,
    ) -> Option<Decision> {
        if !self.is_reachable() {
            return None;
        }
        let (reply, decision) = oneshot::channel();
        let waiting = Waiting {
            state: Arc::clone(state),
            question,
            reply,
        };
        let sender = {
            let questions = self.questions.lock();
            questions.unwrap_or_else(PoisonError::into_inner).clone()
        };
        match sender?.try_send(waiting) {
            Ok(()) => {}
            // The channel is full, because the thread is busy, or closed, because the server ends. This request
            // is decided without Redis, and no pause begins.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return None,
        }
        if let Ok(Ok(decision)) = tokio::time::timeout(MAX_WAIT, decision).await {
            return Some(decision);
        }
        self.state.pause(SHORT_PAUSE);
        None
    }

    /// Returns the last known number of servers in the fleet, by which limits are divided while
    /// Redis does not respond.
    pub(in super::super) fn servers(&self) -> u32 {
        self.state.servers.load(Ordering::Relaxed)
    }

    /// True if Redis decides about requests, false during a pause after a failure.
    pub(in super::super) fn is_reachable(&self) -> bool {
        self.state.elapsed() >= self.state.paused_until.load(Ordering::Relaxed)
    }

    /// Publishes the last figures of this server, and ends the thread that talks to Redis.
    pub(in super::super) fn finish(&self) {
        let questions = self.questions.lock();
        drop(questions.unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock();
        let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
        // Join the thread only if Redis responds: otherwise the thread would delay the exit.
        if let Some(thread) = thread.filter(|_| self.is_reachable()) {
            let _ = thread.join();
        }
    }
}

impl StoreState {
    fn pause(&self, pause: Duration) {
        let pause = u64::try_from(pause.as_millis()).unwrap_or_default();
        let until = self.elapsed().saturating_add(pause);
        // Keep the later end: a short pause must not replace a longer pause that has begun.
        self.paused_until.fetch_max(until, Ordering::Relaxed);
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Connection to Redis. It is opened by the first request and again after an error.
struct Session {
    client: Client,
    prefix: String,
    server: String,
    shown: String,
    connection: Option<Connection>,
    /// Hash of the script, by which Redis calls it.
    sha: String,
    failures: Episode,
    states: Arc<KeyStates>,
    state: Arc<StoreState>,
    beats: u32,
}

/// Waiting requests of one API key, which Redis decides about together.
struct Group {
    state: Arc<KeyState>,
    limits: KeyLimits,
    figures: Figures,
    /// Number of requests that were admitted without Redis and must be reported to it.
    unreported: u64,
    waiting: Vec<Waiting>,
}

impl Session {
    fn run(&mut self, questions: &Receiver<Waiting>) {
        let mut next_beat = Instant::now();
        loop {
            let pause = next_beat.saturating_duration_since(Instant::now());
            match questions.recv_timeout(pause) {
                Ok(first) => {
                    let more = questions.try_iter().take(MAX_QUESTIONS);
                    let waiting: Vec<Waiting> = std::iter::once(first).chain(more).collect();
                    self.decide(waiting);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= next_beat {
                self.beat();
                next_beat = Instant::now() + BEAT;
            }
        }
        self.beat();
    }

    /// Decides about waiting requests. Those of one API key are sent to Redis together.
    fn decide(&mut self, waiting: Vec<Waiting>) {
        let mut groups = HashMap::<Arc<str>, Group>::new();
        // Skip requests that no longer wait, whose channels are closed: this server has decided
        // about them.
        for one in waiting.into_iter().filter(|one| !one.reply.is_closed()) {
            let name = Arc::clone(&one.state.name);
            let group = groups.entry(name).or_insert_with(|| Group {
                state: Arc::clone(&one.state),
                limits: one.question.limits,
                figures: Figures::default(),
                unreported: 0,
                waiting: Vec::new(),
            });
            // Use the latest limits for all requests of the key: a request from before a reload may
            // have older limits.
            group.limits = one.question.limits;
            group.waiting.push(one);
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        for group in &mut groups {
            let Some(last) = group.waiting.last() else {
                continue;
            };
            let mut usage = group.state.lock();
            usage.limits = group.limits;
            group.figures = usage.figures(period_of(&group.limits), last.question.now);
            group.unreported = usage.unreported;
        }
        self.exchange(groups);
    }

    /// Publishes the figures of API keys that changed, and counts the servers of the fleet.
    fn beat(&mut self) {
        if !self.states.are_needed() {
            return;
        }
        let is_due = self.beats.is_multiple_of(FULL_BEAT);
        self.beats = self.beats.wrapping_add(1);
        let key = format!("{}:limits:servers", self.prefix);
        let mut request = redis::pipe();
        let command = request.cmd("EVAL").arg(COUNT_SERVERS).arg(1);
        command.arg(key).arg(&self.server);
        let Some(counts) = self.send::<Vec<(u32, u32)>>(&mut |_| request.clone()) else {
            return self.state.pause(PAUSE);
        };
        let (servers, is_new) = counts.first().copied().unwrap_or_default();
        let servers = servers.max(1);
        // A Redis that does not know this server may have lost its data, with or without a new connection.
        let is_full = is_due || is_new != 0;
        self.state.servers.store(servers, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = Now {
            // Another thread may have passed a later monotonic time to a key already. That does no
            // harm, because each key keeps the latest time.
            mono_ms: self.states.elapsed_ms(),
            wall_ms: now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or_default()),
        };
        let group = |state: Arc<KeyState>| {
            let mut usage = state.lock();
            let limits = usage.limits;
            let figures = usage.figures(period_of(&limits), now);
            let unreported = usage.unreported;
            let is_changed = usage.published != Some(figures) || unreported > 0;
            drop(usage);
            let is_limited = limits != KeyLimits::default();
            (is_limited && (is_full || is_changed)).then_some(Group {
                state,
                limits,
                figures,
                unreported,
                waiting: Vec::new(),
            })
        };
        let groups: Vec<Group> = self.states.all().into_iter().filter_map(group).collect();
        self.exchange(groups);
    }

    fn exchange(&mut self, mut groups: Vec<Group>) {
        while !groups.is_empty() {
            let rest = groups.split_off(groups.len().min(MAX_KEYS));
            let (prefix, server) = (self.prefix.clone(), self.server.clone());
            let mut build = |sha: &str| {
                let mut request = redis::pipe();
                for group in &groups {
                    let questions = group.waiting.iter().map(|one| one.question);
                    let questions: Vec<Question> = questions.collect();
                    let names = (sha, prefix.as_str(), server.as_str());
                    let own = (&group.figures, group.unreported);
                    let key = &group.state.name;
                    script::call(&mut request, names, key, &group.limits, own, &questions);
                }
                request
            };
            let Some(replies) = self.send::<Vec<Reply>>(&mut build) else {
                // Drop the waiting requests: their channels close, so this server decides about
                // them without Redis.
                return self.state.pause(PAUSE);
            };
            let now = self.states.elapsed_ms();
            for (group, reply) in groups.into_iter().zip(replies) {
                group.reply(&reply, now);
            }
            groups = rest;
        }
    }

    /// Sends a request to Redis. Sends the request a second time if Redis had closed the connection
    /// since the last one.
    fn send<T: redis::FromRedisValue>(
        &mut self,
        build: &mut dyn FnMut(&str) -> Pipeline,
    ) -> Option<T> {
        let is_reused = self.connection.is_some();
        let mut done = self.try_send(build);
        if is_reused && done.as_ref().is_err_and(|error| !error.is_timeout()) {
            done = self.try_send(build);
        }
        match done {
            Ok(done) => {
                if let Some(Event::Ended { .. }) = self.failures.end(Instant::now()) {
                    tracing::info!("{} responds again: limits of keys are shared", self.shown);
                }
                Some(done)
            }
            Err(error) => {
                let event = self.failures.occurred(Instant::now());
                if let Some(Event::Began | Event::Continues { .. }) = event {
                    tracing::warn!(
                        "cannot share limits of keys in {}: {}; this server enforces its share of \
                         each limit, of {} servers",
                        self.shown,
                        error.category(),
                        self.state.servers.load(Ordering::Relaxed)
                    );
                }
                None
            }
        }
    }

    fn connect(&mut self) -> Result<Connection, RedisError> {
        let mut connection = self.client.get_connection_with_timeout(TIMEOUT)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        let mut load = redis::cmd("SCRIPT");
        self.sha = load
            .arg("LOAD")
            .arg(script::SOURCE)
            .query(&mut connection)?;
        // Publish all figures at the next beat: Redis may have restarted and lost its data.
        self.beats = 0;
        Ok(connection)
    }

    fn try_send<T: redis::FromRedisValue>(
        &mut self,
        build: &mut dyn FnMut(&str) -> Pipeline,
    ) -> Result<T, RedisError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let done = build(&self.sha).query(&mut connection)?;
        self.connection = Some(connection);
        Ok(done)
    }
}

impl Group {
    /// Applies the figures that Redis has of the API key, and sends the decisions to the waiting
    /// requests.
    fn reply(self, (figures, verdicts, spends): &Reply, mono_ms: u64) {
        let figures = FleetFigures::read(figures);
        let verdicts = verdicts.chunks_exact(2);
        {
            let mut usage = self.state.lock();
            if let Some(period) = self.figures.period {
                for pair in spends.chunks_exact(2) {
                    if let Ok(tokens) = pair[1].parse() {
                        usage.spend.merge_other(period, &pair[0], tokens);
                    }
                }
            }
            usage.published = Some(self.figures);
            usage.unreported = usage.unreported.saturating_sub(self.unreported);
            let admitted = verdicts.clone().filter(|verdict| verdict[0] == 0);
            let mut own = self.figures.uses();
            let mut ever = self.figures.ever;
            for verdict in admitted {
                ever.requests += u64::from(self.limits.requests_per_minute.is_some());
                own.requests += 1;
                own.concurrent += 1;
                own.tokens += u64::try_from(verdict[1]).unwrap_or_default();
            }
            usage.contact = Some(Contact {
                mono_ms,
                own,
                ended_tokens: self.figures.tokens,
                ever,
                all: figures.uses(),
            });
        }
        let rates = figures.rates(&self.limits);
        for (one, verdict) in self.waiting.into_iter().zip(verdicts) {
            let question = &one.question;
            let wait = |tokens| self.state.lock().wait_for_tokens(tokens);
            let exceeded = figures.exceeded(verdict[0], question, wait);
            let decision = exceeded.map_or_else(
                || {
                    let reserved = u64::try_from(verdict[1]).unwrap_or_default();
                    let (limits, demand) = (&question.limits, question.demand);
                    let state = &self.state;
                    Ok(state.admit_unchecked(limits, reserved, demand, true, question.now))
                },
                Err,
            );
            // If the request no longer waits, the admission is dropped here, which releases the
            // admission's share of the limits.
            let _ = one.reply.send((decision, rates));
        }
    }
}

/// Returns the period of a key's budget; the day if the key has no budget.
fn period_of(limits: &KeyLimits) -> Period {
    limits.budget.map_or(Period::Day, |budget| budget.per)
}
