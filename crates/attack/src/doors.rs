//! Items 14e, 14f, 14g and 14j of docs/attacks.md: host names, web pages, users and proxies that a server on
//! loopback must not trust.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testkit::{FakeLlm, Http2, Request, is_reached};

use crate::{Attack, Outcome, Target, Verdict, listed, verdict};

/// Host names that any machine of the network can claim, and addresses of other machines.
const STRANGE_HOSTS: &[&str] = &[
    "router",
    "printer.local",
    "nas.local:8080",
    "evil.internal",
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
];
const STRANGE_ORIGINS: &[&str] = &[
    "http://192.168.1.77",
    "http://10.0.0.7:3000",
    "http://172.16.0.1",
    "http://169.254.1.1",
    "http://[fd00::1]",
    "http://router",
    "http://printer.local",
    "https://evil.example",
];

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::fast(
            "14e-strange-hosts",
            "a page reaches the server by a name without a dot or in .local (DNS rebinding)",
            |target| foreign_names(target, "host", STRANGE_HOSTS),
        ),
        Attack::fast(
            "14e-strange-origins",
            "pages of other machines of the network may use the server",
            |target| foreign_names(target, "origin", STRANGE_ORIGINS),
        ),
        Attack::fast(
            "14e-own-names-accepted",
            "localhost, addresses and the machine's own name are rejected",
            own_names,
        ),
        Attack::fast(
            "14f-authority-differs-from-host",
            ":authority and Host may name different servers",
            two_names,
        ),
        Attack::fast(
            "14g-port-of-another-user",
            "discovery uses the LLM server of another user of the machine",
            port_of_another_user,
        ),
        Attack::fast(
            "14j-status-through-proxy",
            "clients of a reverse proxy on the same machine can read /status",
            status_through_proxy,
        ),
    ]
}

/// Sends one request for each value of a header field, `Host` or `Origin`. llmlb must reject all of
/// them: each value names another host, so a web page of another machine could have sent the
/// request.
fn foreign_names(target: &Target, field: &str, values: &[&str]) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut trusted = Vec::new();
    for value in values {
        let response = server.send(&Request::chat("m", "hello").field(field, value))?;
        if response.status() == 200 {
            trusted.push(*value);
        }
    }
    let evidence = if trusted.is_empty() {
        format!("all {} rejected", values.len())
    } else {
        format!("trusted: {}", listed(&trusted))
    };
    verdict(trusted.is_empty(), evidence)
}

fn own_names(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let uname = rustix::system::uname();
    let machine = uname.nodename().to_string_lossy().into_owned();
    let port = server.address.port();
    let hosts = [
        "localhost".to_owned(),
        format!("127.0.0.1:{port}"),
        "[::1]".to_owned(),
        "192.168.7.9".to_owned(),
        machine,
    ];
    let mut rejected = Vec::new();
    for host in &hosts {
        let request = Request::chat("m", "hello").field("host", host);
        if server.send(&request)?.status() != 200 {
            rejected.push(host.as_str());
        }
    }
    for origin in [
        "http://localhost:3000",
        "http://127.0.0.1",
        "http://[::1]:1",
    ] {
        let request = Request::chat("m", "hello").field("origin", origin);
        if server.send(&request)?.status() != 200 {
            rejected.push(origin);
        }
    }
    let evidence = if rejected.is_empty() {
        "all accepted".to_owned()
    } else {
        format!("rejected: {}", listed(&rejected))
    };
    verdict(rejected.is_empty(), evidence)
}

/// Sends requests that contain two different host names. llmlb must reject all of them.
fn two_names(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut accepted = Vec::new();
    for (authority, host) in [
        ("localhost", "evil.example"),
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "evil.example"),
    ] {
        let mut client = Http2::connect(server.address)?;
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", authority),
            (":path", "/healthz"),
            ("host", host),
        ];
        let stream = client.open(&fields, true)?;
        is_reached(testkit::DEADLINE, || {
            client.end(stream).is_some() || client.is_closed()
        });
        if client.status(stream) == Some(200) {
            accepted.push(format!(":authority {authority}, Host {host}"));
        }
    }
    let absolute = Request::get("http://localhost/healthz").field("host", "evil.example");
    if server.send(&absolute)?.status() == 200 {
        accepted.push("target http://localhost, Host evil.example".to_owned());
    }
    let evidence = if accepted.is_empty() {
        "all rejected".to_owned()
    } else {
        format!("accepted: {}", accepted.join("; "))
    };
    verdict(accepted.is_empty(), evidence)
}

/// Requests `/status` with header fields that a reverse proxy adds. llmlb must reject these requests,
/// and respond to a request without such fields.
fn status_through_proxy(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let direct = server.send(&Request::get("/status"))?.status();
    let mut shown = Vec::new();
    let fields = [
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "llm.example.com"),
        ("forwarded", "for=203.0.113.9"),
        ("via", "1.1 nginx"),
    ];
    for (name, value) in fields {
        let request = Request::get("/status").field(name, value);
        if server.send(&request)?.status() == 200 {
            shown.push(name);
        }
    }
    let evidence = if shown.is_empty() {
        format!(
            "rejected with each of {} fields; direct: {direct}",
            fields.len()
        )
    } else {
        format!("shown with {}", listed(&shown))
    };
    verdict(shown.is_empty() && direct == 200, evidence)
}

/// Id of the user that runs llmlb. The user has no account.
const OPERATOR: u32 = 54_001;
/// Id of another user, whose LLM server llmlb must not use. The user has no account.
const STRANGER: u32 = 54_002;
/// Port of the other user's LLM server: Ollama's port, on which llmlb discovers servers.
const STRANGE_PORT: u16 = 11_434;
/// Port of the operator's own LLM server: vLLM's port, on which llmlb discovers servers.
const OWN_PORT: u16 = 8000;

/// Runs an LLM server of another user on a port that llmlb probes. llmlb holds if its discovery
/// does not use this server. The attack uses a network namespace, since the default ports may be in
/// use.
fn port_of_another_user(target: &Target) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        let reason = "needs root for other users and a network namespace";
        return Ok(Verdict::Skipped(reason.to_owned()));
    }
    if !target.is_isolated() {
        return target.run_isolated("14g-port-of-another-user");
    }
    let sandbox = target.sandbox()?;
    fs::set_permissions(sandbox.path("."), Permissions::from_mode(0o755))?;
    // Run copies of the programs: other users may not have access to the directory in which the
    // programs were built.
    let (llmlb, helper) = (sandbox.path("llmlb-copy"), sandbox.path("attack-copy"));
    testkit::copy_program(sandbox.llmlb(), &llmlb)?;
    testkit::copy_program(std::env::current_exe()?, &helper)?;
    for name in ["locks", "data", "work"] {
        fs::create_dir(sandbox.path(name))?;
        chown(sandbox.path(name), Some(OPERATOR), Some(OPERATOR))?;
    }
    let _stranger = UserServer::start(&helper, STRANGER, STRANGE_PORT, "strange")?;
    let _own = UserServer::start(&helper, OPERATOR, OWN_PORT, "own")?;
    let server = sandbox
        .server()
        .program(&llmlb)
        .in_directory(&sandbox.path("work"))
        .under(&[
            "setpriv",
            &format!("--reuid={OPERATOR}"),
            &format!("--regid={OPERATOR}"),
            "--clear-groups",
        ])
        .start()?;
    let serves = |model: &str| {
        let response = server.send(&Request::chat(model, "hello"));
        response.is_ok_and(|response| response.status() == 200)
    };
    let own = is_reached(Duration::from_secs(15), || serves("own"));
    let strange = serves("strange");
    let evidence = format!("other user's server used: {strange}, own server found: {own}");
    verdict(own && !strange, evidence)
}

/// Fake LLM server in a process of the given user: the operator, whose servers llmlb uses, or
/// another user, whose servers it must not use.
struct UserServer(Child);

impl UserServer {
    fn start(helper: &Path, user: u32, port: u16, model: &str) -> std::io::Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let child = Command::new(helper)
            .args(["--fake-llm", &address.to_string(), "--model", model])
            .current_dir("/")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .gid(user)
            .uid(user)
            .spawn()?;
        let server = Self(child);
        let listens = is_reached(testkit::DEADLINE, || {
            testkit::Http1::connect(address).is_ok()
        });
        if listens {
            return Ok(server);
        }
        Err(std::io::ErrorKind::TimedOut.into())
    }
}

impl Drop for UserServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
