//! Connections: taken until the stop, then ended as soon as no request is in progress.

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

/// How long a connection may stay without a whole request head. Longer than hyper's clients keep
/// an idle connection (90 s), so that it is the client who lets go of it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// How long to pause when no connection can be taken, typically for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Takes connections until the stop.
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
                tracing::warn!(name = profile.name, %error, "demo backend cannot accept");
                stop.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE))
                    .await;
            }
        }
    }
}

async fn connection(stream: TcpStream, profile: Arc<Profile>, stop: CancellationToken) {
    // Without it tokens would wait for the acknowledgement of those before.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(name = profile.name, %error, "no TCP_NODELAY on a demo connection");
    }
    let service = service_fn(|request| async {
        Ok::<_, Infallible>(routes::answer(&profile, request).await)
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
        // A client that left in the middle of an answer ends up here.
        tracing::debug!(name = profile.name, %error, "demo connection ended early");
    }
}
