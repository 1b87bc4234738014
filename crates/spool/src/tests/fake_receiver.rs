//! A receiver with scripted replies, and a clock that advances when the code under test waits.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::batch::Batch;
use crate::cancel::Cancel;
use crate::delivery::{Answer, Clock, Sink};
use crate::time::Moment;

/// Reply to one batch.
#[derive(Clone, Debug)]
pub(super) enum ScriptedReply {
    /// The receiver stores the batch and returns this answer.
    Commit(Answer),
    /// The receiver does not store the batch and returns this answer.
    Refuse(Answer),
}

#[derive(Debug, Default)]
pub(super) struct FakeReceiver {
    /// Replies to the next batches. The receiver accepts every batch when there are none.
    pub(super) replies: Mutex<VecDeque<ScriptedReply>>,
    /// Ids of records. The receiver rejects every batch that contains one of them.
    pub(super) poison: Mutex<Vec<Uuid>>,
    received: Mutex<Received>,
    pub(super) clock: FakeClock,
}

#[derive(Debug, Default)]
struct Received {
    /// Number of times that each record was stored.
    billed: BTreeMap<Uuid, usize>,
    /// Body of each batch that was sent, by idempotency key.
    bodies: HashMap<String, Vec<u8>>,
    /// Idempotency keys of the stored batches.
    committed: HashSet<String>,
    /// Number of times that each idempotency key was sent.
    keys: BTreeMap<String, usize>,
    /// Times at which batches arrived at the receiver, by the fake clock.
    arrivals: Vec<Moment>,
}

impl FakeReceiver {
    pub(super) fn billed(&self) -> BTreeMap<Uuid, usize> {
        self.received.lock().unwrap().billed.clone()
    }

    pub(super) fn keys(&self) -> BTreeMap<String, usize> {
        self.received.lock().unwrap().keys.clone()
    }

    pub(super) fn arrivals(&self) -> Vec<Moment> {
        self.received.lock().unwrap().arrivals.clone()
    }

    pub(super) fn push_reply(&self, reply: ScriptedReply) -> &Self {
        self.replies.lock().unwrap().push_back(reply);
        self
    }
}

impl Received {
    /// Stores a batch, unless its key was stored before.
    fn commit(&mut self, batch: &Batch) {
        let key = batch.idempotency_key().to_owned();
        if self.committed.insert(key) {
            for record in batch.records() {
                *self.billed.entry(record.id()).or_default() += 1;
            }
        }
    }
}

impl Sink for FakeReceiver {
    fn name(&self) -> &'static str {
        "the receiver"
    }

    fn send(&self, batch: &Batch) -> Answer {
        let mut received = self.received.lock().unwrap();
        received.arrivals.push(self.clock.now());
        let key = batch.idempotency_key().to_owned();
        *received.keys.entry(key.clone()).or_default() += 1;
        let body = received.bodies.entry(key.clone()).or_insert(batch.body());
        assert_eq!(
            *body,
            batch.body(),
            "the body differs from the first one with this key"
        );
        let poison = self.poison.lock().unwrap();
        match self.replies.lock().unwrap().pop_front() {
            Some(ScriptedReply::Commit(answer)) => {
                received.commit(batch);
                answer
            }
            Some(ScriptedReply::Refuse(answer)) => answer,
            None if batch
                .records()
                .iter()
                .any(|record| poison.contains(&record.id())) =>
            {
                Answer::rejected("422: poison")
            }
            None => {
                received.commit(batch);
                Answer::accepted("200")
            }
        }
    }
}

/// A clock that advances by the duration of every wait, and jumps on demand.
#[derive(Debug)]
pub(super) struct FakeClock {
    now: Mutex<Moment>,
    pub(super) waited: Mutex<Duration>,
}

impl FakeClock {
    pub(super) fn forward(&self, long: Duration) {
        let mut now = self.now.lock().unwrap();
        *now = now.after(long);
    }

    pub(super) fn back(&self, long: Duration) {
        let mut now = self.now.lock().unwrap();
        *now = Moment::from(SystemTime::from(*now) - long);
    }
}

impl Default for FakeClock {
    fn default() -> Self {
        Self {
            now: Mutex::new(SystemTime::now().into()),
            waited: Mutex::default(),
        }
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Moment {
        *self.now.lock().unwrap()
    }

    fn wait(&self, _cancel: &Cancel, duration: Duration) {
        self.forward(duration);
        *self.waited.lock().unwrap() += duration;
    }
}
