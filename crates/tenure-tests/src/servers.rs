//! Real servers of lease stores on loopback: Redis, etcd, and moto's DynamoDB. Each has a temporary
//! directory of its own and is killed when its value is dropped.
//!
//! `start` returns `None` after [`skip`](crate::skip) if the program is not installed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Maximum time in which a server must become ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A `redis-server` with an append-only file that is synced at each write.
#[derive(Debug)]
pub struct RedisServer(Server);

impl RedisServer {
    /// Starts a server that loses no acknowledged write when it is killed.
    pub fn start() -> Option<Self> {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// Starts a server with these arguments. It has no persistence unless they state one.
    pub fn start_with(arguments: &[&str]) -> Option<Self> {
        let program = find("redis-server")?;
        let own = arguments.iter().map(ToString::to_string).collect();
        Some(Self(Server::start(
            program,
            move |port, dir| {
                let mut all: Vec<String> =
                    ["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]
                        .map(str::to_owned)
                        .into();
                all.extend(["--port".to_owned(), port.to_string()]);
                all.extend(["--dir".to_owned(), dir.display().to_string()]);
                all.extend::<Vec<String>>(own);
                all
            },
            is_redis_ready,
        )))
    }

    /// URL for `tenure::Store::connect`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// Sends one command and returns the beginning of the response in the protocol of Redis, such as
    /// `+OK` or `:1`.
    pub fn command(&self, words: &[&str]) -> String {
        redis_command(self.port(), words).expect("the server responds")
    }

    /// Kills the server with SIGKILL. Its files and its port stay as they are.
    pub fn kill9(&mut self) {
        self.0.kill();
    }

    /// Starts the killed server again, on the same port and with the same files.
    pub fn restart(&mut self) {
        self.0.restart();
    }

    /// Process id, for signals.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }
}

/// An `etcd` server, the only member of its cluster.
#[derive(Debug)]
pub struct EtcdServer(Server);

impl EtcdServer {
    /// Starts a server without passwords and TLS.
    pub fn start() -> Option<Self> {
        let program = find("etcd")?;
        Some(Self(Server::start(
            program,
            |port, dir| {
                let client = format!("http://127.0.0.1:{port}");
                // The system chooses the port for peers (port 0). No peer ever connects to the only
                // member of a cluster.
                let peer = "http://127.0.0.1:0";
                vec![
                    format!("--data-dir={}", dir.join("data").display()),
                    format!("--listen-client-urls={client}"),
                    format!("--advertise-client-urls={client}"),
                    format!("--listen-peer-urls={peer}"),
                    format!("--initial-advertise-peer-urls={peer}"),
                    format!("--initial-cluster=default={peer}"),
                ]
            },
            |port| http_get(port, "/health").is_some_and(|text| text.contains("true")),
        )))
    }

    /// URL for `tenure::Store::connect`.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port())
    }

    /// Port for clients on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// Runs `etcdctl` and returns its output. Panics if it fails.
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=http://127.0.0.1:{}", self.port()))
            .args(arguments)
            .output()
            .expect("etcdctl is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl: {text}{errors}");
        text
    }

    /// Kills the server with SIGKILL. Its files and its port stay as they are.
    pub fn kill9(&mut self) {
        self.0.kill();
    }

    /// Starts the killed server again, on the same port and with the same files.
    pub fn restart(&mut self) {
        self.0.restart();
    }

    /// Process id, for signals.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }
}

/// DynamoDB as moto implements it, with all requests processed one after another. It keeps its data
/// in memory: a restart forgets all tables.
#[derive(Debug)]
pub struct DynamoDbServer(Server);

impl DynamoDbServer {
    /// Name of the table that [`url`](Self::url) names.
    pub const TABLE: &str = "tenure";

    /// Starts a server and creates the table [`TABLE`](Self::TABLE).
    pub fn start() -> Option<Self> {
        let server = Self::start_without_table()?;
        server.create_table(Self::TABLE);
        Some(server)
    }

    /// Starts a server that has no table.
    pub fn start_without_table() -> Option<Self> {
        let program = test_python()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("dynamodb-server.py");
        Some(Self(Server::start(
            program,
            move |port, _| {
                ["-W", "ignore", &script.to_string_lossy(), &port.to_string()]
                    .map(str::to_owned)
                    .into()
            },
            |port| http_get(port, "/").is_some(),
        )))
    }

    /// URL for `tenure::Store::connect`, with credentials that moto accepts.
    pub fn url(&self) -> String {
        format!(
            "dynamodb://test:test@{}?region=us-east-1&endpoint={}",
            Self::TABLE,
            self.endpoint()
        )
    }

    /// Address for the option `endpoint` of a URL.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// Creates a table with the key that tenure needs.
    pub fn create_table(&self, table: &str) {
        let created = self.request(
            "CreateTable",
            &json!({
                "TableName": table,
                "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
                "BillingMode": "PAY_PER_REQUEST",
            }),
        );
        assert!(created.get("TableDescription").is_some(), "{created}");
    }

    /// Sends a request, such as `GetItem`, and returns the response.
    pub fn request(&self, operation: &str, body: &Value) -> Value {
        let body = body.to_string();
        let head = format!(
            "POST / HTTP/1.0\r\nHost: localhost\r\nX-Amz-Target: DynamoDB_20120810.{operation}\r\n\
             Content-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\
             Authorization: AWS4-HMAC-SHA256 \
             Credential=test/20200101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, \
             Signature=0\r\n\r\n",
            body.len()
        );
        let response = exchange(self.port(), &(head + &body)).expect("the server responds");
        let (_, body) = response.split_once("\r\n\r\n").expect("a response");
        serde_json::from_str(body).expect("a JSON response")
    }

    /// Kills the server with SIGKILL. All of its data is lost.
    pub fn kill9(&mut self) {
        self.0.kill();
    }

    /// Starts the killed server again on the same port, with an empty table [`TABLE`](Self::TABLE).
    pub fn restart(&mut self) {
        self.0.restart();
        self.create_table(Self::TABLE);
    }

    /// Process id, for signals.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }
}

/// A server process, killed when dropped.
#[derive(Debug)]
struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    port: u16,
    child: Child,
    dir: tempfile::TempDir,
    is_ready: fn(u16) -> bool,
}

impl Server {
    fn start(
        program: PathBuf,
        arguments: impl FnOnce(u16, &Path) -> Vec<String>,
        is_ready: fn(u16) -> bool,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let port = free_port();
        let arguments = arguments(port, dir.path());
        let child = spawn(&program, &arguments, dir.path());
        let mut server = Self {
            program,
            arguments,
            port,
            child,
            dir,
            is_ready,
        };
        server.wait_until_ready();
        server
    }

    fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.program, &self.arguments, self.dir.path());
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START_TIMEOUT;
        while !(self.is_ready)(self.port) {
            let exited = self.child.try_wait().is_ok_and(|status| status.is_some());
            assert!(
                !exited && Instant::now() < deadline,
                "{} on port {} is not ready: {}",
                self.program.display(),
                self.port,
                fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(program: &Path, arguments: &[String], dir: &Path) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .expect("a log file");
    Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second descriptor"))
        .stderr(log)
        .spawn()
        .expect("the server starts")
}

/// Returns a free port below the range from which the kernel assigns local ports. If the port were
/// in that range, a client that connects while the server is down could be assigned the same port,
/// be connected to itself, and keep the restarted server from listening.
fn free_port() -> u16 {
    use std::hash::BuildHasher;
    loop {
        let random = std::hash::RandomState::new().hash_one(std::process::id());
        let port = 20_000 + u16::try_from(random % 12_000).unwrap_or(0);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Returns the path of an installed program, or reports that the test is skipped.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file());
    if found.is_none() {
        crate::skip(&format!(
            "{program} is not installed; run scripts/install-test-tools"
        ));
    }
    found
}

/// Returns the Python that `scripts/install-test-tools` set up, or reports that the test is skipped.
fn test_python() -> Option<PathBuf> {
    // The Python environment is in target/test-python, and test programs are below target too, for
    // example in target/debug/deps. A search through the ancestors of this program finds it.
    let program = std::env::current_exe().expect("the path of this program");
    let found = program
        .ancestors()
        .map(|dir| dir.join("test-python/bin/python"))
        .find(|path| path.is_file());
    if found.is_none() {
        crate::skip("target/test-python is missing; run scripts/install-test-tools");
    }
    found
}

fn is_redis_ready(port: u16) -> bool {
    // A server that still loads its data from disk responds with -LOADING and is not ready. A
    // server that requires a password responds with -NOAUTH and is ready.
    redis_command(port, &["PING"])
        .is_some_and(|reply| reply.starts_with("+PONG") || reply.starts_with("-NOAUTH"))
}

fn redis_command(port: u16, words: &[&str]) -> Option<String> {
    use std::fmt::Write;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        write!(request, "${}\r\n{word}\r\n", word.len()).ok()?;
    }
    let mut stream = connect(port)?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut reply = [0; 4096];
    let length = stream.read(&mut reply).ok()?;
    Some(String::from_utf8_lossy(&reply[..length]).into_owned())
}

fn http_get(port: u16, path: &str) -> Option<String> {
    exchange(
        port,
        &format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"),
    )
    .filter(|response| response.starts_with("HTTP/"))
}

fn exchange(port: u16, request: &str) -> Option<String> {
    let mut stream = connect(port)?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).ok()?;
    Some(String::from_utf8_lossy(&response).into_owned())
}

fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    Some(stream)
}
