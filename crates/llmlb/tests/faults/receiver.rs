//! A receiver of batches with an address, a memory and bad days.
//!
//! It lives in the test's process: its address and its books outlive every deliverer.

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

use crate::books::{Books, Policy, Posted};
use crate::fault::{Commit, Fault, Mix};
use crate::random::Random;
use crate::wire::{Ending, Reply, Request, reset};

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
}

struct Shared {
    state: Mutex<State>,
    is_over: AtomicBool,
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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
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
            is_over: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
        });
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if served.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let served = Arc::clone(&served);
                thread::spawn(move || served.connection(&stream));
            }
        });
        Self { address, shared }
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

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Whoever accepts looks up.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self, stream: &TcpStream) {
        let _ = stream.set_nodelay(true);
        let Ok(copy) = stream.try_clone() else { return };
        let mut reader = BufReader::new(copy);
        while let Ok(Some(request)) = Request::read(&mut reader) {
            self.busy.fetch_add(1, Ordering::SeqCst);
            let goes_on = self.answer(&request, stream);
            self.busy.fetch_sub(1, Ordering::SeqCst);
            if !goes_on {
                break;
            }
        }
    }

    fn answer(&self, request: &Request, stream: &TcpStream) -> bool {
        let (reply, late) = self.lock().judge(request);
        thread::sleep(reply.delay);
        if let Some((posted, policy)) = late {
            self.lock().books.bill(&posted, policy);
        }
        if self.is_over.load(Ordering::SeqCst) {
            reset(stream);
            return false;
        }
        reply.send(stream)
    }
}

impl State {
    /// What becomes of a request: the answer, and the batch that is billed only after the answer's
    /// delay.
    fn judge(&mut self, request: &Request) -> (Reply, Option<(Posted, Policy)>) {
        self.tally.requests += 1;
        if self.quiet.is_some_and(|quiet| !quiet.is_over(request)) {
            self.tally.early += 1;
        }
        if request.header("authorization") != Some(&format!("Bearer {TOKEN}")) {
            self.tally.unsigned += 1;
            return (Reply::new(401, "no token"), None);
        }
        let Some(posted) = Posted::read(&request.body, self.is_brief) else {
            self.tally.unreadable += 1;
            return (Reply::new(400, "not a batch"), None);
        };
        if request.header("idempotency-key") != Some(&posted.key)
            || request.header("content-type") != Some("application/json")
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
            return (Reply::new(401, "the token is not known here"), None);
        }
        if fault == Fault::HangThenCommit {
            let mut reply = Reply::new(200, "too late");
            reply.delay = HANG;
            return (reply, Some((posted, self.policy)));
        }
        (self.reply(fault, &posted), None)
    }

    fn reply(&mut self, fault: Fault, posted: &Posted) -> Reply {
        match fault {
            Fault::Unavailable => return Reply::new(503, "come back"),
            Fault::TooMany => return Reply::new(429, "slow down"),
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
                return Reply::new(413, format!("at most {most} records"));
            }
            Fault::Unauthorized => {
                self.locked_until = Some(Instant::now() + Duration::from_millis(200));
                return Reply::new(401, "the token is not known here");
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
        let mut reply = Reply::new(status, said.repeat(3));
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

    fn demand(&mut self, text: String, until: Until) -> Reply {
        self.tally.demands += 1;
        self.quiet = Some(Quiet {
            asked: Instant::now(),
            until,
        });
        let mut reply = Reply::new(429, "slowly");
        reply.headers.push(("Retry-After", text));
        reply
    }
}

impl Quiet {
    fn is_over(&self, request: &Request) -> bool {
        let (instant, time) = request.arrived;
        match self.until {
            Until::Elapsed(until) => instant >= until,
            Until::Date(until) => time >= until,
        }
    }
}
