//! Serves one client connection, from its first bytes to its end.

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
use super::client_stream::ClientStream;
use super::connections::Admitted;
use super::h2_idle::OpenStreams;
use super::h2_streams::{StreamExecutor, StreamWatch};
use super::h2_unfinished::UnfinishedHead;
use super::opening::{self, Opened};
use super::protocol::Protocol;
use super::serve::{self, ConnectionContext};
use super::unparsed;
use super::worker::Worker;
use crate::keys::SecretMemo;
use crate::request::Counter;
use crate::request_settings::RequestSettings;

/// Time after the start of a drain in which requests on open connections are still accepted,
/// because a client may have sent one before it learned of the drain.
const LAST_REQUEST_WITHIN: Duration = Duration::from_millis(250);
/// Maximum time for which an incomplete request head delays the close of a connection that accepts
/// no more requests.
const INCOMPLETE_HEAD_WITHIN: Duration = Duration::from_secs(1);

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
    let shared = Arc::clone(&worker.shared);
    let tls = shared.tls.as_deref();
    let memory = match tls {
        None => ClientMemory::new(&shared.budget),
        Some(_) => ClientMemory::with_tls(&shared.budget),
    };
    let Some(memory) = memory else {
        shared.budget.note_refusal();
        return;
    };
    let settings = worker.shared.settings();
    let opened = tokio::select! {
        opened = opening::open(stream, peer, tls, settings.http.idle) => opened,
        () = drained(&drain) => return,
    };
    let Some(Opened {
        stream,
        protocol,
        lacks_certificate,
    }) = opened
    else {
        return;
    };
    let caller = Arc::new(ConnectionContext {
        worker,
        peer,
        local,
        lacks_certificate,
        requests: Counter::default(),
        memory,
        secret_memo: SecretMemo::default(),
    });
    let served = match protocol {
        Protocol::Http1 => serve_http1(stream, &caller, &settings, admitted, &drain).await,
        Protocol::Http2 => serve_http2(stream, &caller, &settings, admitted, &drain).await,
        Protocol::Closed => return,
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a client connection ended with an error");
    }
}

async fn serve_http1(
    stream: ClientStream,
    caller: &Arc<ConnectionContext>,
    settings: &RequestSettings,
    admitted: Admitted,
    drain: &CancellationToken,
) -> hyper::Result<()> {
    let shared = &caller.worker.shared;
    let heads = Some(Arc::clone(&caller.memory));
    let (send, contention) = (settings.client_limits.send, shared.contention.clone());
    let stream = ClientIo::new(stream, send, contention, admitted, heads, None);
    let write_blocked = stream.write_blocked();
    let context = Arc::clone(caller);
    let service = service_fn(move |request| {
        let backlog = ResponseBacklog::Connection(Arc::clone(&context.memory.backlog));
        serve::serve(Arc::clone(&context), request, backlog)
    });
    let mut connection = client_http::http1(&settings.http)
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
    stream: ClientStream,
    caller: &Arc<ConnectionContext>,
    settings: &RequestSettings,
    admitted: Admitted,
    drain: &CancellationToken,
) -> hyper::Result<()> {
    let shared = &caller.worker.shared;
    let (limits, contention) = (settings.client_limits, &shared.contention);
    let unfinished = UnfinishedHead::new(&shared.budget, settings.http.max_header);
    let stream = ClientIo::new(
        stream,
        limits.send,
        contention.clone(),
        admitted,
        None,
        Some(unfinished),
    );
    let (write_blocked, go_away) = (stream.write_blocked(), stream.go_away());
    let watch = StreamWatch::new(
        &shared.budget,
        limits.send,
        limits.body.rate,
        contention.clone(),
        limits.max_resets,
    );
    let streams = OpenStreams::default();
    let executor = StreamExecutor {
        tasks: caller.worker.forwarding.tasks.clone(),
        streams: streams.clone(),
        watch: Arc::clone(&watch),
    };
    let (context, opener) = (Arc::clone(caller), Arc::clone(&watch));
    let service = service_fn(move |request| {
        let backlog = ResponseBacklog::Stream(opener.open());
        serve::serve(Arc::clone(&context), request, backlog)
    });
    let connection = client_http::http2(&settings.http, executor).serve_connection(stream, service);
    let connection = std::pin::pin!(connection);
    let streams = Some((&streams, settings.http.idle));
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
            tracing::debug!(peer = %caller.peer, "closed a client connection: {reason}");
            go_away.set(reason);
            Ok(())
        }
    }
}

async fn drained(drain: &CancellationToken) {
    drain.cancelled().await;
    // Keep the connection open for a short time: the client may have sent a request before it
    // learned of the drain, and that request must be served.
    tokio::time::sleep(LAST_REQUEST_WITHIN).await;
}

/// Serves a connection to its end. When the server drains, requests in flight are completed, but an
/// incomplete head is not waited for.
async fn until_drained<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    requests: &Counter,
    write_blocked: &WriteBlocked,
    drain: &CancellationToken,
    streams: Option<(&OpenStreams, Duration)>,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> hyper::Result<()> {
    let idle = async {
        match streams {
            Some((streams, limit)) => streams.idle(limit).await,
            // hyper itself closes idle HTTP/1.1 connections, so no idle limit is needed here.
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = connection.as_mut() => served,
        () = drained(drain) => {
            shut_down(connection.as_mut());
            let (is_serving, served_before) = (requests.now() > 0, requests.total());
            match timeout(INCOMPLETE_HEAD_WITHIN, connection.as_mut()).await {
                Ok(served) => served,
                Err(_)
                    if !is_serving && requests.total() == served_before && !write_blocked.get() =>
                {
                    Ok(())
                }
                Err(_) => connection.await,
            }
        }
        () = idle => {
            shut_down(connection.as_mut());
            loop {
                // The client may have sent a request before it received GOAWAY, and does not
                // confirm a GOAWAY. So keep serving for a second, and as long as any stream is
                // open.
                match timeout(INCOMPLETE_HEAD_WITHIN, connection.as_mut()).await {
                    Ok(served) => break served,
                    Err(_) if streams.is_none_or(|(streams, _)| streams.is_empty()) => break Ok(()),
                    Err(_) => {}
                }
            }
        }
    }
}
