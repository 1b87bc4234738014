//! Which path and method does what.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};

use super::fields::Fields;
use super::refusal::Refusal;
use super::reply::Reply;
use super::{Profile, completions, embeddings, models};

/// Longer bodies are refused.
pub(super) const BODY_LIMIT: usize = 32 * 1024 * 1024;

/// How long a body may take to arrive: a client that stalls must not hold up the stop for ever.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The answer to any request; it tells who gave it.
pub(super) async fn answer(profile: &Profile, request: Request<Incoming>) -> Reply {
    let mut reply = route(profile, request).await.unwrap_or_else(Refusal::reply);
    reply
        .headers_mut()
        .insert("x-demo-backend", HeaderValue::from_static(profile.name));
    reply
}

async fn route(profile: &Profile, request: Request<Incoming>) -> Result<Reply, Refusal> {
    let (head, body) = request.into_parts();
    // Read even where it is not wanted: to close a connection with bytes unread is to reset it, and
    // the client might never see why it was refused.
    let body = read(body).await?;
    let path = head.uri.path();
    match path {
        "/v1/models" => only(&Method::GET, &head.method).map(|()| models::list(profile)),
        "/v1/chat/completions" => {
            only(&Method::POST, &head.method)?;
            completions::chat(profile, &Fields::parse(&body)?).await
        }
        "/v1/completions" => {
            only(&Method::POST, &head.method)?;
            completions::text(profile, &Fields::parse(&body)?).await
        }
        "/v1/embeddings" => {
            only(&Method::POST, &head.method)?;
            embeddings::embed(profile, &Fields::parse(&body)?).await
        }
        _ => match path.strip_prefix("/v1/models/") {
            Some(id) => {
                only(&Method::GET, &head.method)?;
                models::one(profile, id)
            }
            None => Err(Refusal::unknown_path(&head.method, path)),
        },
    }
}

fn only(allowed: &'static Method, method: &Method) -> Result<(), Refusal> {
    if method == allowed {
        Ok(())
    } else {
        Err(Refusal::wrong_method(method, allowed))
    }
}

async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    if body.size_hint().lower() > BODY_LIMIT as u64 {
        return Err(Refusal::too_large(BODY_LIMIT));
    }
    let whole = Limited::new(body, BODY_LIMIT).collect();
    match tokio::time::timeout(BODY_TIMEOUT, whole).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::too_large(BODY_LIMIT)),
        Ok(Err(error)) => Err(Refusal::bad_request(format!(
            "the body cannot be read: {error}"
        ))),
        Err(_) => Err(Refusal::too_slow()),
    }
}
