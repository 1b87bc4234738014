//! Results of the responses of one address.

use std::time::Duration;

const MAX_PRINTED_ERRORS: usize = 5;

/// Durations of one request, from its start.
#[derive(Clone, Copy)]
pub struct Times {
    pub(super) whole: Duration,
    pub(super) event: Option<Duration>,
    pub(super) token: Option<Duration>,
    pub(super) bytes: usize,
}

/// Results of all responses of one address.
#[derive(Default)]
pub struct Seen {
    errors: usize,
    bytes: usize,
    whole: Vec<Duration>,
    event: Vec<Duration>,
    token: Vec<Duration>,
}

impl Seen {
    pub(super) fn add(&mut self, times: &Times) {
        self.bytes += times.bytes;
        self.whole.push(times.whole);
        self.event.extend(times.event);
        self.token.extend(times.token);
    }

    /// Counts errors, and prints the first ones.
    pub(super) fn error(&mut self, count: usize, error: &str) {
        if self.errors < MAX_PRINTED_ERRORS {
            eprintln!("error: {error}");
        }
        self.errors += count;
    }

    /// Adds the errors of the warm-up.
    #[must_use]
    pub fn after(mut self, warm: &Self) -> Self {
        self.errors += warm.errors;
        self
    }

    /// Returns the fields of a JSON object, with times in milliseconds.
    pub fn json(mut self) -> String {
        let [whole, event, token] =
            [&mut self.whole, &mut self.event, &mut self.token].map(|times| {
                times.sort_unstable();
                [50, 99].map(|percent| {
                    let index = times.len() * percent / 100;
                    times
                        .get(index)
                        .map_or(0.0, |time| time.as_secs_f64() * 1e3)
                })
            });
        format!(
            "\"requests\":{},\"errors\":{},\"bytes\":{},\"p50\":{},\"p99\":{},\
             \"event_p50\":{},\"event_p99\":{},\"token_p50\":{},\"token_p99\":{}",
            self.whole.len(),
            self.errors,
            self.bytes,
            whole[0],
            whole[1],
            event[0],
            event[1],
            token[0],
            token[1],
        )
    }
}
