//! One connection of a client, from its first bytes to its end.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::backlog::ResponseBacklog;
use super::client_http;
use super::client_io::{ClientIo, WriteBlocked};
use super::client_memory::ClientMemory;
use super::connections::Admitted;
use super::h2_idle::Streams;
use super::h2_streams::{StreamExecutor, StreamWatch};
use super::h2_unfinished::UnfinishedHead;
use super::protocol::{self, Protocol};
use super::serve::{self, Caller};
use super::unparsed;
use super::worker::Worker;
use crate::request::Counter;

/// Time for which a connection may still bring a request after the server began to drain.
const LAST_REQUEST_WITHIN: Duration = Duration::from_millis(250);
/// Time for which an incomplete request may then delay the end of the connection.
const HALF_A_REQUEST_WITHIN: Duration = Duration::from_secs(1);

/// Serves a connection until the client or the server ends it.
pub(super) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    admitted: Admitted,
    worker: Arc<Worker>,
    drain: CancellationToken,
) {
    let Ok(local) = stream.local_addr() else {
        return; // The client has disconnected already.
    };
    let Some(memory) = ClientMemory::new(&worker.shared.budget) else {
        worker.shared.budget.note_refusal();
        return;
    };
    let caller = Arc::new(Caller {
        is_proxy: worker.shared.proxies.contains(peer.ip()),
        worker,
        peer,
        local,
        requests: Counter::default(),
        memory,
    });
    let protocol = tokio::select! {
        protocol = timeout(caller.worker.shared.http.idle, protocol::detect(&stream)) => protocol,
        () = drained(&drain) => return,
    };
    let served = match protocol {
        Ok(Protocol::Http1) => serve_http1(stream, &caller, admitted, &drain).await,
        Ok(Protocol::Http2) => serve_http2(stream, &caller, admitted, &drain).await,
        // The client sent nothing in time, or disconnected.
        Ok(Protocol::None) | Err(_) => return,
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

async fn serve_http1(
    stream: TcpStream,
    caller: &Arc<Caller>,
    admitted: Admitted,
    drain: &CancellationToken,
) -> hyper::Result<()> {
    let shared = &caller.worker.shared;
    let heads = Some(Arc::clone(&caller.memory));
    let (send, contention) = (shared.client_limits.send, shared.contention.clone());
    let stream = ClientIo::new(stream, send, contention, admitted, heads, None);
    let write_blocked = stream.write_blocked();
    let service_caller = Arc::clone(caller);
    let service = service_fn(move |request| {
        let backlog = ResponseBacklog::Connection(Arc::clone(&service_caller.memory.backlog));
        serve::serve(Arc::clone(&service_caller), request, backlog)
    });
    let mut connection = client_http::http1(&shared.http)
        .serve_connection(stream, service)
        .with_upgrades();
    let pinned = Pin::new(&mut connection);
    let requests = &caller.requests;
    let served = until_drained(
        pinned,
        requests,
        &write_blocked,
        drain,
        None,
        |connection| {
            connection.graceful_shutdown();
        },
    )
    .await;
    let unread = || connection.into_parts().map(|parts| parts.read_buf);
    unparsed::log(caller, &served, unread);
    served
}

async fn serve_http2(
    stream: TcpStream,
    caller: &Arc<Caller>,
    admitted: Admitted,
    drain: &CancellationToken,
) -> hyper::Result<()> {
    let shared = &caller.worker.shared;
    let (limits, contention) = (shared.client_limits, &shared.contention);
    let unfinished = UnfinishedHead::new(&shared.budget, shared.http.max_header);
    let stream = ClientIo::new(
        stream,
        limits.send,
        contention.clone(),
        admitted,
        None,
        Some(unfinished),
    );
    let (write_blocked, farewell) = (stream.write_blocked(), stream.farewell());
    let watch = StreamWatch::new(
        &shared.budget,
        limits.send,
        limits.body.rate,
        contention.clone(),
        limits.max_resets,
    );
    let streams = Streams::default();
    let executor = StreamExecutor {
        tasks: caller.worker.forwarding.tasks.clone(),
        streams: streams.clone(),
        watch: Arc::clone(&watch),
    };
    let (service_caller, opener) = (Arc::clone(caller), Arc::clone(&watch));
    let service = service_fn(move |request| {
        let backlog = ResponseBacklog::Stream(opener.open());
        serve::serve(Arc::clone(&service_caller), request, backlog)
    });
    let connection = client_http::http2(&shared.http, executor).serve_connection(stream, service);
    let connection = std::pin::pin!(connection);
    let streams = Some((&streams, shared.http.idle));
    let requests = &caller.requests;
    let served = until_drained(
        connection,
        requests,
        &write_blocked,
        drain,
        streams,
        |connection| {
            connection.graceful_shutdown();
        },
    );
    tokio::select! {
        served = served => served,
        violation = watch.violation() => {
            let reason = violation.reason();
            tracing::debug!(peer = %caller.peer, "closed a connection: {reason}");
            farewell.set(reason);
            Ok(())
        }
    }
}

async fn drained(drain: &CancellationToken) {
    drain.cancelled().await;
    // A request may have been sent before the client could know.
    tokio::time::sleep(LAST_REQUEST_WITHIN).await;
}

/// Serves a connection to its end; once the server drains, what is being served is served to its
/// end, and half a request is not waited for.
async fn until_drained<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    requests: &Counter,
    write_blocked: &WriteBlocked,
    drain: &CancellationToken,
    streams: Option<(&Streams, Duration)>,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> hyper::Result<()> {
    let idle = async {
        match streams {
            Some((streams, limit)) => streams.idle(limit).await,
            // hyper closes idle connections of HTTP/1.1 itself.
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = connection.as_mut() => served,
        () = drained(drain) => {
            shut_down(connection.as_mut());
            let (is_serving, served_before) = (requests.now() > 0, requests.ever());
            match timeout(HALF_A_REQUEST_WITHIN, connection.as_mut()).await {
                Ok(served) => served,
                Err(_)
                    if !is_serving && requests.ever() == served_before && !write_blocked.get() =>
                {
                    Ok(())
                }
                Err(_) => connection.await,
            }
        }
        () = idle => {
            shut_down(connection.as_mut());
            loop {
                // The client may have sent a request before it knew; and it need not confirm.
                match timeout(HALF_A_REQUEST_WITHIN, connection.as_mut()).await {
                    Ok(served) => break served,
                    Err(_) if streams.is_none_or(|(streams, _)| streams.is_empty()) => break Ok(()),
                    Err(_) => {}
                }
            }
        }
    }
}
