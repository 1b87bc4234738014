//! Clients that cancel many requests. (promise L11)

use std::io::Read;
use std::time::Duration;

use ::http::Method;
use h2::Reason;
use h2::client::Builder;
use testkit::{
    Connection, FakeLlm, LlmlbServer, Sandbox,
    backends::{ASK, CHAT, backend, count, ok, serve},
    h2_client::{Client, connect, post, request, run, send},
    until,
};

/// Returns a backend that responds only to `ASK`.
fn silent() -> FakeLlm {
    backend(|request, stream| {
        if request.text() == ASK {
            return ok(request, stream);
        }
        let _ = stream.read(&mut [0]);
    })
}

fn limited(sandbox: &Sandbox, mock: &FakeLlm, per_minute: &str) -> LlmlbServer {
    let limits = [
        ("LLMLB_PROBE_INTERVAL", "1h"),
        ("LLMLB_MAX_RESETS", per_minute),
    ];
    serve(sandbox, &[mock], &limits)
}

/// Cancels a request after the backend has received it.
async fn cancel_one(client: &Client, mock: &FakeLlm) -> Result<(), h2::Error> {
    let before = count(mock);
    let mut ready = client.clone().ready().await?;
    let (response, mut body) = ready.send_request(request(Method::POST, CHAT), false)?;
    body.send_data(r#"{"model":"m","silent":true}"#.into(), true)?;
    let mut polls = 0;
    // Stop waiting after some polls: the server may close the connection before the backend gets
    // the request.
    while count(mock) == before && polls < 100 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        polls += 1;
    }
    body.send_reset(Reason::CANCEL);
    drop(response);
    Ok(())
}

#[test]
fn client_that_cancels_too_many_requests_loses_its_http_2_connection() {
    let sandbox = testkit::sandbox!();
    let mock = silent();
    // The limit on resets (`server.max_resets`, 100 per minute here) allows a burst of ten.
    let server = limited(&sandbox, &mock, "100");
    run(async {
        let (client, connection) = connect(server.address, &Builder::new()).await;
        while !connection.is_finished() && cancel_one(&client, &mock).await.is_ok() {
            assert!(count(&mock) < 50);
        }
        let error = connection.await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM), "{error}");
        assert!(error.to_string().contains("server.max_resets"), "{error}");
        // The limit applies to a connection, so a new connection of the same client is served.
        let (client, _) = connect(server.address, &Builder::new()).await;
        assert_eq!(post(&client, CHAT, ASK).await.status, 200);
    });
    assert!(count(&mock) >= 10);
    until("every request is cancelled", || {
        server.status()["backends"][0]["in_flight"] == 0
    });
}

#[test]
fn client_that_cancels_requests_within_the_limit_keeps_its_http_2_connection() {
    let sandbox = testkit::sandbox!();
    let mock = silent();
    for per_minute in ["1200", "0"] {
        let server = limited(&sandbox, &mock, per_minute);
        run(async {
            let (client, connection) = connect(server.address, &Builder::new()).await;
            for _ in 0..60 {
                cancel_one(&client, &mock).await.unwrap();
            }
            assert_eq!(post(&client, CHAT, ASK).await.status, 200);
            assert!(!connection.is_finished());
        });
    }
}

/// Returns a backend whose responses begin and do not end.
fn endless() -> FakeLlm {
    backend(|_, stream| {
        testkit::wire::begin_stream(stream);
        testkit::wire::chunk(stream, "data: 1\n\n");
        let _ = stream.read(&mut [0]);
    })
}

#[test]
fn cancelled_responses_count_towards_the_limit() {
    let sandbox = testkit::sandbox!();
    let mock = endless();
    // The limit on resets (`server.max_resets`, 100 per minute here) allows a burst of ten.
    let server = limited(&sandbox, &mock, "100");
    run(async {
        let (client, connection) = connect(server.address, &Builder::new()).await;
        while !connection.is_finished() {
            assert!(count(&mock) < 50);
            let Ok(mut ready) = client.clone().ready().await else {
                break;
            };
            let head = request(Method::POST, CHAT);
            let Ok((response, mut body)) = ready.send_request(head, false) else {
                break;
            };
            let _ = body.send_data(ASK.into(), true);
            // A client that drops an incomplete response resets its stream, which counts as a
            // cancellation.
            drop(response.await);
        }
        let error = connection.await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM), "{error}");
    });
    assert!(count(&mock) >= 10);
}

#[test]
fn cancelled_responses_within_the_limit_keep_the_connection() {
    let sandbox = testkit::sandbox!();
    let mock = endless();
    let server = limited(&sandbox, &mock, "1200");
    run(async {
        let (client, connection) = connect(server.address, &Builder::new()).await;
        for _ in 0..60 {
            let response = send(&client, request(Method::POST, CHAT), ASK).await;
            drop(response.await.unwrap());
        }
        assert!(!connection.is_finished());
    });
}

#[test]
fn complete_responses_do_not_count_towards_the_limit() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|request, stream| {
        if request.text() == ASK {
            return ok(request, stream);
        }
        testkit::wire::begin_stream(stream);
        testkit::wire::chunk(stream, "data: 1\n\n");
        testkit::wire::chunk(stream, "data: [DONE]\n\n");
        testkit::wire::end_stream(stream);
    });
    let server = limited(&sandbox, &mock, "10");
    run(async {
        let (client, connection) = connect(server.address, &Builder::new()).await;
        for _ in 0..20 {
            for body in [ASK, r#"{"model":"m","stream":true}"#] {
                assert_eq!(post(&client, CHAT, body).await.status, 200);
            }
        }
        assert!(!connection.is_finished());
    });
}

#[test]
fn requests_are_delayed_after_their_address_cancelled_many_on_other_connections() {
    let sandbox = testkit::sandbox!();
    let mock = silent();
    // The limit allows ten cancellations per minute for the address, with a burst of one.
    let server = limited(&sandbox, &mock, "1");
    for attempt in 0..40 {
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, r#"{"model":"m","silent":true}"#);
        if attempt < 4 {
            until("the backend has the request", || count(&mock) > attempt);
        } else {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(client);
        server.until_in_flight(0);
    }
    let reached = count(&mock);
    assert!(reached < 20, "{reached} of 40 reached the backend");
    // The server must delay the requests of this address, and still serve them.
    assert_eq!(server.post(CHAT, ASK).status(), 200);
}
