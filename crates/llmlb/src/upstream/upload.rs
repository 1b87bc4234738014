//! A request on its way to a backend.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use tokio::io::AsyncWrite;
use tokio::time::{Sleep, sleep};

use super::{Broken, Stream};

/// What is still to be sent.
#[derive(Debug)]
pub(crate) struct Upload {
    /// The head first; then the pieces of a body that passes, in their frames.
    out: Bytes,
    /// A body that was read already.
    whole: Bytes,
    passing: Option<Passing>,
    /// When the backend took something of a body that passes.
    taken: Option<Instant>,
    flushed: bool,
    has_body: bool,
    /// The client's body broke off. Nothing that follows may look like its end.
    failed: bool,
}

/// A body that the client is still sending.
#[derive(Debug)]
struct Passing {
    body: Incoming,
    chunked: bool,
    /// How much is to come, if that was announced.
    left: Option<u64>,
    /// How long the client may pause, and while it does, the rest of that.
    pause: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Upload {
    /// A body that was read already; `head` says how long it is.
    pub(crate) fn whole(head: Bytes, body: Bytes) -> Self {
        Self {
            out: head,
            has_body: !body.is_empty(),
            whole: body,
            passing: None,
            taken: None,
            flushed: false,
            failed: false,
        }
    }

    /// A body as it comes, with pauses no longer than `pause`; `head` says whether in chunks or of
    /// which length.
    pub(crate) fn passing(head: Bytes, body: Incoming, chunked: bool, pause: Duration) -> Self {
        Self {
            out: head,
            has_body: true,
            whole: Bytes::new(),
            passing: Some(Passing {
                left: (!chunked).then(|| body.size_hint().lower()),
                body,
                chunked,
                pause,
                timer: None,
            }),
            taken: Some(Instant::now()),
            flushed: false,
            failed: false,
        }
    }

    /// True if the request has a body, sent or not.
    pub(super) fn has_body(&self) -> bool {
        self.has_body
    }

    pub(super) fn is_done(&self) -> bool {
        self.flushed
    }

    /// Whether it is the client's turn.
    pub(super) fn is_paused(&self) -> bool {
        let timer = self.passing.as_ref().map(|passing| &passing.timer);
        timer.is_some_and(Option::is_some)
    }

    /// When the backend took the last of what there is; `None` for a body that does not pass.
    pub(super) fn taken(&self) -> Option<Instant> {
        self.taken
    }

    /// Sends as much as can be sent. Ready when everything is.
    pub(super) fn poll(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        if self.flushed {
            return Poll::Ready(Ok(()));
        }
        if self.failed {
            return Poll::Pending;
        }
        loop {
            while self.out.has_remaining() || self.whole.has_remaining() {
                let pieces = [IoSlice::new(&self.out), IoSlice::new(&self.whole)];
                let written = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &pieces));
                match written {
                    Ok(0) => {
                        return Poll::Ready(Err(Broken::cut(&io::ErrorKind::WriteZero.into())));
                    }
                    Ok(written) => self.advance(written),
                    Err(error) => return Poll::Ready(Err(Broken::cut(&error))),
                }
            }
            let Some(passing) = &mut self.passing else {
                break;
            };
            let frame = Pin::new(&mut passing.body).poll_frame(cx);
            if frame.is_ready() {
                passing.timer = None;
            }
            match frame {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) if passing.chunked => self.out = chunk(&data),
                    Ok(data) => {
                        let left = passing.left.unwrap_or_default();
                        passing.left = Some(left.saturating_sub(data.len() as u64));
                        self.out = data;
                    }
                    // Trailers are fields that no rule forwards.
                    Err(_) => {}
                },
                Poll::Ready(None) if passing.left.is_some_and(|left| left > 0) => {
                    self.failed = true;
                    let why = "it ended before its length";
                    return Poll::Ready(Err(Broken::Upload(why.to_owned())));
                }
                Poll::Ready(None) => {
                    if passing.chunked {
                        self.out = Bytes::from_static(b"0\r\n\r\n");
                    }
                    self.passing = None;
                }
                Poll::Ready(Some(Err(error))) => {
                    self.failed = true;
                    return Poll::Ready(Err(Broken::Upload(error.to_string())));
                }
                Poll::Pending => {
                    // What was sent so far must not wait for what comes.
                    let _ = Pin::new(stream).poll_flush(cx);
                    ready!(passing.poll_pause(cx));
                    self.failed = true;
                    let why = "the client stopped sending".to_owned();
                    return Poll::Ready(Err(Broken::Stalled(why)));
                }
            }
        }
        let flushed = ready!(Pin::new(stream).poll_flush(cx));
        self.flushed = true;
        // An answer may last for minutes. What was asked is not needed for that.
        self.whole = Bytes::new();
        Poll::Ready(flushed.map_err(|error| Broken::cut(&error)))
    }

    fn advance(&mut self, written: usize) {
        if let Some(taken) = &mut self.taken {
            *taken = Instant::now();
        }
        let of_first = written.min(self.out.len());
        self.out.advance(of_first);
        self.whole.advance(written - of_first);
    }
}

impl Passing {
    /// Ready when the client has paused for too long.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep(self.pause)));
        timer.as_mut().poll(cx)
    }
}

fn chunk(data: &[u8]) -> Bytes {
    let size = format!("{:x}\r\n", data.len());
    let mut chunk = BytesMut::with_capacity(size.len() + data.len() + 2);
    chunk.extend_from_slice(size.as_bytes());
    chunk.extend_from_slice(data);
    chunk.extend_from_slice(b"\r\n");
    chunk.freeze()
}
