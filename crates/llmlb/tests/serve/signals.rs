//! Effects of signals on a server. (promise L4)

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::open_streams::{OpenStreams, assert_complete, refuses_connections};
use testkit::{Connection, Process, Sandbox, read_chunk, until};

fn signal(process: &Process, signal: Signal) {
    process.signal(signal).expect("the process runs");
}

#[test]
fn sigterm_and_sigint_drain() {
    for drain_signal in [Signal::TERM, Signal::INT] {
        let sandbox = testkit::sandbox!();
        let streams = OpenStreams::new();
        let mut command = sandbox.command(&format!("serve -p 0 --backend {}", streams.mock.url()));
        // The drain timeout is so long that the server can only end because its streams have ended.
        let server = sandbox.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "24h"));
        let mut clients = streams.clients(&server, 2);
        signal(&server.process, drain_signal);
        until("connections are refused", || refuses_connections(&server));
        // The wait is longer than the grace period after which a draining server closes idle connections.
        // Connections with open streams must survive it.
        std::thread::sleep(std::time::Duration::from_millis(600));
        streams.finish();
        for client in &mut clients {
            assert_complete(client);
        }
        assert_eq!(server.process.finish().code, Some(0));
        assert_eq!(sandbox.lock_files(), [""; 0]);
    }
}

#[test]
fn server_without_requests_ends_at_once_on_a_signal() {
    let sandbox = testkit::sandbox!();
    let mut command = sandbox.command("serve --demo -p 0");
    // The drain timeout is so long that the test would time out if the server waited for it without
    // having requests.
    let server = sandbox.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "24h"));
    let mut idle = Connection::open(server.address);
    idle.send_get("/healthz");
    assert_eq!(idle.answer().status(), 200);
    signal(&server.process, Signal::TERM);
    let ended = server.process.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(sandbox.lock_files(), [""; 0]);
}

#[test]
fn connection_without_a_request_does_not_delay_the_end() {
    let sandbox = testkit::sandbox!();
    let mut command = sandbox.command("serve --demo -p 0");
    let server = sandbox.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "24h"));
    let _silent = Connection::open(server.address);
    let mut half = Connection::open(server.address);
    half.send("GET /healthz HTTP/1.1\r\n");
    server.get("/healthz");
    signal(&server.process, Signal::TERM);
    assert_eq!(server.process.finish().code, Some(0));
    assert!(half.is_closed());
}

#[test]
fn second_signal_aborts_requests_and_ends_the_server() {
    for (first, second) in [(Signal::INT, Signal::INT), (Signal::TERM, Signal::INT)] {
        let sandbox = testkit::sandbox!();
        let streams = OpenStreams::new();
        let mut command = sandbox.command(&format!("serve -p 0 --backend {}", streams.mock.url()));
        let server = sandbox.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "24h"));
        let mut clients = streams.clients(&server, 3);
        signal(&server.process, first);
        until("the server drains", || {
            server
                .process
                .stderr()
                .contains("A second signal aborts them")
        });
        signal(&server.process, second);
        let ended = server.process.finish();
        assert_eq!(
            ended.code,
            Some(1),
            "streams were aborted: {}",
            ended.stderr
        );
        assert!(
            ended
                .stderr
                .contains("second signal received: aborted 3 in-flight requests"),
            "{}",
            ended.stderr
        );
        assert_eq!(sandbox.lock_files(), [""; 0]);
        for client in &mut clients {
            assert_eq!(
                read_chunk(&mut client.reader),
                None,
                "the client sees an incomplete response"
            );
        }
    }
}

#[test]
fn streams_longer_than_the_drain_timeout_are_aborted_and_logged() {
    let sandbox = testkit::sandbox!();
    let streams = OpenStreams::new();
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", streams.mock.url()));
    let server = sandbox.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "100ms"));
    let mut clients = streams.clients(&server, 2);
    signal(&server.process, Signal::TERM);
    let ended = server.process.finish();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("server.drain_timeout expired: aborted 2 in-flight requests"),
        "{}",
        ended.stderr
    );
    assert_eq!(sandbox.lock_files(), [""; 0]);
    assert_eq!(read_chunk(&mut clients[0].reader), None);
}

#[test]
fn client_that_connected_before_the_signal_is_served() {
    let sandbox = testkit::sandbox!();
    let streams = OpenStreams::new();
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", streams.mock.url()));
    let server = sandbox.serve_with(command.env("LLMLB_WORKERS", "1"));
    let _busy = streams.clients(&server, 1);
    // SIGSTOP suspends the server, so that only the kernel accepts the connection and the request.
    // The server finds them together with SIGTERM when it continues.
    signal(&server.process, Signal::STOP);
    let mut client = Connection::open(server.address);
    client.send_get("/healthz");
    signal(&server.process, Signal::TERM);
    signal(&server.process, Signal::CONT);
    let answer = client.answer();
    assert_eq!(answer.status(), 200);
    streams.finish();
    assert_eq!(server.process.finish().code, Some(0));
}

/// A demo reads no configuration file, so SIGHUP has nothing to reload and must be ignored. Servers
/// with a file are tested in `tests/reload/`.
#[cfg(target_os = "linux")]
#[test]
fn sighup_does_not_end_a_server_without_a_terminal() {
    let sandbox = testkit::sandbox!();
    let llmlb = sandbox.llmlb().to_owned();
    let words = [llmlb.to_str().unwrap(), "serve", "--demo", "-p", "0"];
    let server = sandbox.serve_with(&mut sandbox.command_of("setsid", &words));
    signal(&server.process, Signal::HUP);
    server
        .process
        .until_output("configuration reloaded from defaults: no changes");
    assert_eq!(server.get("/healthz").status(), 200);
}

#[test]
fn signal_during_the_start_ends_the_server_and_leaves_no_lock_file() {
    let sandbox = testkit::sandbox!();
    // This backend accepts connections and never responds, so the start of the server lasts until
    // its probe times out.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let process = sandbox.start(&mut sandbox.command(&format!("serve -p 0 --backend {url}")));
    until("the server has its lock", || {
        sandbox.lock_files().len() == 1
    });
    let _probe = silent.accept().unwrap();
    signal(&process, Signal::TERM);
    let ended = process.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(sandbox.lock_files(), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn server_drains_on_a_signal_as_pid_1() {
    if !testkit::has_root("for a PID namespace").unwrap() {
        return;
    }
    let sandbox = testkit::sandbox!();
    let serve = sandbox.command("serve --demo -p 0");
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(serve.get_program());
    command
        .args(serve.get_args())
        .current_dir(sandbox.path("."));
    command
        .env("LLMLB_LOCK_DIR", sandbox.locks())
        .env("LLMLB_DATA_DIR", sandbox.path("data"));
    let server = sandbox.serve_with(&mut command);
    assert!(
        server.process.stderr().contains("(PID 1)"),
        "{}",
        server.process.stderr()
    );
    let wrapper = server.process.pid();
    let children = format!("/proc/{wrapper}/task/{wrapper}/children");
    let children = std::fs::read_to_string(children).unwrap();
    let pid = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(server.process.finish().code, Some(0));
    assert_eq!(sandbox.lock_files(), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn service_manager_is_notified_of_start_and_drain() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let sandbox = testkit::sandbox!();
    let path = sandbox.path("notify");
    let abstract_name = format!("llmlb-test-{}", std::process::id());
    let by_path = UnixDatagram::bind(&path).unwrap();
    let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
    let by_name = UnixDatagram::bind_addr(&address).unwrap();
    let names = [path.display().to_string(), format!("@{abstract_name}")];
    for (manager, name) in [by_path, by_name].iter().zip(names) {
        manager.set_read_timeout(Some(testkit::DEADLINE)).unwrap();
        let mut command = sandbox.command("serve --demo -p 0");
        let server = sandbox.serve_with(command.env("NOTIFY_SOCKET", name));
        let message = || {
            let mut buffer = [0; 1024];
            let length = manager.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        let ready = format!("READY=1\nSTATUS=serving on http://{}", server.address);
        assert_eq!(message(), ready);
        signal(&server.process, Signal::TERM);
        let stopping = "STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000\nSTATUS=draining, 0 in flight";
        assert_eq!(message(), stopping);
        assert_eq!(server.process.finish().code, Some(0));
    }
}

/// Starts a demo server whose log goes to a pipe, and returns its address.
fn serve_with_piped_stderr(sandbox: &Sandbox) -> (Child, SocketAddr) {
    let port = testkit::free_port();
    let child = sandbox
        .command(&format!("serve --demo -v -p {port}"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, ([127, 0, 0, 1], port).into())
}

fn assert_drains(mut server: Child, sandbox: &Sandbox) {
    let pid = Pid::from_raw(server.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert_eq!(sandbox.lock_files(), [""; 0]);
}

#[test]
fn closed_stderr_does_not_end_the_server() {
    let sandbox = testkit::sandbox!();
    let (mut child, address) = serve_with_piped_stderr(&sandbox);
    // Close the read end of the server's stderr, as when the program that reads its log ends.
    // Writing to the log fails from now on.
    drop(child.stderr.take());
    until("the server accepts connections", || {
        TcpStream::connect(address).is_ok()
    });
    for _ in 0..3 {
        assert_eq!(testkit::get(address, "/v1/models").status(), 200);
    }
    assert_drains(child, &sandbox);
}

#[test]
fn request_on_an_open_connection_is_served_during_the_drain() {
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve("--demo");
    let mut clients: Vec<_> = (0..50).map(|_| Connection::open(server.address)).collect();
    for client in &mut clients {
        client.send_get("/v1/models");
        let answer = client.answer();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.head.header("connection"), None);
    }
    // The server is suspended while the clients send their requests and it gets SIGTERM. It must
    // serve these requests: the clients could not know of the drain.
    signal(&server.process, Signal::STOP);
    for client in &mut clients {
        client.send_get("/v1/models");
    }
    signal(&server.process, Signal::TERM);
    signal(&server.process, Signal::CONT);
    for client in &mut clients {
        assert_eq!(client.answer().status(), 200);
        assert!(client.is_closed());
    }
    assert_eq!(server.process.finish().code, Some(0));
}

#[test]
fn blocked_stderr_does_not_delay_requests_or_the_end() {
    let sandbox = testkit::sandbox!();
    let (mut child, address) = serve_with_piped_stderr(&sandbox);
    // The test never reads the server's stderr. The pipe is soon full and blocks writers, which
    // must not block requests.
    let _unread = child.stderr.take();
    until("the server accepts connections", || {
        TcpStream::connect(address).is_ok()
    });
    let mut client = Connection::open(address);
    for _ in 0..6000 {
        client.send_get("/v1/models");
        assert_eq!(client.answer().status(), 200);
    }
    assert_drains(child, &sandbox);
}

#[cfg(target_os = "linux")]
#[test]
fn server_raises_its_descriptor_limit_to_the_maximum() {
    let sandbox = testkit::sandbox!();
    let serve = sandbox.command("serve --demo -p 0");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -Sn 64; exec \"$0\" serve --demo -p 0"]);
    command
        .arg(serve.get_program())
        .current_dir(sandbox.path("."));
    command
        .env("LLMLB_LOCK_DIR", sandbox.locks())
        .env("LLMLB_DATA_DIR", sandbox.path("data"));
    let server = sandbox.serve_with(&mut command);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.process.pid())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let columns: Vec<_> = files.split_whitespace().collect();
    assert_eq!(columns[3], columns[4], "{files}");
}

#[cfg(target_os = "linux")]
#[test]
fn descriptor_shortage_does_not_mark_a_backend_down() {
    let sandbox = testkit::sandbox!();
    let streams = OpenStreams::new();
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", streams.mock.url()));
    let server = sandbox.serve_with(command.env("LLMLB_WORKERS", "1"));
    // The test lowers the descriptor limit of the running server. A limit that the server found at
    // its start would cause no shortage, because the server adapts its reserve and its connection
    // limits to that limit.
    let descriptors = format!("/proc/{}/fd", server.process.pid());
    let open = std::fs::read_dir(descriptors).unwrap().count() as u64;
    let limits = rustix::process::Rlimit {
        current: Some(open + 40),
        maximum: Some(open + 40),
    };
    let pid = Pid::from_raw(server.process.pid().cast_signed());
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limits).unwrap();
    // Each request needs two descriptors, one for the client and one for the backend, so there are
    // not enough for all clients.
    let mut clients: Vec<_> = (0..50)
        .map(|_| {
            let mut client = Connection::open(server.address);
            client.send_post("/v1/chat/completions", r#"{"model":"m","stream":true}"#);
            client
        })
        .collect();
    until("connections cannot be accepted", || {
        server
            .process
            .stderr()
            .contains("cannot accept connections")
    });
    assert!(
        !server.process.stderr().contains("is down"),
        "{}",
        server.process.stderr()
    );
    clients.clear();
    until("the server is ready again", || {
        server.get("/readyz").status() == 200
    });
    assert_eq!(server.process.stderr().matches("cannot accept").count(), 1);
}
