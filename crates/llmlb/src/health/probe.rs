//! Asking one backend whether it is there and what it serves.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::time::timeout;

use super::discover;
use super::model_list::{self, ModelList};
use crate::balance::{Backend, Model, Models};
use crate::config::Kind;
use crate::forward;
use crate::upstream::{self, Connector, UpstreamError};

/// Path of the list of models.
const MODELS: &str = "/v1/models";
/// The longest list of models that is read.
const MOST_BYTES: usize = 8 << 20;

/// What a backend said.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its models, as it describes them.
    pub(super) models: Models,
    /// The number of models that it lists, also of those that are left out.
    pub(super) total: usize,
    /// The kind of server that such a list comes from.
    pub(super) kind: Option<Kind>,
    pub(super) headers: HeaderMap,
}

/// Why it said nothing useful.
#[derive(Debug)]
pub(super) enum Silence {
    /// It is not there, although its machine is.
    Absent(String),
    /// Not even its machine seems to be.
    Gone(String),
    /// It takes connections, and says nothing.
    Hung(String),
    /// It takes connections, and closes them.
    Closed(String),
    /// Something is there that does not answer as it should.
    Wrong(String),
    /// It responded with this status: it rejects our key.
    KeyRejected(StatusCode, String),
    /// It answers, and is not to be used: another user's program has its port.
    Foreign(String),
    /// It could not be asked, for what this machine lacks.
    Ours(String),
}

impl Silence {
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Absent(why)
            | Self::Gone(why)
            | Self::Hung(why)
            | Self::Closed(why)
            | Self::Wrong(why)
            | Self::KeyRejected(_, why)
            | Self::Foreign(why)
            | Self::Ours(why) => why,
        }
    }
}

/// What a backend is allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The time to answer in.
    pub(crate) within: Duration,
    /// The number of models.
    pub(crate) models: usize,
}

/// Asks for `/v1/models`. Busy backends answer late.
pub(super) async fn ask(
    backend: &Backend,
    connector: &Connector,
    limits: Limits,
) -> Result<Answer, Silence> {
    let within = limits.within;
    // Waiting for other probes is not the backend's time.
    let permit = connector.permit_for_probe().await;
    let permit = permit.map_err(|error| Silence::Ours(error.to_string()))?;
    let head = forward::probe_head(backend, MODELS);
    let asked = upstream::get(connector, permit, &backend.url, MODELS, head, MOST_BYTES);
    let got = match timeout(within, asked).await {
        Ok(Ok(got)) => got,
        Ok(Err(error)) if error.is_local_fault() => return Err(Silence::Ours(error.to_string())),
        Ok(Err(UpstreamError::ConnectionRefused(why))) => return Err(Silence::Absent(why)),
        Ok(Err(UpstreamError::HostUnreachable(why))) => return Err(Silence::Gone(why)),
        Ok(Err(UpstreamError::Closed(why))) => return Err(Silence::Closed(why)),
        // A name server or a certificate may fail once, while the backend works on.
        Ok(Err(error)) => return Err(Silence::Wrong(error.to_string())),
        Err(_) => {
            let seconds = within.as_secs_f32();
            return Err(Silence::Hung(format!("no answer within {seconds} s")));
        }
    };
    let list = match &backend.settings.fixed_models {
        // That it answers is enough: it may know nothing of such a list.
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
                "{} it rejects the key that its api_key_env names",
                told(status)
            );
            return Err(Silence::KeyRejected(status, why));
        }
        _ => models(got.status, &got.body, limits.models).map_err(Silence::Wrong)?,
    };
    if backend.settings.is_discovered
        && let Some(port) = backend.url.authority().port_u16()
    {
        discover::check_owner(port).map_err(Silence::Foreign)?;
    }
    Ok(Answer {
        models: backend.offered(list.models),
        total: list.total,
        kind: list.kind,
        headers: got.headers,
    })
}

fn rejects_credential(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

fn told(status: StatusCode) -> String {
    format!("it responded {status} to /v1/models:")
}

/// The models in an answer to `/v1/models`.
fn models(status: StatusCode, body: &[u8], most: usize) -> Result<ModelList, String> {
    if rejects_credential(status) {
        let told = told(status);
        return Err(format!("{told} it wants a key; set its api_key_env"));
    }
    if !status.is_success() {
        return Err(format!("it answers {status} to /v1/models"));
    }
    model_list::parse(body, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_of_models_is_one() {
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
