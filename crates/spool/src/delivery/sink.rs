//! What takes batches.

use std::time::Duration;

use crate::batch::Batch;

/// A destination.
pub trait Sink {
    /// What to call it in messages. Never a secret.
    fn name(&self) -> &str;
    /// Offers it a batch, once. The same batch is offered with the same bytes and key every time.
    fn send(&self, batch: &Batch) -> Answer;
}

/// What came of an attempt. `said` is for people: the status and the beginning of the answer, or
/// what the network did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// It has the batch, now or from an earlier attempt.
    #[non_exhaustive]
    Accepted {
        /// For people.
        said: String,
    },
    /// It did not take the batch and never will as it is: something in it is wrong.
    #[non_exhaustive]
    Rejected {
        /// For people.
        said: String,
    },
    /// The batch is too large for it; a smaller one may be accepted.
    #[non_exhaustive]
    TooLarge {
        /// For people.
        said: String,
    },
    /// It may take the batch later.
    #[non_exhaustive]
    Later {
        /// For people.
        said: String,
        /// It may have the batch although it did not say so.
        unknown: bool,
        /// How long it asked us to wait.
        after: Option<Duration>,
    },
    /// It accepts nothing: the address or the token is likely wrong. Delivery pauses, and is tried
    /// again by itself.
    #[non_exhaustive]
    Misconfigured {
        /// For people.
        said: String,
    },
}

impl Answer {
    /// It has the batch.
    pub fn accepted(said: impl Into<String>) -> Self {
        Self::Accepted { said: said.into() }
    }

    /// Something in the batch is wrong.
    pub fn rejected(said: impl Into<String>) -> Self {
        Self::Rejected { said: said.into() }
    }

    /// The batch is too large.
    pub fn too_large(said: impl Into<String>) -> Self {
        Self::TooLarge { said: said.into() }
    }

    /// It may take the batch later. `unknown`: it may have it already.
    pub fn later(said: impl Into<String>, unknown: bool, after: Option<Duration>) -> Self {
        Self::Later {
            said: said.into(),
            unknown,
            after,
        }
    }

    /// The address or the token is likely wrong.
    pub fn misconfigured(said: impl Into<String>) -> Self {
        Self::Misconfigured { said: said.into() }
    }
}
