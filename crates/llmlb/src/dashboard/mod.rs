//! The dashboard at `/dashboard`: the files of the page, and its actions (promise L13).
//!
//! The files contain no data, so every client gets them. Data and actions are for operators: programs on this
//! machine, and API keys for admins. `server/operator.rs` checks that, and that a request for an action was sent by
//! the page of this server itself.

mod files;
mod keys;
mod spool;

use std::path::PathBuf;
use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::balance::Pool;
use crate::config::{FleetConfig, bytes_to_hex};
use crate::endpoint::DashboardAction;
use crate::keys::{KeyStore, KeyTable, random_bytes};
use crate::request::Refusal;

pub(crate) use files::respond as file;

/// Maximum size of the body of an action.
pub(crate) const MAX_BODY: usize = 16 << 10;

/// Actions of the dashboard, and what they need.
#[derive(Debug)]
pub(crate) struct Dashboard {
    /// Token that a request for an action must contain. Only pages of this server can read it.
    token: String,
    pool: Arc<Pool>,
    keys: Arc<KeyTable>,
    stores: Stores,
    /// Held during an action that uses files, so that many requests do not occupy many threads.
    one_at_a_time: Mutex<()>,
}

/// Files that actions change.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    /// File of API keys; `None` if this user has no data directory, and for the demo.
    pub(crate) keys: Option<KeyStore>,
    /// Directory of usage records; `None` if usage is not recorded.
    pub(crate) spool: Option<SpoolAccess>,
}

/// Access to the spool of this server.
#[derive(Clone, Debug)]
pub(crate) struct SpoolAccess {
    pub(crate) data: PathBuf,
    pub(crate) fleet: FleetConfig,
    /// Name of this server in a fleet.
    pub(crate) instance: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackendName {
    backend: String,
}

impl Dashboard {
    /// Returns the dashboard of a server. Fails if the system has no source of random numbers.
    pub(crate) fn new(
        pool: Arc<Pool>,
        keys: Arc<KeyTable>,
        stores: Stores,
    ) -> std::io::Result<Self> {
        let token = random_bytes().map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(Self {
            token: bytes_to_hex(&token),
            pool,
            keys,
            stores,
            one_at_a_time: Mutex::new(()),
        })
    }

    /// Returns who the operator is, the token that actions need, and if clients need a key.
    pub(crate) fn session(&self, who: &str) -> Value {
        json!({ "who": who, "csrf": self.token, "keys_required": self.keys.is_required() })
    }

    /// True if this is the token of [`Self::session`]. The time of the comparison does not depend on the content.
    pub(crate) fn is_token(&self, token: &[u8]) -> bool {
        let expected = self.token.as_bytes();
        let differing = expected.iter().zip(token).map(|(a, b)| a ^ b);
        expected.len() == token.len() && differing.fold(0, |all, one| all | one) == 0
    }

    /// Returns the API keys.
    pub(crate) async fn list_keys(&self) -> Result<Value, Refusal> {
        let (table, store) = (Arc::clone(&self.keys), self.stores.keys.clone());
        self.off_the_worker(move || keys::list(&table, store.as_ref()))
            .await
    }

    /// Performs an action for an operator, and logs it with the operator's name.
    pub(crate) async fn act(
        &self,
        action: DashboardAction,
        body: &[u8],
        who: &str,
    ) -> Result<Value, Refusal> {
        match action {
            DashboardAction::Drain => self.set_drained(&parse(body)?, true, who),
            DashboardAction::Undrain => self.set_drained(&parse(body)?, false, who),
            DashboardAction::Resend => {
                let spool = self.stores.spool.clone().ok_or_else(spool::off)?;
                let resent = self.off_the_worker(move || spool::resend(&spool)).await?;
                tracing::info!(
                    "dashboard: {who} moved failed batches back into the spool: {}",
                    resent["resent"]
                );
                Ok(resent)
            }
            DashboardAction::CreateKey => {
                let key = keys::NewKey::parse(parse(body)?)?;
                let (store, name) = (self.key_store()?, key.name().to_owned());
                self.reject_configured(&name)?;
                let created = self.off_the_worker(move || key.create(&store)).await?;
                tracing::info!("dashboard: {who} created the API key `{name}`");
                Ok(created)
            }
            DashboardAction::RevokeKey => {
                let keys::KeyName { name } = parse(body)?;
                self.reject_configured(&name)?;
                let (store, of) = (self.key_store()?, name.clone());
                let revoked = self
                    .off_the_worker(move || keys::revoke(&store, &of))
                    .await?;
                tracing::info!("dashboard: {who} revoked the API key `{name}`");
                Ok(revoked)
            }
        }
    }

    fn set_drained(
        &self,
        BackendName { backend }: &BackendName,
        is_drained: bool,
        who: &str,
    ) -> Result<Value, Refusal> {
        let Some((backend, was_drained)) = self.pool.set_drained(backend, is_drained) else {
            let message = "No backend has this name; it may have been removed.";
            let status = StatusCode::NOT_FOUND;
            return Err(Refusal::new(status, "unknown_backend", message).unrecorded());
        };
        let (name, in_flight) = (&backend.name, backend.outstanding());
        match (was_drained, is_drained) {
            (false, true) => tracing::info!(
                "dashboard: {who} drained backend {name}: it gets no further requests; in flight: {in_flight}"
            ),
            (true, false) => tracing::info!("dashboard: {who} undrained backend {name}"),
            _ => {}
        }
        Ok(json!({ "drained": is_drained, "in_flight": in_flight }))
    }

    fn key_store(&self) -> Result<KeyStore, Refusal> {
        self.stores.keys.clone().ok_or_else(|| {
            let message = "This server has no file of API keys: the demo does not change keys, and other \
                           servers need a data directory (usage.data_dir, LLMLB_DATA_DIR).";
            refused(StatusCode::CONFLICT, "no_key_file", message)
        })
    }

    /// Rejects the change of a key that the configuration file declares.
    fn reject_configured(&self, name: &str) -> Result<(), Refusal> {
        if !self.keys.is_configured(name) {
            return Ok(());
        }
        let message = "llmlb.toml declares this API key; change it there.";
        Err(refused(StatusCode::CONFLICT, "key_is_configured", message))
    }

    /// Runs work that uses files on another thread: a slow disk must not delay the requests of this worker.
    async fn off_the_worker(
        &self,
        work: impl FnOnce() -> Result<Value, Refusal> + Send + 'static,
    ) -> Result<Value, Refusal> {
        let _one = self.one_at_a_time.lock().await;
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|_| Err(failed("The action failed; see the log.".to_owned())))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| invalid(format!("The body is not valid: {error}")))
}

/// Returns the error for an action with invalid fields.
fn invalid(message: String) -> Refusal {
    refused(StatusCode::BAD_REQUEST, "invalid_action", message)
}

/// Returns the error for an action that failed.
fn failed(message: String) -> Refusal {
    refused(StatusCode::INTERNAL_SERVER_ERROR, "action_failed", message)
}

fn refused(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
    Refusal::new(status, code, message).unrecorded()
}
