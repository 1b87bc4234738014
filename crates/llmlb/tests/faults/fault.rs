//! What a receiver can do wrong, and how often.

use std::time::Duration;
use testkit::random::Random;

/// Before or after the batch is billed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    Before,
    After,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// 500.
    Error(Commit),
    /// 503: nothing was done, but a sender cannot know that.
    Unavailable,
    /// 429 without a time: nothing was done.
    TooMany,
    /// 429 with so many seconds as `Retry-After`.
    WaitSeconds(u64),
    /// 429 with a date as `Retry-After`.
    WaitDate,
    Reset(Commit),
    /// The connection is closed without a word.
    Close(Commit),
    /// No answer until long after the client has given up.
    Hang(Commit),
    /// The same, and the batch is billed when nobody waits for it any more.
    HangThenCommit,
    /// 200, with half a head.
    CutHead,
    /// 200, with half a body.
    CutBody,
    /// 413, if there are more records than this in the batch.
    TooLarge(usize),
    /// 401 for a fifth of a second.
    Unauthorized,
}

impl Fault {
    /// After it nothing is sent for a while.
    pub(crate) fn is_pause(self) -> bool {
        matches!(
            self,
            Self::WaitSeconds(_) | Self::WaitDate | Self::Unauthorized
        )
    }
}

/// Faults, each with how often it comes among all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mix(Vec<(u64, Fault)>);

impl Mix {
    /// No faults.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    pub(crate) fn of(faults: &[(u64, Fault)]) -> Self {
        Self(faults.to_vec())
    }

    /// Every fault there is. Those that cost the client a second are rarer, so that in the time of
    /// a test the others come too.
    pub(crate) fn all() -> Self {
        Self::of(&[
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

    /// Those after which the client knows that nothing was billed.
    pub(crate) fn harmless() -> Self {
        Self::of(&[
            (300, Fault::None),
            (40, Fault::TooMany),
            (4, Fault::WaitSeconds(1)),
            (4, Fault::WaitDate),
            (30, Fault::TooLarge(5)),
            (4, Fault::Unauthorized),
        ])
    }

    /// The same without one of them.
    pub(crate) fn without(mut self, fault: Fault) -> Self {
        self.0.retain(|(_, known)| *known != fault);
        self
    }

    /// Those that stop all delivery for a while come this long apart at least.
    pub(crate) const REST: Duration = Duration::from_secs(4);

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
