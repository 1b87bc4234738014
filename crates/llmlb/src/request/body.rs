//! Reading a request's body whole, within limits.

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

/// What a client is told, if it is still there, that broke off its request.
pub(super) const INCOMPLETE: &str = "incomplete_body";
/// What one is told for whom there is no room.
pub(super) const OVERLOADED: &str = "overloaded";
/// What one is told that stopped sending.
pub(super) const STALLED: &str = "body_timeout";

/// Maximum size of a body that is not charged: most are smaller, and the charge of the connection
/// covers it.
pub(crate) const SMALL_BODY: usize = 16 << 10;
/// Size of each buffer of an HTTP/1.1 connection that does not send large bodies.
pub(crate) const H1_BUFFER: usize = 16 << 10;
/// Room for a body of this size is made at once; a larger one grows with what arrives.
const USUAL: usize = 64 << 10;
/// Memory that the protocol's buffers take while a larger body arrives: a piece of HTTP/1.1 and the
/// buffer that the next one is read into. Larger buffers, and the window of an HTTP/2 connection, are
/// charged to the connection.
pub(crate) const RECEIVING: usize = 2 * H1_BUFFER;

/// Reads all of a body, of at most so many bytes, which arrives at this pace, within what there is
/// for all bodies.
pub(super) async fn read_whole<B>(
    mut body: B,
    most: usize,
    pace: BodyPace,
    budget: &Arc<Budget>,
) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
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
        if length > most {
            return Err(too_large(most));
        }
        if length > SMALL_BODY
            && !share
                .get_or_insert_with(|| BodyShare::new(budget))
                .grow_to(RECEIVING + length)
        {
            return Err(too_many(budget));
        }
        // Most bodies come in one piece, which then need not be copied.
        match first.take() {
            None if whole.is_empty() => first = Some(data),
            None => whole.extend_from_slice(&data),
            Some(piece) => {
                // An announced length costs a client nothing, so it does not decide how much memory
                // is taken beyond what a usual body needs.
                let announced = usize::try_from(body.size_hint().lower()).unwrap_or(0);
                whole.reserve(length + announced.min(length.max(USUAL)));
                whole.extend_from_slice(&piece);
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

/// Rejects a body on a method whose body has no meaning: servers that do not read it parse it as the
/// next request. A body that is announced but turns out to be empty is none.
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

/// Limits the time that the frames of a body take.
struct FrameTimeout {
    pace: BodyPace,
    deadline: BodyDeadline,
    /// Bytes that had arrived before the last wait.
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

    /// Waits for the next piece, if so many bytes are here.
    async fn wait_for<F>(&mut self, mut piece: F, length: usize) -> Result<F::Output, Refusal>
    where
        F: Future + Unpin,
    {
        self.deadline.note(length - self.length);
        self.length = length;
        poll_fn(|cx| match Pin::new(&mut piece).poll(cx) {
            Poll::Ready(piece) => Poll::Ready(Ok(piece)),
            Poll::Pending => {
                ready!(self.deadline.poll_expired(cx));
                Poll::Ready(Err(too_slow(self.pace)))
            }
        })
        .await
    }
}

fn too_large(most: usize) -> Refusal {
    Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        format!("The request's body is larger than the {most} bytes that server.max_body allows."),
    )
}

/// There is no room for it.
pub(crate) fn too_many(budget: &Budget) -> Refusal {
    budget.note_refusal();
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        OVERLOADED,
        "Other requests and responses use all of the memory for them (server.body_memory).",
    )
    .retry_after(1)
}

/// The client sends nothing, or too little.
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

/// The client did not send what it had announced.
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

    /// A body whose pieces come at this pace.
    struct Paced {
        /// How many bytes each has, the last one first.
        sizes: Vec<usize>,
        pace: Duration,
        next: Pin<Box<Sleep>>,
    }

    impl Paced {
        fn new(pieces: usize, size: usize, pace: Duration) -> Self {
            Self {
                sizes: vec![size; pieces],
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
    async fn a_client_that_stops_sending_is_not_waited_for() {
        let never = Paced::new(1, 1, 1000 * SECOND);
        assert_eq!(read(never).await, Err(StatusCode::REQUEST_TIMEOUT));
        let late = Paced::new(2, 100 << 10, 31 * SECOND);
        assert_eq!(read(late).await, Err(StatusCode::REQUEST_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_a_little_now_and_then_is_not_waited_for() {
        let mut drops = Paced::new(1000, 1, SECOND);
        let started = Instant::now();
        assert_eq!(read(drops).await, Err(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(started.elapsed(), PAUSE);
        // Nor one that begins well, though it may take longer for that.
        drops = Paced::new(1000, 1, SECOND);
        drops.sizes.push(40 << 10);
        let started = Instant::now();
        assert_eq!(read(drops).await, Err(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(started.elapsed(), 31 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_slow_but_steady_is() {
        let steady = Paced::new(500, 1100, SECOND);
        assert_eq!(read(steady).await, Ok(550_000));
        // What is small may take its time.
        let small = Paced::new(29, 1, SECOND);
        assert_eq!(read(small).await, Ok(29));
    }

    #[tokio::test]
    async fn what_a_body_takes_is_given_back_however_it_ends() {
        let budget = Arc::new(Budget::without_reserve(RECEIVING + (100 << 10)));
        let fast = |pieces| Paced::new(pieces, 10 << 10, Duration::ZERO);
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
            // Left by the client.
            let stuck = Paced::new(4, 10 << 10, Duration::from_millis(1));
            let reading = read_whole(stuck, 1 << 20, PACE, &budget);
            let _ = tokio::time::timeout(Duration::from_millis(3), reading).await;
            // Small ones need nothing.
            read_whole(fast(1), 1 << 20, PACE, &budget).await.unwrap();
        }
        let rest = read_whole(fast(4), 1 << 20, PACE, &budget).await.unwrap();
        drop(kept);
        assert_eq!(rest.len(), 40 << 10);
        read_whole(fast(6), 1 << 20, PACE, &budget).await.unwrap();
    }
}
