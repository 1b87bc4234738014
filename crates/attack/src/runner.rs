//! Runs attacks and prints their verdicts.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::{Attack, Speed, Target, Verdict, attacks};

/// Number of fast attacks that run at the same time.
const PARALLEL: usize = 4;

/// Attacks to run.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Text that the names of the attacks must contain; empty for all. A text that begins with a digit must
    /// be the beginning of the name.
    pub only: String,
    /// Excludes slow attacks.
    pub fast: bool,
}

impl Selection {
    /// Returns the attacks that `only` and `fast` select.
    pub fn attacks(&self) -> Vec<Attack> {
        let mut attacks = attacks();
        let is_beginning = self.only.starts_with(|char: char| char.is_ascii_digit());
        attacks.retain(|attack| {
            let is_named = if is_beginning {
                attack.name.starts_with(&self.only)
            } else {
                attack.name.contains(&self.only)
            };
            is_named && (!self.fast || attack.speed == Speed::Fast)
        });
        attacks
    }
}

/// Runs the selected attacks and writes one line per verdict, in the order of the items, and the
/// totals. Returns true if llmlb holds against at least one attack and no attack fails. Skipped
/// attacks alone are no success.
pub fn run(selection: &Selection, target: &Target, out: &mut dyn Write) -> io::Result<bool> {
    let attacks = selection.attacks();
    let width = attacks.iter().map(|attack| attack.name.len()).max();
    let width = width.unwrap_or(0);
    let (mut held, mut failed, mut skipped) = (0, 0, 0);
    let mut print = |attack: &Attack, verdict: &Verdict| {
        let (word, evidence, count) = match verdict {
            Verdict::Holds(evidence) => ("HOLDS  ", evidence, &mut held),
            Verdict::Fails(evidence) => ("FAILS  ", evidence, &mut failed),
            Verdict::Skipped(reason) => ("SKIPPED", reason, &mut skipped),
        };
        *count += 1;
        writeln!(out, "{word} {:width$}  {evidence}", attack.name)?;
        out.flush()
    };
    // Fast attacks run first and in parallel. Slow attacks measure memory and time, so they run alone.
    let order: Vec<usize> = (0..attacks.len()).collect();
    let (fast, slow): (Vec<usize>, Vec<usize>) = order
        .into_iter()
        .partition(|number| attacks[*number].speed == Speed::Fast);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (done, verdicts) = mpsc::channel();
        for _ in 0..PARALLEL {
            let (done, attacks, fast, next) = (done.clone(), &attacks, &fast, &next);
            scope.spawn(move || {
                while let Some(number) = fast.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let _ = done.send((*number, attacks[*number].run(target)));
                }
            });
        }
        drop(done);
        // Verdicts of fast attacks that cannot be printed yet, because an attack with an earlier
        // item has not finished. They are kept, so that the lines appear in the order of the items.
        let mut early = BTreeMap::new();
        let mut expected = fast.iter();
        let mut current = expected.next();
        for (number, verdict) in verdicts {
            early.insert(number, verdict);
            while let Some(number) = current
                && let Some(verdict) = early.remove(number)
            {
                print(&attacks[*number], &verdict)?;
                current = expected.next();
            }
        }
        io::Result::Ok(())
    })?;
    for number in slow {
        let attack = &attacks[number];
        print(attack, &attack.run(target))?;
    }
    let skipped_text = match skipped {
        0 => String::new(),
        count => format!(", {count} skipped"),
    };
    writeln!(out, "{held} held, {failed} failed{skipped_text}")?;
    Ok(failed == 0 && held > 0)
}
