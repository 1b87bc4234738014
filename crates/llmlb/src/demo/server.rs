//! Connections of a demo server, which are accepted until the stop, and then closed after their
//! last request.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Profile, routes};

/// Maximum time that a connection may have no complete request head. It exceeds the 90 s for which
/// hyper's clients keep idle connections, so that the client closes them first and no request hits
/// a closed connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause after a failed accept. The usual cause is a lack of file descriptors, which an immediate
/// retry would not solve.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Accepts connections of a demo server until `stop` is cancelled.
pub(super) async fn serve(
    listener: TcpListener,
    profile: Arc<Profile>,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                tracker.spawn(connection(stream, Arc::clone(&profile), stop.clone()));
            }
            Err(error) => {
                tracing::warn!(name = profile.name, %error, "demo backend cannot accept connections");
                stop.run_until_cancelled(tokio::time::sleep(ACCEPT_BACKOFF))
                    .await;
            }
        }
    }
}

async fn connection(stream: TcpStream, profile: Arc<Profile>, stop: CancellationToken) {
    // Set TCP_NODELAY: otherwise a token would wait for the acknowledgement of the previous token.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(name = profile.name, %error, "cannot set TCP_NODELAY on a demo connection");
    }
    let service = service_fn(|request| async {
        Ok::<_, Infallible>(routes::respond(&profile, request).await)
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
    );
    let mut ended = stop.run_until_cancelled(connection.as_mut()).await;
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        ended = Some(connection.await);
    }
    if let Some(Err(error)) = ended {
        // Log the end at debug level only: the usual cause is a client that disconnected during a
        // response.
        tracing::debug!(name = profile.name, %error, "demo connection ended early");
    }
}
