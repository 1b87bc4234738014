//! HTTP/2 client that keeps to the protocol: the `h2` library. The client [`Http2`](crate::Http2)
//! sends any frames, invalid ones included.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, ResponseFuture, SendRequest};
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::wait::DEADLINE;

/// Sender of requests on one connection.
pub type Client = SendRequest<Bytes>;

/// A response, complete or not.
#[derive(Debug)]
pub struct Answer {
    /// Status of the response.
    pub status: StatusCode,
    /// Fields of the response's head.
    pub headers: HeaderMap,
    /// Body; `Err` if it is incomplete.
    pub body: Result<Vec<u8>, h2::Error>,
    /// Fields after the body.
    pub trailers: Option<HeaderMap>,
}

impl Answer {
    /// Text of a complete body.
    #[track_caller]
    pub fn text(&self) -> String {
        let body = self.body.as_ref().expect("a whole body");
        String::from_utf8(body.clone()).expect("text")
    }

    /// Returns the value of the first field of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Opens a connection and runs one client on it. The connection is closed when the client ends.
pub fn connected(address: SocketAddr, client_task: impl AsyncFnOnce(Client)) {
    run(async {
        let (client, _) = connect(address, &Builder::new()).await;
        client_task(client).await;
    });
}

/// Runs the futures of several clients on one thread until all have ended, and then closes their
/// connections.
pub fn run(clients: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let done = runtime.block_on(async { timeout(DEADLINE, clients).await });
    done.expect("in time");
}

/// Opens a connection. The second value resolves when the connection ends.
pub async fn connect(
    address: SocketAddr,
    builder: &Builder,
) -> (Client, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("no delay");
    let (client, connection) = builder.handshake(stream).await.expect("HTTP/2");
    (client, TaskTracker::new().spawn(connection))
}

/// Returns the head of a request for this path.
pub fn request(method: Method, path: &str) -> Request<()> {
    Request::builder()
        .method(method)
        .uri(format!("http://localhost{path}"))
        .header("content-type", "application/json")
        .body(())
        .expect("a request")
}

/// Sends a request with its body.
pub async fn send(client: &Client, request: Request<()>, body: &str) -> ResponseFuture {
    let mut ready = client.clone().ready().await.expect("it is ready");
    let bare = body.is_empty();
    let (response, mut sender) = ready.send_request(request, bare).expect("it is sent");
    if !bare {
        let body = Bytes::copy_from_slice(body.as_bytes());
        sender.send_data(body, true).expect("the body is sent");
    }
    response
}

/// Receives a response up to its end, or up to the error that ends it.
pub async fn answer(response: ResponseFuture) -> Answer {
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

/// Returns the next data of a response; `None` at its end.
pub async fn next(stream: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    loop {
        let data = stream.data().await;
        if let Some(Ok(data)) = &data {
            let _ = stream.flow_control().release_capacity(data.len());
            // A frame without data carries only the end of the stream, so it is skipped.
            if data.is_empty() {
                continue;
            }
        }
        return data;
    }
}

/// Sends a POST of a JSON body and waits for the response.
pub async fn post(client: &Client, path: &str, body: &str) -> Answer {
    answer(send(client, request(Method::POST, path), body).await).await
}
