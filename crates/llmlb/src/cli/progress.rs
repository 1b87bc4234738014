//! How far long work is, for a person who watches: one line on the terminal that is written over
//! and over, and gone in the end.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::time::span;

/// How wide the line on the terminal is. Others who write there first take it away.
static SHOWN: AtomicUsize = AtomicUsize::new(0);
/// So often it changes at most.
const PAUSE: Duration = Duration::from_millis(100);
/// How wide the bar is within it.
const BAR: u64 = 20;

/// The line. It is there only if stderr is a terminal and nobody asked for silence.
#[derive(Debug)]
pub(super) struct Bar {
    is_on: bool,
    began: Instant,
    drawn: Mutex<Option<Instant>>,
}

impl Bar {
    pub(super) fn new(quiet: bool) -> Self {
        Self {
            is_on: !quiet && io::stderr().is_terminal(),
            began: Instant::now(),
            drawn: Mutex::default(),
        }
    }

    /// So many records are done, of so many if that is known.
    pub(super) fn show(&self, what: &str, done: u64, total: Option<u64>) {
        if self.is_on && self.is_due() {
            draw(&text(what, done, total, self.began.elapsed()));
        }
    }

    /// Something that has no measure.
    pub(super) fn say(&self, text: &str) {
        if self.is_on && self.is_due() {
            draw(text);
        }
    }

    /// Something that stays for a while.
    pub(super) fn tell(&self, text: &str) {
        if self.is_on {
            draw(text);
        }
    }

    fn is_due(&self) -> bool {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // What is done at once needs no bar.
        let last = drawn.unwrap_or(self.began);
        let is_due = now.duration_since(last) >= PAUSE;
        if is_due {
            *drawn = Some(now);
        }
        is_due
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        clear();
    }
}

/// Takes the line away, if there is one.
pub(super) fn clear() {
    let width = SHOWN.swap(0, Ordering::Relaxed);
    if width > 0 {
        let _ = write!(io::stderr(), "\r{:width$}\r", "");
    }
}

fn draw(text: &str) {
    // A line that is broken into two could not be written over.
    let text: String = text.chars().take(78).collect();
    let width = text.chars().count();
    let before = SHOWN.swap(width, Ordering::Relaxed);
    let _ = write!(io::stderr(), "\r{text:before$}");
}

/// `delivered [#####---------------] 250/1000 records, 50/s, 15 s left`
fn text(what: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is about right"
    )]
    let rate = (done as f64 / seconds) as u64;
    let Some(total) = total.filter(|total| *total > 0) else {
        return format!("{what} {done} records, {rate}/s");
    };
    let done = done.min(total);
    let filled = BAR * done / total;
    let bar: String = (0..BAR)
        .map(|place| if place < filled { '#' } else { '-' })
        .collect();
    let left = (total - done)
        .checked_div(rate)
        .map_or_else(String::new, |seconds| {
            format!(", {} left", span(Duration::from_secs(seconds)))
        });
    format!("{what} [{bar}] {done}/{total} records, {rate}/s{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_how_far_how_fast_and_how_long_yet() {
        let ten = Duration::from_secs(10);
        assert_eq!(
            text("delivered", 250, Some(1000), ten),
            "delivered [#####---------------] 250/1000 records, 25/s, 30 s left"
        );
        assert_eq!(text("staged", 250, None, ten), "staged 250 records, 25/s");
        assert_eq!(
            text("delivered", 0, Some(10), ten),
            "delivered [--------------------] 0/10 records, 0/s"
        );
        assert_eq!(
            text("delivered", 12, Some(10), ten),
            "delivered [####################] 10/10 records, 1/s, 0 s left"
        );
        assert!(text("delivered", 900_000, Some(9_999_999), ten).len() < 79);
    }

    #[test]
    fn nothing_is_drawn_where_nobody_watches() {
        let bar = Bar::new(true);
        bar.show("staged", 1, None);
        bar.say("checked");
        bar.tell("waiting");
        assert_eq!(SHOWN.load(Ordering::Relaxed), 0);
    }
}
