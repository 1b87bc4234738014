//! Shutdown of demo servers, and clients that disconnect.

use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::Pace;
use super::support::{AT_ONCE, Demo, RawConnection, STUCK, chat, in_time};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn three_servers_start_and_stop() {
    let tracker = TaskTracker::new();
    let stop = CancellationToken::new();
    let backends = super::super::start(&tracker, stop.clone()).await.unwrap();
    let names: Vec<_> = backends.iter().map(|backend| backend.name).collect();
    assert_eq!(names, ["demo-fast", "demo-medium", "demo-slow"]);
    assert!(
        backends
            .iter()
            .all(|backend| backend.address.ip().is_loopback())
    );
    assert_eq!(tracker.len(), 3);
    stop.cancel();
    tracker.close();
    in_time(tracker.wait()).await;
}

#[tokio::test]
async fn idle_connections_do_not_delay_the_stop() {
    let demo = Demo::start(AT_ONCE).await;
    let fresh = RawConnection::connect(demo.backend("demo-slow")).await;
    let used = RawConnection::connect(demo.backend("demo-slow")).await;
    let request = b"GET /v1/models/demo HTTP/1.1\r\nHost: demo\r\n\r\n";
    used.send(request).await;
    assert_eq!(used.read(15).await, "HTTP/1.1 200 OK");
    demo.tasks_become(3 + 2).await;
    demo.stop.cancel();
    demo.ended().await;
    // Both connections were closed by the server: reading from them ends.
    assert_eq!(fresh.read(1).await, "");
    assert!(used.read(usize::from(u16::MAX)).await.ends_with('}'));
}

#[tokio::test]
async fn stream_in_progress_completes_after_the_stop() {
    let demo = Demo::start(Pace::new(Duration::ZERO, Duration::from_millis(3))).await;
    let backend = demo.backend("demo-medium");
    let body = chat(&json!({"stream": true})).to_string();
    let mut response = backend.open(Method::POST, CHAT, &body).await.into_body();
    in_time(response.frame()).await.unwrap().unwrap();
    demo.stop.cancel();
    let rest = in_time(response.collect()).await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"), "{rest:?}");
    demo.ended().await;
}

#[tokio::test]
async fn client_disconnect_during_a_stream_ends_its_task() {
    let demo = Demo::start(STUCK).await;
    let backend = demo.backend("demo-fast");
    let body = chat(&json!({"stream": true})).to_string();
    let mut response = backend.open(Method::POST, CHAT, &body).await.into_body();
    in_time(response.frame()).await.unwrap().unwrap();
    assert_eq!(demo.tracker.len(), 3 + 1);
    drop(response);
    demo.tasks_become(3).await;
    demo.stop.cancel();
    demo.ended().await;
}

#[tokio::test]
async fn client_disconnect_before_a_whole_response_ends_its_task() {
    let demo = Demo::start(Pace::new(Duration::from_secs(24 * 3600), Duration::ZERO)).await;
    let raw = RawConnection::connect(demo.backend("demo-fast")).await;
    // The response is delayed by a day, so the task can only end because the client disconnects.
    let body = json!({"model": "demo-embed", "input": "x"}).to_string();
    let head = "POST /v1/embeddings HTTP/1.1\r\nHost: demo\r\nContent-Length:";
    let request = format!("{head} {}\r\n\r\n{body}", body.len());
    raw.send(request.as_bytes()).await;
    demo.tasks_become(3 + 1).await;
    drop(raw);
    demo.tasks_become(3).await;
}
