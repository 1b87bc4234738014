//! Requests with which llmlb probes a backend.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};

use super::limit::Permit;
use super::{Connector, Exchange, Upload, UpstreamError};
use crate::body_edit::BodyPieces;
use crate::config::BackendUrl;

/// Response to a GET request that llmlb itself sent to a backend.
#[derive(Debug)]
pub(crate) struct GetResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Sends a GET request for `path`, whose head is `head`, and reads a response of at most `max`
/// bytes. The connection is always a new one, because a probe also checks that the backend accepts
/// connections.
pub(crate) async fn get(
    connector: &Connector,
    permit: Permit,
    url: &BackendUrl,
    path: &str,
    head: Bytes,
    max: usize,
) -> Result<GetResponse, UpstreamError> {
    let stream = connector.connect_with(url, permit).await?;
    let upload = Upload::buffered(head, BodyPieces::default());
    let mut exchange = Exchange::new(stream, Method::GET, upload);
    let head = exchange.head().await?;
    let mut body = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| exchange.poll_frame(cx)).await {
        if let Ok(data) = frame?.into_data() {
            body.extend_from_slice(&data);
        }
        if body.len() > max {
            return Err(UpstreamError::InvalidResponse(format!(
                "the response to {path} is too long"
            )));
        }
    }
    Ok(GetResponse {
        status: head.status,
        headers: head.headers,
        body: body.freeze(),
    })
}

/// Sends `head`, a HEAD request, on a new connection, and returns the status of the response.
pub(crate) async fn head(
    connector: &Connector,
    url: &BackendUrl,
    head: Bytes,
) -> Result<StatusCode, UpstreamError> {
    let stream = connector.connect(url).await?;
    let upload = Upload::buffered(head, BodyPieces::default());
    let mut exchange = Exchange::new(stream, Method::HEAD, upload);
    Ok(exchange.head().await?.status)
}
