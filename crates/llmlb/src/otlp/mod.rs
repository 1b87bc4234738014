//! Traces: every finished request becomes a span of kind SERVER, and every attempt one of kind CLIENT, in the
//! format of OpenTelemetry (OTLP over HTTP, protobuf). The attributes are those of the conventions for generative
//! AI. Prompts and responses are never sent.
//!
//! A request adds its encoded spans to a bounded queue and never waits. A thread sends them. Spans that find the
//! queue full are counted and dropped. Without the feature `otlp` no span is built.

#[cfg(not(feature = "otlp"))]
mod absent;
#[cfg(feature = "otlp")]
mod protobuf;
#[cfg(feature = "otlp")]
mod sender;
#[cfg(feature = "otlp")]
mod span;

#[cfg(not(feature = "otlp"))]
pub(crate) use absent::{SpanExporter, SpanQueue};
#[cfg(feature = "otlp")]
pub(crate) use sender::{SpanExporter, SpanQueue};
