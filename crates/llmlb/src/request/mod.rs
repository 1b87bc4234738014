//! The path of a request: where it goes, and what comes back.

mod body;
mod error;
mod in_flight;
mod models;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, request};
use http_body_util::{Either, Full};
use hyper::body::Incoming;

use crate::admin;
use crate::app::Shared;
use crate::balance::Candidates;
use crate::forward::{self, Client, Failed, Relay};

pub(crate) use error::{Refusal, json_response};
pub(crate) use in_flight::{Counter, InFlight};

/// What goes back to the client: an answer of our own, or a backend's.
pub(crate) type Answer = Response<Either<Full<Bytes>, Relay>>;

/// Serves one request. `client` is this worker's pool of connections; `peer` and `local` are the
/// two ends of the client's connection.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    client: Client,
    (peer, local): (SocketAddr, SocketAddr),
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let started = Instant::now();
    let (head, body) = request.into_parts();
    let (method, path) = (head.method.clone(), head.uri.path().to_owned());
    let answered = if let Some(rest) = path.strip_prefix("/v1/") {
        v1(&shared, &client, head, body, rest).await
    } else {
        admin::answer(&shared, &head, peer, local).map(own)
    };
    let answer = answered.unwrap_or_else(|refusal| {
        tracing::debug!(code = refusal.code, "{}", refusal.message);
        own(refusal.into_response())
    });
    tracing::debug!(
        %method,
        path,
        status = answer.status().as_u16(),
        ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "request"
    );
    Ok(answer)
}

async fn v1(
    shared: &Shared,
    client: &Client,
    head: request::Parts,
    body: Incoming,
    rest: &str,
) -> Result<Answer, Refusal> {
    let in_flight = shared.requests.enter();
    let pool = &shared.pool;
    if head.method == Method::GET || head.method == Method::HEAD {
        if rest == "models" || rest == "models/" {
            return Ok(own(models::list(&pool.table())));
        }
        if let Some(name) = rest.strip_prefix("models/") {
            return models::one(&pool.table(), name).map(own);
        }
    }
    let asked = body::read(&head, body, shared.max_body).await?;
    let candidates = match pool.candidates(asked.model.as_deref()) {
        Candidates::Up(backends) => backends,
        Candidates::AllDown => {
            return Err(unavailable(match &asked.model {
                Some(model) => format!("Every backend that serves `{model}` is down."),
                None => "No backend is up.".to_owned(),
            }));
        }
        Candidates::Unknown => {
            let model = asked.model.unwrap_or_default();
            return Err(models::unknown(&model, &pool.table()));
        }
    };
    forward::forward(pool, client, candidates, head, asked.payload, in_flight)
        .await
        .map(|response| response.map(Either::Right))
        .map_err(|failed| match failed {
            Failed::Unreachable(why) => {
                unavailable(format!("No backend could be reached ({why})."))
            }
            Failed::NoAnswer(why) => Refusal::new(
                StatusCode::BAD_GATEWAY,
                "upstream_error",
                format!("The backend gave no answer ({why})."),
            ),
            Failed::BadUpload(why) => body::incomplete(&why),
        })
}

fn unavailable(message: String) -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "all_backends_down",
        message,
    )
    .retry_after(1)
}

fn own(response: Response<Full<Bytes>>) -> Answer {
    response.map(Either::Left)
}
