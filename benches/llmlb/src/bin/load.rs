//! A load generator: one thread, many connections, every answer checked.
//!
//!   load --to 127.0.0.1:8080 --model burst [--stream 1] [--prompt BYTES] [--connections N]
//!        [--count N] [--warm N]       closed loop: each connection asks again once it is answered
//!        [--rate PER_SECOND]          open loop: requests start on time, whatever became of others
//!        [--ramp SECONDS]             the first requests start spread over this time
//!        [--watch PID]                whose CPU time and memory to read, with its children
//!        [--timeout SECONDS]
//!
//! Prints one line of JSON; what was wrong goes to stderr.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use llmlb_bench::answer::{self, Model, Template};
use llmlb_bench::poll::{self, Poll};
use llmlb_bench::response::Response;
use llmlb_bench::{number, option, watch};

const ROOM: usize = 64 << 10;
/// How long before a start the clock is watched without pause: timers are late.
const SPIN: Duration = Duration::from_micros(200);
const SAMPLE: Duration = Duration::from_millis(500);
const ERRORS_TOLD: usize = 5;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]
fn main() -> io::Result<()> {
    poll::prepare()?;
    let count = |name, usual| number(name, usual) as usize;
    let name = option("--model").unwrap_or_else(|| "burst".into());
    let model = Model::ALL.into_iter().find(|model| model.name() == name);
    let mut load = Load::new(
        option("--to")
            .and_then(|to| to.parse().ok())
            .expect("--to ADDRESS"),
        model.expect("a model of the mock"),
        option("--stream").is_some(),
        count("--prompt", 1024.0),
        count("--connections", 64.0),
    )?;
    let rate = option("--rate").map(|_| number("--rate", 1.0));
    let ramp = Duration::from_secs_f64(number("--ramp", 0.0));
    let timeout = Duration::from_secs_f64(number("--timeout", 120.0));
    let watched = option("--watch").map_or_else(Vec::new, |pid| {
        watch::tree(pid.parse().expect("a process id"))
    });

    load.run(
        &Plan {
            count: count("--warm", 128.0),
            rate: None,
            ramp: Duration::ZERO,
            timeout,
        },
        &[],
    )?;
    let plan = Plan {
        count: count("--count", 10_000.0),
        rate,
        ramp,
        timeout,
    };
    let (cpu, rss) = (watch::cpu(&watched), watch::rss(&watched));
    let began = Instant::now();
    let mut seen = load.run(&plan, &watched)?;
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{{\"requests\":{},\"errors\":{},\"seconds\":{seconds},\"cpu\":{},\"bytes\":{},\
         \"together\":{},\"p50\":{},\"p99\":{},\"event_p50\":{},\"event_p99\":{},\
         \"token_p50\":{},\"token_p99\":{},\
         \"rss_before\":{rss},\"rss_peak\":{},\"rss_after\":{}}}",
        seen.whole.len(),
        seen.errors,
        watch::cpu(&watched) - cpu,
        seen.bytes,
        seen.together,
        percentile(&mut seen.whole, 50),
        percentile(&mut seen.whole, 99),
        percentile(&mut seen.event, 50),
        percentile(&mut seen.event, 99),
        percentile(&mut seen.token, 50),
        percentile(&mut seen.token, 99),
        seen.rss_peak,
        watch::rss(&watched),
    );
    Ok(())
}

/// Milliseconds.
fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    if times.is_empty() {
        return 0.0;
    }
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e3
}

/// How many requests start when.
struct Plan {
    count: usize,
    /// Requests in a second; if none, each connection asks again once it is answered.
    rate: Option<f64>,
    ramp: Duration,
    timeout: Duration,
}

impl Plan {
    /// When request `n` starts, counted from the beginning.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn start(&self, n: usize, connections: usize) -> Duration {
        match self.rate {
            Some(rate) => Duration::from_secs_f64(n as f64 / rate),
            None => self
                .ramp
                .mul_f64(n.min(connections) as f64 / connections as f64),
        }
    }
}

/// What was seen of a run.
#[derive(Default)]
struct Seen {
    errors: usize,
    bytes: usize,
    /// The most requests under way at a time.
    together: usize,
    /// From the start of each request to its end, its first event, its first token.
    whole: Vec<Duration>,
    event: Vec<Duration>,
    token: Vec<Duration>,
    rss_peak: u64,
}

struct Load {
    to: SocketAddr,
    poll: Poll,
    stream: bool,
    /// The request; a prompt of its own is put into it at `prompt_at`.
    request: Vec<u8>,
    prompt_at: usize,
    /// The answer, and where its first event and first token end.
    answer: Template,
    event_at: usize,
    token_at: usize,
    connections: Vec<Connection>,
    count: u64,
}

#[derive(Default)]
struct Connection {
    socket: Option<TcpStream>,
    request: Vec<u8>,
    sent: usize,
    /// It waits for room to send.
    blocked: bool,
    response: Response,
    start: Option<Instant>,
    event: Option<Instant>,
    token: Option<Instant>,
}

impl Load {
    fn new(
        to: SocketAddr,
        model: Model,
        stream: bool,
        prompt: usize,
        connections: usize,
    ) -> io::Result<Self> {
        // In the order of the official clients: the model comes after the prompt.
        let mut body = b"{\"messages\":[{\"role\":\"user\",\"content\":\"".to_vec();
        let prompt_at = body.len();
        body.extend(
            b"A prompt which no other request has. "
                .iter()
                .cycle()
                .take(prompt),
        );
        write!(body, "\"}}],\"model\":\"{}\"", model.name())?;
        body.extend_from_slice(if stream { b",\"stream\":true}" } else { b"}" });
        let mut request = Vec::new();
        write!(
            request,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n\
             content-type: application/json\r\nuser-agent: bench\r\n\
             authorization: Bearer sk-0123456789abcdef0123456789abcdef\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        )?;
        let prompt_at = prompt_at + request.len();
        request.extend_from_slice(&body);
        let (answer, event_at, token_at) = if stream {
            answer::stream(model, false)
        } else {
            (answer::whole(model), usize::MAX, usize::MAX)
        };
        Ok(Self {
            to,
            poll: Poll::new()?,
            stream,
            request,
            prompt_at,
            answer,
            event_at,
            token_at,
            connections: (0..connections).map(|_| Connection::default()).collect(),
            // Another run has other prompts.
            count: u64::from(std::process::id()) << 32,
        })
    }

    fn run(&mut self, plan: &Plan, watched: &[u32]) -> io::Result<Seen> {
        let (mut seen, mut ready, mut room) = (Seen::default(), Vec::new(), vec![0; ROOM]);
        let mut idle: Vec<usize> = (0..self.connections.len()).rev().collect();
        let (mut started, mut ended) = (0, 0);
        let began = Instant::now();
        let mut sample = began;
        while ended < plan.count {
            let now = Instant::now();
            if now - began > plan.timeout {
                eprintln!("{} requests had no answer in time", plan.count - ended);
                seen.errors += plan.count - ended;
                break;
            }
            if now >= sample && !watched.is_empty() {
                seen.rss_peak = seen.rss_peak.max(watch::rss(watched));
                sample = now + SAMPLE;
            }
            let mut wait = Duration::from_millis(100);
            while started < plan.count && !idle.is_empty() {
                let now = Instant::now();
                let start = began + plan.start(started, self.connections.len());
                if start > now {
                    wait = wait.min((start - now).saturating_sub(SPIN));
                    break;
                }
                let number = idle.pop().expect("one is idle");
                started += 1;
                // Of an open loop, being late counts.
                let start = if plan.rate.is_some() { start } else { now };
                if let Err(error) = self.ask(number, start) {
                    self.fail(number, &error.to_string(), &mut seen);
                    ended += 1;
                    idle.push(number);
                }
            }
            seen.together = seen.together.max(self.connections.len() - idle.len());
            self.poll.wait(Some(wait), &mut ready)?;
            for &number in &ready {
                match self.progress(number, &mut room, &mut seen) {
                    Ok(false) => continue,
                    Ok(true) => {}
                    Err(error) => self.fail(number, &error, &mut seen),
                }
                ended += 1;
                idle.push(number);
            }
        }
        Ok(seen)
    }

    /// Sends the next request on a connection.
    fn ask(&mut self, number: usize, start: Instant) -> io::Result<()> {
        let connection = &mut self.connections[number];
        if connection.socket.is_none() {
            let socket = TcpStream::connect(self.to)?;
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            self.poll.add(&socket, number)?;
            connection.socket = Some(socket);
            connection.blocked = false;
        }
        if connection.request.is_empty() {
            connection.request.clone_from(&self.request);
        }
        self.count += 1;
        connection.request[self.prompt_at..self.prompt_at + 16]
            .copy_from_slice(&answer::id(self.count));
        connection.start = Some(start);
        (connection.event, connection.token) = (None, None);
        connection.response.clear();
        connection.sent = 0;
        connection.send(&self.poll, number)
    }

    /// Reads and writes what can be; true if the answer is complete and right.
    fn progress(
        &mut self,
        number: usize,
        room: &mut [u8],
        seen: &mut Seen,
    ) -> Result<bool, String> {
        let connection = &mut self.connections[number];
        let Some(socket) = &mut connection.socket else {
            return Ok(false);
        };
        let got = socket.read(room);
        let Some(start) = connection.start else {
            // A connection may end while it has nothing to do; the next request opens another.
            connection.socket = None;
            if matches!(got, Ok(1..)) {
                self.fail(number, "bytes that nobody asked for", seen);
            }
            return Ok(false);
        };
        let length = match got {
            Ok(0) => return Err("the connection ended".into()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let sent = connection.send(&self.poll, number);
                return sent.map(|()| false).map_err(|error| error.to_string());
            }
            Err(error) => return Err(error.to_string()),
        };
        seen.bytes += length;
        let response = &mut connection.response;
        response.raw.extend_from_slice(&room[..length]);
        let complete = response.advance()?;
        if self.stream {
            if connection.event.is_none() && response.body.len() >= self.event_at {
                connection.event = Some(Instant::now());
            }
            if connection.token.is_none() && response.body.len() >= self.token_at {
                connection.token = Some(Instant::now());
            }
        }
        if !complete {
            return Ok(false);
        }
        if response.status != 200 || !self.answer.matches(&response.body) {
            let body = String::from_utf8_lossy(&response.body);
            return Err(format!("a wrong answer: {} {body}", response.status));
        }
        if connection.sent < connection.request.len() {
            return Err("an answer before the end of the request".into());
        }
        seen.whole.push(start.elapsed());
        seen.event.extend(connection.event.map(|at| at - start));
        seen.token.extend(connection.token.map(|at| at - start));
        connection.start = None;
        if response.closes {
            connection.socket = None;
        }
        Ok(true)
    }

    /// Counts and tells an error; the connection is given up.
    fn fail(&mut self, number: usize, error: &str, seen: &mut Seen) {
        let connection = &mut self.connections[number];
        if seen.errors < ERRORS_TOLD {
            let got = connection.response.raw.len();
            eprintln!("error after {got} bytes: {error}");
        }
        seen.errors += 1;
        connection.socket = None;
        connection.start = None;
    }
}

impl Connection {
    /// Sends what is left of the request, as far as there is room.
    fn send(&mut self, poll: &Poll, number: usize) -> io::Result<()> {
        let Some(socket) = &mut self.socket else {
            return Ok(());
        };
        let mut blocked = false;
        while self.sent < self.request.len() && !blocked {
            match socket.write(&self.request[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => blocked = true,
                Err(error) => return Err(error),
            }
        }
        if blocked != self.blocked {
            self.blocked = blocked;
            poll.also_writable(&*socket, number, blocked)?;
        }
        Ok(())
    }
}
