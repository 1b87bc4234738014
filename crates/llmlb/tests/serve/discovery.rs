//! LLM servers on this machine are found at their default ports. These ports may be in use where the
//! tests run, so that each test has a network namespace of its own.

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener};

use crate::network::run_in_network_namespace;
use testkit::backends::{CHAT, ok};
use testkit::{FakeLlm, Head, until, wire};

/// Starts an LLM server on this port of the loopback address, where llmlb searches for servers.
fn server_at_port(port: u16, model: &str) -> FakeLlm {
    FakeLlm::builder(&[model]).at(local(port)).handle(ok)
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

#[test]
fn servers_on_default_ports_are_found_and_logged() {
    run_in_network_namespace("discovery::finds_servers_on_default_ports");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn finds_servers_on_default_ports() {
    let sandbox = testkit::sandbox!();
    let ollama = server_at_port(11434, "llama3");
    let vllm = FakeLlm::builder(&[])
        .without_models()
        .at(local(8000))
        .handle(|_, stream| {
            let list = r#"{"data":[{"id":"qwen","owned_by":"vllm"}]}"#;
            wire::json(stream, 200, list);
        });
    // This web server listens on a default port but has no models. llmlb must not use it as a
    // backend.
    let _web = FakeLlm::builder(&[])
        .without_models()
        .at(local(8080))
        .handle(|_, stream| {
            wire::json(stream, 200, r#"{"hello":"world"}"#);
        });
    let server = sandbox.serve("");
    let log = server.process.stderr();
    let lines = [
        "found ollama at http://127.0.0.1:11434, 1 model: llama3",
        "found vllm at http://127.0.0.1:8000, 1 model: qwen",
        "2 of 2 backends up",
    ];
    for line in lines {
        assert!(log.contains(line), "{line}: {log}");
    }
    for (model, mock, name) in [("llama3", &ollama, "ollama"), ("qwen", &vllm, "vllm")] {
        let answer = server.post(CHAT, &format!(r#"{{"model":"{model}"}}"#));
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.head.header("x-llmlb-backend").as_deref(), Some(name));
        assert_eq!(mock.count(), 1);
    }
}

#[test]
fn server_that_starts_later_is_found() {
    run_in_network_namespace("discovery::finds_a_server_that_starts_later");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn finds_a_server_that_starts_later() {
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve("");
    let log = server.process.stderr();
    assert!(log.contains("found no LLM server on this machine"), "{log}");
    assert!(log.contains("no backends yet"), "{log}");
    let _studio = server_at_port(1234, "gemma");
    until("the server is found", || {
        server.post(CHAT, r#"{"model":"gemma"}"#).status() == 200
    });
    let log = server.process.stderr();
    assert!(
        log.contains("found lm-studio at http://127.0.0.1:1234"),
        "{log}"
    );
}

#[test]
fn balancers_on_default_ports_do_not_use_each_other() {
    run_in_network_namespace("discovery::ignores_other_balancers");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn ignores_other_balancers() {
    let sandbox = testkit::sandbox!();
    let _ollama = server_at_port(11434, "llama3");
    let first = sandbox.serve_with(&mut sandbox.command("serve -p 8080"));
    let second = sandbox.serve_with(&mut sandbox.command("serve -p 8000"));
    for server in [&first, &second] {
        let backends = server.status()["backends"].clone();
        assert_eq!(backends.as_array().unwrap().len(), 1, "{backends}");
        assert_eq!(backends[0]["name"], "ollama");
    }
}

#[test]
fn port_that_hangs_does_not_hide_other_servers() {
    run_in_network_namespace("discovery::finds_servers_while_a_port_hangs");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn finds_servers_while_a_port_hangs() {
    let sandbox = testkit::sandbox!();
    let _silent = TcpListener::bind("127.0.0.1:1234").unwrap();
    let ollama = server_at_port(11434, "llama3");
    let vllm = server_at_port(8000, "qwen");
    let server = sandbox.serve("");
    for name in ["ollama", "vllm"] {
        assert!(
            server
                .process
                .stderr()
                .contains(&format!("found {name} at"))
        );
    }
    // Discovered servers are probed like configured backends: the log reports a stopped server as
    // down, and requests are served again after its restart.
    ollama.stop();
    until("the server is down", || {
        server
            .process
            .stderr()
            .contains("ollama at http://127.0.0.1:11434 is down")
    });
    let _again = server_at_port(11434, "llama3");
    until("the server is up again", || {
        server.post(CHAT, r#"{"model":"llama3"}"#).status() == 200
    });
    drop(vllm);
}

/// LLM server on a default port whose socket belongs to a given user.
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

    /// Changes the owner of the socket's inode, which the kernel reports as the user of the socket.
    fn give_to(&self, uid: u32) {
        let uid = rustix::fs::Uid::from_raw(uid);
        rustix::fs::fchown(&self.listener, Some(uid), None).unwrap();
    }
}

#[test]
fn server_of_another_user_is_not_used() {
    run_in_network_namespace("discovery::ignores_servers_of_other_users");
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn ignores_servers_of_other_users() {
    let sandbox = testkit::sandbox!();
    let foreign = Owned::start(11434, 54321, "stolen");
    let _own = Owned::start(8000, 0, "own");
    let server = sandbox.serve("");
    let log = server.process.stderr();
    let words = "not using the LLM server at http://127.0.0.1:11434: it belongs to uid 54321, \
                 neither to this user nor to root; name it with --backend http://127.0.0.1:11434 \
                 if that is intended";
    assert!(log.contains(words), "{log}");
    assert!(log.contains("found vllm at http://127.0.0.1:8000"), "{log}");
    assert_eq!(server.post(CHAT, r#"{"model":"own"}"#).status(), 200);
    assert_eq!(server.post(CHAT, r#"{"model":"stolen"}"#).status(), 404);
    // Root is a trusted user: once the socket belongs to root, the server must be used.
    foreign.give_to(0);
    until("the server is found", || {
        server.post(CHAT, r#"{"model":"stolen"}"#).status() == 200
    });
    foreign.give_to(54321);
    until("the server is down because of its owner", || {
        let log = server.process.stderr();
        log.contains("ollama at http://127.0.0.1:11434 is down: it belongs to uid 54321")
    });
    assert_eq!(server.post(CHAT, r#"{"model":"stolen"}"#).status(), 503);
    let log = server.process.stderr();
    assert_eq!(log.matches("not using the LLM server").count(), 1, "{log}");
    // The check of the owner applies only to discovered servers. A server named with `--backend`
    // was chosen by the operator and is used whoever owns it.
    let named = sandbox.serve("--backend http://127.0.0.1:11434");
    assert_eq!(named.post(CHAT, r#"{"model":"stolen"}"#).status(), 200);
}
