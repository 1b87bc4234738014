//! Receiver of batches with faults. It runs in the test's process, so that its address and its state
//! outlive every deliverer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

use crate::billing::{Billing, Policy, Posted};
use crate::fault::{Commit, Fault, Mix};
use testkit::random::Random;
use testkit::{Received, Reply, ScriptedServer, Step};

/// Token that a deliverer must send.
pub(crate) const TOKEN: &str = "a-token-that-no-log-may-contain";

/// Delay that exceeds the timeout of every deliverer in these tests (one second).
const HANG: Duration = Duration::from_millis(1400);

/// Maximum time that a deliverer needs to store the pause requested by a response. A deliverer killed within
/// this time may not obey the pause after its restart.
const NOTING: Duration = Duration::from_millis(700);

pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _server: ScriptedServer,
}

struct Shared {
    state: Mutex<State>,
    busy: AtomicUsize,
}

pub(crate) struct State {
    pub(crate) policy: Policy,
    pub(crate) mix: Mix,
    /// True if only the ids of batches are read, for a test that measures the sender.
    pub(crate) is_brief: bool,
    pub(crate) billing: Billing,
    pub(crate) tally: Tally,
    random: Random,
    locked_until: Option<Instant>,
    last_pause: Option<Instant>,
    pause: Option<Pause>,
}

/// Counts of a receiver's requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    /// Number of requests without the token, or whose `Idempotency-Key` differs from the key in the
    /// body. The audit at the end of a test counts them as defects.
    pub(crate) unsigned: u64,
    /// Requests received before the end of a pause that the receiver had requested.
    pub(crate) early: u64,
    /// Number of pauses that the receiver requested with `Retry-After`.
    pub(crate) pauses: u64,
    /// Requests whose body is not a batch.
    pub(crate) unreadable: u64,
}

/// Pause that the receiver requested with `Retry-After`. A request before the end of the pause
/// counts as early.
#[derive(Clone, Copy, Debug)]
struct Pause {
    requested_at: Instant,
    until: Until,
}

#[derive(Clone, Copy, Debug)]
enum Until {
    Elapsed(Instant),
    Date(SystemTime),
}

impl Receiver {
    pub(crate) fn start(policy: Policy, mix: Mix) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                policy,
                mix,
                is_brief: false,
                billing: Billing::default(),
                tally: Tally::default(),
                random: Random::of_run(7),
                locked_until: None,
                last_pause: None,
                pause: None,
            }),
            busy: AtomicUsize::new(0),
        });
        let handler = Arc::clone(&shared);
        let server = ScriptedServer::without_log(move |request| handler.respond(request)).unwrap();
        Self {
            address: server.address,
            shared,
            _server: server,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/usage", self.address)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Ends all faults.
    pub(crate) fn end_faults(&self) {
        self.shared.lock().mix = Mix::none();
    }

    /// Cancels a pause that was requested just before a deliverer was killed. The deliverer may not have
    /// stored the pause, so early requests are no error.
    pub(crate) fn note_kill(&self) {
        let mut state = self.shared.lock();
        if state
            .pause
            .is_some_and(|pause| pause.requested_at.elapsed() < NOTING)
        {
            state.pause = None;
        }
    }

    pub(crate) fn wait_until_idle(&self) {
        while self.shared.busy.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn respond(&self, request: &Received) -> Reply {
        self.busy.fetch_add(1, Ordering::SeqCst);
        let (response, late) = self.lock().decide(request);
        thread::sleep(response.delay);
        if let Some((posted, policy)) = late {
            self.lock().billing.bill(&posted, policy);
        }
        self.busy.fetch_sub(1, Ordering::SeqCst);
        response.reply()
    }
}

/// Point at which a test receiver ends its response, so that senders meet cut responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Whole,
    /// No bytes are sent, and the connection is closed in order.
    Nothing,
    /// No bytes are sent, and the connection is reset.
    Reset,
    /// Response ends in the middle of its head.
    InHead,
    /// Response ends in the middle of its body.
    InBody,
}

#[derive(Debug)]
struct Response {
    status: u16,
    retry_after: Option<String>,
    body: String,
    ending: Ending,
    /// Delay before the response is sent.
    delay: Duration,
}

impl Response {
    fn new(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            retry_after: None,
            body: body.into(),
            ending: Ending::Whole,
            delay: Duration::ZERO,
        }
    }

    fn reply(&self) -> Reply {
        let retry_after = self.retry_after.iter();
        let retry_after = retry_after.map(|text| format!("Retry-After: {text}\r\n"));
        let head = format!(
            "HTTP/1.1 {} Receiver\r\n{}Content-Length: {}\r\n\r\n",
            self.status,
            retry_after.collect::<String>(),
            self.body.len()
        );
        let mut whole = head.clone() + &self.body;
        let end = match self.ending {
            Ending::Whole => return Reply::raw(whole),
            Ending::Reset => return Reply::nothing().then(Step::Reset),
            Ending::Nothing => 0,
            Ending::InHead => head.len() / 2,
            Ending::InBody => head.len() + self.body.len() / 2,
        };
        whole.truncate(end);
        Reply::raw(whole).then(Step::Close)
    }
}

impl State {
    /// Chooses the response to a delivery request. Bills the batch now if the fault permits, or
    /// returns the batch to bill when the delay of the response is over.
    fn decide(&mut self, request: &Received) -> (Response, Option<(Posted, Policy)>) {
        self.tally.requests += 1;
        if self.pause.is_some_and(|pause| !pause.is_over(request)) {
            self.tally.early += 1;
        }
        if request.head.field("authorization") != Some(&format!("Bearer {TOKEN}")) {
            self.tally.unsigned += 1;
            return (Response::new(401, "no token"), None);
        }
        let Some(posted) = Posted::read(&request.body, self.is_brief) else {
            self.tally.unreadable += 1;
            return (Response::new(400, "not a batch"), None);
        };
        if request.head.field("idempotency-key") != Some(&posted.key)
            || request.head.field("content-type") != Some("application/json")
        {
            self.tally.unsigned += 1;
        }
        self.billing.note(&posted);
        let mut fault = self.mix.draw(&mut self.random);
        if fault.is_pause() {
            if self
                .last_pause
                .is_some_and(|last| last.elapsed() < Mix::PAUSE_INTERVAL)
            {
                fault = Fault::None;
            } else {
                self.last_pause = Some(Instant::now());
            }
        }
        if fault != Fault::None {
            *self.billing.faults.entry(format!("{fault:?}")).or_default() += 1;
        }
        if self
            .locked_until
            .is_some_and(|until| Instant::now() < until)
        {
            return (Response::new(401, "the token is not known here"), None);
        }
        if fault == Fault::HangThenCommit {
            let mut reply = Response::new(200, "too late");
            reply.delay = HANG;
            return (reply, Some((posted, self.policy)));
        }
        (self.reply(fault, &posted), None)
    }

    fn reply(&mut self, fault: Fault, posted: &Posted) -> Response {
        match fault {
            Fault::Unavailable => return Response::new(503, "come back"),
            Fault::TooMany => return Response::new(429, "slow down"),
            Fault::WaitSeconds(seconds) => {
                let until = Instant::now() + Duration::from_secs(seconds);
                return self.request_pause(seconds.to_string(), Until::Elapsed(until));
            }
            Fault::WaitDate => {
                // HTTP dates have whole seconds, so this date is one to two seconds from now.
                let date = Timestamp::from_second(Timestamp::now().as_second() + 2).unwrap();
                let text = jiff::fmt::rfc2822::DateTimePrinter::new()
                    .timestamp_to_rfc9110_string(&date)
                    .unwrap();
                return self.request_pause(text, Until::Date(date.into()));
            }
            Fault::TooLarge(max) if posted.records.len() > max => {
                return Response::new(413, format!("at most {max} records"));
            }
            Fault::Unauthorized => {
                self.locked_until = Some(Instant::now() + Duration::from_millis(200));
                return Response::new(401, "the token is not known here");
            }
            _ => {}
        }
        let commits = !matches!(
            fault,
            Fault::Error(Commit::Before)
                | Fault::Reset(Commit::Before)
                | Fault::Close(Commit::Before)
                | Fault::Hang(Commit::Before)
        );
        let (status, text) = if commits {
            self.billing.bill(posted, self.policy)
        } else {
            (500, "not billed")
        };
        let mut reply = Response::new(status, text.repeat(3));
        match fault {
            Fault::Error(_) => reply.status = 500,
            Fault::Reset(_) => reply.ending = Ending::Reset,
            Fault::Close(_) => reply.ending = Ending::Nothing,
            Fault::CutHead => reply.ending = Ending::InHead,
            Fault::CutBody => reply.ending = Ending::InBody,
            Fault::Hang(_) => reply.delay = HANG,
            _ => {}
        }
        reply
    }

    fn request_pause(&mut self, text: String, until: Until) -> Response {
        self.tally.pauses += 1;
        self.pause = Some(Pause {
            requested_at: Instant::now(),
            until,
        });
        let mut reply = Response::new(429, "slowly");
        reply.retry_after = Some(text);
        reply
    }
}

impl Pause {
    fn is_over(&self, request: &Received) -> bool {
        let arrived = request.arrived;
        match self.until {
            Until::Elapsed(until) => arrived >= until,
            Until::Date(until) => SystemTime::now() - arrived.elapsed() >= until,
        }
    }
}
