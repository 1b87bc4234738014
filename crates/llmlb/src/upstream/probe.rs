//! A short question to a backend.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};

use super::limit::Permit;
use super::{Broken, Connector, Exchange, Upload};
use crate::balance::Backend;
use crate::body_edit::BodyPieces;
use crate::forward;

/// What it answered.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Asks on a connection of its own: that one can still be made is part of the question.
pub(crate) async fn get(
    connector: &Connector,
    permit: Permit,
    backend: &Backend,
    path: &str,
    most: usize,
) -> Result<Got, Broken> {
    let stream = connector.connect_with(&backend.url, permit).await?;
    let upload = Upload::whole(forward::question(backend, path), BodyPieces::default());
    let mut exchange = Exchange::new(stream, Method::GET, upload);
    let head = exchange.head().await?;
    let mut body = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| exchange.poll_frame(cx)).await {
        if let Ok(data) = frame?.into_data() {
            body.extend_from_slice(&data);
        }
        if body.len() > most {
            return Err(Broken::Garbage(format!("its answer to {path} is too long")));
        }
    }
    Ok(Got {
        status: head.status,
        headers: head.headers,
        body: body.freeze(),
    })
}
