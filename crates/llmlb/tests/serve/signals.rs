//! What signals do. (L4)

use std::net::TcpStream;

use rustix::process::{Pid, Signal, kill_process};

use crate::held::{Held, assert_complete, refuses};
use testkit::{Connection, Process, read_chunk, until};

fn signal(process: &Process, signal: Signal) {
    process.signal(signal).expect("it lives");
}

#[test]
fn either_signal_drains() {
    for one in [Signal::TERM, Signal::INT] {
        let place = testkit::sandbox!();
        let held = Held::new();
        let mut command = place.command(&format!("serve -p 0 --backend {}", held.mock.url()));
        // It ends because the streams do, not because the time is up.
        let server = place.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "24h"));
        let mut clients = held.clients(&server, 2);
        signal(&server.process, one);
        until("no more is accepted", || refuses(&server));
        // Longer than idle connections are given.
        std::thread::sleep(std::time::Duration::from_millis(600));
        held.finish();
        for client in &mut clients {
            assert_complete(client);
        }
        assert_eq!(server.process.finish().code, Some(0));
        assert_eq!(place.lock_files(), [""; 0]);
    }
}

#[test]
fn a_server_without_requests_ends_at_once() {
    let place = testkit::sandbox!();
    let mut command = place.command("serve --demo -p 0");
    // If it waited for its drain timeout, this test would not end.
    let server = place.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "24h"));
    let mut idle = Connection::open(server.address);
    idle.send_get("/healthz");
    assert_eq!(idle.answer().status(), 200);
    signal(&server.process, Signal::TERM);
    let ended = server.process.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(place.lock_files(), [""; 0]);
}

#[test]
fn a_connection_that_never_asked_for_anything_does_not_keep_it() {
    let place = testkit::sandbox!();
    let mut command = place.command("serve --demo -p 0");
    let server = place.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "24h"));
    let _silent = Connection::open(server.address);
    let mut half = Connection::open(server.address);
    half.send("GET /healthz HTTP/1.1\r\n");
    server.get("/healthz");
    signal(&server.process, Signal::TERM);
    assert_eq!(server.process.finish().code, Some(0));
    assert!(half.is_closed());
}

#[test]
fn a_second_signal_ends_at_once() {
    for (first, second) in [(Signal::INT, Signal::INT), (Signal::TERM, Signal::INT)] {
        let place = testkit::sandbox!();
        let held = Held::new();
        let mut command = place.command(&format!("serve -p 0 --backend {}", held.mock.url()));
        let server = place.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "24h"));
        let mut clients = held.clients(&server, 3);
        signal(&server.process, first);
        until("it drains", || {
            server
                .process
                .stderr()
                .contains("A second signal aborts them")
        });
        signal(&server.process, second);
        let ended = server.process.finish();
        assert_eq!(ended.code, Some(1), "streams were cut: {}", ended.stderr);
        assert!(
            ended
                .stderr
                .contains("second signal received: aborted 3 in-flight requests"),
            "{}",
            ended.stderr
        );
        assert_eq!(place.lock_files(), [""; 0]);
        for client in &mut clients {
            assert_eq!(read_chunk(&mut client.reader), None, "it is seen to be cut");
        }
    }
}

#[test]
fn streams_that_take_longer_than_the_drain_timeout_are_cut_and_said() {
    let place = testkit::sandbox!();
    let held = Held::new();
    let mut command = place.command(&format!("serve -p 0 --backend {}", held.mock.url()));
    let server = place.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "100ms"));
    let mut clients = held.clients(&server, 2);
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
    assert_eq!(place.lock_files(), [""; 0]);
    assert_eq!(read_chunk(&mut clients[0].reader), None);
}

#[test]
fn who_connected_before_the_stop_is_served() {
    let place = testkit::sandbox!();
    let held = Held::new();
    let mut command = place.command(&format!("serve -p 0 --backend {}", held.mock.url()));
    let server = place.serve_with(command.env("LLMLB_WORKERS", "1"));
    let _busy = held.clients(&server, 1);
    // The server does not run, so the kernel alone takes the connection and the request.
    signal(&server.process, Signal::STOP);
    let mut client = Connection::open(server.address);
    client.send_get("/healthz");
    signal(&server.process, Signal::TERM);
    signal(&server.process, Signal::CONT);
    let answer = client.answer();
    assert_eq!(answer.status(), 200);
    held.finish();
    assert_eq!(server.process.finish().code, Some(0));
}

#[test]
fn a_closed_terminal_does_not_end_it() {
    let place = testkit::sandbox!();
    let server = place.serve("--demo");
    signal(&server.process, Signal::HUP);
    until("it says so", || server.process.stderr().contains("SIGHUP"));
    assert_eq!(server.get("/healthz").status(), 200);
}

#[test]
fn a_signal_before_it_is_ready_ends_it_and_leaves_nothing() {
    let place = testkit::sandbox!();
    // A backend that accepts and says nothing: the start waits for it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let process = place.start(&mut place.command(&format!("serve -p 0 --backend {url}")));
    until("it has its lock", || place.lock_files().len() == 1);
    let _kept = silent.accept().unwrap();
    signal(&process, Signal::TERM);
    until("it ended", || !process.is_running());
    let ended = process.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(place.lock_files(), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn it_may_be_pid_1() {
    if !testkit::has_root("for a PID namespace").unwrap() {
        return;
    }
    let place = testkit::sandbox!();
    let serve = place.command("serve --demo -p 0");
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(serve.get_program());
    command.args(serve.get_args()).current_dir(place.path("."));
    command
        .env("LLMLB_LOCK_DIR", place.locks())
        .env("LLMLB_DATA_DIR", place.path("data"));
    let server = place.serve_with(&mut command);
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
    assert_eq!(place.lock_files(), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_service_manager_that_asks_is_told() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let place = testkit::sandbox!();
    let path = place.path("notify");
    let abstract_name = format!("llmlb-test-{}", std::process::id());
    let by_path = UnixDatagram::bind(&path).unwrap();
    let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
    let by_name = UnixDatagram::bind_addr(&address).unwrap();
    let names = [path.display().to_string(), format!("@{abstract_name}")];
    for (manager, name) in [by_path, by_name].iter().zip(names) {
        manager.set_read_timeout(Some(testkit::DEADLINE)).unwrap();
        let mut command = place.command("serve --demo -p 0");
        let server = place.serve_with(command.env("NOTIFY_SOCKET", name));
        let message = || {
            let mut buffer = [0; 1024];
            let length = manager.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        let ready = format!("READY=1\nSTATUS=serving on {}", server.address);
        assert_eq!(message(), ready);
        signal(&server.process, Signal::TERM);
        let stopping = "STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000\nSTATUS=draining, 0 in flight";
        assert_eq!(message(), stopping);
        assert_eq!(server.process.finish().code, Some(0));
    }
}

#[test]
fn a_lost_log_is_no_reason_to_end() {
    let place = testkit::sandbox!();
    let port = testkit::free_port();
    let mut child = place
        .command(&format!("serve --demo -v -p {port}"))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Its stderr is a pipe that nobody reads any more.
    drop(child.stderr.take());
    let address = ([127, 0, 0, 1], port).into();
    until("it serves", || TcpStream::connect(address).is_ok());
    for _ in 0..3 {
        assert_eq!(testkit::get(address, "/v1/models").status(), 200);
    }
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(place.lock_files(), [""; 0]);
}

#[test]
fn a_request_on_an_open_connection_is_served_although_the_server_ends() {
    let place = testkit::sandbox!();
    let server = place.serve("--demo");
    let mut clients: Vec<_> = (0..50).map(|_| Connection::open(server.address)).collect();
    for client in &mut clients {
        client.send_get("/v1/models");
        let answer = client.answer();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.head.header("connection"), None);
    }
    // The requests are sent before the clients can know.
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
fn a_log_that_nobody_reads_holds_nothing_up() {
    let place = testkit::sandbox!();
    let port = testkit::free_port();
    let mut child = place
        .command(&format!("serve --demo -v -p {port}"))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe stays open, and is soon full.
    let _unread = child.stderr.take();
    let address = ([127, 0, 0, 1], port).into();
    until("it serves", || TcpStream::connect(address).is_ok());
    let mut client = Connection::open(address);
    for _ in 0..6000 {
        client.send_get("/v1/models");
        assert_eq!(client.answer().status(), 200);
    }
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(place.lock_files(), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn it_takes_as_many_open_files_as_it_may() {
    let place = testkit::sandbox!();
    let serve = place.command("serve --demo -p 0");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -Sn 64; exec \"$0\" serve --demo -p 0"]);
    command
        .arg(serve.get_program())
        .current_dir(place.path("."));
    command
        .env("LLMLB_LOCK_DIR", place.locks())
        .env("LLMLB_DATA_DIR", place.path("data"));
    let server = place.serve_with(&mut command);
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
fn a_lack_of_open_files_is_not_the_backends_fault() {
    let place = testkit::sandbox!();
    let held = Held::new();
    let mut command = place.command(&format!("serve -p 0 --backend {}", held.mock.url()));
    let server = place.serve_with(command.env("LLMLB_WORKERS", "1"));
    // The server keeps a reserve of the limit that it was started with. This one is lowered later.
    let descriptors = format!("/proc/{}/fd", server.process.pid());
    let open = std::fs::read_dir(descriptors).unwrap().count() as u64;
    let limits = rustix::process::Rlimit {
        current: Some(open + 40),
        maximum: Some(open + 40),
    };
    let pid = Pid::from_raw(server.process.pid().cast_signed());
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limits).unwrap();
    // Each that is served needs two descriptors; there are not enough for all.
    let mut clients: Vec<_> = (0..50)
        .map(|_| {
            let mut client = Connection::open(server.address);
            client.send_post("/v1/chat/completions", r#"{"model":"m","stream":true}"#);
            client
        })
        .collect();
    until("some are refused", || {
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
    until("it serves again", || server.get("/readyz").status() == 200);
    assert_eq!(server.process.stderr().matches("cannot accept").count(), 1);
}
