//! Speed of a demo backend, so that backends differ as real ones do.

use std::time::Duration;

use super::hash;

/// Time until a demo backend's first token, and between later tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    first: Duration,
    between: Duration,
}

impl Pace {
    pub(crate) const fn new(first: Duration, between: Duration) -> Self {
        Self { first, between }
    }

    /// Returns the time until the first token is sent.
    pub(super) const fn first(self) -> Duration {
        self.first
    }

    /// Returns for each token the time after the start at which it is sent. The steps vary by at
    /// most a sixth, as on a real server; the seed determines the variation.
    pub(super) fn schedule(self, seed: u64) -> impl Iterator<Item = Duration> {
        let steps = (0_u32..).map(move |index| {
            let step = if index == 0 { self.first } else { self.between };
            let varied = hash::mixed(seed ^ u64::from(index)) % 33;
            let percent = 84 + u32::try_from(varied).unwrap_or(16);
            step.saturating_mul(percent) / 100
        });
        steps.scan(Duration::ZERO, |due, step| {
            *due = due.saturating_add(step);
            Some(*due)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const PACE: Pace = Pace::new(Duration::from_millis(400), Duration::from_millis(100));

    #[test]
    fn schedule_keeps_the_average_pace() {
        let due: Vec<_> = PACE.schedule(7).take(101).collect();
        assert!(due.is_sorted());
        assert!((336..=464).contains(&due[0].as_millis()), "{:?}", due[0]);
        let talking = due[100].saturating_sub(due[0]);
        assert!(
            (9_500..=10_500).contains(&talking.as_millis()),
            "{talking:?}"
        );
    }

    #[test]
    fn steps_vary_and_depend_only_on_the_seed() {
        let due: Vec<_> = PACE.schedule(7).take(20).collect();
        assert_eq!(due, PACE.schedule(7).take(20).collect::<Vec<_>>());
        assert_ne!(due, PACE.schedule(8).take(20).collect::<Vec<_>>());
        let steps = due.windows(2).map(|two| two[1].saturating_sub(two[0]));
        assert!(steps.collect::<HashSet<_>>().len() > 5, "{due:?}");
    }
}
