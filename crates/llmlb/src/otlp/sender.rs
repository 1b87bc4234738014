//! The queue of spans, and the thread that sends them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tokio::sync::oneshot;
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

use super::protobuf::{Message, Value};
use super::span;
use crate::config::{BackendUrl, TelemetryConfig, env};
use crate::recent::FinishedRequest;
use crate::text;

/// Maximum number of requests whose spans wait. At a few KiB each, this bounds the memory.
const MAX_QUEUED: usize = 2048;
/// Maximum number of requests and of bytes in one message.
const MAX_BATCH: usize = 512;
const MAX_BATCH_BYTES: usize = 1 << 20;
/// Maximum time that spans wait for others.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the thread checks that the server does not shut down.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Maximum time of one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses before a message is sent again.
const RETRY_AFTER: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(5),
];
/// Maximum time of the last messages during shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Version of the conventions that the attributes follow.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.41.0";
/// Maximum number of characters of an error.
const MAX_ERROR: usize = 200;

/// Spans that wait to be sent.
#[derive(Debug)]
pub(crate) struct SpanQueue {
    to: SyncSender<(Vec<u8>, u64)>,
    counts: Arc<SpanCounts>,
}

#[derive(Debug, Default)]
struct SpanCounts {
    sent: AtomicU64,
    /// Spans that found the queue full, or that the receiver did not accept.
    dropped: AtomicU64,
    error: Mutex<Option<String>>,
    /// True while the server shuts down: the thread ends when the queue is empty.
    is_ending: AtomicBool,
}

/// Handle of the thread that sends spans.
#[derive(Debug)]
pub(crate) struct SpanExporter {
    queue: Arc<SpanQueue>,
    ended: oneshot::Receiver<()>,
}

/// The thread's state.
struct Sender {
    agent: Agent,
    url: String,
    /// Header fields of every message, which may contain a token.
    headers: Vec<(String, String)>,
    /// Fields of a `ResourceSpans`: the resource.
    resource: Message,
    counts: Arc<SpanCounts>,
}

impl SpanExporter {
    /// Starts the thread, if the configuration or the environment names a receiver of spans. `instance` is the name
    /// of this server.
    pub(crate) fn start(config: &TelemetryConfig, instance: &str) -> io::Result<Option<Self>> {
        let Some(endpoint) = endpoint(config) else {
            return Ok(None);
        };
        let named = env::text("OTEL_SERVICE_NAME");
        let configured = config.service_name.as_ref().map(ToString::to_string);
        let service = configured.or(named).unwrap_or_else(|| "llmlb".to_owned());
        let counts = Arc::<SpanCounts>::default();
        let sender = Sender::new(&endpoint, &service, instance, Arc::clone(&counts));
        let (to, spans) = sync_channel(MAX_QUEUED);
        let (ends, ended) = oneshot::channel();
        thread::Builder::new()
            .name("llmlb-otlp".to_owned())
            .spawn(move || {
                sender.run(&spans);
                let _ = ends.send(());
            })?;
        tracing::info!("traces are sent to {endpoint}/v1/traces");
        let queue = Arc::new(SpanQueue { to, counts });
        Ok(Some(Self { queue, ended }))
    }

    pub(crate) fn queue(&self) -> Arc<SpanQueue> {
        Arc::clone(&self.queue)
    }

    /// Sends the spans that wait, for at most two seconds.
    pub(crate) async fn finish(self) {
        self.queue.counts.is_ending.store(true, Ordering::Relaxed);
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.ended).await;
    }
}

/// Returns the receiver of spans: that of the configuration, else that of OpenTelemetry's variable.
fn endpoint(config: &TelemetryConfig) -> Option<BackendUrl> {
    if let Some(endpoint) = &config.otlp_endpoint {
        return Some(endpoint.clone());
    }
    let text = env::text("OTEL_EXPORTER_OTLP_ENDPOINT")?;
    match BackendUrl::parse(&text) {
        Ok(endpoint) => Some(endpoint),
        Err(why) => {
            tracing::warn!("no traces are sent: OTEL_EXPORTER_OTLP_ENDPOINT: {why}");
            None
        }
    }
}

impl SpanQueue {
    /// Adds the spans of a request, if its trace is recorded. Never waits for the receiver.
    pub(crate) fn add(&self, request: &FinishedRequest) {
        let Some(context) = &request.trace else {
            return;
        };
        let (spans, count) = span::encode(request, context);
        if self.to.try_send((spans, count)).is_err() {
            self.counts.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Counts for `/status`.
    pub(crate) fn json(&self) -> Json {
        let counts = &self.counts;
        let error = counts.error.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "sent": counts.sent.load(Ordering::Relaxed),
            "dropped": counts.dropped.load(Ordering::Relaxed),
            "error": *error,
        })
    }
}

impl Sender {
    fn new(endpoint: &BackendUrl, service: &str, instance: &str, counts: Arc<SpanCounts>) -> Self {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .build();
        let mut config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // Do not follow redirects: a redirect could send a token to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("llmlb/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(SEND_TIMEOUT));
        if endpoint.is_loopback() {
            config = config.proxy(None);
        }
        let mut resource = Message::default();
        for (key, value) in [
            ("service.name", service),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", instance),
        ] {
            resource.attribute(1, key, Value::Text(value));
        }
        Self {
            agent: config.build().into(),
            url: format!("{endpoint}/v1/traces"),
            headers: headers(&env::text("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default()),
            resource,
            counts,
        }
    }

    fn run(&self, spans: &Receiver<(Vec<u8>, u64)>) {
        loop {
            let (mut batch, mut count, mut requests) = (Vec::new(), 0, 0);
            let deadline = Instant::now() + SEND_EVERY;
            while requests < MAX_BATCH && batch.len() < MAX_BATCH_BYTES {
                let left = deadline.saturating_duration_since(Instant::now());
                match spans.recv_timeout(left.min(CHECK_EVERY)) {
                    Ok((more, number)) => {
                        batch.extend_from_slice(&more);
                        count += number;
                        requests += 1;
                    }
                    Err(RecvTimeoutError::Timeout) if left > CHECK_EVERY && !self.is_ending() => {}
                    Err(_) => break,
                }
            }
            if requests > 0 {
                self.deliver(&self.request(&batch), count);
            } else if self.is_ending() {
                return;
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.counts.is_ending.load(Ordering::Relaxed)
    }

    /// Returns an `ExportTraceServiceRequest` with these spans.
    fn request(&self, spans: &[u8]) -> Vec<u8> {
        let mut scope = Message::default();
        scope.text(1, "llmlb");
        scope.text(2, env!("CARGO_PKG_VERSION"));
        let mut scope_spans = Message::default();
        scope_spans.message(1, &scope);
        scope_spans.append(spans);
        scope_spans.text(3, SCHEMA_URL);
        let mut resource_spans = Message::default();
        resource_spans.message(1, &self.resource);
        resource_spans.message(2, &scope_spans);
        resource_spans.text(3, SCHEMA_URL);
        let mut request = Message::default();
        request.message(1, &resource_spans);
        request.into_bytes()
    }

    fn deliver(&self, message: &[u8], count: u64) {
        let mut pauses = RETRY_AFTER.iter();
        loop {
            let (error, is_retryable) = match self.post(message) {
                Ok(200..=299) => {
                    self.counts.sent.fetch_add(count, Ordering::Relaxed);
                    self.note(None);
                    return;
                }
                Ok(status) => {
                    let is_retryable = matches!(status, 429 | 502 | 503 | 504);
                    (format!("the receiver responded {status}"), is_retryable)
                }
                Err(error) => (error.to_string(), true),
            };
            self.note(Some(&error));
            let pause = pauses.next();
            let Some(pause) = pause.filter(|_| is_retryable && !self.is_ending()) else {
                self.counts.dropped.fetch_add(count, Ordering::Relaxed);
                return;
            };
            thread::sleep(*pause);
        }
    }

    fn post(&self, message: &[u8]) -> Result<u16, ureq::Error> {
        let mut request = self.agent.post(&self.url);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.header("content-type", "application/x-protobuf");
        Ok(request.send(message)?.status().as_u16())
    }

    /// Notes the last error, and logs when errors begin and end.
    fn note(&self, error: Option<&str>) {
        let mut last = self
            .counts
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let error = error.map(|error| text::plain(&text::shortened(error, MAX_ERROR)).into_owned());
        match (&*last, &error) {
            (None, Some(error)) => {
                tracing::warn!("traces cannot be sent to {}: {error}", self.url);
            }
            (Some(_), None) => tracing::info!("traces are sent again to {}", self.url),
            _ => {}
        }
        *last = error;
    }
}

/// Parses OpenTelemetry's list of header fields: `name=value,name=value`, percent-encoded.
fn headers(list: &str) -> Vec<(String, String)> {
    let pairs = list.split(',').filter_map(|pair| pair.split_once('='));
    let decoded = |text: &str| crate::endpoint::percent_decoded(text.trim());
    pairs
        .map(|(name, value)| (decoded(name), decoded(value)))
        .filter(|(name, _)| !name.is_empty())
        .collect()
}
