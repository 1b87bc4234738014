//! Host names that a private server accepts, and web pages that may use it. (promise L11)

use ::http::Method;
use testkit::{
    Answer, Connection, LlmlbServer,
    backends::{UNPROBED, asked, backend, code, ok, serve},
    h2_client,
};

fn get(server: &LlmlbServer, fields: &str) -> Answer {
    let mut client = Connection::open(server.address);
    client.send(format!("GET /v1/files HTTP/1.1\r\n{fields}\r\n"));
    client.answer()
}

fn machine() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_str().unwrap().to_owned()
}

#[test]
fn private_server_accepts_only_its_own_host_names() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let settings = [
        UNPROBED[0],
        ("LLMLB_HOSTS", "llm.example.com, gateway 10.9.8.7"),
    ];
    let server = serve(&sandbox, &[&mock], &settings);
    let machine = machine();
    for host in [
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "api.localhost:8000",
        "127.0.0.1:5000",
        "192.168.7.9",
        "[::1]:80",
        "[fe80::1]",
        "llm.example.com",
        "LLM.Example.com:443",
        "gateway",
        machine.as_str(),
        &machine.to_uppercase(),
    ] {
        let answer = get(&server, &format!("host: {host}\r\n"));
        assert_eq!(answer.status(), 200, "{host}: {answer:?}");
    }
    for host in [
        "evil.example",
        "router",
        "printer.local",
        "host.docker.internal",
        "evil.internal",
        "localhost.evil.example",
        "xlocalhost",
        "x.llm.example.com",
        "127.0.0.1.nip.io",
        "2130706433",
        "0x7f.1",
        &format!("{machine}.local"),
        &format!("{machine}x"),
    ] {
        let answer = get(&server, &format!("host: {host}\r\n"));
        assert_eq!(answer.status(), 403, "{host}");
        assert!(answer.text().contains("server.hosts"), "{answer:?}");
    }
    assert_eq!(asked(&mock).len(), 13);
}

#[test]
fn private_server_accepts_only_origins_of_this_machine() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let settings = [
        UNPROBED[0],
        ("LLMLB_HOSTS", "llm.example.com 10.9.8.7 fd00::7"),
    ];
    let server = serve(&sandbox, &[&mock], &settings);
    let machine = machine();
    for origin in [
        "http://localhost:3000",
        "https://app.localhost",
        "http://127.0.0.1:8080",
        "http://127.9.9.9",
        "http://[::1]:3000",
        "http://[::ffff:127.0.0.1]",
        "https://llm.example.com:8443",
        "http://10.9.8.7:3000",
        "http://[fd00::7]",
        &format!("http://{machine}:3000"),
        "null",
        "vscode-webview://x",
    ] {
        let answer = get(&server, &format!("host: localhost\r\norigin: {origin}\r\n"));
        assert_eq!(answer.status(), 200, "{origin}: {answer:?}");
    }
    for origin in [
        "http://192.168.0.9",
        "http://10.1.2.3:3000",
        "http://172.16.0.1",
        "http://169.254.1.1",
        "http://0.0.0.0:3000",
        "http://[fe80::1]",
        "http://[fd00::1]",
        "http://8.8.8.8",
        "http://router",
        "http://printer.local",
        "https://evil.example",
        "https://localhost.evil.example",
        "https://llm.example.com.evil.example",
        "http://127.0.0.1@evil.example",
        "HTTPS://evil.example",
        "http://",
    ] {
        let answer = get(&server, &format!("host: localhost\r\norigin: {origin}\r\n"));
        assert_eq!(answer.status(), 403, "{origin}");
        assert!(answer.text().contains("server.hosts"), "{answer:?}");
    }
}

#[test]
fn authority_that_differs_from_the_host_is_rejected() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    h2_client::connected(server.address, async |client| {
        for (host, expected) in [
            ("localhost", 200),
            ("LOCALHOST", 200),
            ("localhost:80", 200),
            ("127.0.0.1", 400),
            ("localhost:81", 400),
            ("evil.example", 400),
            ("", 400),
        ] {
            let mut request = h2_client::request(Method::GET, "/v1/files");
            request.headers_mut().insert("host", host.parse().unwrap());
            let response = h2_client::send(&client, request, "").await;
            let answer = h2_client::answer(response).await;
            assert_eq!(answer.status, expected, "{host}");
            assert!(
                expected == 200 || answer.text().contains("bad_host"),
                "{host}"
            );
        }
    });
    for (target, host, expected) in [
        ("http://localhost/v1/files", "localhost", 200),
        ("http://localhost/v1/files", "localhost:80", 200),
        ("http://localhost:80/v1/files", "localhost", 200),
        ("http://localhost:81/v1/files", "localhost", 400),
        ("http://evil.example/v1/files", "localhost", 400),
        ("http://localhost/v1/files", "evil.example", 400),
        ("http://user@localhost/v1/files", "localhost", 400),
        ("http://user@localhost/v1/files", "user@localhost", 400),
    ] {
        let mut client = Connection::open(server.address);
        client.send(format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        let answer = client.answer();
        assert_eq!(answer.status(), expected, "{target} {host}");
        assert!(expected == 200 || code(&answer) == "bad_host", "{answer:?}");
    }
}
