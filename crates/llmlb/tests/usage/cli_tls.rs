//! Certificates of receivers are verified against the certificates that the system trusts. (promise S6)
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};

use crate::support::UsageSandbox;
use testkit::{Finished, eventually};

const SERVER: &str = r#"
import http.server, ssl, sys
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print("port", server.server_port, flush=True)
server.serve_forever()
"#;

const CERTIFICATE: &str = "\
[req]
distinguished_name = name
x509_extensions = more
prompt = no
[name]
CN = localhost
[more]
subjectAltName = DNS:localhost
basicConstraints = CA:FALSE
";

/// Returns the paths of a certificate for localhost and its key; `None` if openssl is missing.
fn certificate(sandbox: &UsageSandbox, name: &str) -> Option<(String, String)> {
    let config = sandbox.file("openssl.cnf", CERTIFICATE);
    let cert = sandbox.file(&format!("{name}.pem"), "");
    let key = sandbox.file(&format!("{name}.key"), "");
    let output = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
        .arg("-config")
        .arg(config)
        .arg("-out")
        .arg(&cert)
        .arg("-keyout")
        .arg(&key)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    assert!(output.status.success(), "{output:?}");
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    Some((text(cert), text(key)))
}

#[test]
fn records_are_sent_only_to_a_receiver_with_a_trusted_certificate() {
    let sandbox = UsageSandbox::new();
    let pair = certificate(&sandbox, "right").zip(certificate(&sandbox, "other"));
    let Some(((cert, key), (other, _))) = pair else {
        return testkit::skip("openssl").unwrap();
    };
    let mut server = Command::new("python3");
    server.args(["-c", SERVER, &cert, &key]);
    let server = sandbox.start(&mut server);
    let port = eventually("the server prints its port", || {
        let output = server.output();
        let port = output.lines().find_map(|line| line.strip_prefix("port "))?;
        output.contains('\n').then(|| port.to_owned())
    });
    sandbox.stage(1);
    let deliver = |trusted: &str, host: &str| {
        let url = format!("https://{host}:{port}/usage");
        let words = ["deliver", "--now", "--to", &url, "--max-wait", "1ms"];
        let mut command = sandbox.command(&words);
        command.arg("--change-destination");
        command
            .env("LLMLB_USAGE_TOKEN", "s3cret")
            .env("SSL_CERT_FILE", trusted)
            .env_remove("SSL_CERT_DIR");
        Finished::run(&mut command)
    };
    let ran = deliver(&other, "localhost");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("certificate"), "{ran:?}");
    // The system trusts the certificate, but its name is `localhost` and the URL has 127.0.0.1. The
    // name must be checked too.
    let ran = deliver(&cert, "127.0.0.1");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("certificate"), "{ran:?}");
    // TLS failed before any byte of the batch was sent, so the receiver cannot have it and the
    // outcome is known.
    let document = sandbox.usage(&["pending", "--json"]).json();
    assert_eq!(
        document["batches"][0]["outcome_unknown"], false,
        "{document}"
    );

    let ran = deliver(&cert, "localhost");
    assert_eq!(ran.code, Some(0), "{ran:?} {}", server.output());
    assert_eq!(sandbox.books()["delivered"], 1);
}
