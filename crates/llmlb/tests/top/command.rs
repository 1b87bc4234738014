//! `llmlb top --once` and `--json`, and how it finds its server.

use testkit::FakeLlm;
use testkit::backends::backend;
use testkit::wire;

use crate::world::World;

#[test]
fn frame_answers_the_questions_of_an_operator() {
    let world = World::start();
    assert_eq!(world.chat("m"), 200);
    assert_eq!(world.chat("broken"), 500);
    let _stream = world.open_stream();
    world.until("the files are read", |snapshot| {
        !snapshot["usage"].is_null()
    });
    let shown = world.sandbox.run("top --once");
    shown.assert_code(0);
    let text = &shown.stdout;
    let line = |words: &[&str]| {
        let is_it = |line: &&str| words.iter().all(|word| line.contains(word));
        assert!(text.lines().any(|one| is_it(&one)), "{words:?} in\n{text}");
    };
    line(&["backends: 2 of 2 up"]);
    line(&["good", "up", "1/8"]);
    line(&["bad", "up"]);
    line(&["streaming", "held", "good", "alice"]);
    line(&["500", "broken", "bad"]);
    line(&["tokens by model"]);
    line(&["alice", "requests per minute"]);
    line(&["usage:", "0 failed", "0 lost", "books"]);
    // Without a terminal, the frame is the same.
    assert!(
        world
            .sandbox
            .run("top")
            .stdout
            .contains("backends: 2 of 2 up")
    );
    world.gate.open();
}

#[test]
fn json_is_the_snapshot_of_the_server() {
    let world = World::start();
    let document = world.sandbox.run("top --json").json();
    assert_eq!(document["version"], 1);
    assert_eq!(document["pid"], world.server.pid());
    let url = format!("top --json --url http://{}", world.server.address);
    let by_url = world.sandbox.run(&url).json();
    assert_eq!(by_url["pid"], world.server.pid());
}

#[test]
fn exit_code_says_that_no_server_runs() {
    let sandbox = testkit::sandbox!();
    let port = testkit::free_port();
    let finished = sandbox.run(&format!("top --once -p {port}"));
    finished.assert_code(3);
    assert!(
        finished.stderr.contains("no server is running on port"),
        "{finished:?}"
    );
    sandbox.run("top --once").assert_code(3);
    let [one, other] = [sandbox.serve("--demo"), sandbox.serve("--demo")];
    let finished = sandbox.run("top --once");
    finished.assert_code(2);
    let [low, high] = [one.port().min(other.port()), one.port().max(other.port())];
    assert!(
        finished.stderr.contains(&format!("on ports {low}, {high}")),
        "{finished:?}"
    );
}

#[test]
fn url_needs_a_server_and_an_admin_key() {
    let sandbox = testkit::sandbox!();
    sandbox.run("top --once --url nonsense").assert_code(2);
    sandbox
        .run("top --once --url http://127.0.0.1:1")
        .assert_code(1);
    let rejecting: FakeLlm = backend(|_, stream| wire::json(stream, 200, "{}"));
    let finished = sandbox.run(&format!("top --once --url {}", rejecting.url()));
    finished.assert_code(1);
    assert!(finished.stderr.contains("404"), "{finished:?}");
}

#[test]
fn hostile_names_are_printed_safely() {
    let sandbox = testkit::sandbox!();
    let hostile = FakeLlm::handling_all(|_, stream| {
        let body =
            r#"{"version":1,"state":"ok","backends":[{"name":"a\u001b[2Jb\u202ec","state":"up"}]}"#;
        wire::json(stream, 200, body);
    });
    let finished = sandbox.run(&format!("top --once --url {}", hostile.url()));
    finished.assert_code(0);
    assert!(finished.stdout.contains("a?[2Jb?c"), "{finished:?}");
    assert!(!finished.stdout.contains('\u{1b}'), "{finished:?}");
}
