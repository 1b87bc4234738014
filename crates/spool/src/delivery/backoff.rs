//! Exponential backoff with jitter.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);

/// Returns the wait after this number of failures. The upper bound of the wait doubles with every
/// failure, up to `max`. The wait is between half of that bound and all of it, so that clients that
/// failed together do not retry together.
pub(super) fn backoff(failures: u32, max: Duration) -> Duration {
    let doublings = failures.saturating_sub(1).min(30);
    let bound = FIRST.saturating_mul(1 << doublings).min(max);
    bound.div_f64(2.0) + bound.mul_f64(random() / 2.0)
}

/// Returns a number from 0 to 1. The random keys of a hasher are random enough for jitter.
fn random() -> f64 {
    let number = RandomState::new().build_hasher().finish();
    f64::from((number >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_with_jitter_up_to_the_limit() {
        let max = Duration::from_secs(3600);
        for (failures, seconds) in [
            (1, 1.0),
            (2, 2.0),
            (5, 16.0),
            (13, 3600.0),
            (u32::MAX, 3600.0),
        ] {
            let waits: Vec<_> = (0..50).map(|_| backoff(failures, max)).collect();
            for wait in &waits {
                let wait = wait.as_secs_f64();
                assert!(
                    wait >= seconds / 2.0 && wait <= seconds,
                    "{failures}: {wait}"
                );
            }
            assert!(waits.iter().any(|wait| *wait != waits[0]), "no jitter");
        }
    }
}
