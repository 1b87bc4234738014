//! A receiver of batches with an address, a memory and bad days.
//!
//! It lives in the test's process: its address and its books outlive every deliverer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

use crate::books::{Books, Policy, Posted};
use crate::fault::{Commit, Fault, Mix};
use testkit::random::Random;
use testkit::{Received, Reply, ScriptedServer, Step};

/// What a deliverer must show.
pub(crate) const TOKEN: &str = "a-token-that-no-log-may-contain";

/// Longer than the patience of every deliverer in these tests, which is a second.
const HANG: Duration = Duration::from_millis(1400);

/// A deliverer that dies within this time of an answer may not have noted what it said.
const NOTING: Duration = Duration::from_millis(700);

/// A receiver, until it is dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _server: ScriptedServer,
}

struct Shared {
    state: Mutex<State>,
    /// Requests that are being answered.
    busy: AtomicUsize,
}

pub(crate) struct State {
    pub(crate) policy: Policy,
    pub(crate) mix: Mix,
    /// Batches are looked at briefly: this test measures the sender.
    pub(crate) is_brief: bool,
    pub(crate) books: Books,
    pub(crate) tally: Tally,
    random: Random,
    locked_until: Option<Instant>,
    last_pause: Option<Instant>,
    quiet: Option<Quiet>,
}

/// What a receiver counts besides its books.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    /// Requests without the token, or whose header names another key than the body.
    pub(crate) unsigned: u64,
    /// Requests in a time in which the receiver had asked for silence.
    pub(crate) early: u64,
    /// How often it asked for silence.
    pub(crate) demands: u64,
    /// Requests that could not be read as a batch.
    pub(crate) unreadable: u64,
}

/// A time in which nothing is to be sent.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    asked: Instant,
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
                books: Books::default(),
                tally: Tally::default(),
                random: Random::of_run(7),
                locked_until: None,
                last_pause: None,
                quiet: None,
            }),
            busy: AtomicUsize::new(0),
        });
        let judge = Arc::clone(&shared);
        let server = ScriptedServer::without_log(move |request| judge.answer(request)).unwrap();
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

    /// From now on it does everything right.
    pub(crate) fn behave(&self) {
        self.shared.lock().mix = Mix::none();
    }

    /// A deliverer was killed just now. What it was told a moment ago it may not have noted.
    pub(crate) fn killed(&self) {
        let mut state = self.shared.lock();
        if state
            .quiet
            .is_some_and(|quiet| quiet.asked.elapsed() < NOTING)
        {
            state.quiet = None;
        }
    }

    /// Waits until no request is being answered any more.
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

    fn answer(&self, request: &Received) -> Reply {
        self.busy.fetch_add(1, Ordering::SeqCst);
        let (answer, late) = self.lock().judge(request);
        thread::sleep(answer.delay);
        if let Some((posted, policy)) = late {
            self.lock().books.bill(&posted, policy);
        }
        self.busy.fetch_sub(1, Ordering::SeqCst);
        answer.reply()
    }
}

/// Where an answer stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Whole,
    /// Nothing comes, and the connection closes as if all were well.
    Nothing,
    /// Nothing comes but a reset.
    Reset,
    /// In the middle of the head.
    InHead,
    /// The head is whole, the body is not.
    InBody,
}

/// An answer, and how much of it is sent.
#[derive(Debug)]
struct Answer {
    status: u16,
    retry_after: Option<String>,
    body: String,
    ending: Ending,
    /// How long the client waits for it.
    delay: Duration,
}

impl Answer {
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
            "HTTP/1.1 {} said the receiver\r\n{}Content-Length: {}\r\n\r\n",
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
    /// What becomes of a request: the answer, and the batch that is billed only after the answer's
    /// delay.
    fn judge(&mut self, request: &Received) -> (Answer, Option<(Posted, Policy)>) {
        self.tally.requests += 1;
        if self.quiet.is_some_and(|quiet| !quiet.is_over(request)) {
            self.tally.early += 1;
        }
        if request.head.field("authorization") != Some(&format!("Bearer {TOKEN}")) {
            self.tally.unsigned += 1;
            return (Answer::new(401, "no token"), None);
        }
        let Some(posted) = Posted::read(&request.body, self.is_brief) else {
            self.tally.unreadable += 1;
            return (Answer::new(400, "not a batch"), None);
        };
        if request.head.field("idempotency-key") != Some(&posted.key)
            || request.head.field("content-type") != Some("application/json")
        {
            self.tally.unsigned += 1;
        }
        self.books.note(&posted);
        let mut fault = self.mix.draw(&mut self.random);
        if fault.is_pause() {
            if self
                .last_pause
                .is_some_and(|last| last.elapsed() < Mix::REST)
            {
                fault = Fault::None;
            } else {
                self.last_pause = Some(Instant::now());
            }
        }
        if fault != Fault::None {
            *self.books.faults.entry(format!("{fault:?}")).or_default() += 1;
        }
        if self
            .locked_until
            .is_some_and(|until| Instant::now() < until)
        {
            return (Answer::new(401, "the token is not known here"), None);
        }
        if fault == Fault::HangThenCommit {
            let mut reply = Answer::new(200, "too late");
            reply.delay = HANG;
            return (reply, Some((posted, self.policy)));
        }
        (self.reply(fault, &posted), None)
    }

    fn reply(&mut self, fault: Fault, posted: &Posted) -> Answer {
        match fault {
            Fault::Unavailable => return Answer::new(503, "come back"),
            Fault::TooMany => return Answer::new(429, "slow down"),
            Fault::WaitSeconds(seconds) => {
                let until = Instant::now() + Duration::from_secs(seconds);
                return self.demand(seconds.to_string(), Until::Elapsed(until));
            }
            Fault::WaitDate => {
                // Dates have whole seconds: one to two seconds from now.
                let date = Timestamp::from_second(Timestamp::now().as_second() + 2).unwrap();
                let text = jiff::fmt::rfc2822::DateTimePrinter::new()
                    .timestamp_to_rfc9110_string(&date)
                    .unwrap();
                return self.demand(text, Until::Date(date.into()));
            }
            Fault::TooLarge(most) if posted.records.len() > most => {
                return Answer::new(413, format!("at most {most} records"));
            }
            Fault::Unauthorized => {
                self.locked_until = Some(Instant::now() + Duration::from_millis(200));
                return Answer::new(401, "the token is not known here");
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
        let (status, said) = if commits {
            self.books.bill(posted, self.policy)
        } else {
            (500, "not billed")
        };
        let mut reply = Answer::new(status, said.repeat(3));
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

    fn demand(&mut self, text: String, until: Until) -> Answer {
        self.tally.demands += 1;
        self.quiet = Some(Quiet {
            asked: Instant::now(),
            until,
        });
        let mut reply = Answer::new(429, "slowly");
        reply.retry_after = Some(text);
        reply
    }
}

impl Quiet {
    fn is_over(&self, request: &Received) -> bool {
        let arrived = request.arrived;
        match self.until {
            Until::Elapsed(until) => arrived >= until,
            Until::Date(until) => SystemTime::now() - arrived.elapsed() >= until,
        }
    }
}
