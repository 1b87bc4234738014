//! The build without traces: no queue exists.

use std::io;
use std::sync::Arc;

use serde_json::Value;

use crate::config::TelemetryConfig;
use crate::recent::FinishedRequest;

/// A queue, which this build never creates.
#[derive(Debug)]
pub(crate) enum SpanQueue {}

/// An exporter, which this build never starts.
#[derive(Debug)]
pub(crate) enum SpanExporter {}

impl SpanExporter {
    #[expect(
        clippy::unnecessary_wraps,
        reason = "the exporter of the feature `otlp` can fail to start"
    )]
    pub(crate) fn start(_: &TelemetryConfig, _: &str) -> io::Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn queue(&self) -> Arc<SpanQueue> {
        match *self {}
    }

    #[expect(
        clippy::unused_async,
        reason = "the exporter of the feature `otlp` waits for its last spans"
    )]
    pub(crate) async fn finish(self) {
        match self {}
    }
}

impl SpanQueue {
    pub(crate) fn add(&self, _: &FinishedRequest) {
        match *self {}
    }

    pub(crate) fn json(&self) -> Value {
        match *self {}
    }
}
