//! Servers that other machines can reach need an API key or an explicit setting. (promise L11)

use std::process::Command;

use testkit::backends::CHAT;
use testkit::{Finished, Http1};

use crate::support::{add, bearer, key};

#[test]
fn public_address_needs_a_key_or_an_explicit_setting() {
    let sandbox = testkit::sandbox!();
    let run = |words: &str| Finished::run(&mut sandbox.command(words));
    let refused = run("serve -p 0 --demo -H 0.0.0.0");
    refused.assert_code(1);
    for words in [
        "not a loopback address",
        "llmlb key add NAME",
        "--allow-public",
    ] {
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    let good = add(&sandbox, "alice");
    let server = sandbox.serve("--demo -H 0.0.0.0");
    server.process.until_output("clients need an API key");
    server.process.until_output("are not encrypted");
    assert!(
        !server.log().contains("every client that can reach"),
        "{}",
        server.log()
    );
    let ask = r#"{"model":"demo","messages":[{"role":"user","content":"Hello"}]}"#;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.port()));
    let mut client = Http1::connect(address).unwrap();
    let send = |client: &mut Http1, fields: &str| {
        client
            .send(format!(
                "POST {CHAT} HTTP/1.1\r\nhost: any.example\r\n{fields}content-length: {}\r\n\r\n{ask}",
                ask.len()
            ))
            .unwrap();
        client.response().unwrap().status()
    };
    assert_eq!(send(&mut client, &bearer(&good)), 200);
    assert_eq!(send(&mut client, ""), 401);
    drop(server);
    // A server whose keys are all revoked must reject every client and not serve them without a
    // key.
    key(&sandbox, "revoke alice").assert_code(0);
    let server = sandbox.serve("--demo -H 0.0.0.0");
    assert_eq!(server.post(CHAT, ask).status(), 401);
    drop(server);
    std::fs::remove_file(sandbox.data_dir().join("keys.json")).unwrap();
    run("serve -p 0 --demo -H 0.0.0.0").assert_code(1);
    sandbox.serve("--demo -H 0.0.0.0 --allow-public");
    // Keys in the configuration file are enough for a public address: `serve` starts without
    // `--allow-public`.
    sandbox.file(
        "keys.toml",
        "[[key]]\nname = \"ci\"\nkey_env = \"CI_KEY\"\n",
    );
    let mut command: Command = sandbox.command("serve -p 0 --demo -H 0.0.0.0 --config keys.toml");
    let server = sandbox.serve_with(command.env("CI_KEY", "sk-0123456789abcdef"));
    assert_eq!(server.post(CHAT, ask).status(), 401);
}
