//! Average time until a backend's responses begin (EWMA). Pure: the time is passed in.
//!
//! A single response changes the average only a little: latency depends on the prompt more than on
//! the backend, and one long prompt must not keep a backend idle.

use std::time::Duration;

use super::clock::Moment;

/// Half-life of a backend's average latency, in milliseconds. An average of this age is read as
/// half its value, so that a slow backend gets requests again, and has half the weight when a new
/// response is added.
const HALF_LIFE: u32 = 10_000;
/// Minimum weight of a new response in the average. Without a minimum, responses in quick
/// succession would hardly change the average.
const MIN_WEIGHT: f64 = 1.0 / 8.0;

/// Average latency of a backend, and the time of its last update, from which the decay is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Latency {
    /// Average latency in microseconds; 0 before the first response.
    value: u32,
    /// Time of the last update, in milliseconds. The number wraps around.
    at: u32,
}

impl Latency {
    /// Returns the average latency at this time, in microseconds. The average decays, because a
    /// slow backend would otherwise never get a request again.
    pub(super) fn now(self, now: Moment) -> u32 {
        self.value >> (self.age(now) / HALF_LIFE).min(31)
    }

    /// Returns the average latency with one more response included, whose latency (the time until
    /// its first byte) was `first_byte`.
    pub(super) fn after(self, first_byte: Duration, now: Moment) -> Self {
        let sample = u32::try_from(first_byte.as_micros()).unwrap_or(u32::MAX);
        let sample = sample.max(1);
        if self.value == 0 {
            return Self {
                value: sample,
                at: milliseconds(now),
            };
        }
        let kept = f64::exp2(-f64::from(self.age(now)) / f64::from(HALF_LIFE));
        let kept = kept.min(1.0 - MIN_WEIGHT);
        let average = f64::from(self.value) * kept + f64::from(sample) * (1.0 - kept);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the average lies between two values of u32"
        )]
        let average = average as u32;
        Self {
            value: average.max(1),
            at: milliseconds(now),
        }
    }

    fn age(self, now: Moment) -> u32 {
        milliseconds(now).wrapping_sub(self.at)
    }

    /// Packs the average into one number, which threads share without a lock. The number is 0
    /// before the first response.
    pub(super) fn pack(self) -> u64 {
        u64::from(self.value) << 32 | u64::from(self.at)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the number is split into its halves"
    )]
    pub(super) fn unpack(packed: u64) -> Self {
        Self {
            value: (packed >> 32) as u32,
            at: packed as u32,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the difference of two times is right even if they wrap around"
)]
fn milliseconds(now: Moment) -> u32 {
    now.0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fresh() -> Latency {
        Latency::unpack(0)
    }

    #[test]
    fn latency_is_zero_before_the_first_response() {
        assert_eq!(fresh().now(Moment(123_456)), 0);
        assert_eq!(fresh().after(Duration::ZERO, Moment(5)).now(Moment(5)), 1);
    }

    #[test]
    fn response_moves_the_average_by_an_eighth_and_by_more_after_a_while() {
        let slow = fresh().after(SECOND, Moment(1000));
        assert_eq!(slow.now(Moment(1000)), 1_000_000);
        let quick = slow.after(SECOND / 5, Moment(1001));
        assert_eq!(quick.now(Moment(1001)), 900_000);
        let slow_again = quick.after(SECOND * 17 / 10, Moment(1002));
        assert_eq!(slow_again.now(Moment(1002)), 1_000_000);
        let later = slow.after(SECOND / 10, Moment(11_000));
        assert_eq!(later.now(Moment(11_000)), 550_000, "half of each");
        let much_later = slow.after(SECOND / 10, Moment(200_000));
        assert_eq!(much_later.now(Moment(200_000)), 100_000);
    }

    #[test]
    fn latency_halves_every_ten_seconds_without_a_response() {
        let slow = fresh().after(SECOND, Moment(0));
        assert_eq!(slow.now(Moment(9_999)), 1_000_000);
        assert_eq!(slow.now(Moment(10_000)), 500_000);
        assert_eq!(slow.now(Moment(40_000)), 62_500);
        assert_eq!(slow.now(Moment(3_600_000)), 0);
    }

    #[test]
    fn latency_is_the_same_after_packing() {
        let latency = fresh().after(SECOND, Moment(77));
        assert_eq!(Latency::unpack(latency.pack()), latency);
        let longest = fresh().after(Duration::MAX, Moment(u64::MAX));
        assert_eq!(longest.now(Moment(u64::MAX)), u32::MAX);
    }
}
