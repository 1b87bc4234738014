//! HTTP responses of the demo backends: whole JSON, or server-sent events.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{Either, Full};
use serde_json::Value;

use super::events::Events;

pub(super) type Reply = Response<Either<Full<Bytes>, Events>>;

pub(super) fn json(status: StatusCode, value: &Value) -> Reply {
    let body = Full::new(Bytes::from(value.to_string()));
    let mut reply = typed(Either::Left(body), "application/json");
    *reply.status_mut() = status;
    reply
}

pub(super) fn events(events: Events) -> Reply {
    let mut reply = typed(Either::Right(events), "text/event-stream; charset=utf-8");
    let no_cache = HeaderValue::from_static("no-cache");
    reply.headers_mut().insert(header::CACHE_CONTROL, no_cache);
    reply
}

fn typed(body: Either<Full<Bytes>, Events>, content_type: &'static str) -> Reply {
    let mut reply = Response::new(body);
    let content_type = HeaderValue::from_static(content_type);
    reply
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    reply
}
