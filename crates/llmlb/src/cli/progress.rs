//! Progress of long commands: one line on the terminal that is overwritten and finally removed.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::time::span;

/// Width of the progress line on the terminal; 0 if none is shown. Other output must call `clear`
/// first, or it would mix with the line.
static SHOWN: AtomicUsize = AtomicUsize::new(0);
/// Minimum time between two updates of the progress line, so that drawing does not slow the work.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Width of the progress bar in characters.
const BAR_WIDTH: u64 = 20;

/// The progress line of a command. It is shown only if stderr is a terminal and `-q` is not set.
#[derive(Debug)]
pub(super) struct ProgressLine {
    is_on: bool,
    began: Instant,
    drawn: Mutex<Option<Instant>>,
}

impl ProgressLine {
    pub(super) fn new(quiet: bool) -> Self {
        Self {
            is_on: !quiet && io::stderr().is_terminal(),
            began: Instant::now(),
            drawn: Mutex::default(),
        }
    }

    /// Shows the number of records done, and the total if it is known.
    pub(super) fn show_count(&self, what: &str, done: u64, total: Option<u64>) {
        if self.is_on && self.is_due() {
            draw(&text(what, done, total, self.began.elapsed()));
        }
    }

    /// Shows a text as the progress line, unless the last update was less than `MIN_INTERVAL` ago.
    pub(super) fn show_text(&self, text: &str) {
        if self.is_on && self.is_due() {
            draw(text);
        }
    }

    /// Shows a text as the progress line at once, for example before a longer wait.
    pub(super) fn show_now(&self, text: &str) {
        if self.is_on {
            draw(text);
        }
    }

    fn is_due(&self) -> bool {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Show no line for work that ends within the first `MIN_INTERVAL`: it would only flicker.
        let last = drawn.unwrap_or(self.began);
        let is_due = now.duration_since(last) >= MIN_INTERVAL;
        if is_due {
            *drawn = Some(now);
        }
        is_due
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        clear();
    }
}

/// Removes the progress line from the terminal, if one is shown.
pub(super) fn clear() {
    let width = SHOWN.swap(0, Ordering::Relaxed);
    if width > 0 {
        let _ = write!(io::stderr(), "\r{:width$}\r", "");
    }
}

fn draw(text: &str) {
    // Truncate the line to less than 80 columns, the usual width of a terminal: a line that wraps
    // could not be overwritten.
    let text: String = text.chars().take(78).collect();
    let width = text.chars().count();
    let before = SHOWN.swap(width, Ordering::Relaxed);
    let _ = write!(io::stderr(), "\r{text:before$}");
}

/// Formats the progress line, such as `delivered [#####---------------] 250/1000 records, 50/s, 15
/// s left`.
fn text(what: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an approximate rate is sufficient"
    )]
    let rate = (done as f64 / seconds) as u64;
    let Some(total) = total.filter(|total| *total > 0) else {
        return format!("{what} {done} records, {rate}/s");
    };
    let done = done.min(total);
    let filled = BAR_WIDTH * done / total;
    let bar: String = (0..BAR_WIDTH)
        .map(|column| if column < filled { '#' } else { '-' })
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
    fn line_shows_progress_rate_and_remaining_time() {
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
    fn quiet_bar_draws_nothing() {
        let bar = ProgressLine::new(true);
        bar.show_count("staged", 1, None);
        bar.show_text("checked");
        bar.show_now("waiting");
        assert_eq!(SHOWN.load(Ordering::Relaxed), 0);
    }
}
