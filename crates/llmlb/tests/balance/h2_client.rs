//! A client that speaks HTTP/2 from the first byte.

use std::net::SocketAddr;

use ::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, ResponseFuture, SendRequest};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::process::PATIENCE;

/// Where requests are sent from.
pub(crate) type Client = SendRequest<Bytes>;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// `Err`: it broke off.
    pub(crate) body: Result<Vec<u8>, h2::Error>,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        let body = self.body.as_ref().expect("a whole body");
        String::from_utf8(body.clone()).expect("text")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Opens a connection, and lets the test talk on it. The connection ends with that.
pub(crate) fn connected(address: SocketAddr, talk: impl AsyncFnOnce(Client)) {
    run(async {
        let (client, _) = connect(address, &Builder::new()).await;
        talk(client).await;
    });
}

/// Runs clients. All of their connections end with that.
pub(crate) fn run(clients: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let done = runtime.block_on(async { timeout(PATIENCE, clients).await });
    done.expect("in time");
}

/// Opens a connection. The second value tells how the connection ends.
pub(crate) async fn connect(
    address: SocketAddr,
    builder: &Builder,
) -> (Client, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("no delay");
    let (client, connection) = builder.handshake(stream).await.expect("HTTP/2");
    (client, TaskTracker::new().spawn(connection))
}

/// A request for this path with this body.
pub(crate) fn request(method: Method, path: &str) -> Request<()> {
    Request::builder()
        .method(method)
        .uri(format!("http://localhost{path}"))
        .header("content-type", "application/json")
        .body(())
        .expect("a request")
}

/// Sends a request, whole.
pub(crate) async fn send(client: &Client, request: Request<()>, body: &str) -> ResponseFuture {
    let mut ready = client.clone().ready().await.expect("it is ready");
    let bare = body.is_empty();
    let (response, mut sender) = ready.send_request(request, bare).expect("it is sent");
    if !bare {
        let body = Bytes::copy_from_slice(body.as_bytes());
        sender.send_data(body, true).expect("the body is sent");
    }
    response
}

/// Waits for the answer and its end.
pub(crate) async fn answer(response: ResponseFuture) -> Answer {
    let (head, mut stream) = response.await.expect("an answer").into_parts();
    let mut body = Vec::new();
    let ended = loop {
        match next(&mut stream).await {
            Some(Ok(data)) => body.extend_from_slice(&data),
            Some(Err(error)) => break Err(error),
            None => break Ok(()),
        }
    };
    let trailers = if ended.is_ok() {
        stream.trailers().await.expect("whole trailers")
    } else {
        None
    };
    Answer {
        status: head.status,
        headers: head.headers,
        body: ended.map(|()| body),
        trailers,
    }
}

/// The next piece of an answer.
pub(crate) async fn next(stream: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    loop {
        let data = stream.data().await;
        if let Some(Ok(data)) = &data {
            let _ = stream.flow_control().release_capacity(data.len());
            // A frame without data only carries the end.
            if data.is_empty() {
                continue;
            }
        }
        return data;
    }
}

/// Asks, and waits for the answer.
pub(crate) async fn post(client: &Client, path: &str, body: &str) -> Answer {
    answer(send(client, request(Method::POST, path), body).await).await
}
