//! Checks that every acknowledged record was billed once or failed with a reason.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;

use serde::Deserialize;

use crate::receiver::{TOKEN, Tally};
use crate::world::World;

/// Numbers of records, batches and faults at the end of a test, and the defects that were found.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    title: String,
    acknowledged: usize,
    billed: usize,
    kills: u64,
    requests_in_storm: u64,
    faults: u64,
    tally: Tally,
    /// Acknowledged records that are neither billed nor in `failed/`.
    pub(crate) lost: Vec<String>,
    pub(crate) twice: usize,
    pub(crate) mangled: u64,
    /// Number of entries and batches that are not delivered.
    pub(crate) stuck: usize,
    /// Records in `failed/` without a reason to be there: the receiver does not reject them (they
    /// are not poisoned), and their batch is not ambiguous (possibly billed).
    pub(crate) unexplained: Vec<String>,
    /// Number of poisoned records, which the receiver always rejects, that are alone in a file in
    /// `failed/` and were not billed.
    pub(crate) isolated: usize,
    /// Number of poisoned records, which the receiver always rejects, that are in `failed/`
    /// although they were billed, or together with other records in one file.
    pub(crate) not_isolated: usize,
    pub(crate) ambiguous_batches: usize,
    pub(crate) ambiguous_records: usize,
    problems: Vec<String>,
}

struct Failure {
    ids: Vec<String>,
    is_ambiguous: bool,
}

impl Audit {
    pub(crate) fn new(title: &str, world: &World) -> Self {
        let failures = failures(world);
        let acknowledged: HashMap<String, bool> = world.acknowledged().into_iter().collect();
        let state = world.receiver.state();
        let billed = &state.billing.billed;
        let mut found = Self {
            title: title.to_owned(),
            acknowledged: acknowledged.len(),
            billed: billed.len(),
            kills: world.kills,
            requests_in_storm: world.requests_in_storm,
            faults: state.billing.faults.values().sum(),
            tally: state.tally.clone(),
            twice: state.billing.twice(),
            mangled: state.billing.mangled,
            stuck: world.waiting(),
            ..Self::default()
        };
        let mut failed = HashSet::new();
        for failure in &failures {
            if failure.is_ambiguous {
                found.ambiguous_batches += 1;
                found.ambiguous_records += failure.ids.len();
            }
            for id in &failure.ids {
                failed.insert(id.clone());
                // A producer may be killed after it staged a record and before it noted the
                // acknowledgement. Such a record is `None` here and is not checked.
                let is_poisoned = acknowledged.get(id).copied();
                match (failure.is_ambiguous, is_poisoned) {
                    (false, Some(true)) if failure.ids.len() == 1 && !billed.contains_key(id) => {
                        found.isolated += 1;
                    }
                    (false, Some(true)) => found.not_isolated += 1,
                    (false, Some(false)) => found.unexplained.push(id.clone()),
                    _ => {}
                }
            }
        }
        found.lost = acknowledged
            .keys()
            .filter(|id| !billed.contains_key(*id) && !failed.contains(*id))
            .cloned()
            .collect();
        drop(state);
        found.check_books(world);
        found
    }

    /// Like [`Self::new`], for a data directory with junk, whose books need not balance.
    pub(crate) fn among_junk(title: &str, world: &World) -> Self {
        let mut found = Self::new(title, world);
        found.problems.clear();
        found.stuck = 0;
        found
    }

    /// Ignores requests that arrived during a pause which the receiver had requested, for tests in which the
    /// clocks of receiver and deliverer differ.
    pub(crate) fn ignoring_pauses(mut self) -> Self {
        self.tally.early = 0;
        self
    }

    fn check_books(&mut self, world: &World) {
        let verified = world.run("verify");
        if verified.code != Some(0) || !verified.stdout.contains("the books balance") {
            self.problems.push(format!("{verified:?}"));
        }
        let log = world.log();
        if log.contains(TOKEN) {
            self.problems.push("the token is in the log".to_owned());
        }
        if log.contains("panicked") {
            self.problems.push("a deliverer panicked".to_owned());
        }
    }

    /// Prints the counts, and fails the test unless every record was billed once.
    #[track_caller]
    pub(crate) fn print_and_assert_clean(&self) {
        println!("{self}");
        self.assert_clean();
    }

    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let few = |ids: &[String]| ids.iter().take(5).cloned().collect::<Vec<_>>();
        let is_clean = self.lost.is_empty()
            && self.twice == 0
            && self.mangled == 0
            && self.stuck == 0
            && self.unexplained.is_empty()
            && self.not_isolated == 0
            && self.problems.is_empty()
            && self.tally.early == 0
            && self.tally.unsigned == 0
            && self.tally.unreadable == 0;
        assert!(
            is_clean,
            "{self}\nlost: {:?}\nunexplained: {:?}\n{:#?}",
            few(&self.lost),
            few(&self.unexplained),
            self.problems
        );
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} acknowledged, {} billed: lost {}, twice {}, mangled {}, stuck {}, ambiguous {}",
            self.title,
            self.acknowledged,
            self.billed,
            self.lost.len(),
            self.twice,
            self.mangled,
            self.stuck,
            self.ambiguous_records,
        )?;
        if self.ambiguous_batches > 0 {
            write!(f, " (in {} batches)", self.ambiguous_batches)?;
        }
        let others = [
            ("poisoned and alone", self.isolated as u64),
            ("poisoned and not alone", self.not_isolated as u64),
            ("failed for no reason", self.unexplained.len() as u64),
            ("kills", self.kills),
            ("requests", self.tally.requests),
            ("of them in the storm", self.requests_in_storm),
            ("faults", self.faults),
            ("pauses", self.tally.pauses),
            ("early requests", self.tally.early),
            ("unsigned", self.tally.unsigned),
            ("unreadable", self.tally.unreadable),
        ];
        let others = others.iter().filter(|(_, count)| *count > 0);
        let others: Vec<_> = others
            .map(|(title, count)| format!("{title} {count}"))
            .collect();
        write!(f, "; {}", others.join(", "))
    }
}

/// Returns the files in `failed/` with the ids of their records. A file contains a batch or a single record.
fn failures(world: &World) -> Vec<Failure> {
    #[derive(Deserialize)]
    struct Id {
        id: String,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum File {
        Batch { records: Vec<Id> },
        Record(Id),
    }
    let listed = world.json("failed");
    let listed = listed["failed"].as_array().unwrap().clone();
    let mut found = Vec::new();
    for failed in &listed {
        let name = failed["name"].as_str().unwrap();
        // Skip a file in `failed/` that cannot be read or parsed: such a file is junk. Acknowledged
        // records in it count as lost.
        let text = fs::read(world.data().join("failed").join(name)).unwrap_or_default();
        let ids = match serde_json::from_slice(&text) {
            Ok(File::Batch { records }) => records.into_iter().map(|record| record.id).collect(),
            Ok(File::Record(record)) => vec![record.id],
            Err(_) => continue,
        };
        found.push(Failure {
            ids,
            is_ambiguous: failed["ambiguous"] == true,
        });
    }
    found
}
