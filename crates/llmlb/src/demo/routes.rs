//! Routing of requests to a demo backend by path and method.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};

use super::error::DemoError;
use super::fields::RequestFields;
use super::reply::Reply;
use super::{Profile, completions, embeddings, models};

/// Maximum size of a request body that a demo server accepts.
pub(super) const BODY_LIMIT: usize = 32 * 1024 * 1024;

/// Maximum time for a request body to arrive. A stalled client would otherwise block the shutdown
/// forever.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Responds to a request. The response header `x-demo-backend` names the backend, so that users see
/// the balancing.
pub(super) async fn respond(profile: &Profile, request: Request<Incoming>) -> Reply {
    let mut reply = route(profile, request)
        .await
        .unwrap_or_else(DemoError::reply);
    reply
        .headers_mut()
        .insert("x-demo-backend", HeaderValue::from_static(profile.name));
    reply
}

async fn route(profile: &Profile, request: Request<Incoming>) -> Result<Reply, DemoError> {
    let (head, body) = request.into_parts();
    // Read the body even if it is not needed: closing a connection with unread bytes resets it, and
    // the client may lose the error response.
    let body = read(body).await?;
    let path = head.uri.path();
    match path {
        "/v1/models" => only(&Method::GET, &head.method).map(|()| models::list(profile)),
        "/v1/chat/completions" => {
            only(&Method::POST, &head.method)?;
            completions::chat(profile, &RequestFields::parse(&body)?).await
        }
        "/v1/completions" => {
            only(&Method::POST, &head.method)?;
            completions::text(profile, &RequestFields::parse(&body)?).await
        }
        "/v1/embeddings" => {
            only(&Method::POST, &head.method)?;
            embeddings::embed(profile, &RequestFields::parse(&body)?).await
        }
        _ => match path.strip_prefix("/v1/models/") {
            Some(id) => {
                only(&Method::GET, &head.method)?;
                models::one(profile, id)
            }
            None => Err(DemoError::unknown_path(&head.method, path)),
        },
    }
}

fn only(allowed: &'static Method, method: &Method) -> Result<(), DemoError> {
    if method == allowed {
        Ok(())
    } else {
        Err(DemoError::wrong_method(method, allowed))
    }
}

async fn read(body: Incoming) -> Result<Bytes, DemoError> {
    if body.size_hint().lower() > BODY_LIMIT as u64 {
        return Err(DemoError::too_large(BODY_LIMIT));
    }
    let whole = Limited::new(body, BODY_LIMIT).collect();
    match tokio::time::timeout(BODY_TIMEOUT, whole).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(DemoError::too_large(BODY_LIMIT)),
        Ok(Err(error)) => Err(DemoError::bad_request(format!(
            "The body cannot be read: {error}"
        ))),
        Err(_) => Err(DemoError::too_slow()),
    }
}
