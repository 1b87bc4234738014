//! Responses to `GET /dashboard/events`: snapshots of the server as an event stream.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Frame;
use tokio::time::{Instant, timeout_at};

use super::backlog::SharedBody;
use super::shared::Shared;
use crate::request::Refusal;
use crate::snapshot::{MAX_VIEWERS, Viewer};

/// Time after which a stream ends. The viewer connects again, and its right to view is checked again.
const MAX_STREAM: Duration = Duration::from_secs(600);
/// First lines of a stream: the time after which a viewer connects again.
const RETRY: &[u8] = b"retry: 1000\n\n";

/// Response extension with the viewer whose events are the response's body.
#[derive(Clone, Debug)]
pub(super) struct EventBody(Arc<Mutex<Option<Viewer>>>);

/// The next event, and the viewer that gets it. `None` at the end of the stream.
type Next = Pin<Box<dyn Future<Output = Option<(Bytes, Viewer)>> + Send>>;

/// Body of an event stream.
pub(super) struct EventStream {
    next: Next,
    until: Instant,
}

/// Responds with an event stream.
pub(super) fn respond(shared: &Shared) -> Result<Response<Full<Bytes>>, Refusal> {
    let Some(viewer) = shared.snapshots.view() else {
        let message = format!(
            "{MAX_VIEWERS} viewers have the event stream open, which is the maximum; close one, or \
             request /dashboard/snapshot at intervals."
        );
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return Err(Refusal::new(status, "too_many_viewers", message).retry_after(5));
    };
    let mut response = Response::new(Full::default());
    let headers = response.headers_mut();
    let mut insert = |name, value| headers.insert(name, HeaderValue::from_static(value));
    insert(header::CONTENT_TYPE, "text/event-stream");
    insert(header::CACHE_CONTROL, "no-store");
    let extensions = response.extensions_mut();
    extensions.insert(EventBody(Arc::new(Mutex::new(Some(viewer)))));
    extensions.insert(SharedBody);
    Ok(response)
}

impl EventBody {
    /// Returns the stream of events. The viewer is counted until the stream is dropped.
    pub(super) fn into_stream(self) -> Option<EventStream> {
        let viewer = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        let first = async move { Some((Bytes::from_static(RETRY), viewer)) };
        Some(EventStream {
            next: Box::pin(first),
            until: Instant::now() + MAX_STREAM,
        })
    }
}

impl EventStream {
    /// Returns the next event; `None` at the end of the stream.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        let Some((event, viewer)) = ready!(self.next.as_mut().poll(cx)) else {
            self.next = Box::pin(std::future::ready(None));
            return Poll::Ready(None);
        };
        self.next = Box::pin(next(viewer, self.until));
        Poll::Ready(Some(Frame::data(event)))
    }
}

async fn next(mut viewer: Viewer, until: Instant) -> Option<(Bytes, Viewer)> {
    let event = timeout_at(until, viewer.next()).await.ok()??;
    Some((event, viewer))
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}
