//! `llmlb serve`: own the port, serve, drain, let go.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use spool::RunError;

use super::args::Serve;
use super::exit::{self, Failure};
use super::{check, stop};
use crate::app::{App, Ended, Log};
use crate::config::{self, Config, Flags, OnFailure, env};
use crate::data_dir;
use crate::descriptors::Division;
use crate::forward::Via;
use crate::listen;
use crate::lock::{Fields, LockError, ServerLock};
use crate::meter::Meter;
use crate::notify::Notify;
use crate::sys::{self, signals::Signals};

/// How often another free port is tried when the one that the system gave belongs to a server
/// that is just starting.
const FREE_PORT_TRIES: usize = 8;

pub(super) fn serve(args: &Serve, log: Log) -> Result<u8, Failure> {
    let flags = Flags {
        config: args.config.clone(),
        allow_shared_config: args.allow_shared_config,
        port: args.port,
        host: args.host.clone(),
        backends: args.backends.clone(),
        demo: args.demo,
        allow_public: args.allow_public,
    };
    let mut config = config::load(&flags).map_err(|problems| check::refused(&problems))?;
    if args.demo
        && let Some(url) = config.usage.url.take()
    {
        let url = url.shown();
        tracing::warn!("the demo's usage records are not sent to {url}: they are no real usage");
    }
    sys::limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::FAILED, format!("cannot start: {error}")))?;
    let ended = runtime.block_on(run(&config, args.demo, log));
    // What is still going on belongs to requests that were cut.
    runtime.shutdown_background();
    ended
}

async fn run(config: &Config, demo: bool, log: Log) -> Result<u8, Failure> {
    // First of all, so that no signal finds a lock file and nobody to remove it.
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::FAILED, format!("cannot handle signals: {error}")))?;
    let (mut lock, listener) = own(config)?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::new(exit::FAILED, format!("the socket is gone: {error}")))?;
    if let Some(own) = config.backends.iter().find(|one| leads_to(one, address)) {
        return Err(Failure::new(
            exit::FAILED,
            format!("Backend {} at {} is this very server", own.name, own.url),
        )
        .hint("name the servers that answer, not the balancer"));
    }
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

    let meter = meter(config, demo)?;
    let division = Division::of_this_process(&config.server, demo).map_err(|few| {
        let hint = format!(
            "raise it: ulimit -n {}, or LimitNOFILE= of the service; fewer server.workers need less",
            few.needed.max(1024)
        );
        Failure::new(exit::FAILED, format!("Cannot start: {few}")).hint(hint)
    })?;
    let started = tokio::select! {
        started = App::start(config, demo, listener, &division, via, log, meter) => started,
        signal = signals.next() => {
            tracing::info!("{signal}: ended before it was ready");
            return let_go(lock, exit::DONE);
        }
    };
    let mut app =
        started.map_err(|error| Failure::new(exit::FAILED, format!("cannot start: {error}")))?;
    announce(&app, address, demo);
    notify.ready(&format!("serving on {address}"));

    let signal = tokio::select! {
        signal = signals.next() => signal,
        () = app.broken() => {
            drop(lock);
            return Err(Failure::new(exit::FAILED, "every worker has ended; see the errors above"));
        }
    };
    let in_flight = app.shared.requests.now();
    let limit = config.server.drain_timeout;
    tracing::info!(
        "{signal}: accepting no more; {} for up to {} s. A second signal ends at once",
        waiting_for(in_flight),
        limit.as_secs_f32()
    );
    tell_draining(&mut lock, in_flight);
    notify.stopping(
        limit + stop::GRACE,
        &format!("draining, {in_flight} in flight"),
    );
    let report = |in_flight| tell_draining(&mut lock, in_flight);
    let ended = app.drain(&mut signals, report).await;
    let code = match ended {
        Ended::Drained => {
            tracing::info!("ended; no request was left");
            exit::DONE
        }
        Ended::TimedOut(0) | Ended::SecondSignal(0) => {
            tracing::info!("ended; connections without a request were closed");
            exit::DONE
        }
        Ended::TimedOut(cut) => {
            tracing::warn!("the drain timeout is over; requests cut: {cut}");
            exit::FAILED
        }
        Ended::SecondSignal(cut) => {
            tracing::warn!("told twice; requests cut: {cut}");
            exit::FAILED
        }
    };
    let_go(lock, code)
}

/// What keeps a record of every request.
fn meter(config: &Config, demo: bool) -> Result<Meter, Failure> {
    if !config.usage.enabled {
        return Ok(Meter::off());
    }
    let refuses = config.usage.on_failure == OnFailure::Refuse;
    let Some(dir) = data_dir::find(None, demo) else {
        if refuses {
            let message = "this user has no home directory for usage data";
            let hint = "name a directory with LLMLB_DATA_DIR";
            return Err(Failure::new(exit::FAILED, message).hint(hint));
        }
        return Ok(Meter::off()); // It is told where it is exported.
    };
    claim_destination(config, &dir)?;
    let meter = Meter::new(&dir, config.usage.on_failure);
    match meter.open() {
        Ok(()) => Ok(meter),
        Err(error) if refuses => Err(Failure::new(
            exit::FAILED,
            format!("usage cannot be recorded: {error}"),
        )
        .hint("name another directory with LLMLB_DATA_DIR")),
        Err(error) => {
            tracing::error!("usage cannot be recorded: {error}; it is tried again");
            Ok(meter)
        }
    }
}

/// Refuses a data directory whose records go elsewhere, before anything is staged there.
fn claim_destination(config: &Config, data: &Path) -> Result<(), Failure> {
    let to = config.usage.url.as_ref().map(config::Receiver::shown);
    match spool::claim_destination(data, to) {
        Ok(()) => Ok(()),
        Err(error @ RunError::OtherDestination { .. }) => {
            let what = to.map_or_else(|| "--archive".to_owned(), |to| format!("--to {to}"));
            let (dir, asked) = (data.display(), to.unwrap_or("none"));
            let message = format!("{error} ({dir}; usage.url: {asked})");
            Err(Failure::new(exit::FAILED, message)
                .hint("name another data directory with LLMLB_DATA_DIR, or set usage.url")
                .hint(format!(
                    "to change it on purpose: `llmlb usage --data {dir} deliver {what} --change-destination`"
                )))
        }
        // Runs try again, and report it.
        Err(error) => {
            tracing::debug!(%error, "the destination of the usage data is not checked");
            Ok(())
        }
    }
}

/// Owns the port: first its tenure, then the socket.
fn own(config: &Config) -> Result<(ServerLock, TcpListener), Failure> {
    let address = SocketAddr::new(config.server.host, config.server.port);
    let claim = |address: SocketAddr| {
        let fields = Fields {
            address,
            drain_timeout: config.server.drain_timeout,
        };
        ServerLock::claim(address.port(), fields)
    };
    if address.port() != 0 {
        let lock = claim(address).map_err(already)?;
        let listener = listen::listen(address).map_err(|error| taken(address, &error))?;
        return Ok((lock, listener));
    }
    // Any free port: only the system knows which one that is.
    let mut refused = None;
    for _ in 0..FREE_PORT_TRIES {
        let listener = listen::listen(address).map_err(|error| taken(address, &error))?;
        let bound = listener
            .local_addr()
            .map_err(|error| taken(address, &error))?;
        match claim(bound) {
            Ok(lock) => return Ok((lock, listener)),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.map_or_else(
        || Failure::new(exit::FAILED, "no free port was found"),
        already,
    ))
}

/// Whether a backend is the server at this address, as far as can be told without asking.
fn leads_to(backend: &config::Backend, own: SocketAddr) -> bool {
    let authority = backend.url.authority();
    let host = match authority.host() {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => match host.trim_matches(['[', ']']).parse() {
            Ok(host) => host,
            Err(_) => return false,
        },
    };
    let ours = own.ip().to_canonical();
    let here = host.to_canonical() == ours || (ours.is_unspecified() && config::is_loopback(host));
    authority.port_u16() == Some(own.port()) && here
}

fn announce(app: &App, address: SocketAddr, demo: bool) {
    let table = app.shared.pool.table();
    let (total, up) = (table.backends.len(), table.up());
    let backends = match total {
        0 => "no backends yet".to_owned(),
        _ => format!("{up} of {total} backends up"),
    };
    tracing::info!(
        "listening on http://{address} (PID {}), {backends}",
        std::process::id()
    );
    if !config::is_loopback(address.ip()) {
        tracing::warn!("anyone who reaches {address} can use the backends");
    }
    if demo {
        tracing::info!(
            "try it: curl -N http://{address}/v1/chat/completions -H 'content-type: application/json' \
             -d '{{\"model\":\"demo\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'"
        );
    }
    if std::process::id() == 1 {
        tracing::info!("stop it with SIGTERM, as `docker stop` does");
    } else {
        tracing::info!("stop it with Ctrl-C or `llmlb stop -p {}`", address.port());
    }
}

fn waiting_for(in_flight: usize) -> String {
    match in_flight {
        0 => "waiting for connections to close".to_owned(),
        1 => "waiting for 1 request in flight".to_owned(),
        _ => format!("waiting for {in_flight} requests in flight"),
    }
}

/// Lets go of the port and ends with this code.
fn let_go(lock: ServerLock, code: u8) -> Result<u8, Failure> {
    match lock.release() {
        Ok(()) => Ok(code),
        Err(error) => Err(Failure::new(exit::FAILED, error.to_string())),
    }
}

fn tell_draining(lock: &mut ServerLock, in_flight: usize) {
    if let Err(error) = lock.tell_draining(in_flight) {
        tracing::debug!(%error, "the record does not say that the server is draining");
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is the end of the error")]
fn already(error: LockError) -> Failure {
    let failure = Failure::new(exit::FAILED, error.to_string());
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Why the socket could not be bound, by whom it is used, and what can be done.
fn taken(address: SocketAddr, error: &io::Error) -> Failure {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => in_use(port),
        io::ErrorKind::PermissionDenied => Failure::new(
            exit::FAILED,
            format!("This user may not serve on port {port}"),
        )
        .hint("ports below 1024 are for the administrator; take another with -p PORT"),
        io::ErrorKind::AddrNotAvailable => Failure::new(
            exit::FAILED,
            format!("This machine has no address {}", address.ip()),
        )
        .hint("-H HOST takes one of its own, 127.0.0.1, or 0.0.0.0 for all of them"),
        _ => Failure::new(exit::FAILED, format!("Cannot serve on {address}: {error}")),
    }
}

fn in_use(port: u16) -> Failure {
    let elsewhere = "`llmlb serve -p PORT` takes another one, 0 any free one";
    match sys::port_owner(port) {
        Some(owner) if !owner.listening => Failure::new(
            exit::FAILED,
            format!("Port {port} is in use by an outgoing connection of {owner}"),
        )
        .hint("try again, or reserve the port: docs/operations.md says how")
        .hint(elsewhere),
        Some(owner) => {
            let failure = Failure::new(
                exit::FAILED,
                format!("Port {port} is in use by another program: {owner}"),
            );
            let failure = if owner.program.as_deref() == Some("llmlb") {
                failure.hint("its lock is elsewhere: compare LLMLB_LOCK_DIR and TMPDIR")
            } else {
                failure
            };
            failure.hint(elsewhere)
        }
        None => Failure::new(
            exit::FAILED,
            format!(
                "Port {port} is in use by another program, or by what remains of a connection that \
                 has just closed; that is gone within a minute"
            ),
        )
        .hint(elsewhere),
    }
}
