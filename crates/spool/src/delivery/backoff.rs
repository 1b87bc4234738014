//! How long to wait after a failure.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);

/// Twice as long each time, up to a limit; between half of that and all of it, so that many who
/// failed together do not come back together.
pub(super) fn backoff(failures: u32, longest: Duration) -> Duration {
    let doublings = failures.saturating_sub(1).min(30);
    let long = FIRST.saturating_mul(1 << doublings).min(longest);
    long.div_f64(2.0) + long.mul_f64(random() / 2.0)
}

/// From 0 to 1. A hasher's random keys are as random as this needs.
fn random() -> f64 {
    let number = RandomState::new().build_hasher().finish();
    f64::from((number >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_with_jitter_up_to_the_limit() {
        let longest = Duration::from_secs(3600);
        for (failures, seconds) in [
            (1, 1.0),
            (2, 2.0),
            (5, 16.0),
            (13, 3600.0),
            (u32::MAX, 3600.0),
        ] {
            let waits: Vec<_> = (0..50).map(|_| backoff(failures, longest)).collect();
            for wait in &waits {
                let wait = wait.as_secs_f64();
                assert!(
                    wait >= seconds / 2.0 && wait <= seconds,
                    "{failures}: {wait}"
                );
            }
            assert!(waits.iter().any(|wait| *wait != waits[0]), "it differs");
        }
    }
}
