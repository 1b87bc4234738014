//! When a backend that fails gets no requests for a while. Pure: the time is passed in.
//!
//! Three failures in a row eject it for a second. Which responses count as failures is decided
//! elsewhere; those that a client may provoke have rules of their own (`suspicion.rs`). Then one request may try it: if that is answered
//! all is well again, if it fails the pause is twice as long, up to four seconds. A trial of which
//! nothing is heard does not hold up the next one for longer than a pause. An answer that has begun
//! ends the pause, but only one that has ended makes up for the failures before it.

use std::time::Duration;

use super::clock::Moment;

/// So many failures in a row eject a backend.
const MOST_FAILURES: u8 = 3;
/// The first pause; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause is the first one, doubled this many times less one.
const MOST_STEPS: u8 = 3;

/// What happened to a backend's last requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Breaker {
    /// In a row.
    failures: u8,
    /// How many pauses there were since it last answered. 0: it is not ejected.
    steps: u8,
    /// A request was let through after the pause, and nothing was heard of it yet.
    is_on_trial: bool,
    /// The pause is one that the backend itself has asked for.
    is_resting: bool,
    /// When the pause ends.
    until: u64,
}

/// Whether a backend gets requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As usual.
    Sound,
    /// One, to see whether it is well again.
    Due,
    /// None until then.
    Ejected(Moment),
}

impl Breaker {
    pub(super) fn verdict(self, now: Moment) -> Verdict {
        match self.steps {
            0 => Verdict::Sound,
            _ if now.0 >= self.until => Verdict::Due,
            _ => Verdict::Ejected(Moment(self.until)),
        }
    }

    /// A request is sent to it. Of those that are sent after the pause only the first is a trial;
    /// the others see the backend as ejected again.
    #[must_use]
    pub(super) fn tried(self, now: Moment) -> Self {
        if self.verdict(now) != Verdict::Due {
            return self;
        }
        Self {
            is_on_trial: true,
            is_resting: false,
            until: now.plus(pause(self.steps)).0,
            ..self
        }
    }

    /// A request failed.
    #[must_use]
    pub(super) fn failed(self, now: Moment) -> Self {
        let failures = self.failures.saturating_add(1).min(MOST_FAILURES);
        let is_over = match self.steps {
            0 => failures == MOST_FAILURES,
            // Those that were on their way when it was ejected tell nothing new.
            _ => self.is_on_trial,
        };
        if !is_over {
            return Self { failures, ..self };
        }
        let steps = (self.steps + 1).min(MOST_STEPS);
        Self {
            failures,
            steps,
            is_on_trial: false,
            is_resting: false,
            until: now.plus(pause(steps)).0,
        }
    }

    /// Ejects it at once, or for longer if it was on trial.
    #[must_use]
    pub(super) fn ejected(self, now: Moment) -> Self {
        let failures = MOST_FAILURES - 1;
        Self { failures, ..self }.failed(now)
    }

    /// A trial ended with a response that proves neither a success nor a failure: the next request
    /// may try at once. Otherwise a client could keep the backend ejected by provoking it.
    #[must_use]
    pub(super) fn inconclusive(self, now: Moment) -> Self {
        if !self.is_on_trial {
            return self;
        }
        Self {
            is_on_trial: false,
            until: now.0,
            ..self
        }
    }

    /// The backend said itself that it wants no requests for so long.
    #[must_use]
    pub(super) fn rests(self, now: Moment, long: Duration) -> Self {
        Self {
            failures: MOST_FAILURES,
            steps: self.steps.max(1),
            is_on_trial: false,
            is_resting: true,
            until: self.until.max(now.plus(long).0),
        }
    }

    /// An answer began. It gets requests again, but the next failure ejects it.
    #[must_use]
    pub(super) fn began(self, now: Moment) -> Self {
        match self.steps {
            0 => self,
            _ if self.rests_on(now) => self,
            _ => Self {
                failures: MOST_FAILURES - 1,
                ..Self::default()
            },
        }
    }

    /// An answer came to its end: all is well.
    #[must_use]
    pub(super) fn ended(self, now: Moment) -> Self {
        if self.rests_on(now) {
            return self;
        }
        Self::default()
    }

    /// Those that were on their way when it asked for a pause do not end that.
    fn rests_on(self, now: Moment) -> bool {
        self.is_resting && now.0 < self.until
    }

    /// As one number. That of a backend with which all is well is 0.
    pub(super) fn pack(self) -> u64 {
        let until = self.until.min(u64::MAX >> 16);
        until << 16
            | u64::from(self.is_on_trial) << 15
            | u64::from(self.is_resting) << 14
            | u64::from(self.steps) << 8
            | u64::from(self.failures)
    }

    #[expect(clippy::cast_possible_truncation, reason = "that is where each lies")]
    pub(super) fn unpack(packed: u64) -> Self {
        Self {
            failures: packed as u8,
            steps: (packed >> 8) as u8 & 0x3f,
            is_on_trial: packed >> 15 & 1 == 1,
            is_resting: packed >> 14 & 1 == 1,
            until: packed >> 16,
        }
    }
}

/// How long the pause is after so many.
fn pause(steps: u8) -> Duration {
    PAUSE * (1 << steps.saturating_sub(1).min(MOST_STEPS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ejected_at(now: u64) -> Breaker {
        let now = Moment(now);
        Breaker::default().failed(now).failed(now).failed(now)
    }

    #[test]
    fn three_failures_in_a_row_eject_it_for_a_second() {
        let now = Moment(500);
        let twice = Breaker::default().failed(now).failed(now);
        assert_eq!(twice.verdict(now), Verdict::Sound);
        let thrice = twice.failed(now);
        assert_eq!(thrice.verdict(now), Verdict::Ejected(Moment(1500)));
        assert_eq!(thrice.verdict(Moment(1499)), Verdict::Ejected(Moment(1500)));
        assert_eq!(thrice.verdict(Moment(1500)), Verdict::Due);
    }

    #[test]
    fn only_one_request_tries_it() {
        let ejected = ejected_at(0);
        assert_eq!(ejected.tried(Moment(999)), ejected, "not yet");
        let trial = ejected.tried(Moment(1200));
        assert_eq!(trial.verdict(Moment(1200)), Verdict::Ejected(Moment(2200)));
        assert_eq!(trial.tried(Moment(1300)), trial);
        // Nothing was heard of it.
        assert_eq!(trial.verdict(Moment(2200)), Verdict::Due);
    }

    #[test]
    fn the_pause_doubles_up_to_four_seconds() {
        let mut breaker = ejected_at(0);
        let mut now = 1000;
        for pause in [2000, 4000, 4000, 4000] {
            breaker = breaker.tried(Moment(now)).failed(Moment(now + 5));
            let until = Moment(now + 5 + pause);
            assert_eq!(breaker.verdict(Moment(now + 5)), Verdict::Ejected(until));
            now = until.0;
        }
    }

    #[test]
    fn failures_of_requests_that_were_on_their_way_do_not_prolong_it() {
        let ejected = ejected_at(0);
        let stragglers = (0..300).fold(ejected, |breaker, _| breaker.failed(Moment(700)));
        assert_eq!(stragglers, ejected);
    }

    #[test]
    fn answers_that_begin_and_do_not_end_send_it_away_again() {
        let now = Moment(1000);
        let back = ejected_at(0).tried(now).began(now);
        assert_eq!(back.verdict(now), Verdict::Sound);
        let again = back.failed(now);
        assert_eq!(again.verdict(now), Verdict::Ejected(Moment(2000)));
        let twice = Breaker::default().failed(now).failed(now);
        assert_eq!(twice.began(now), twice, "nor does it begin anew");
    }

    #[test]
    fn ejection_does_not_need_three_failures() {
        let now = Moment(1000);
        let ejected = Breaker::default().ejected(now);
        assert_eq!(ejected.verdict(now), Verdict::Ejected(Moment(2000)));
        assert_eq!(ejected.ejected(now), ejected, "it is ejected already");
        let later = Moment(2000);
        let again = ejected.tried(later).ejected(later);
        assert_eq!(again.verdict(later), Verdict::Ejected(Moment(4000)));
    }

    #[test]
    fn inconclusive_trial_makes_room_for_the_next() {
        let now = Moment(1000);
        let trial = ejected_at(0).tried(now);
        let next = trial.inconclusive(now);
        assert_eq!(next.verdict(now), Verdict::Due);
        // The pause does not grow, nor does a response without a trial end it.
        let failed = next.tried(now).failed(now);
        assert_eq!(failed.verdict(now), Verdict::Ejected(Moment(3000)));
        assert_eq!(failed.inconclusive(now), failed);
        let sound = Breaker::default();
        assert_eq!(sound.inconclusive(now), sound);
    }

    #[test]
    fn it_rests_for_as_long_as_it_says() {
        let now = Moment(1000);
        let resting = Breaker::default().rests(now, Duration::from_secs(30));
        assert_eq!(resting.verdict(now), Verdict::Ejected(Moment(31_000)));
        let longer = resting.rests(now, Duration::from_secs(1));
        assert_eq!(longer, resting, "no less than it said before");
        // Those that were on their way before tell nothing new.
        assert_eq!(resting.began(now), resting);
        assert_eq!(resting.ended(now), resting);
        assert_eq!(resting.failed(now), resting);
        let over = Moment(31_000);
        assert_eq!(resting.verdict(over), Verdict::Due);
        let trial = resting.tried(over);
        assert_eq!(trial.began(over).verdict(over), Verdict::Sound);
        assert_eq!(trial.ended(over), Breaker::default());
    }

    #[test]
    fn it_is_the_same_after_packing() {
        assert_eq!(Breaker::default().pack(), 0);
        for breaker in [
            Breaker::default().failed(Moment(0)),
            ejected_at(0),
            ejected_at(1 << 40).tried(Moment(1 << 41)),
            Breaker::default().rests(Moment(7), Duration::from_secs(9)),
        ] {
            assert_eq!(Breaker::unpack(breaker.pack()), breaker);
        }
    }
}
