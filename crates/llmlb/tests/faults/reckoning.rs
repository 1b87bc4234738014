//! What became of every record.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;

use serde::Deserialize;

use crate::receiver::{TOKEN, Tally};
use crate::world::World;

/// The counts of a case.
#[derive(Debug, Default)]
pub(crate) struct Reckoning {
    what: String,
    acknowledged: usize,
    billed: usize,
    kills: u64,
    stormy: u64,
    faults: u64,
    tally: Tally,
    /// Acknowledged, and neither billed nor in `failed/`.
    pub(crate) lost: Vec<String>,
    pub(crate) twice: usize,
    pub(crate) mangled: u64,
    /// Entries and batches that still wait.
    pub(crate) stuck: usize,
    /// In `failed/`, though nothing is wrong with them and nothing is unknown about them.
    pub(crate) astray: Vec<String>,
    /// Poisoned, and alone in `failed/`.
    pub(crate) isolated: usize,
    /// Poisoned, and billed or not alone.
    pub(crate) loose: usize,
    pub(crate) ambiguous_batches: usize,
    pub(crate) ambiguous_records: usize,
    problems: Vec<String>,
}

/// A file in `failed/` that holds records.
struct Failure {
    ids: Vec<String>,
    is_ambiguous: bool,
}

impl Reckoning {
    pub(crate) fn of(what: &str, world: &World) -> Self {
        let failures = failures(world);
        let acknowledged: HashMap<String, bool> = world.acknowledged().into_iter().collect();
        let state = world.receiver.state();
        let billed = &state.books.billed;
        let mut found = Self {
            what: what.to_owned(),
            acknowledged: acknowledged.len(),
            billed: billed.len(),
            kills: world.kills,
            stormy: world.stormy,
            faults: state.books.faults.values().sum(),
            tally: state.tally.clone(),
            twice: state.books.twice(),
            mangled: state.books.mangled,
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
                // Nobody was told that those of a killed producer are safe: only what was noted
                // is known to be good or bad.
                let is_poisoned = acknowledged.get(id).copied();
                match (failure.is_ambiguous, is_poisoned) {
                    (false, Some(true)) if failure.ids.len() == 1 && !billed.contains_key(id) => {
                        found.isolated += 1;
                    }
                    (false, Some(true)) => found.loose += 1,
                    (false, Some(false)) => found.astray.push(id.clone()),
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

    /// Where the data directory is full of junk, and the books cannot be expected to balance.
    pub(crate) fn among_junk(what: &str, world: &World) -> Self {
        let mut found = Self::of(what, world);
        found.problems.clear();
        found.stuck = 0;
        found
    }

    /// Where the clocks differ, nobody can say whether a silence was kept.
    pub(crate) fn whatever_the_silences(mut self) -> Self {
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

    /// Prints the counts, and fails the test unless they are what was promised.
    #[track_caller]
    pub(crate) fn must_be_clean(&self) {
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
            && self.astray.is_empty()
            && self.loose == 0
            && self.problems.is_empty()
            && self.tally.early == 0
            && self.tally.unsigned == 0
            && self.tally.unreadable == 0;
        assert!(
            is_clean,
            "{self}\nlost: {:?}\nastray: {:?}\n{:#?}",
            few(&self.lost),
            few(&self.astray),
            self.problems
        );
    }
}

impl fmt::Display for Reckoning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} acknowledged, {} billed: lost {}, twice {}, mangled {}, stuck {}, ambiguous {}",
            self.what,
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
            ("poisoned and not alone", self.loose as u64),
            ("failed for no reason", self.astray.len() as u64),
            ("kills", self.kills),
            ("requests", self.tally.requests),
            ("of them in the storm", self.stormy),
            ("faults", self.faults),
            ("silences", self.tally.demands),
            ("of them broken", self.tally.early),
            ("unsigned", self.tally.unsigned),
            ("unreadable", self.tally.unreadable),
        ];
        let others = others.iter().filter(|(_, count)| *count > 0);
        let others: Vec<_> = others
            .map(|(what, count)| format!("{what} {count}"))
            .collect();
        write!(f, "; {}", others.join(", "))
    }
}

/// What lies in `failed/`, read as anyone would: a batch has records, a record has an id.
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
        // Junk may have any name. What cannot be read here counts as lost.
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
