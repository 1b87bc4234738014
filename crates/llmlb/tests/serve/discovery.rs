//! Servers on this machine are found by their usual ports. Those may be in use where the tests
//! run, so each of these tests has a network of its own.

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::network::in_its_own;
use testkit::{FakeLlm, Head, Received, until, wire};

const CHAT: &str = "/v1/chat/completions";

fn ok(_: &Received, stream: &mut TcpStream) {
    wire::json(stream, 200, "{}");
}

/// A server on a usual port.
fn usual(port: u16, model: &str) -> FakeLlm {
    FakeLlm::builder(&[model]).at(local(port)).handle(ok)
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

#[test]
fn servers_on_their_usual_ports_are_found_and_told() {
    in_its_own("discovery::servers_are_found");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn servers_are_found() {
    let place = testkit::sandbox!();
    let ollama = usual(11434, "llama3");
    let vllm = FakeLlm::builder(&[])
        .without_models()
        .at(local(8000))
        .handle(|_, stream| {
            let list = r#"{"data":[{"id":"qwen","owned_by":"vllm"}]}"#;
            wire::json(stream, 200, list);
        });
    // Some other web server; not one of ours.
    let _web = FakeLlm::builder(&[])
        .without_models()
        .at(local(8080))
        .handle(|_, stream| {
            wire::json(stream, 200, r#"{"hello":"world"}"#);
        });
    let server = place.serve("");
    let said = server.process.stderr();
    let lines = [
        "found ollama at http://127.0.0.1:11434, 1 model: llama3",
        "found vllm at http://127.0.0.1:8000, 1 model: qwen",
        "2 of 2 backends up",
    ];
    for line in lines {
        assert!(said.contains(line), "{line}: {said}");
    }
    for (model, mock, name) in [("llama3", &ollama, "ollama"), ("qwen", &vllm, "vllm")] {
        let answer = server.post(CHAT, &format!(r#"{{"model":"{model}"}}"#));
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.head.header("x-llmlb-backend").as_deref(), Some(name));
        assert_eq!(mock.count(), 1);
    }
}

#[test]
fn a_server_that_starts_later_is_found_then() {
    in_its_own("discovery::a_late_server_is_found");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn a_late_server_is_found() {
    let place = testkit::sandbox!();
    let server = place.serve("");
    let said = server.process.stderr();
    assert!(
        said.contains("found no LLM server on this machine"),
        "{said}"
    );
    assert!(said.contains("no backends yet"), "{said}");
    let _studio = usual(1234, "gemma");
    until("it is found", || {
        server.post(CHAT, r#"{"model":"gemma"}"#).status() == 200
    });
    let said = server.process.stderr();
    assert!(
        said.contains("found lm-studio at http://127.0.0.1:1234"),
        "{said}"
    );
}

#[test]
fn two_balancers_do_not_send_requests_in_circles() {
    in_its_own("discovery::balancers_are_not_backends");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn balancers_are_not_backends() {
    let place = testkit::sandbox!();
    let _ollama = usual(11434, "llama3");
    let first = place.serve_with(&mut place.command("serve -p 8080"));
    let second = place.serve_with(&mut place.command("serve -p 8000"));
    for server in [&first, &second] {
        let backends = server.status()["backends"].clone();
        assert_eq!(backends.as_array().unwrap().len(), 1, "{backends}");
        assert_eq!(backends[0]["name"], "ollama");
    }
}

#[test]
fn a_port_that_hangs_does_not_hide_the_others() {
    in_its_own("discovery::others_are_found_beside_a_port_that_hangs");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn others_are_found_beside_a_port_that_hangs() {
    let place = testkit::sandbox!();
    let _silent = TcpListener::bind("127.0.0.1:1234").unwrap();
    let ollama = usual(11434, "llama3");
    let vllm = usual(8000, "qwen");
    let server = place.serve("");
    for name in ["ollama", "vllm"] {
        assert!(
            server
                .process
                .stderr()
                .contains(&format!("found {name} at"))
        );
    }
    // They are watched, too.
    ollama.stop();
    until("it is seen to be down", || {
        server
            .process
            .stderr()
            .contains("ollama at http://127.0.0.1:11434 is down")
    });
    let _again = usual(11434, "llama3");
    until("it is seen to be back", || {
        server.post(CHAT, r#"{"model":"llama3"}"#).status() == 200
    });
    drop(vllm);
}

/// A server on a usual port whose socket belongs to this user.
struct Owned {
    listener: TcpListener,
}

impl Owned {
    fn start(port: u16, uid: u32, model: &'static str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let incoming = listener.try_clone().unwrap();
        let owned = Self { listener };
        owned.give_to(uid);
        std::thread::spawn(move || {
            for stream in incoming.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                while let Some(head) = Head::read(&mut reader) {
                    let _ = head.body(&mut reader);
                    let list = format!(r#"{{"data":[{{"id":"{model}"}}]}}"#);
                    wire::json(reader.get_mut(), 200, &list);
                }
            }
        });
        owned
    }

    /// The kernel reports the owner of a socket's inode as its user.
    fn give_to(&self, uid: u32) {
        let uid = rustix::fs::Uid::from_raw(uid);
        rustix::fs::fchown(&self.listener, Some(uid), None).unwrap();
    }
}

#[test]
fn a_server_of_another_user_is_not_used() {
    in_its_own("discovery::foreign_servers_are_left_out");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn foreign_servers_are_left_out() {
    let place = testkit::sandbox!();
    let foreign = Owned::start(11434, 54321, "stolen");
    let _own = Owned::start(8000, 0, "own");
    let server = place.serve("");
    let said = server.process.stderr();
    let words = "not using the LLM server at http://127.0.0.1:11434: it belongs to uid 54321, \
                 neither to this user nor to root; name it with --backend http://127.0.0.1:11434 \
                 if that is intended";
    assert!(said.contains(words), "{said}");
    assert!(
        said.contains("found vllm at http://127.0.0.1:8000"),
        "{said}"
    );
    assert_eq!(server.post(CHAT, r#"{"model":"own"}"#).status(), 200);
    assert_eq!(server.post(CHAT, r#"{"model":"stolen"}"#).status(), 404);
    // It is found once it is somebody's whom we trust, and lost when it is not.
    foreign.give_to(0);
    until("it is found", || {
        server.post(CHAT, r#"{"model":"stolen"}"#).status() == 200
    });
    foreign.give_to(54321);
    until("it is seen to be another user's", || {
        let said = server.process.stderr();
        said.contains("ollama at http://127.0.0.1:11434 is down: it belongs to uid 54321")
    });
    assert_eq!(server.post(CHAT, r#"{"model":"stolen"}"#).status(), 503);
    let said = server.process.stderr();
    assert_eq!(
        said.matches("not using the LLM server").count(),
        1,
        "{said}"
    );
    // Whoever names it wants it.
    let named = place.serve("--backend http://127.0.0.1:11434");
    assert_eq!(named.post(CHAT, r#"{"model":"stolen"}"#).status(), 200);
}
