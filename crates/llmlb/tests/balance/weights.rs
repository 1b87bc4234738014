//! How the work is shared. (L7)

use std::thread;
use std::time::Duration;
use testkit::{
    FakeLlm, LlmlbServer,
    backends::{ASK, CHAT, backend, count, ok, serve_file},
};

/// A backend that takes its time: who has much to do is seen to have it.
fn slow() -> FakeLlm {
    backend(|request, stream| {
        thread::sleep(Duration::from_millis(20));
        ok(request, stream);
    })
}

/// Questions of many clients at once.
fn ask(server: &LlmlbServer) {
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
fn a_backend_of_more_weight_gets_more_of_the_work() {
    let place = testkit::sandbox!();
    let (heavy, light) = (slow(), slow());
    let file = format!(
        "[[backend]]\nurl = \"{}\"\nweight = 9\n[[backend]]\nurl = \"{}\"\n",
        heavy.url(),
        light.url()
    );
    let server = serve_file(&place, &file);
    ask(&server);
    let (heavy, light) = (count(&heavy), count(&light));
    assert_eq!(heavy + light, 400);
    assert!(heavy * 2 > light * 3, "{heavy} to {light}");
    assert!(light > 0, "nobody is forgotten");
}

#[test]
fn backends_of_the_same_weight_share_the_work() {
    let place = testkit::sandbox!();
    let backends = [(); 3].map(|()| slow());
    let file: Vec<_> = backends
        .iter()
        .map(|one| format!("[[backend]]\nurl = \"{}\"\nweight = 7\n", one.url()))
        .collect();
    let server = serve_file(&place, &file.concat());
    ask(&server);
    let counts = backends.each_ref().map(count);
    assert!(counts.iter().all(|one| *one > 20), "{counts:?}");
}
