//! `llmlb serve`: acquires the port's lock, serves, drains on a signal, releases the lock.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use spool::RunError;

use super::args::Serve;
use super::exit::{self, Failure};
use super::log::StderrLog;
use super::{check, server_keys, stop};
use crate::app::{App, ClientPort, Ended, Opened, RequestLog};
use crate::config::{self, Config, Flags, Instance, OnFailure, env};
use crate::data_dir;
use crate::descriptors::Division;
use crate::forward::Via;
use crate::listen;
use crate::lock::{LockError, ServerFields, ServerLock};
use crate::meter::Meter;
use crate::notify::Notify;
use crate::sys::{self, SignalEvent, signals::Signals};
use crate::tls::{TlsConfig, TlsError};

/// Maximum number of attempts to find a free port with `-p 0`. The system may assign a port whose
/// lock another starting server already holds.
const FREE_PORT_TRIES: usize = 8;

pub(super) fn serve(args: &Serve, log: &StderrLog) -> Result<u8, Failure> {
    let flags = Flags {
        config: args.config.clone(),
        allow_shared_config: args.allow_shared_config,
        port: args.port,
        host: args.host.clone(),
        backends: args.backends.clone(),
        demo: args.demo,
        allow_public: args.allow_public,
        has_stored_keys: Some(server_keys::are_stored),
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
    };
    sys::share_c_arena();
    let mut config = config::load(&flags).map_err(|problems| check::refused(&problems))?;
    let log = log.requests(config.log.format);
    if args.demo
        && let Some(url) = config.adapt_to_demo()
    {
        let url = url.shown();
        tracing::warn!(
            "usage.url ({url}) is ignored: the demo's usage records are never delivered"
        );
    }
    sys::limits::raise_open_files();
    sys::limits::disable_core_dumps();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::new(exit::FAILED, format!("cannot start the runtime: {error}"))
        })?;
    let ended = runtime.block_on(run(&config, &flags, log));
    // Do not wait for the remaining tasks: they belong to aborted requests and could delay the
    // exit.
    runtime.shutdown_background();
    ended
}

async fn run(config: &Config, flags: &Flags, log: RequestLog) -> Result<u8, Failure> {
    let demo = flags.demo;
    // Install the signal handlers before the lock is acquired: a signal in between would kill the
    // process and leave a stale lock file.
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::FAILED, format!("cannot handle signals: {error}")))?;
    let tls = TlsConfig::load(&config.server).map_err(|error| tls_failure(&error))?;
    let (mut lock, listener) = acquire_port(config)?;
    let address = listener.local_addr().map_err(|error| {
        Failure::new(
            exit::FAILED,
            format!("cannot read the socket's address: {error}"),
        )
    })?;
    reject_own_address(config, address)?;
    let request = lock
        .tenure_mut()
        .stop_request()
        .map_err(|error| Failure::new(exit::FAILED, error.to_string()))?;
    signals.watch(request);
    let via = Via::new(address.port(), lock.tenure_mut().token());
    let notify = Notify::new(env::notify_socket());
    if let Some(file) = &config.file {
        tracing::info!("read {}", file.display());
    }

    let host = sys::host_name(env::text);
    let instance = config.server.instance.clone();
    let instance = instance.unwrap_or_else(|| Instance::from_host(host.as_deref(), address.port()));
    let (keys, key_watch) = server_keys::open(config)?;
    let meter = meter(config, demo, host.as_deref(), &instance)?;
    let opened = Opened {
        meter,
        keys,
        key_watch,
    };
    let division = divide_descriptors(config, demo)?;
    let port = ClientPort { listener, tls };
    let started = tokio::select! {
        started = App::start(config, flags, port, &division, via, log, opened) => started,
        signal = signals.next_stop() => {
            tracing::info!("{signal} received during the start: exiting");
            return release(lock, exit::DONE);
        }
    };
    let mut app = started
        .map_err(|error| Failure::new(exit::FAILED, format!("cannot start the server: {error}")))?;
    announce(&app, config, address, demo);
    notify.ready(&format!("serving on {}", base_url(&app, address)));

    let Some(signal) = serve_until_signal(&mut app, &mut signals, &mut lock).await else {
        drop(lock);
        return Err(Failure::new(
            exit::FAILED,
            "all worker threads ended unexpectedly; see the errors above",
        ));
    };
    let in_flight = app.shared.requests.now();
    let limit = app.drain_timeout();
    tracing::info!("{signal} received: {}", drain_message(in_flight, limit));
    publish_draining(&mut lock, in_flight);
    notify.stopping(
        limit + stop::GRACE,
        &format!("draining, {in_flight} in flight"),
    );
    let report = |in_flight| publish_draining(&mut lock, in_flight);
    let ended = app.drain(&mut signals, report).await;
    release(lock, log_end(&ended))
}

/// Serves, and reloads the configuration on request, until a signal stops the server. Returns the signal's name;
/// `None` if all workers have ended.
async fn serve_until_signal(
    app: &mut App,
    signals: &mut Signals,
    lock: &mut ServerLock,
) -> Option<&'static str> {
    loop {
        let reloaded = app.reloaded();
        let event = tokio::select! {
            event = signals.next() => Some(event),
            () = reloaded => None,
            () = app.workers_failed() => return None,
        };
        match event {
            Some(SignalEvent::Stop(name)) => return Some(name),
            Some(SignalEvent::Reload) => app.reload(),
            None => {
                // Publish the drain timeout in the lock record, from which `llmlb stop` learns how
                // long to wait.
                if let Err(error) = lock.publish_drain_timeout(app.drain_timeout()) {
                    tracing::debug!(%error, "cannot write the drain timeout into the lock record");
                }
            }
        }
    }
}

/// Rejects a backend that is this server itself: its requests would loop.
fn reject_own_address(config: &Config, address: SocketAddr) -> Result<(), Failure> {
    let Some(own) = config.backends.iter().find(|one| one.leads_to(address)) else {
        return Ok(());
    };
    Err(Failure::new(
        exit::FAILED,
        format!("Backend {} at {} is this server itself", own.name, own.url),
    )
    .hint("name an LLM server: --backend URL, or `url` of [[backend]]"))
}

fn divide_descriptors(config: &Config, demo: bool) -> Result<Division, Failure> {
    Division::for_this_process(&config.server, demo).map_err(|few| {
        let hint = format!(
            "use fewer server.workers, or raise the limit: LimitNOFILE= of the service, or ulimit -n {}",
            few.needed.max(1024)
        );
        Failure::new(exit::FAILED, format!("Cannot start: {few}")).hint(hint)
    })
}

/// Logs the end of the drain, and returns the exit code of the server.
fn log_end(ended: &Ended) -> u8 {
    match *ended {
        Ended::Drained => {
            tracing::info!("drained: all requests completed");
            exit::DONE
        }
        Ended::TimedOut(0) | Ended::SecondSignal(0) => {
            tracing::info!("drained: no requests in flight; closed the idle connections");
            exit::DONE
        }
        Ended::TimedOut(aborted) => {
            tracing::warn!(
                "server.drain_timeout expired: aborted {}",
                counted_requests(aborted)
            );
            exit::FAILED
        }
        Ended::SecondSignal(aborted) => {
            tracing::warn!(
                "second signal received: aborted {}",
                counted_requests(aborted)
            );
            exit::FAILED
        }
    }
}

/// Creates the meter, which writes a usage record for every request.
fn meter(
    config: &Config,
    demo: bool,
    host: Option<&str>,
    instance: &Instance,
) -> Result<Meter, Failure> {
    if !config.usage.enabled {
        return Ok(Meter::off());
    }
    let refuses = config.usage.on_failure == OnFailure::Refuse;
    let Some(dir) = data_dir::find(config.usage.data_dir.as_deref(), demo) else {
        if refuses {
            let message = "no data directory for usage records: this user has no home directory";
            let hint = "name a data directory: usage.data_dir, or LLMLB_DATA_DIR=DIR";
            return Err(Failure::new(exit::FAILED, message).hint(hint));
        }
        return Ok(Meter::off()); // The exporter logs the missing data directory.
    };
    claim_destination(config, &dir)?;
    let mut meter = Meter::new(&dir, config.usage.on_failure, instance);
    match meter.open() {
        Ok(()) => {
            // Record the requests that a crash interrupted before the first request is admitted, so
            // that limits and reports count them from the start.
            meter.recover(host);
            meter.list_in_flight(host);
            Ok(meter)
        }
        Err(error) if refuses => Err(Failure::new(
            exit::FAILED,
            format!("cannot record usage (usage.on_failure = \"refuse\"): {error}"),
        )
        .hint("name another data directory: usage.data_dir, or LLMLB_DATA_DIR=DIR")),
        Err(error) => {
            tracing::error!(
                "cannot record usage, will retry: {error}; until the next start, requests in flight have no \
                 record if this server is killed"
            );
            Ok(meter)
        }
    }
}

/// Rejects a data directory whose records go to another receiver, before any record is staged: two
/// receivers would each get a part of the usage.
fn claim_destination(config: &Config, data: &Path) -> Result<(), Failure> {
    let to = config.usage.url.as_ref().map(config::Receiver::shown);
    match spool::claim_destination(data, to) {
        Ok(()) => Ok(()),
        Err(error @ RunError::OtherDestination { .. }) => {
            let what = to.map_or_else(|| "--archive".to_owned(), |to| format!("--to {to}"));
            let (dir, asked) = (data.display(), to.unwrap_or("none"));
            let message = format!("{error} ({dir}; usage.url: {asked})");
            Err(Failure::new(exit::FAILED, message)
                .hint(
                    "set usage.url to the destination of this data directory, or name another data \
                     directory: usage.data_dir, or LLMLB_DATA_DIR=DIR",
                )
                .hint(format!(
                    "change the destination: `llmlb usage --data {dir} deliver {what} --change-destination`"
                )))
        }
        // Start although the check failed: every run of the exporter checks the destination again
        // and reports the error.
        Err(error) => {
            tracing::debug!(%error, "cannot check the destination of the data directory");
            Ok(())
        }
    }
}

/// Acquires the lock of the server's port, then binds the socket. With port 0 the bind comes first,
/// because only the system knows a free port.
fn acquire_port(config: &Config) -> Result<(ServerLock, TcpListener), Failure> {
    let address = SocketAddr::new(config.server.host, config.server.port);
    let claim = |address: SocketAddr| {
        let fields = ServerFields {
            address,
            drain_timeout: config.server.drain_timeout,
        };
        ServerLock::acquire_with(address.port(), fields)
    };
    if address.port() != 0 {
        let lock = claim(address).map_err(lock_failure)?;
        let listener = listen::listen(address).map_err(|error| bind_failure(address, &error))?;
        return Ok((lock, listener));
    }
    let mut refused = None;
    for _ in 0..FREE_PORT_TRIES {
        let listener = listen::listen(address).map_err(|error| bind_failure(address, &error))?;
        let bound = listener
            .local_addr()
            .map_err(|error| bind_failure(address, &error))?;
        match claim(bound) {
            Ok(lock) => return Ok((lock, listener)),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.map_or_else(
        || {
            Failure::new(
                exit::FAILED,
                "no free port found (-p 0); specify one: -p PORT",
            )
        },
        lock_failure,
    ))
}

/// Returns the URL of the server without a path, for messages.
fn base_url(app: &App, address: SocketAddr) -> String {
    let scheme = if app.shared.tls.is_some() {
        "https"
    } else {
        "http"
    };
    format!("{scheme}://{address}")
}

fn announce(app: &App, config: &Config, address: SocketAddr, demo: bool) {
    let url = base_url(app, address);
    let table = app.shared.pool.table();
    let (total, up) = (table.backends.len(), table.up());
    let backends = match total {
        0 => "no backends yet".to_owned(),
        _ => format!("{up} of {total} backends up"),
    };
    tracing::info!(
        "listening on {url} (PID {}), {backends}",
        std::process::id()
    );
    let is_public = !config::is_loopback(address.ip());
    if app.shared.keys.is_required() {
        tracing::info!("clients need an API key: list them with `llmlb key list`");
    } else if is_public {
        tracing::warn!("every client that can reach {address} can use the backends");
    }
    if is_public && app.shared.tls.is_none() && config.server.trusted_proxies.is_empty() {
        tracing::warn!(
            "requests to {address} are not encrypted: set server.tls_cert and server.tls_key, or \
             name the reverse proxy that serves https in server.trusted_proxies"
        );
    }
    if let Some(tls) = &app.shared.tls {
        tracing::info!("the certificate is for {}", tls.certificate().summary());
    }
    if demo {
        tracing::info!(
            "try it: curl -N {url}/v1/chat/completions -H 'content-type: application/json' \
             -d '{{\"model\":\"demo\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'"
        );
    }
    if std::process::id() == 1 {
        tracing::info!("stop the server with SIGTERM, as `docker stop` does");
    } else {
        tracing::info!(
            "stop the server with Ctrl-C or `llmlb stop -p {}`",
            address.port()
        );
    }
}

/// Returns the error for a certificate or key file that cannot be used.
pub(super) fn tls_failure(error: &TlsError) -> Failure {
    let failure = Failure::new(exit::FAILED, error.to_string());
    match error.hint_text() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn counted_requests(count: usize) -> String {
    match count {
        1 => "1 in-flight request".to_owned(),
        _ => format!("{count} in-flight requests"),
    }
}

/// Returns the message about the drain that the first signal has started.
fn drain_message(in_flight: usize, limit: Duration) -> String {
    if in_flight == 0 {
        return "draining; no requests in flight".to_owned();
    }
    format!(
        "draining; waiting for {} for up to {} s. A second signal aborts them",
        counted_requests(in_flight),
        limit.as_secs_f32()
    )
}

/// Releases the lock of the port, and returns the exit code of the server.
fn release(lock: ServerLock, code: u8) -> Result<u8, Failure> {
    match lock.release() {
        Ok(()) => Ok(code),
        Err(error) => Err(Failure::new(exit::FAILED, error.to_string())),
    }
}

fn publish_draining(lock: &mut ServerLock, in_flight: usize) {
    if let Err(error) = lock.publish_draining(in_flight) {
        tracing::debug!(%error, "cannot write the drain into the lock record");
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "used with `map_err`, which passes the error by value"
)]
fn lock_failure(error: LockError) -> Failure {
    let failure = Failure::new(exit::FAILED, error.to_string());
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Returns the error for a port that cannot be bound: the reason, the program that uses the port,
/// and hints.
fn bind_failure(address: SocketAddr, error: &io::Error) -> Failure {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => in_use(port),
        io::ErrorKind::PermissionDenied => Failure::new(
            exit::FAILED,
            format!("This user may not listen on port {port}"),
        )
        .hint("ports below 1024 need root; use another: llmlb serve -p PORT"),
        io::ErrorKind::AddrNotAvailable => Failure::new(
            exit::FAILED,
            format!("This machine has no address {}", address.ip()),
        )
        .hint("use an address of this machine, or 0.0.0.0 for all of them: llmlb serve -H HOST"),
        _ => Failure::new(exit::FAILED, format!("Cannot listen on {address}: {error}")),
    }
}

fn in_use(port: u16) -> Failure {
    let elsewhere = "use another port, or 0 for any free one: llmlb serve -p PORT";
    match sys::port_owner(port) {
        Some(owner) if !owner.listening => Failure::new(
            exit::FAILED,
            format!("Port {port} is in use by an outgoing connection of {owner}"),
        )
        .hint("retry, or reserve the port: see docs/operations.md")
        .hint(elsewhere),
        Some(owner) => {
            let failure = Failure::new(
                exit::FAILED,
                format!("Port {port} is in use by another program: {owner}"),
            );
            let failure = if owner.program.as_deref() == Some("llmlb") {
                failure.hint(
                    "that server uses another lock directory: compare LLMLB_LOCK_DIR and TMPDIR",
                )
            } else {
                failure
            };
            failure.hint(elsewhere)
        }
        None => Failure::new(
            exit::FAILED,
            format!(
                "Port {port} is in use by another program, or by a recently closed connection \
                 (TIME_WAIT), which ends within a minute"
            ),
        )
        .hint(elsewhere),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_message_announces_a_wait_only_if_requests_are_in_flight() {
        let limit = Duration::from_secs(30);
        assert_eq!(drain_message(0, limit), "draining; no requests in flight");
        assert_eq!(
            drain_message(1, limit),
            "draining; waiting for 1 in-flight request for up to 30 s. A second signal aborts them"
        );
    }
}
