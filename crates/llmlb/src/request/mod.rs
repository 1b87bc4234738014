//! The path of a request: where it goes, and what comes back.

mod body;
mod browser;
mod error;
mod in_flight;
mod models;
pub(crate) mod scan;
mod trip;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request};
use http_body_util::{Either, Full};
use hyper::body::Incoming;

use crate::admin;
use crate::app::Shared;
use crate::balance::Candidates;
use crate::forward::{self, Client, Failed, Relay};

pub(crate) use error::{Refusal, json_response};
pub(crate) use in_flight::{Counter, InFlight};
pub(crate) use trip::Trip;

/// What goes back to the client: an answer of our own, or a backend's.
pub(crate) type Answer = Response<Either<Full<Bytes>, Relay>>;

/// A client's connection: everything that its requests have in common.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) shared: Arc<Shared>,
    /// The worker's own connections to backends.
    pub(crate) client: Client,
    /// The two ends of the connection.
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// What is being served on this connection.
    pub(crate) requests: Counter,
}

/// Serves one request.
pub(crate) async fn serve(
    caller: Arc<Caller>,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let mut trip = Trip::start(&head);
    let answered = match browser::admit(&caller, &head) {
        Err(refusal) => Err(refusal),
        Ok(()) => match path.strip_prefix("/v1/") {
            Some(rest) => v1(&caller, head, body, rest, &mut trip).await,
            None => admin::answer(&caller, &head).map(own),
        },
    };
    let (mut answer, outcome) = match answered {
        Ok(answer) => (answer, "answered".to_owned()),
        Err(refusal) => {
            let outcome = format!("refused ({}): {}", refusal.code, refusal.message);
            (own(refusal.into_response()), outcome)
        }
    };
    if let Some(mut trip) = trip {
        trip.status = answer.status().as_u16();
        match answer.body_mut() {
            // It is told when it is over.
            Either::Right(relay) => relay.log(trip),
            Either::Left(_) => trip.tell(&outcome),
        }
    }
    if caller.shared.is_draining() {
        // The client's next request is for somebody else.
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(answer)
}

async fn v1(
    caller: &Caller,
    head: request::Parts,
    body: Incoming,
    rest: &str,
    trip: &mut Option<Box<Trip>>,
) -> Result<Answer, Refusal> {
    let shared = &*caller.shared;
    let in_flight = InFlight::new(&shared.requests, &caller.requests);
    let pool = &shared.pool;
    if has_dot_segments(rest) {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "bad_path",
            "The path has segments that lead elsewhere (`.` or `..`).",
        ));
    }
    if head.method == Method::GET || head.method == Method::HEAD {
        if rest == "models" || rest == "models/" {
            return Ok(own(models::list(&pool.table())));
        }
        if let Some(name) = rest.strip_prefix("models/") {
            return models::one(&pool.table(), name).map(own);
        }
    }
    if shared.via.is_in(&head.headers) {
        return Err(Refusal::new(
            StatusCode::LOOP_DETECTED,
            "loop_detected",
            "This request was here before: a backend sends it back. Look for this server's own \
             address among the backends.",
        ));
    }
    let asked = body::read(&head, rest, body, shared.max_body).await?;
    if let Some(trip) = trip {
        trip.model.clone_from(&asked.model);
    }
    let candidates = match pool.candidates(asked.model.as_deref()) {
        Candidates::Up(backends) => backends,
        Candidates::AllDown => {
            return Err(unavailable(match &asked.model {
                Some(model) => format!("Every backend that serves `{model}` is down."),
                None => "No backend is up.".to_owned(),
            }));
        }
        Candidates::NotYet => {
            let model = asked.model.unwrap_or_default();
            return Err(models::not_yet(&model, &pool.table()));
        }
        Candidates::Unknown => {
            let model = asked.model.unwrap_or_default();
            return Err(models::unknown(&model, &pool.table()));
        }
    };
    forward::forward(
        shared,
        &caller.client,
        candidates,
        head,
        asked.payload,
        in_flight,
    )
    .await
    .map(|response| response.map(Either::Right))
    .map_err(|failed| match failed {
        Failed::Unreachable(why) => unavailable(format!("No backend could be reached ({why}).")),
        Failed::NoAnswer(why) => Refusal::new(
            StatusCode::BAD_GATEWAY,
            "upstream_error",
            format!("The backend gave no answer ({why})."),
        ),
        Failed::BadUpload(why) => body::incomplete(&why),
        Failed::Shortage(why) => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "overloaded",
            format!("This server cannot open another connection ({why})."),
        )
        .retry_after(1),
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

/// Whether a path could mean another one to a backend that resolves it.
fn has_dot_segments(path: &str) -> bool {
    path.split(['/', '\\']).any(|segment| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    })
}

/// Whether a request asks a model for something. Asking twice does no harm.
pub(crate) fn is_inference(path: &str) -> bool {
    matches!(
        path,
        "chat/completions"
            | "completions"
            | "embeddings"
            | "messages"
            | "moderations"
            | "rerank"
            | "responses"
            | "score"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_elsewhere_is_known_in_every_spelling() {
        for path in [
            "..",
            "../api/tags",
            "a/../b",
            "%2e%2E/x",
            "a/.%2e/b",
            "./x",
            "a\\..\\b",
        ] {
            assert!(has_dot_segments(path), "{path}");
        }
        for path in [
            "chat/completions",
            "files/a..b",
            "models/.hidden",
            "x/...",
            "a%2eb",
        ] {
            assert!(!has_dot_segments(path), "{path}");
        }
    }
}
