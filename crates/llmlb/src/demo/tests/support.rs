//! Client and demo servers for tests.

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::{DemoBackend, PROFILES, Pace, Profile, start_profiles};

/// Maximum duration of one step of a test, such as a request. A longer step counts as hung.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) const AT_ONCE: Pace = Pace::new(Duration::ZERO, Duration::ZERO);

/// Pace of a backend that sends its first token at once, and the second one never during a test.
pub(super) const STUCK: Pace = Pace::new(Duration::ZERO, Duration::from_secs(24 * 3600));

pub(super) struct Demo {
    pub(super) backends: Vec<DemoBackend>,
    pub(super) tracker: TaskTracker,
    pub(super) stop: CancellationToken,
}

pub(super) struct DemoResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Demo {
    pub(super) async fn start(pace: Pace) -> Self {
        let tracker = TaskTracker::new();
        let stop = CancellationToken::new();
        let profiles = PROFILES.map(|profile| Profile { pace, ..profile });
        let backends = start_profiles(&profiles, &tracker, &stop).await.unwrap();
        Self {
            backends,
            tracker,
            stop,
        }
    }

    pub(super) fn backend(&self, name: &str) -> DemoBackend {
        let mut backends = self.backends.iter();
        *backends.find(|backend| backend.name == name).unwrap()
    }

    pub(super) async fn send(&self, method: Method, path: &str, body: &str) -> DemoResponse {
        self.backend("demo-fast").send(method, path, body).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> DemoResponse {
        self.send(Method::POST, path, &body.to_string()).await
    }

    pub(super) async fn tasks_become(&self, count: usize) {
        let waiting = async {
            while self.tracker.len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        in_time(waiting).await;
    }

    pub(super) async fn ended(&self) {
        self.tracker.close();
        in_time(self.tracker.wait()).await;
    }
}

impl DemoBackend {
    pub(super) async fn send(self, method: Method, path: &str, body: &str) -> DemoResponse {
        let (head, body) = self.open(method, path, body).await.into_parts();
        DemoResponse {
            status: head.status,
            headers: head.headers,
            body: in_time(body.collect()).await.unwrap().to_bytes(),
        }
    }

    pub(super) async fn post(self, path: &str, body: &Value) -> DemoResponse {
        self.send(Method::POST, path, &body.to_string()).await
    }

    pub(super) async fn open(self, method: Method, path: &str, body: &str) -> Response<Incoming> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http();
        in_time(client.request(request)).await.unwrap()
    }
}

/// A raw TCP connection.
pub(super) struct RawConnection(TcpStream);

impl RawConnection {
    pub(super) async fn connect(backend: DemoBackend) -> Self {
        Self(TcpStream::connect(backend.address).await.unwrap())
    }

    pub(super) async fn send(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            in_time(self.0.writable()).await.unwrap();
            match self.0.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }

    /// Reads until this many bytes have arrived, or the connection ends.
    pub(super) async fn read(&self, max: usize) -> String {
        let mut bytes = vec![0; max];
        let mut length = 0;
        while length < max {
            in_time(self.0.readable()).await.unwrap();
            match self.0.try_read(&mut bytes[length..]) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}

impl DemoResponse {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Parses the JSON objects of a streamed response, and checks that the stream is framed as
    /// server-sent events.
    pub(super) fn events(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.body).unwrap();
        let events = text.strip_suffix("data: [DONE]\n\n").unwrap();
        let events: Vec<_> = events
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap())
            .collect();
        assert!(events.iter().all(|event| !event.contains('\n')), "{text}");
        let parsed = events.iter().map(|event| serde_json::from_str(event));
        parsed.map(Result::unwrap).collect()
    }
}

pub(super) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(STEP_TIMEOUT, future)
        .await
        .expect("hangs")
}

pub(super) fn chat(more: &Value) -> Value {
    let mut body = json!({
        "model": "demo",
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}
