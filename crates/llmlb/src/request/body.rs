//! Reading a request's body whole, within limits.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::time::timeout;

use super::error::Refusal;

/// What a client is told, if it is still there, that broke off its request.
pub(super) const INCOMPLETE: &str = "incomplete_body";
/// What one is told that stopped sending.
pub(super) const STALLED: &str = "body_timeout";

/// Reads all of a body, of at most so many bytes, whose pieces follow each other so closely.
pub(super) async fn read_whole<B>(
    mut body: B,
    most: usize,
    pause: Duration,
) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
    let too_large = || {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            format!(
                "The request's body is larger than the {most} bytes that server.max_body allows."
            ),
        )
    };
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let mut first: Option<Bytes> = None;
    let mut whole = BytesMut::new();
    while let Some(frame) = timeout(pause, body.frame())
        .await
        .map_err(|_| too_slow(pause))?
    {
        let frame = frame.map_err(|error| incomplete(&error.to_string()))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        // Most bodies come in one piece, which then need not be copied.
        match first.take() {
            None if whole.is_empty() => first = Some(data),
            None => whole.extend_from_slice(&data),
            Some(piece) => {
                whole.reserve(
                    piece.len()
                        + data.len()
                        + usize::try_from(body.size_hint().lower()).unwrap_or(0),
                );
                whole.extend_from_slice(&piece);
                whole.extend_from_slice(&data);
            }
        }
        if whole.len() > most || first.as_ref().is_some_and(|piece| piece.len() > most) {
            return Err(too_large());
        }
    }
    Ok(first.unwrap_or_else(|| whole.freeze()))
}

/// The client stopped sending.
pub(super) fn too_slow(pause: Duration) -> Refusal {
    let seconds = pause.as_secs_f32();
    Refusal::new(
        StatusCode::REQUEST_TIMEOUT,
        STALLED,
        format!("Nothing of the request's body arrived for {seconds} s (server.body_timeout)."),
    )
}

/// The client did not send what it had announced.
pub(super) fn incomplete(why: &str) -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        INCOMPLETE,
        format!("The request's body did not arrive whole: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_sending_is_not_waited_for() {
        use hyper::body::Frame;
        use std::convert::Infallible;

        struct Never;
        impl Body for Never {
            type Data = Bytes;
            type Error = Infallible;

            fn poll_frame(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
                std::task::Poll::Pending
            }
        }

        let refusal = read_whole(Never, 100, Duration::from_secs(30))
            .await
            .unwrap_err();
        assert_eq!(refusal.status, StatusCode::REQUEST_TIMEOUT);
    }
}
