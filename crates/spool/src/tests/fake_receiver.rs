//! A receiver of one test's own, which answers as it is told, and time that passes by itself.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::batch::Batch;
use crate::cancel::Cancel;
use crate::delivery::{Answer, Clock, Sink};
use crate::time::Moment;

/// What the receiver does with one batch.
#[derive(Clone, Debug)]
pub(super) enum ScriptedReply {
    /// Takes it, and answers this.
    Commit(Answer),
    /// Does not take it, and answers this.
    Refuse(Answer),
}

#[derive(Debug, Default)]
pub(super) struct FakeReceiver {
    /// What to do with the next batches; everything is taken when there is nothing left.
    pub(super) replies: Mutex<VecDeque<ScriptedReply>>,
    /// Records that it does not like: a batch with one of them is rejected.
    pub(super) poison: Mutex<Vec<Uuid>>,
    taken: Mutex<ConsolidatedEntry>,
    pub(super) clock: FakeClock,
}

#[derive(Debug, Default)]
struct ConsolidatedEntry {
    billed: BTreeMap<Uuid, usize>,
    /// The body of each key that ever came.
    bodies: HashMap<String, Vec<u8>>,
    committed: HashSet<String>,
    /// How often each key came.
    keys: BTreeMap<String, usize>,
    /// When something came.
    arrivals: Vec<Moment>,
}

impl FakeReceiver {
    pub(super) fn billed(&self) -> BTreeMap<Uuid, usize> {
        self.taken.lock().unwrap().billed.clone()
    }

    pub(super) fn keys(&self) -> BTreeMap<String, usize> {
        self.taken.lock().unwrap().keys.clone()
    }

    pub(super) fn arrivals(&self) -> Vec<Moment> {
        self.taken.lock().unwrap().arrivals.clone()
    }

    pub(super) fn push_reply(&self, reply: ScriptedReply) -> &Self {
        self.replies.lock().unwrap().push_back(reply);
        self
    }
}

impl ConsolidatedEntry {
    /// Knows batches by their keys.
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
        let mut taken = self.taken.lock().unwrap();
        taken.arrivals.push(self.clock.now());
        let key = batch.idempotency_key().to_owned();
        *taken.keys.entry(key.clone()).or_default() += 1;
        let body = taken.bodies.entry(key.clone()).or_insert(batch.body());
        assert_eq!(*body, batch.body(), "the same bytes under the same key");
        let poison = self.poison.lock().unwrap();
        match self.replies.lock().unwrap().pop_front() {
            Some(ScriptedReply::Commit(answer)) => {
                taken.commit(batch);
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
                taken.commit(batch);
                Answer::accepted("200")
            }
        }
    }
}

/// Time that passes when somebody waits, and jumps when told to.
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

    fn wait(&self, cancel: &Cancel, long: Duration) -> bool {
        self.forward(long);
        *self.waited.lock().unwrap() += long;
        cancel.is_cancelled()
    }
}
