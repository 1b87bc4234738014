//! Interface of destinations.

use std::time::Duration;

use crate::batch::Batch;

/// A destination of batches.
pub trait Sink {
    /// Name of the destination for messages. It must not contain a secret.
    fn name(&self) -> &str;
    /// Sends a batch once. A batch has the same bytes and the same key on every attempt.
    fn send(&self, batch: &Batch) -> Answer;
}

/// Result of an attempt. `message` is for people: the status and the beginning of the response, or
/// the network error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The destination has the batch, from this attempt or an earlier one.
    #[non_exhaustive]
    Accepted {
        /// Text for people.
        message: String,
    },
    /// The destination will never accept the batch as it is: a record in it is invalid.
    #[non_exhaustive]
    Rejected {
        /// Text for people.
        message: String,
    },
    /// The batch is too large. The destination may accept a smaller one.
    #[non_exhaustive]
    TooLarge {
        /// Text for people.
        message: String,
    },
    /// The destination may accept the batch later.
    #[non_exhaustive]
    Later {
        /// Text for people.
        message: String,
        /// True if the destination may have the batch already.
        unknown: bool,
        /// Time that the destination asked to wait.
        after: Option<Duration>,
    },
    /// The destination accepts no batch: the address or the token is likely wrong. Delivery pauses
    /// and is retried by itself.
    #[non_exhaustive]
    Misconfigured {
        /// Text for people.
        message: String,
    },
}

impl Answer {
    /// Returns [`Answer::Accepted`].
    pub fn accepted(message: impl Into<String>) -> Self {
        Self::Accepted {
            message: message.into(),
        }
    }

    /// Returns [`Answer::Rejected`].
    pub fn rejected(message: impl Into<String>) -> Self {
        Self::Rejected {
            message: message.into(),
        }
    }

    /// Returns [`Answer::TooLarge`].
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::TooLarge {
            message: message.into(),
        }
    }

    /// Returns [`Answer::Later`] for a batch that the destination cannot have.
    pub fn later(message: impl Into<String>, after: Option<Duration>) -> Self {
        Self::Later {
            message: message.into(),
            unknown: false,
            after,
        }
    }

    /// Returns [`Answer::Later`] for a batch that the destination may have already.
    pub fn unknown(message: impl Into<String>, after: Option<Duration>) -> Self {
        Self::Later {
            message: message.into(),
            unknown: true,
            after,
        }
    }

    /// Returns [`Answer::Misconfigured`].
    pub fn misconfigured(message: impl Into<String>) -> Self {
        Self::Misconfigured {
            message: message.into(),
        }
    }
}
