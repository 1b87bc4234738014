//! What was seen of the answers of one address.

use std::time::Duration;

const ERRORS_TOLD: usize = 5;

/// How long one request took, from its start.
#[derive(Clone, Copy)]
pub struct Times {
    pub(super) whole: Duration,
    pub(super) event: Option<Duration>,
    pub(super) token: Option<Duration>,
    pub(super) bytes: usize,
}

/// All answers of one address.
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

    /// Counts errors, and tells the first ones.
    pub(super) fn error(&mut self, count: usize, error: &str) {
        if self.errors < ERRORS_TOLD {
            eprintln!("error: {error}");
        }
        self.errors += count;
    }

    /// Takes over the errors of the time before.
    #[must_use]
    pub fn after(mut self, warm: &Self) -> Self {
        self.errors += warm.errors;
        self
    }

    /// The fields of a JSON object; times in milliseconds.
    pub fn json(mut self) -> String {
        let [whole, event, token] =
            [&mut self.whole, &mut self.event, &mut self.token].map(|times| {
                times.sort_unstable();
                [50, 99].map(|percent| {
                    let place = times.len() * percent / 100;
                    times
                        .get(place)
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
