//! Faults of a receiver of usage records, and their probabilities.

use std::time::Duration;
use testkit::random::Random;

/// Time of a fault: before or after the batch is billed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    Before,
    After,
}

/// Fault that a request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// 500.
    Error(Commit),
    /// 503. The batch is not billed, but the sender cannot know that.
    Unavailable,
    /// 429 without a `Retry-After`. The batch is not billed.
    TooMany,
    /// 429 with this many seconds as `Retry-After`.
    WaitSeconds(u64),
    /// 429 with a date as `Retry-After`.
    WaitDate,
    Reset(Commit),
    /// The receiver closes the connection without a response, before or after it bills the batch.
    Close(Commit),
    /// No response until long after the client's timeout.
    Hang(Commit),
    /// No response until long after the client's timeout. The batch is billed after the timeout.
    HangThenCommit,
    /// 200, with half a head.
    CutHead,
    /// 200, with half a body.
    CutBody,
    /// 413 if the batch has more records than this.
    TooLarge(usize),
    /// 401 to this request and to all requests within the next fifth of a second.
    Unauthorized,
}

impl Fault {
    /// True if no requests are expected for a while after this fault.
    pub(crate) fn is_pause(self) -> bool {
        matches!(
            self,
            Self::WaitSeconds(_) | Self::WaitDate | Self::Unauthorized
        )
    }
}

/// Faults of a receiver with their weights: a fault is chosen in proportion to its weight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mix(Vec<(u64, Fault)>);

impl Mix {
    /// No faults.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    pub(crate) fn new(faults: &[(u64, Fault)]) -> Self {
        Self(faults.to_vec())
    }

    /// Every fault. Faults that cost the client a second have less weight, so that the others occur too
    /// within the time of a test.
    pub(crate) fn all() -> Self {
        Self::new(&[
            (300, Fault::None),
            (20, Fault::Error(Commit::Before)),
            (20, Fault::Error(Commit::After)),
            (20, Fault::Unavailable),
            (2, Fault::WaitSeconds(1)),
            (2, Fault::WaitDate),
            (15, Fault::Reset(Commit::Before)),
            (15, Fault::Reset(Commit::After)),
            (10, Fault::Close(Commit::Before)),
            (10, Fault::Close(Commit::After)),
            (4, Fault::Hang(Commit::Before)),
            (4, Fault::Hang(Commit::After)),
            (4, Fault::HangThenCommit),
            (20, Fault::CutHead),
            (20, Fault::CutBody),
            (20, Fault::TooLarge(5)),
            (2, Fault::Unauthorized),
        ])
    }

    /// Faults after which the client knows that the batch is not billed.
    pub(crate) fn harmless() -> Self {
        Self::new(&[
            (300, Fault::None),
            (40, Fault::TooMany),
            (4, Fault::WaitSeconds(1)),
            (4, Fault::WaitDate),
            (30, Fault::TooLarge(5)),
            (4, Fault::Unauthorized),
        ])
    }

    /// Removes one fault.
    pub(crate) fn without(mut self, fault: Fault) -> Self {
        self.0.retain(|(_, known)| *known != fault);
        self
    }

    /// Minimum interval between two faults that pause delivery.
    pub(crate) const PAUSE_INTERVAL: Duration = Duration::from_secs(4);

    pub(crate) fn draw(&self, random: &mut Random) -> Fault {
        let sum = self.0.iter().map(|(weight, _)| weight).sum();
        let mut left = random.below(sum);
        for (weight, fault) in &self.0 {
            if left < *weight {
                return *fault;
            }
            left -= weight;
        }
        Fault::None
    }
}
