//! Delivery: every batch to its destination, exactly once as far as the destination lets us know.

mod sink;

pub use sink::{Answer, Sink};
