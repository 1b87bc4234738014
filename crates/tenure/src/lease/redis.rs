//! Leases in Redis, or a server that speaks its protocol.
//!
//! A lease is a hash with an expiry, `PREFIX:{KEY}:lease`. The counter of its fencing tokens is a
//! key of its own, `PREFIX:{KEY}:token`, which never expires. Each operation is one Lua script,
//! which the server runs without other commands in between. The braces put both keys into the same
//! slot of a Redis cluster.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{
    Client, Connection, ErrorKind, IntoConnectionInfo, RedisError, Script, ServerErrorKind,
};

use super::backend::{
    Attempt, Backend, Entry, Grant, LeaseId, MAX_LISTED, Renewed, StoreError, Waiter,
};
use super::url::StoreUrl;
use crate::error::Error;

/// Prefix of all names in Redis if the URL states none.
const DEFAULT_PREFIX: &str = "tenure";

/// Lua script that acquires a lease. The token is larger than the previous one, and at least the
/// server's time in microseconds, so tokens increase even if the server has lost its data. A lease
/// that lost its expiry gets an expiry again, so that it cannot last forever.
const ACQUIRE: &str = r"
local held = redis.call('HMGET', KEYS[1], 'owner', 'token', 'record', 'ttl')
if held[1] and held[1] ~= ARGV[1] then
    local left = redis.call('PTTL', KEYS[1])
    if left < 0 then
        left = tonumber(held[4])
        if not left or not (left >= 1 and left <= 86400000) then left = tonumber(ARGV[2]) end
        redis.call('PEXPIRE', KEYS[1], string.format('%.0f', left))
    end
    return {0, held[1], held[2] or '0', held[3] or '', left}
end
local token = held[1] and held[2]
if not token then
    local now = redis.call('TIME')
    local last = tonumber(redis.call('GET', KEYS[2]) or '0')
    -- Also true for a counter with the text 'nan', which is neither smaller nor larger.
    if not last or not (last >= 0 and last <= 9007199254740000) then
        return redis.error_reply('ERR the counter ' .. KEYS[2] .. ' is not a valid number')
    end
    local new = math.max(last + 1, tonumber(now[1]) * 1000000 + tonumber(now[2]))
    token = string.format('%.0f', new)
    redis.call('SET', KEYS[2], token)
    redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', token, 'record', ARGV[3], 'ttl', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, token}
";

/// Lua script that extends the lease of this owner. Returns 2 if a stop was requested.
const RENEW: &str = r"
local held = redis.call('HMGET', KEYS[1], 'owner', 'stop')
if held[1] ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if held[2] then return 2 end
return 1
";

/// Lua script that sets one field of the lease of this owner: its lock record, or a stop request.
const SET_FIELD: &str = r"
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return 1
";

/// Lua script that ends the lease of this owner and publishes a message to the processes that wait
/// for the key. A user without the right to publish can still release: waiting processes then find
/// the free key after a pause.
const RELEASE: &str = r"
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', KEYS[1], 'released')
return 1
";

const READ: &str = r"
local held = redis.call('HMGET', KEYS[1], 'owner', 'token', 'record')
if not held[1] then return {} end
return {held[1], held[2] or '0', held[3] or '', redis.call('PTTL', KEYS[1])}
";

/// Maximum number of idle connections that are kept open for later requests.
const MAX_IDLE: usize = 4;

pub(super) struct Redis {
    client: Client,
    /// URL without credentials.
    shown: String,
    /// True once this process has checked whether the server's settings let it forget leases, so
    /// that the warning is logged once.
    is_checked: AtomicBool,
    prefix: String,
    idle: Mutex<Idle>,
    acquire: Script,
    renew: Script,
    set_field: Script,
    release: Script,
    read: Script,
}

/// Open connections that no request uses at present.
struct Idle {
    /// Process that opened the connections. A forked child must not use them.
    process: u32,
    connections: Vec<Connection>,
}

impl Redis {
    pub(super) fn connect(url: &StoreUrl) -> Result<Self, Error> {
        let mut url = url.clone();
        let prefix = url
            .take("prefix")
            .unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        url.finish("`prefix` and `password_file`")?;
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            return Err(url.bad("`prefix` is empty or contains a brace"));
        }
        let client = open(&url).map_err(|error| url.bad(&describe(&error)))?;
        let redis = Self {
            shown: url.shown(),
            is_checked: AtomicBool::new(false),
            client,
            prefix,
            idle: Mutex::new(Idle {
                process: std::process::id(),
                connections: Vec::new(),
            }),
            acquire: Script::new(ACQUIRE),
            renew: Script::new(RENEW),
            set_field: Script::new(SET_FIELD),
            release: Script::new(RELEASE),
            read: Script::new(READ),
        };
        Ok(redis)
    }

    fn lease_key(&self, key: &str) -> String {
        format!("{}:{{{key}}}:lease", self.prefix)
    }

    fn token_key(&self, key: &str) -> String {
        format!("{}:{{{key}}}:token", self.prefix)
    }

    /// Runs a request on an idle connection, or on a new one. A connection that failed is closed.
    fn with<T>(
        &self,
        limit: Duration,
        request: impl Fn(&mut Connection) -> Result<T, RedisError>,
    ) -> Result<T, StoreError> {
        let idle = self.idle().connections.pop();
        let reused = idle.is_some();
        match self.try_with(idle, limit, &request) {
            // The server may have closed the idle connection, for example at a restart, so the
            // request is sent again on a new connection. Every request may be repeated (see
            // `Backend`).
            Err(error) if reused && is_broken(&error) && !error.is_timeout() => {
                self.try_with(None, limit, &request)
            }
            outcome => outcome,
        }
        .map_err(|error| to_store_error(&error, limit))
    }

    fn try_with<T>(
        &self,
        idle: Option<Connection>,
        limit: Duration,
        request: impl Fn(&mut Connection) -> Result<T, RedisError>,
    ) -> Result<T, RedisError> {
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.client.get_connection_with_timeout(limit)?,
        };
        connection.set_read_timeout(Some(limit))?;
        connection.set_write_timeout(Some(limit))?;
        let outcome = request(&mut connection);
        // A connection is not reused after an error: the response to the failed request may still
        // arrive and would be taken for the response to the next one.
        if outcome.is_ok() {
            let mut idle = self.idle();
            if idle.connections.len() < MAX_IDLE {
                idle.connections.push(connection);
            }
        }
        outcome
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.process != std::process::id() {
            // In a forked child the connections are leaked: closing the child's copies would end
            // the parent's TLS sessions.
            std::mem::forget(std::mem::take(&mut idle.connections));
            idle.process = std::process::id();
        }
        idle
    }

    /// Logs a warning, once, if this server can forget a lease that it has granted: two owners are
    /// then possible for up to one TTL. If the server does not respond, the next request reports
    /// that. Processes that only inspect leases do not call this function.
    fn warn_about_persistence(&self, limit: Duration) {
        if self.is_checked.swap(true, Ordering::Relaxed) {
            return;
        }
        let info = self.with(limit, |connection| {
            redis::cmd("INFO").query::<String>(connection)
        });
        let Ok(info) = info else { return };
        // Managed Redis services often refuse the command CONFIG. The `appendfsync` policy is then
        // unknown, and no warning names it.
        let fsync = self.with(limit, |connection| {
            let mut get = redis::cmd("CONFIG");
            get.arg("GET").arg("appendfsync");
            get.query::<Vec<String>>(connection)
        });
        let fsync = fsync.ok().and_then(|pair| pair.get(1).cloned());
        let reasons = risks(&info, fsync.as_deref());
        if !reasons.is_empty() {
            tracing::warn!(
                store = self.shown,
                "this Redis can forget a lease: {}; two owners are then possible for up to one TTL \
                 (docs/stores.md)",
                reasons.join(", ")
            );
        }
    }
}

impl Backend for Redis {
    fn scope(&self) -> Vec<(&'static str, String)> {
        let prefix = Some(&self.prefix).filter(|prefix| *prefix != DEFAULT_PREFIX);
        prefix
            .map(|prefix| ("prefix", prefix.clone()))
            .into_iter()
            .collect()
    }

    fn try_acquire(
        &self,
        id: &LeaseId,
        record: &[u8],
        limit: Duration,
    ) -> Result<Attempt, StoreError> {
        self.warn_about_persistence(limit);
        let (lease, token) = (self.lease_key(&id.key), self.token_key(&id.key));
        let reply: Vec<redis::Value> = self.with(limit, |connection| {
            let mut call = self.acquire.prepare_invoke();
            call.key(&lease).key(&token);
            call.arg(&id.owner).arg(millis(id.ttl)).arg(record);
            call.invoke(connection)
        })?;
        match reply.split_first() {
            Some((redis::Value::Int(1), [token])) => Ok(Attempt::Acquired(Grant {
                token: number(token)?,
                lease: 0,
            })),
            Some((redis::Value::Int(0), fields)) => {
                Ok(Attempt::Held(entry(fields)?.ok_or_else(unexpected)?))
            }
            _ => Err(unexpected()),
        }
    }

    fn renew(&self, id: &LeaseId, _grant: &Grant, limit: Duration) -> Result<Renewed, StoreError> {
        let lease = self.lease_key(&id.key);
        let renewed: i64 = self.with(limit, |connection| {
            let mut call = self.renew.prepare_invoke();
            call.key(&lease).arg(&id.owner).arg(millis(id.ttl));
            call.invoke(connection)
        })?;
        Ok(match renewed {
            0 => Renewed::NotOwner,
            answer => Renewed::Extended {
                stop_requested: answer == 2,
            },
        })
    }

    fn write_record(
        &self,
        id: &LeaseId,
        record: &[u8],
        limit: Duration,
    ) -> Result<bool, StoreError> {
        self.set_field(&id.key, &id.owner, "record", record, limit)
    }

    fn release(&self, id: &LeaseId, limit: Duration) -> Result<(), StoreError> {
        let lease = self.lease_key(&id.key);
        self.with(limit, |connection| {
            let mut call = self.release.prepare_invoke();
            call.key(&lease).arg(&id.owner);
            call.invoke::<i64>(connection)
        })
        .map(|_| ())
    }

    fn read(&self, key: &str, limit: Duration) -> Result<Option<Entry>, StoreError> {
        let lease = self.lease_key(key);
        let reply: Vec<redis::Value> = self.with(limit, |connection| {
            self.read.prepare_invoke().key(&lease).invoke(connection)
        })?;
        entry(&reply)
    }

    fn list(&self, limit: Duration) -> Result<Vec<(String, Entry)>, StoreError> {
        let pattern = format!("{}:{{*}}:lease", self.prefix);
        let start = format!("{}:{{", self.prefix);
        let mut names = std::collections::BTreeSet::new();
        let mut cursor = 0_u64;
        loop {
            let (next, found): (u64, Vec<Vec<u8>>) = self.with(limit, |connection| {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(&pattern);
                scan.arg("COUNT").arg(1000).query(connection)
            })?;
            names.extend(found.iter().filter_map(|key| {
                let key = str::from_utf8(key).ok()?;
                let name = key.strip_prefix(&start)?.strip_suffix("}:lease")?;
                Some(name.to_owned())
            }));
            cursor = next;
            if cursor == 0 || names.len() >= MAX_LISTED {
                break;
            }
        }
        let mut entries = Vec::new();
        for name in names.into_iter().take(MAX_LISTED) {
            match self.read(&name, limit) {
                Ok(Some(entry)) => entries.push((name, entry)),
                Ok(None) => {}
                // A key of another program may have a name like that of a lease but another type.
                // It is skipped, so that it does not hide the leases.
                Err(error) if !error.transient => {
                    let name = crate::text::sanitize_name(name);
                    tracing::warn!(name, error = error.why, "skipped a key that is not a lease");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    fn request_stop(&self, key: &str, owner: &str, limit: Duration) -> Result<bool, StoreError> {
        self.set_field(key, owner, "stop", b"1", limit)
    }

    fn waiter(&self, key: &str, limit: Duration) -> Result<Box<dyn Waiter>, StoreError> {
        let subscribe = || {
            let mut connection = self.client.get_connection_with_timeout(limit)?;
            connection.set_read_timeout(Some(limit))?;
            connection.set_write_timeout(Some(limit))?;
            // The command SUBSCRIBE is sent without `PubSub`, which would unsubscribe when it is
            // dropped at the end of this call.
            let mut subscribe = redis::cmd("SUBSCRIBE");
            subscribe.arg(self.lease_key(key));
            connection.send_packed_command(&subscribe.get_packed_command())?;
            connection.recv_response()?;
            Ok(connection)
        };
        let connection = subscribe().map_err(|error: RedisError| to_store_error(&error, limit))?;
        Ok(Box::new(Subscription(connection)))
    }
}

impl Redis {
    /// Sets a field of the lease, if this owner has it. Returns false if it has not: another
    /// owner's lease must not be changed.
    fn set_field(
        &self,
        key: &str,
        owner: &str,
        field: &str,
        value: &[u8],
        limit: Duration,
    ) -> Result<bool, StoreError> {
        let lease = self.lease_key(key);
        let set: i64 = self.with(limit, |connection| {
            let mut call = self.set_field.prepare_invoke();
            call.key(&lease).arg(owner).arg(field).arg(value);
            call.invoke(connection)
        })?;
        Ok(set == 1)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// Connection that receives a message when a key is released.
struct Subscription(Connection);

impl Waiter for Subscription {
    fn wait(&mut self, limit: Duration) -> Result<(), StoreError> {
        // A timeout of zero would mean no timeout, so the wait is at least 1 ms.
        let limit = limit.max(Duration::from_millis(1));
        let received = self.0.set_read_timeout(Some(limit)).and_then(|()| {
            // Messages are read through `PubSub`, because `recv_response` would skip the first
            // message after a timeout.
            let mut messages = self.0.as_pubsub();
            let received = messages.get_message();
            // `PubSub` is forgotten, because dropping it would end the subscription.
            std::mem::forget(messages);
            received
        });
        match received {
            Ok(_) => Ok(()),
            Err(error) if error.is_timeout() => Ok(()),
            Err(error) => Err(to_store_error(&error, limit)),
        }
    }
}

/// Opens a client for the URL. TLS is verified with the certificates of the system.
fn open(url: &StoreUrl) -> Result<Client, RedisError> {
    let plain = if url.scheme == "redis+unix" {
        format!("redis+unix:///{}", url.path)
    } else {
        let slash = if url.path.is_empty() { "" } else { "/" };
        format!("{}://{}{slash}{}", url.scheme, url.address, url.path)
    };
    let info = plain.as_str().into_connection_info()?;
    let mut settings = info.redis_settings().clone();
    if let Some(user) = &url.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &url.password {
        settings = settings.set_password(password);
    }
    Client::open(info.set_redis_settings(settings))
}

/// Returns the reasons why this server can forget a lease that it has granted.
fn risks(info: &str, fsync: Option<&str>) -> Vec<&'static str> {
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let mut risks = Vec::new();
    if field("connected_slaves").is_some_and(|count| count != "0") || field("role") == Some("slave")
    {
        risks.push("the server has replicas, and a failover loses writes that were not replicated");
    }
    if field("aof_enabled") == Some("0") {
        risks.push("the server has no append-only file (`appendonly no`)");
    } else if fsync.is_some_and(|fsync| fsync != "always") {
        risks.push("`appendfsync` is not `always`");
    }
    if field("maxmemory_policy").is_some_and(|policy| policy != "noeviction")
        && field("maxmemory").is_some_and(|bytes| bytes != "0")
    {
        risks.push("`maxmemory-policy` is not `noeviction`");
    }
    risks
}

/// True if the connection cannot be used for another request.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        // The server rejected a write because it became a replica. A new connection may lead to the
        // new primary.
        || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly))
}

fn to_store_error(error: &RedisError, limit: Duration) -> StoreError {
    if error.is_timeout() {
        return StoreError::timeout(limit);
    }
    // A wrong password is a permanent error, although the server also closes the connection: a new
    // connection would fail too.
    let transient = is_broken(error) && error.kind() != ErrorKind::AuthenticationFailed
        || matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                    | ServerErrorKind::TryAgain
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::MasterDown
            )
        );
    if transient {
        StoreError::transient(describe(error))
    } else {
        StoreError::fatal(describe(error))
    }
}

fn describe(error: &RedisError) -> String {
    crate::text::sanitize_name(error.to_string())
}

fn unexpected() -> StoreError {
    StoreError::fatal("the server sent an unexpected response")
}

/// Builds a lease from the fields that the script returns: owner, token, record and remaining
/// milliseconds.
fn entry(fields: &[redis::Value]) -> Result<Option<Entry>, StoreError> {
    let [owner, token, record, left] = fields else {
        return if fields.is_empty() {
            Ok(None)
        } else {
            Err(unexpected())
        };
    };
    let text = |value| redis::from_redis_value_ref::<Vec<u8>>(value).map_err(|_| unexpected());
    Ok(Some(Entry {
        owner: String::from_utf8_lossy(&text(owner)?).into_owned(),
        token: number(token).unwrap_or(0),
        record: text(record)?,
        expires_in: redis::from_redis_value_ref::<i64>(left)
            .ok()
            .and_then(|left| u64::try_from(left).ok())
            .map(Duration::from_millis),
    }))
}

fn number(value: &redis::Value) -> Result<u64, StoreError> {
    redis::from_redis_value_ref(value).map_err(|_| unexpected())
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn risks_name_replicas_missing_persistence_and_eviction() {
        let safe = "role:master\r\nconnected_slaves:0\r\naof_enabled:1\r\nmaxmemory:0\r\n\
                    maxmemory_policy:noeviction\r\n";
        assert!(risks(safe, Some("always")).is_empty());
        assert!(risks(safe, None).is_empty());
        assert_eq!(risks(safe, Some("everysec")).len(), 1);
        let risky = "role:master\r\nconnected_slaves:1\r\naof_enabled:0\r\nmaxmemory:100\r\n\
                     maxmemory_policy:allkeys-lru\r\n";
        assert_eq!(risks(risky, None).len(), 3);
    }
}
