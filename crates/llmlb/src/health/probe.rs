//! Probe of one backend: `GET /v1/models` shows that it is up and which models it serves.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::time::timeout;

use super::discover;
use super::model_list::{self, ModelList};
use crate::balance::{Backend, Model, Models};
use crate::config::Kind;
use crate::forward;
use crate::upstream::{self, Connector, UpstreamError};

const MODELS: &str = "/v1/models";
/// Maximum size of a backend's response to `/v1/models`. A larger one fails the probe.
const MAX_BYTES: usize = 8 << 20;

#[derive(Debug)]
pub(super) struct ProbeResult {
    pub(super) models: Models,
    /// Number of models in the backend's list, including those that are left out.
    pub(super) total: usize,
    /// Kind of server (such as Ollama), derived from its list of models.
    pub(super) kind: Option<Kind>,
    pub(super) headers: HeaderMap,
}

/// Reason why a probe failed.
#[derive(Debug)]
pub(super) enum ProbeError {
    /// The backend's host rejects the connection, so no server runs on the port.
    ConnectionRefused(String),
    /// The backend's host does not respond to the connection attempt.
    HostUnreachable(String),
    /// The backend accepts connections but does not respond within `upstream.probe_timeout`.
    Timeout(String),
    /// The backend closes the connection without a response.
    Closed(String),
    /// The response is not a list of models, or the connection failed for another reason.
    InvalidResponse(String),
    /// The backend rejects the key of `api_key_env` with this status.
    KeyRejected(StatusCode, String),
    /// A discovered server's port now belongs to another user's program, which must not get prompts.
    OtherUser(String),
    /// The probe failed for lack of descriptors, memory or ports on this machine. The backend's
    /// state stays, because the failure proves nothing about the backend.
    LocalFault(String),
}

impl ProbeError {
    pub(super) fn why(&self) -> &str {
        match self {
            Self::ConnectionRefused(why)
            | Self::HostUnreachable(why)
            | Self::Timeout(why)
            | Self::Closed(why)
            | Self::InvalidResponse(why)
            | Self::KeyRejected(_, why)
            | Self::OtherUser(why)
            | Self::LocalFault(why) => why,
        }
    }
}

/// Limits of a probe, which protect against slow backends and huge lists of models.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeLimits {
    /// Maximum time for the backend's response to a probe (`upstream.probe_timeout`).
    pub(crate) timeout: Duration,
    /// Maximum number of models that are kept from the backend's list (`upstream.max_models`).
    pub(crate) models: usize,
}

/// Requests `/v1/models` from a backend, which shows that it is up and which models it serves.
pub(super) async fn probe(
    backend: &Backend,
    connector: &Connector,
    limits: ProbeLimits,
) -> Result<ProbeResult, ProbeError> {
    // Wait for the permit before the timeout starts: time that this probe waits for other probes is
    // not the backend's fault.
    let permit = connector.permit_for_probe().await;
    let permit = permit.map_err(|error| ProbeError::LocalFault(error.to_string()))?;
    let head = forward::probe_head(backend, MODELS);
    let request = upstream::get(connector, permit, &backend.url, MODELS, head, MAX_BYTES);
    let got = match timeout(limits.timeout, request).await {
        Ok(Ok(got)) => got,
        Ok(Err(error)) if error.is_local_fault() => {
            return Err(ProbeError::LocalFault(error.to_string()));
        }
        Ok(Err(UpstreamError::ConnectionRefused(why))) => {
            return Err(ProbeError::ConnectionRefused(why));
        }
        Ok(Err(UpstreamError::HostUnreachable(why))) => {
            return Err(ProbeError::HostUnreachable(why));
        }
        Ok(Err(UpstreamError::Closed(why))) => return Err(ProbeError::Closed(why)),
        // Report all other errors, including DNS and TLS errors, as an invalid response. They are
        // often transient, so they must not count as a refused connection.
        Ok(Err(error)) => return Err(ProbeError::InvalidResponse(error.to_string())),
        Err(_) => {
            let seconds = limits.timeout.as_secs_f32();
            return Err(ProbeError::Timeout(format!(
                "no response within {seconds} s"
            )));
        }
    };
    let list = match &backend.settings.fixed_models {
        // If the configuration lists the models, accept any response but a server error as proof
        // that the backend is up: it may not implement `/v1/models`.
        Some(fixed) if !got.status.is_server_error() => {
            let described = fixed
                .iter()
                .map(|id| Model::configured(id, backend.label()));
            ModelList {
                models: Models::new(described.collect()),
                total: fixed.len(),
                kind: None,
            }
        }
        _ if rejects_credential(got.status) && backend.settings.credential.is_some() => {
            let status = got.status;
            let why = format!(
                "{} the backend rejects the key that backend.api_key_env names",
                responded(status)
            );
            return Err(ProbeError::KeyRejected(status, why));
        }
        _ => models(got.status, &got.body, limits.models).map_err(ProbeError::InvalidResponse)?,
    };
    if backend.settings.is_discovered
        && let Some(port) = backend.url.authority().port_u16()
    {
        discover::check_owner(port).map_err(ProbeError::OtherUser)?;
    }
    Ok(ProbeResult {
        models: backend.allowed_models(list.models),
        total: list.total,
        kind: list.kind,
        headers: got.headers,
    })
}

fn rejects_credential(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

fn responded(status: StatusCode) -> String {
    format!("it responded {status} to /v1/models:")
}

/// Returns the models in a response to `/v1/models`, or the reason why the probe failed.
fn models(status: StatusCode, body: &[u8], max: usize) -> Result<ModelList, String> {
    if rejects_credential(status) {
        let responded = responded(status);
        return Err(format!(
            "{responded} the backend requires a key; set its api_key_env"
        ));
    }
    if !status.is_success() {
        return Err(format!("it responded {status} to /v1/models"));
    }
    model_list::parse(body, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_without_a_list_of_models_is_an_error() {
        let read = |status: u16, body: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            models(status, body.as_bytes(), 100).map(|list| list.models.len())
        };
        assert_eq!(read(200, r#"{"object":"list","data":[{"id":"a"}]}"#), Ok(1));
        assert_eq!(read(200, r#"{"data":null}"#), Ok(0));
        assert_eq!(read(200, r#"{"data":[{"id":"a"},{"id":5},7]}"#), Ok(1));
        for (status, body, why) in [
            (200, "<html>", "not a JSON object"),
            (200, "{}", "no list of models"),
            (200, r#"{"data":{}}"#, "no list of models"),
            (404, "", "404"),
            (401, "", "api_key_env"),
            (503, r#"{"data":[]}"#, "503"),
        ] {
            let error = read(status, body).unwrap_err();
            assert!(error.contains(why), "{status} {body}: {error}");
        }
    }
}
