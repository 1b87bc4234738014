//! Records that a receiver has billed, the rules by which it bills, and the defects that it found.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::sample::{Arrived, arrived};

/// Rule by which a receiver recognises records that it has billed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The receiver bills a record once, even if several batches contain it.
    ByRecord,
    /// The receiver bills each batch key once, and responds with the status `known` when the key is repeated.
    /// A record that another batch repeats is billed again.
    ByBatch { known: u16 },
    /// The receiver bills each batch key once, and responds with the status `known` when the key is repeated.
    /// It rejects a batch with a record that it has billed in another batch.
    RejectOnDuplicate { known: u16 },
}

#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) key: String,
    pub(crate) records: Vec<Arrived>,
    bytes: u64,
    /// Number of records whose content differs from that of the staged records, which is a defect.
    mangled: u64,
}

impl Posted {
    /// Parses the body of a delivery request. With `is_brief`, reads only the ids of the records,
    /// so that the receiver does not slow down a test that measures the sender.
    pub(crate) fn read(body: &[u8], is_brief: bool) -> Option<Self> {
        #[derive(Deserialize)]
        struct Body<'a> {
            idempotency_key: String,
            #[serde(borrow)]
            records: Vec<&'a RawValue>,
        }
        let parsed: Body<'_> = serde_json::from_slice(body).ok()?;
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let mut posted = Self {
            key: parsed.idempotency_key,
            records: Vec::with_capacity(parsed.records.len()),
            bytes: hasher.finish(),
            mangled: 0,
        };
        for record in parsed.records {
            let read = if is_brief {
                parse_id(record)
            } else {
                arrived(record)
            };
            match read {
                Some(record) => {
                    posted.mangled += u64::from(!record.is_intact);
                    posted.records.push(record);
                }
                None => posted.mangled += 1,
            }
        }
        Some(posted)
    }
}

fn parse_id(record: &RawValue) -> Option<Arrived> {
    #[derive(Deserialize)]
    struct Id {
        id: String,
    }
    let Id { id } = serde_json::from_str(record.get()).ok()?;
    Some(Arrived {
        id,
        is_poisoned: false,
        is_intact: true,
    })
}

#[derive(Debug)]
struct KnownBatch {
    bytes: u64,
    is_billed: bool,
}

/// Records that a test receiver has billed, batches that it has received, and defects that it has
/// found. The audit at the end of a test checks them.
#[derive(Debug, Default)]
pub(crate) struct Billing {
    /// Number of times that each record was billed.
    pub(crate) billed: HashMap<String, u32>,
    batches: HashMap<String, KnownBatch>,
    /// Number of records that differ from the staged ones, and of batches whose bytes changed under the
    /// same key.
    pub(crate) mangled: u64,
    /// Number of times that each fault occurred.
    pub(crate) faults: BTreeMap<String, u64>,
}

impl Billing {
    /// Checks a received batch for changed content, even if the batch is not billed. Counts records
    /// that differ from the staged ones, and a batch that differs from an earlier one with the same
    /// idempotency key.
    pub(crate) fn note(&mut self, posted: &Posted) {
        self.mangled += posted.mangled;
        let known = self
            .batches
            .entry(posted.key.clone())
            .or_insert(KnownBatch {
                bytes: posted.bytes,
                is_billed: false,
            });
        self.mangled += u64::from(known.bytes != posted.bytes);
    }

    /// Bills a batch if the policy allows it. Returns the status and text of the response.
    pub(crate) fn bill(&mut self, posted: &Posted, policy: Policy) -> (u16, &'static str) {
        let is_known = self
            .batches
            .get(&posted.key)
            .is_some_and(|known| known.is_billed);
        match policy {
            Policy::ByBatch { known } | Policy::RejectOnDuplicate { known } if is_known => {
                return (known, "this batch is billed already");
            }
            _ => {}
        }
        if posted.records.iter().any(|record| record.is_poisoned) {
            return (422, "a record is poisoned");
        }
        let mut fresh = posted
            .records
            .iter()
            .filter(|record| !self.billed.contains_key(&record.id));
        match policy {
            Policy::RejectOnDuplicate { .. } if fresh.clone().count() < posted.records.len() => {
                return (422, "a record is billed already, in another batch");
            }
            Policy::ByRecord => {
                let fresh: Vec<_> = fresh.by_ref().map(|record| record.id.clone()).collect();
                for id in fresh {
                    *self.billed.entry(id).or_default() += 1;
                }
            }
            _ => {
                for record in &posted.records {
                    *self.billed.entry(record.id.clone()).or_default() += 1;
                }
            }
        }
        if let Some(known) = self.batches.get_mut(&posted.key) {
            known.is_billed = true;
        }
        (200, "billed")
    }

    pub(crate) fn twice(&self) -> usize {
        self.billed.values().filter(|times| **times > 1).count()
    }
}
