//! Threads that store issued ids in Redis and look them up. Each id is a key `PREFIX:issued:{hash
//! of the id}`, whose value identifies the backend that issued it. The keys expire.
//!
//! Two threads have a connection each: one stores ids in the background, the other looks ids up. A
//! request waits for a lookup only if this server does not know the id itself, and never longer than
//! [`MAX_WAIT`]. After a failure no request waits for [`PAUSE`].

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Connection, IntoConnectionInfo, Pipeline, RedisError};
use tokio::sync::oneshot;

use crate::balance::{Issuer, IssuerQueue};
use crate::config::FleetConfig;
use crate::episode::{Episode, Event};
use crate::issued_ids::{BackendKey, IdHash};
use crate::issuer_file::MAX_AGE;

/// Maximum time that a request waits for Redis to find the backend that issued an id. Then the
/// request is routed without Redis.
const MAX_WAIT: Duration = Duration::from_millis(50);
/// Time after a failed or slow lookup during which no request waits for Redis, so that a failure of
/// Redis does not delay every request.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum time to connect to Redis, and to wait for each of its responses.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of requests that wait for a lookup at the same time. Further requests are routed
/// without Redis.
const MAX_LOOKUPS: usize = 64;
/// Maximum number of ids that are stored with one request to Redis.
const MAX_STORED: usize = 512;
const DEFAULT_PREFIX: &str = "llmlb";

/// Handle of the threads that store ids in Redis and look them up.
#[derive(Debug)]
pub(crate) struct IssuerStore {
    /// Channel to the thread that looks ids up; `None` after the server has shut down.
    lookups: Mutex<Option<SyncSender<Lookup>>>,
    queue: Arc<IssuerQueue>,
    started: Instant,
    /// Time until which requests do not wait for Redis, in milliseconds since `started`.
    paused_until: AtomicU64,
}

#[derive(Debug)]
struct Lookup {
    id: IdHash,
    reply: oneshot::Sender<Option<BackendKey>>,
}

impl IssuerStore {
    /// Starts the threads that store ids and look them up. `None` if the fleet has no Redis.
    pub(crate) fn start(config: &FleetConfig, queue: Arc<IssuerQueue>) -> io::Result<Option<Self>> {
        let Some(store) = config.store.as_ref().filter(|store| store.is_redis()) else {
            return Ok(None);
        };
        let (client, prefix) = open(store.url()).map_err(io::Error::other)?;
        let session = || Session {
            client: client.clone(),
            prefix: prefix.clone(),
            shown: store.shown().to_owned(),
            connection: None,
            failures: Episode::default(),
        };
        let (sender, lookups) = sync_channel(MAX_LOOKUPS);
        let mut looking = session();
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.to_owned()).spawn(work)
        };
        spawn("llmlb-id-find", Box::new(move || looking.answer(&lookups)))?;
        let (mut storing, waiting) = (session(), Arc::clone(&queue));
        spawn("llmlb-id-store", Box::new(move || storing.store(&waiting)))?;
        Ok(Some(Self {
            lookups: Mutex::new(Some(sender)),
            queue,
            started: Instant::now(),
            paused_until: AtomicU64::new(0),
        }))
    }

    /// Returns the backend that issued an id; `None` if Redis does not know the id or does not
    /// respond in time.
    pub(crate) async fn find(&self, id: IdHash) -> Option<BackendKey> {
        if self.elapsed() < self.paused_until.load(Ordering::Relaxed) {
            return None;
        }
        let (reply, found) = oneshot::channel();
        let lookups = self
            .lookups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        lookups?.try_send(Lookup { id, reply }).ok()?;
        if let Ok(Ok(found)) = tokio::time::timeout(MAX_WAIT, found).await {
            return found;
        }
        // No result arrived in time: Redis is slow, or the thread could not reach it. Let no
        // further request wait for Redis until the pause is over.
        let pause = u64::try_from(PAUSE.as_millis()).unwrap_or_default();
        let until = self.elapsed().saturating_add(pause);
        self.paused_until.store(until, Ordering::Relaxed);
        None
    }

    /// Ends the threads.
    pub(crate) fn finish(&self) {
        self.queue.close();
        drop(
            self.lookups
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Connection of one thread to Redis. The first request opens it, and the next request after an
/// error opens a new one.
struct Session {
    client: Client,
    prefix: String,
    shown: String,
    connection: Option<Connection>,
    failures: Episode,
}

impl Session {
    /// Serves lookups of ids until the server shuts down. Lookups that wait at the same time are
    /// sent to Redis in one request.
    fn answer(&mut self, lookups: &Receiver<Lookup>) {
        while let Ok(first) = lookups.recv() {
            let waiting: Vec<Lookup> = std::iter::once(first)
                .chain(lookups.try_iter().take(MAX_LOOKUPS))
                // Skip lookups whose requests have stopped waiting, so that a slow Redis serves only the
                // others.
                .filter(|lookup| !lookup.reply.is_closed())
                .collect();
            let mut request = redis::pipe();
            for lookup in &waiting {
                request.get(self.key(lookup.id));
            }
            if waiting.is_empty() {
                continue;
            }
            let values = self.send::<Vec<Option<String>>>(&request);
            // After an error, drop the lookups, which ends the wait of their requests at once.
            for (lookup, value) in waiting.into_iter().zip(values.unwrap_or_default()) {
                let key = value.and_then(|value| u64::from_str_radix(&value, 16).ok());
                let key = key.filter(|key| *key != 0).map(BackendKey);
                let _ = lookup.reply.send(key);
            }
        }
    }

    /// Stores newly issued ids in Redis until the server shuts down.
    fn store(&mut self, queue: &IssuerQueue) {
        while let Some(issuers) = queue.take() {
            for issuers in issuers.chunks(MAX_STORED) {
                let mut request = redis::pipe();
                for Issuer { id, backend } in issuers {
                    let value = format!("{:016x}", backend.0);
                    let set = request.cmd("SET").arg(self.key(*id)).arg(value);
                    set.arg("EX").arg(MAX_AGE.as_secs()).ignore();
                }
                let _ = self.send::<()>(&request);
            }
        }
    }

    fn key(&self, id: IdHash) -> String {
        format!("{}:issued:{:032x}", self.prefix, id.0)
    }

    /// Sends a request to Redis. If Redis has closed the idle connection, the request is sent once
    /// more on a new one.
    fn send<T: redis::FromRedisValue>(&mut self, request: &Pipeline) -> Option<T> {
        let is_reused = self.connection.is_some();
        let mut done = self.try_send(request);
        if is_reused && done.as_ref().is_err_and(|error| !error.is_timeout()) {
            done = self.try_send(request);
        }
        match done {
            Ok(done) => {
                if let Some(Event::Ended { .. }) = self.failures.end(Instant::now()) {
                    tracing::info!(
                        "{} responds again: issued ids are shared with the other servers of the fleet",
                        self.shown
                    );
                }
                Some(done)
            }
            Err(error) => {
                let event = self.failures.occurred(Instant::now());
                if let Some(Event::Began | Event::Continues { .. }) = event {
                    tracing::warn!(
                        "cannot share issued ids in {}: {}; requests with an id that another server \
                         received go to the first backend",
                        self.shown,
                        error.category()
                    );
                }
                None
            }
        }
    }

    fn connect(&self) -> Result<Connection, RedisError> {
        let connection = self.client.get_connection_with_timeout(TIMEOUT)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        Ok(connection)
    }

    fn try_send<T: redis::FromRedisValue>(&mut self, request: &Pipeline) -> Result<T, RedisError> {
        let mut connection = self.connection.take().map_or_else(|| self.connect(), Ok)?;
        let done = request.query(&mut connection)?;
        self.connection = Some(connection);
        Ok(done)
    }
}

/// Returns a client for the store's URL and the prefix of the keys. The URL has the same options as
/// that of tenure's lease store: `prefix` and `password_file`. Nothing is sent yet.
pub(crate) fn open(url: &str) -> Result<(Client, String), RedisError> {
    let (address, options) = url.split_once('?').unwrap_or((url, ""));
    let info = address.into_connection_info()?;
    let mut settings = info.redis_settings().clone();
    let mut prefix = DEFAULT_PREFIX.to_owned();
    for option in options.split('&') {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
        match name {
            "prefix" => prefix = value.into_owned(),
            "password_file" => {
                let password = std::fs::read_to_string(&*value)?;
                settings = settings.set_password(password.trim_end_matches(['\r', '\n']));
            }
            // Unknown options are ignored, because the lease store, which has the same URL, reports
            // them.
            _ => {}
        }
    }
    Ok((Client::open(info.set_redis_settings(settings))?, prefix))
}
