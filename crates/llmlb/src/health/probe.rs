//! Asking one backend whether it is there and what it serves.

use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::Value;
use tokio::time::timeout;

use crate::balance::{self, Backend};
use crate::forward::{Client, Outgoing, in_words, is_shortage};

/// How long a backend may take to say what it serves. Busy ones answer late.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The longest list of models that is read.
const MOST_BYTES: usize = 8 << 20;

/// What a backend said.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its models, as it describes them.
    pub(super) models: Vec<Value>,
    pub(super) headers: HeaderMap,
}

/// Why it said nothing useful.
#[derive(Debug)]
pub(super) enum Silence {
    /// It is not there.
    Unreachable(String),
    /// Something is there that does not answer as it should.
    Wrong(String),
    /// It could not be asked, for what this machine lacks.
    Ours(String),
}

impl Silence {
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Unreachable(why) | Self::Wrong(why) | Self::Ours(why) => why,
        }
    }
}

/// Asks for `/v1/models`.
pub(super) async fn ask(backend: &Backend, client: &Client) -> Result<Answer, Silence> {
    timeout(ANSWER_WITHIN, ask_patiently(backend, client))
        .await
        .unwrap_or_else(|_| {
            let seconds = ANSWER_WITHIN.as_secs();
            Err(Silence::Wrong(format!("no answer within {seconds} s")))
        })
}

async fn ask_patiently(backend: &Backend, client: &Client) -> Result<Answer, Silence> {
    let uri = backend
        .uri(&PathAndQuery::from_static("/v1/models"))
        .map_err(|error| Silence::Wrong(error.to_string()))?;
    let mut request = Request::new(Outgoing::Left(Full::new(Bytes::new())));
    *request.uri_mut() = uri;
    if let Some((name, value)) = &backend.credential {
        request.headers_mut().insert(name.clone(), value.clone());
    }
    let response = client.request(request).await.map_err(|error| {
        let why = in_words(&error);
        if is_shortage(&error) {
            Silence::Ours(why)
        } else if error.is_connect() {
            Silence::Unreachable(why)
        } else {
            Silence::Wrong(why)
        }
    })?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MOST_BYTES)
        .collect()
        .await
        .map_err(|error| Silence::Wrong(in_words(error.as_ref())))?
        .to_bytes();
    let models = match &backend.fixed_models {
        // That it answers is enough: it may know nothing of such a list.
        Some(fixed) if !head.status.is_server_error() => fixed
            .iter()
            .map(|id| balance::describe(id, &backend.name))
            .collect(),
        _ => models(head.status, &body).map_err(Silence::Wrong)?,
    };
    Ok(Answer {
        models: backend.offered(models),
        headers: head.headers,
    })
}

/// The models in an answer to `/v1/models`.
fn models(status: StatusCode, body: &[u8]) -> Result<Vec<Value>, String> {
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        return Err(format!(
            "it answers {status} to /v1/models; set the backend's api_key_env"
        ));
    }
    if !status.is_success() {
        return Err(format!("it answers {status} to /v1/models"));
    }
    let Ok(Value::Object(mut answer)) = serde_json::from_slice(body) else {
        return Err("its answer to /v1/models is not a JSON object".to_owned());
    };
    match answer.remove("data") {
        Some(Value::Array(models)) => Ok(models
            .into_iter()
            .filter(|model| model["id"].is_string())
            .collect()),
        // Ollama's answer when it has no models yet.
        Some(Value::Null) => Ok(Vec::new()),
        _ => Err("its answer to /v1/models has no list of models".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_of_models_is_one() {
        let read = |status: u16, body: &str| {
            models(StatusCode::from_u16(status).unwrap(), body.as_bytes()).map(|list| list.len())
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
