//! Attacks on llmlb: hostile clients, hostile backends and hostile files against real processes.
//!
//! Every attack has a name that begins with the number of its item, starts servers of its own, and
//! returns a [`Verdict`] with its evidence. `scripts/attack` runs all of them against a release build,
//! `tests/fast.rs` the fast ones against a debug build. docs/attacks.md lists the items.

#![cfg(target_os = "linux")]

mod accounting;
mod configuration;
mod descriptors;
mod doors;
mod ejection;
mod estimates;
mod headers;
mod hidden_models;
mod http2_limits;
mod memory;
mod model;
mod output;
mod ports;
mod queue;
mod runner;
mod slots;
mod smuggling;
mod spelling;
mod target;
mod unmetered;

use std::error::Error;
use std::time::Duration;

use testkit::{LlmlbServer, Request, is_reached};

pub use runner::{Selection, run};
pub use target::Target;

/// Result of an attack, with a short description of the evidence.
#[derive(Debug)]
pub enum Verdict {
    /// Attack had no effect: llmlb is safe from it.
    Holds(String),
    /// Attack succeeded.
    Fails(String),
    /// Attack needs something that this machine does not have.
    Skipped(String),
}

/// Verdict of an attack, or the reason why it could not be run.
pub type Outcome = Result<Verdict, Box<dyn Error>>;

/// Duration class of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// Part of the test suite. It may run beside other fast attacks.
    Fast,
    /// Flood, timeout or measurement of memory. It runs alone.
    Slow,
}

/// An attack: its name, its effect and its code.
pub struct Attack {
    /// Name, such as `1-unread-body-get`.
    pub name: String,
    /// Effect that the attack has where it succeeds.
    pub shows: &'static str,
    /// Duration class.
    pub speed: Speed,
    action: Box<dyn Fn(&Target) -> Outcome + Send + Sync>,
}

impl Attack {
    fn fast(
        name: impl Into<String>,
        shows: &'static str,
        action: impl Fn(&Target) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            shows,
            speed: Speed::Fast,
            action: Box::new(action),
        }
    }

    fn slow(
        name: impl Into<String>,
        shows: &'static str,
        action: impl Fn(&Target) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Self {
            speed: Speed::Slow,
            ..Self::fast(name, shows, action)
        }
    }

    /// Item of docs/attacks.md with which the attack's name begins, as number and letter. For
    /// `14k-204-chunked-reused` it is `(14, "k")`. Attacks are sorted by their items.
    fn item(&self) -> (u32, String) {
        let item = self.name.split('-').next().unwrap_or_default();
        let letter = item.trim_start_matches(|char: char| char.is_ascii_digit());
        let number = item.strip_suffix(letter).unwrap_or(item);
        (number.parse().unwrap_or(u32::MAX), letter.to_owned())
    }

    /// Runs the attack. An attack that cannot be run returns [`Verdict::Fails`], so that a broken
    /// attack is not mistaken for a safe server.
    pub fn run(&self, target: &Target) -> Verdict {
        (self.action)(target)
            .unwrap_or_else(|error| Verdict::Fails(format!("could not be run: {error}")))
    }
}

/// Returns all attacks, in the order of the items.
pub fn attacks() -> Vec<Attack> {
    let mut attacks: Vec<Attack> = [
        smuggling::attacks(),
        spelling::attacks(),
        unmetered::attacks(),
        hidden_models::attacks(),
        model::attacks(),
        descriptors::attacks(),
        ports::attacks(),
        memory::attacks(),
        accounting::attacks(),
        slots::attacks(),
        queue::attacks(),
        ejection::attacks(),
        http2_limits::attacks(),
        estimates::attacks(),
        headers::attacks(),
        configuration::attacks(),
        output::attacks(),
        doors::attacks(),
    ]
    .into_iter()
    .flatten()
    .collect();
    attacks.sort_by_key(Attack::item);
    attacks
}

/// Returns [`Verdict::Holds`] if `holds` is true, otherwise [`Verdict::Fails`], with the evidence.
fn verdict(holds: bool, evidence: impl Into<String>) -> Outcome {
    let evidence = evidence.into();
    Ok(if holds {
        Verdict::Holds(evidence)
    } else {
        Verdict::Fails(evidence)
    })
}

/// Returns the verdict on a request that llmlb did not forward: [`Verdict::Holds`] if the client
/// got a 4xx error with this status, otherwise [`Verdict::Fails`].
fn rejected(status: u16) -> Outcome {
    verdict(
        (400..500).contains(&status),
        format!("rejected with {status}"),
    )
}

/// True if the server responds to `/healthz` within 10 s, since it may first have to release resources that
/// the attack held.
fn is_serving(server: &LlmlbServer) -> bool {
    is_reached(Duration::from_secs(10), || {
        let response = server.send(&Request::get("/healthz"));
        response.is_ok_and(|response| response.status() == 200)
    })
}

/// Returns the first five names, separated by commas, and the number of further names, so that
/// evidence stays on one line.
fn listed<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<_> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let shown = shown.join(", ");
    match names.len() {
        0..=SHOWN => shown,
        count => format!("{shown} and {} more", count - SHOWN),
    }
}

fn megabytes(bytes: u64) -> u64 {
    bytes / 1_000_000
}
