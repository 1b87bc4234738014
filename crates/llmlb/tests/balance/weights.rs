//! Shares of requests by the weights of backends. (promise L7)

use std::thread;
use std::time::Duration;
use testkit::{
    FakeLlm, LlmlbServer,
    backends::{ASK, CHAT, backend, count, ok, serve_file},
};

/// Returns a slow backend, so that requests are in flight at the same time.
fn slow() -> FakeLlm {
    backend(|request, stream| {
        thread::sleep(Duration::from_millis(20));
        ok(request, stream);
    })
}

fn send_requests(server: &LlmlbServer) {
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(server.post(CHAT, ASK).status(), 200);
                }
            });
        }
    });
}

#[test]
fn backend_with_more_weight_gets_more_requests() {
    let sandbox = testkit::sandbox!();
    let (heavy, light) = (slow(), slow());
    let file = format!(
        "[[backend]]\nurl = \"{}\"\nweight = 9\n[[backend]]\nurl = \"{}\"\n",
        heavy.url(),
        light.url()
    );
    let server = serve_file(&sandbox, &file);
    send_requests(&server);
    let (heavy, light) = (count(&heavy), count(&light));
    assert_eq!(heavy + light, 400);
    assert!(heavy * 2 > light * 3, "{heavy} to {light}");
    assert!(light > 0, "the light backend gets requests");
}

#[test]
fn backends_of_equal_weight_share_the_requests() {
    let sandbox = testkit::sandbox!();
    let backends = [(); 3].map(|()| slow());
    let file: Vec<_> = backends
        .iter()
        .map(|backend| format!("[[backend]]\nurl = \"{}\"\nweight = 7\n", backend.url()))
        .collect();
    let server = serve_file(&sandbox, &file.concat());
    send_requests(&server);
    let counts = backends.each_ref().map(count);
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}
