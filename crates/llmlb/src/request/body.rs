//! Reads the whole body of a request, within limits.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::error::Refusal;
use crate::body_deadline::{BodyDeadline, BodyPace};
use crate::memory_budget::{BodyShare, Budget};

/// Error code if the client sent only a part of the body.
pub(super) const INCOMPLETE: &str = "incomplete_body";
/// Error code if `server.body_memory` is used up.
pub(super) const OVERLOADED: &str = "overloaded";
/// Error code if the client sent the body too slowly.
pub(super) const STALLED: &str = "body_timeout";

/// Maximum size of a request body that is not charged to the memory budget. The charge of its
/// connection covers it. Most bodies are smaller, so they need no update of the budget.
pub(crate) const SMALL_BODY: usize = 16 << 10;
/// Size of each buffer of an HTTP/1.1 connection until it sends large bodies. The charge of a
/// connection to the memory budget is computed from it.
pub(crate) const H1_BUFFER: usize = 16 << 10;
/// Maximum memory that is allocated in advance for the announced rest of a request body. Beyond
/// this size the buffer grows only with the bytes that arrive, so that a client cannot make the
/// server allocate memory by announcing a length.
const USUAL_BODY: usize = 64 << 10;
/// Memory that is charged for the protocol's buffers while a large request body arrives: one chunk
/// of HTTP/1.1 and the buffer for the next one. Larger buffers, and the window of an HTTP/2
/// connection, are charged to the connection.
pub(crate) const RECEIVING: usize = 2 * H1_BUFFER;

/// Reads a request body of at most `max` bytes. The client must send at the rate of `pace`, or the
/// request times out. The body's memory is charged to the budget.
pub(crate) async fn read_whole<B>(
    mut body: B,
    max: usize,
    pace: BodyPace,
    budget: &Arc<Budget>,
) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
    if body.size_hint().lower() > max as u64 {
        return Err(too_large(max));
    }
    let mut first: Option<Bytes> = None;
    let mut whole = BytesMut::new();
    let mut share: Option<BodyShare> = None;
    let (mut timeout, mut length) = (FrameTimeout::new(pace), 0);
    while let Some(frame) = timeout.wait_for(body.frame(), length).await? {
        let frame = frame.map_err(|error| incomplete(&error.to_string()))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        length += data.len();
        if length > max {
            return Err(too_large(max));
        }
        if length > SMALL_BODY
            && !share
                .get_or_insert_with(|| BodyShare::new(budget))
                .grow_to(RECEIVING + length)
        {
            return Err(too_many(budget));
        }
        // Keep the first chunk without a copy: most bodies arrive as one chunk.
        match first.take() {
            None if whole.is_empty() => first = Some(data),
            None => whole.extend_from_slice(&data),
            Some(chunk) => {
                // Announcing a length costs a client nothing. It must not make the server allocate
                // more memory than a usual body needs.
                let announced = usize::try_from(body.size_hint().lower()).unwrap_or(0);
                whole.reserve(length + announced.min(length.max(USUAL_BODY)));
                whole.extend_from_slice(&chunk);
                whole.extend_from_slice(&data);
            }
        }
    }
    let body = first.unwrap_or_else(|| whole.freeze());
    Ok(match share {
        Some(share) => share.attach(body),
        None => body,
    })
}

/// Rejects a body on a method whose body has no meaning, such as GET: a backend that does not read
/// the body would parse it as the next request. An announced body that is empty is accepted.
pub(crate) async fn expect_none(
    method: &Method,
    body: &mut Incoming,
    pace: BodyPace,
) -> Result<(), Refusal> {
    let mut timeout = FrameTimeout::new(pace);
    while let Some(frame) = timeout.wait_for(body.frame(), 0).await? {
        let frame = frame.map_err(|error| incomplete(&error.to_string()))?;
        if frame.data_ref().is_none_or(|data| !data.is_empty()) {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "body_not_allowed",
                format!("A {method} request has no body; send the request without it."),
            ));
        }
    }
    Ok(())
}

/// Timeout of a request body whose client sends its frames more slowly than `pace`.
struct FrameTimeout {
    pace: BodyPace,
    deadline: BodyDeadline,
    /// Number of body bytes that had arrived at the last call of `wait_for`. The difference at the
    /// next call is the client's progress, which extends the deadline.
    length: usize,
}

impl FrameTimeout {
    fn new(pace: BodyPace) -> Self {
        Self {
            pace,
            deadline: BodyDeadline::new(pace, None),
            length: 0,
        }
    }

    /// Waits for the next frame of the body, of which `length` bytes have arrived. The deadline is
    /// extended according to the progress since the last call.
    async fn wait_for<F>(&mut self, mut frame: F, length: usize) -> Result<F::Output, Refusal>
    where
        F: Future + Unpin,
    {
        self.deadline.note(length - self.length);
        self.length = length;
        poll_fn(|cx| match Pin::new(&mut frame).poll(cx) {
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
            Poll::Pending => {
                ready!(self.deadline.poll_expired(cx));
                Poll::Ready(Err(too_slow(self.pace)))
            }
        })
        .await
    }
}

fn too_large(max: usize) -> Refusal {
    Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        format!("The request's body is larger than the {max} bytes that server.max_body allows."),
    )
}

/// Refusal of a request because the memory budget (`server.body_memory`) is used up.
pub(crate) fn too_many(budget: &Budget) -> Refusal {
    budget.note_refusal();
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        OVERLOADED,
        "Other requests and responses use all of the memory that server.body_memory allows.",
    )
    .retry_after(1)
}

pub(crate) fn too_slow(pace: BodyPace) -> Refusal {
    let (seconds, rate) = (pace.window.as_secs_f32(), pace.rate);
    Refusal::new(
        StatusCode::REQUEST_TIMEOUT,
        STALLED,
        format!(
            "The request's body arrived too slowly: less than {rate} bytes per second \
             (server.min_body_rate), or nothing, in {seconds} s (server.body_timeout)."
        ),
    )
}

pub(crate) fn incomplete(why: &str) -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        INCOMPLETE,
        format!("The request's body did not arrive whole: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::convert::Infallible;
    use std::task::Context;
    use std::time::Duration;

    use hyper::body::Frame;
    use tokio::time::{Instant, Sleep, sleep};

    /// Test body that yields one chunk at each interval of `pace`.
    struct Paced {
        sizes: Vec<usize>,
        pace: Duration,
        next: Pin<Box<Sleep>>,
    }

    impl Paced {
        fn new(chunks: usize, size: usize, pace: Duration) -> Self {
            Self {
                sizes: vec![size; chunks],
                pace,
                next: Box::pin(sleep(pace)),
            }
        }
    }

    impl Body for Paced {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.sizes.is_empty() {
                return Poll::Ready(None);
            }
            ready!(self.next.as_mut().poll(cx));
            let next = Instant::now() + self.pace;
            self.next.as_mut().reset(next);
            let size = self.sizes.pop().unwrap();
            Poll::Ready(Some(Ok(Frame::data(vec![b'x'; size].into()))))
        }
    }

    async fn read(body: Paced) -> Result<usize, StatusCode> {
        let read = read_whole(body, 1 << 20, PACE, &Arc::new(Budget::new(1 << 20))).await;
        read.map(|body| body.len())
            .map_err(|refusal| refusal.status)
    }

    const SECOND: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_secs(30);
    const PACE: BodyPace = BodyPace {
        window: PAUSE,
        rate: 1 << 10,
    };

    #[tokio::test(start_paused = true)]
    async fn body_times_out_when_the_client_stops_sending() {
        let never = Paced::new(1, 1, 1000 * SECOND);
        assert_eq!(read(never).await, Err(StatusCode::REQUEST_TIMEOUT));
        let late = Paced::new(2, 100 << 10, 31 * SECOND);
        assert_eq!(read(late).await, Err(StatusCode::REQUEST_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn body_times_out_when_the_client_sends_too_slowly() {
        let mut drops = Paced::new(1000, 1, SECOND);
        let started = Instant::now();
        assert_eq!(read(drops).await, Err(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(started.elapsed(), PAUSE);
        // A large first chunk must not exempt the client from the minimum rate for the rest of the
        // body.
        drops = Paced::new(1000, 1, SECOND);
        drops.sizes.push(40 << 10);
        let started = Instant::now();
        assert_eq!(read(drops).await, Err(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(started.elapsed(), 31 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn body_is_read_when_the_client_is_slow_but_steady() {
        let steady = Paced::new(500, 1100, SECOND);
        assert_eq!(read(steady).await, Ok(550_000));
        // The minimum rate is not checked before the first window (`server.body_timeout`) has passed.
        let small = Paced::new(29, 1, SECOND);
        assert_eq!(read(small).await, Ok(29));
    }

    #[tokio::test]
    async fn memory_of_a_body_is_released_however_it_ends() {
        let budget = Arc::new(Budget::without_reserve(RECEIVING + (100 << 10)));
        let fast = |chunks| Paced::new(chunks, 10 << 10, Duration::ZERO);
        let kept = read_whole(fast(6), 1 << 20, PACE, &budget).await.unwrap();
        for _ in 0..3 {
            let refusal = read_whole(fast(5), 1 << 20, PACE, &budget)
                .await
                .unwrap_err();
            assert_eq!((refusal.status.as_u16(), refusal.code), (503, "overloaded"));
            let refusal = read_whole(fast(4), 35 << 10, PACE, &budget)
                .await
                .unwrap_err();
            assert_eq!(refusal.status, StatusCode::PAYLOAD_TOO_LARGE);
            // The client disconnects.
            let stuck = Paced::new(4, 10 << 10, Duration::from_millis(1));
            let reading = read_whole(stuck, 1 << 20, PACE, &budget);
            let _ = tokio::time::timeout(Duration::from_millis(3), reading).await;
            read_whole(fast(1), 1 << 20, PACE, &budget).await.unwrap();
        }
        let rest = read_whole(fast(4), 1 << 20, PACE, &budget).await.unwrap();
        drop(kept);
        assert_eq!(rest.len(), 40 << 10);
        read_whole(fast(6), 1 << 20, PACE, &budget).await.unwrap();
    }
}
