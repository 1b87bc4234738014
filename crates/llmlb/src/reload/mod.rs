//! Applies a changed configuration to a running server (promise L12), without dropping a request.
//!
//! `watch.rs` reads the file. A valid configuration is compared with the running one; new backends
//! are probed, so that their models are known; then [`Pool::reconfigure`] replaces backends,
//! aliases and settings at once. A file with problems changes nothing.

mod watch;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::atomic_duration::AtomicDuration;
use crate::balance::{Backend, Reconfigured};
use crate::config::{self, Changes, Config, Flags, OnFailure, Problems, env};
use crate::health::Watcher;
use crate::request_settings::RequestSettings;
use crate::server::Shared;
use crate::sys;
use crate::upstream::Connector;
use watch::{ConfigWatch, Loaded};

/// Parts of the server that a reload changes, and the running configuration.
pub(crate) struct Reloader {
    pub(crate) running: Config,
    /// Backends of `serve --demo`, which no configuration file names and a reload must keep.
    pub(crate) demo: Vec<config::Backend>,
    /// Address that the server listens on. A backend at this address would forward requests in a
    /// loop.
    pub(crate) own: SocketAddr,
    pub(crate) shared: Arc<Shared>,
    pub(crate) watcher: Watcher,
    pub(crate) connector: Connector,
    pub(crate) logs_requests: Arc<AtomicBool>,
    pub(crate) drain_timeout: Arc<AtomicDuration>,
    /// Notified after each reload of the configuration.
    pub(crate) reloaded: Arc<Notify>,
}

/// Handle through which a running server requests reloads of its configuration.
#[derive(Debug)]
pub(crate) struct Reloads(ConfigWatch);

impl Reloads {
    /// Watches the configuration file, and reloads it after a change, until `stop` is cancelled.
    pub(crate) fn start(
        reloader: Reloader,
        flags: Flags,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> io::Result<Self> {
        let had_file = reloader.running.file.is_some();
        let (watch, loaded) = ConfigWatch::start(flags, had_file)?;
        tasks.spawn(async move {
            stop.run_until_cancelled(reloader.run(loaded)).await;
        });
        Ok(Self(watch))
    }

    /// Reads the configuration file now, even if it seems unchanged, because a signal requested it.
    pub(crate) fn request(&self) {
        self.0.request();
    }
}

impl Reloader {
    async fn run(mut self, mut loaded: mpsc::Receiver<Loaded>) {
        while let Some(loaded) = loaded.recv().await {
            if loaded.is_requested {
                self.reload_certificate().await;
            }
            match loaded.config {
                Ok(config) => self.apply(*config, loaded.is_requested).await,
                Err(problems) => self.refuse(&problems, loaded.is_requested),
            }
        }
    }

    /// Reads the files of the TLS certificate again. If that fails, `tls/` logs the error, and the
    /// server keeps the old certificate.
    async fn reload_certificate(&self) {
        if let Some(tls) = self.shared.tls.clone() {
            let _ = tokio::task::spawn_blocking(move || tls.reload().is_ok()).await;
        }
    }

    /// Reports a configuration file with problems in `/status` and the log. The same content is
    /// logged once, except when a signal requested the reload.
    fn refuse(&self, problems: &Problems, is_requested: bool) {
        let is_new = self.shared.config.note_refused(problems);
        if is_new || is_requested {
            let count = problems.len();
            let noun = if count == 1 { "problem" } else { "problems" };
            tracing::error!("configuration not reloaded, the running one stays: {count} {noun}:");
            for line in problems.lines() {
                tracing::error!("{line}");
            }
        }
    }

    async fn apply(&mut self, mut config: Config, is_requested: bool) {
        if let Some(own) = config.backends.iter().find(|one| one.leads_to(self.own)) {
            let what = format!("backend {} at {} is this server itself", own.name, own.url);
            self.refuse(&Problems::of_config(&config, &what), is_requested);
            return;
        }
        let Changes {
            applied,
            after_restart,
        } = config.merge(&self.running);
        for change in &after_restart {
            tracing::warn!("configuration: {change} takes effect after restart");
        }
        let file = config.file.as_ref();
        let name = file.map_or("defaults".into(), |file| file.display().to_string());
        if applied.is_empty() {
            self.shared
                .config
                .note_reload_without_changes(&config, after_restart);
            self.running = config;
            if is_requested {
                tracing::info!("configuration reloaded from {name}: no changes");
            }
            return;
        }
        self.change(&config).await;
        self.shared.config.note_reload(&config, after_restart);
        self.running = config;
        tracing::info!("configuration reloaded from {name}: {}", applied.join("; "));
        self.reloaded.notify_one();
    }

    async fn change(&self, config: &Config) {
        let (shared, server) = (&self.shared, &config.server);
        self.watcher.set_limits(&config.upstream);
        self.connector.set_limit(config.upstream.connect_timeout);
        if config.backends.iter().any(|one| one.url.is_https()) {
            self.connector.prepare_tls();
        }
        let wanted = config.backends.iter().chain(&self.demo).cloned();
        let mut planned = shared.pool.plan(wanted.map(Backend::new));
        self.watcher.probe_planned(&mut planned).await;
        let discovers = planned.is_empty();

        // Change the limits that apply to all requests together. They are outside of the table that
        // is replaced below, because requests in progress read them as well.
        shared.budget.set_limit(server.body_memory);
        shared.contention.set_limit(server.stall_timeout);
        shared.cancelled.set_limit(server.max_resets);
        shared
            .connections
            .set_proxies(server.trusted_proxies.clone());
        shared
            .address_limit
            .set_proxies(server.trusted_proxies.clone());
        shared
            .meter
            .set_refuses(config.usage.on_failure == OnFailure::Refuse);
        self.logs_requests
            .store(config.log.requests, Ordering::Relaxed);
        self.drain_timeout.set(server.drain_timeout);
        shared.keys.set_configured(config.keys.clone());
        let machine = sys::host_name(env::text);
        let removed = shared.pool.reconfigure(Reconfigured {
            backends: planned,
            keeps_discovered: discovers,
            aliases: config.aliases.clone(),
            settings: Arc::new(RequestSettings::new(config, machine)),
            queue: server.queue,
            queue_timeout: server.queue_timeout,
        });
        for backend in removed {
            shared.backend_connections.close_idle(backend.id);
        }
        self.watcher.follow();
        self.watcher.set_discovery(discovers, self.own.port());
    }
}
