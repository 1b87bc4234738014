//! The circuit breaker: ejects a backend that fails. Pure: the time is passed in.
//!
//! Three consecutive failures eject a backend for a second. Then a single request, the trial, is
//! sent to it. If the trial succeeds, the backend is healthy again. If the trial fails, the pause
//! doubles, up to four seconds. A trial without any outcome is followed by another one after a pause.
//!
//! The beginning of a response ends the ejection. Only a complete response resets the count of
//! failures: a backend that breaks off every response is ejected again by the next failure.
//!
//! `forward/judge.rs` decides which responses are failures. Responses that a client may provoke have
//! rules of their own (`suspicion.rs`).

use std::time::Duration;

use super::clock::Moment;

/// Number of consecutive failures that eject a backend.
const MAX_FAILURES: u8 = 3;
/// Duration of the first ejection. Each further ejection without a response in between lasts twice
/// as long.
const PAUSE: Duration = Duration::from_secs(1);
/// Number of ejections after which the next ones do not last longer, so that a backend that
/// recovers is tried again within seconds.
const MAX_STEPS: u8 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Breaker {
    /// Number of consecutive failed requests at the backend.
    failures: u8,
    /// Number of ejections since a response last proved the backend healthy, at most [`MAX_STEPS`].
    /// The number determines the duration of the next ejection. 0 means that the backend gets
    /// requests; otherwise it is ejected or needs a trial.
    steps: u8,
    /// True after the trial (the single request after an ejection) was sent, until its outcome is
    /// known. Failures of other requests do not prolong the ejection meanwhile.
    is_on_trial: bool,
    /// True if the backend itself requested the ejection, with 429 and `Retry-After`. Responses to
    /// earlier requests do not end such an ejection.
    is_backing_off: bool,
    /// End of the ejection, in milliseconds of the balancer's clock ([`Moment`]).
    until: u64,
}

/// Decision of the breaker about sending the next request to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The backend gets requests.
    Healthy,
    /// The pause is over: the backend gets one request, the trial.
    TrialDue,
    /// The backend gets no requests until this time.
    Ejected(Moment),
}

impl Breaker {
    pub(super) fn verdict(self, now: Moment) -> Verdict {
        match self.steps {
            0 => Verdict::Healthy,
            _ if now.0 >= self.until => Verdict::TrialDue,
            _ => Verdict::Ejected(Moment(self.until)),
        }
    }

    /// Returns the breaker's state after a request is sent. The first request after the pause is
    /// the trial; until its outcome is known, the backend counts as ejected again.
    #[must_use]
    pub(super) fn tried(self, now: Moment) -> Self {
        if self.verdict(now) != Verdict::TrialDue {
            return self;
        }
        Self {
            is_on_trial: true,
            is_backing_off: false,
            until: now.plus(pause(self.steps)).0,
            ..self
        }
    }

    /// Returns the breaker's state after a failed request: the third consecutive failure, or a
    /// failed trial, ejects the backend.
    #[must_use]
    pub(super) fn failed(self, now: Moment) -> Self {
        let failures = self.failures.saturating_add(1).min(MAX_FAILURES);
        let is_over = match self.steps {
            0 => failures == MAX_FAILURES,
            // Keep the end of the ejection: requests that were sent before the ejection and fail
            // during it do not prolong it.
            _ => self.is_on_trial,
        };
        if !is_over {
            return Self { failures, ..self };
        }
        let steps = (self.steps + 1).min(MAX_STEPS);
        Self {
            failures,
            steps,
            is_on_trial: false,
            is_backing_off: false,
            until: now.plus(pause(steps)).0,
        }
    }

    /// Returns the breaker's state after the backend is ejected for another reason than three
    /// consecutive failures. If a trial was running, the trial counts as failed and the pause
    /// doubles.
    #[must_use]
    pub(super) fn ejected(self, now: Moment) -> Self {
        let failures = MAX_FAILURES - 1;
        Self { failures, ..self }.failed(now)
    }

    /// Returns the breaker's state after a response that proves neither success nor failure. The
    /// next request is a new trial: otherwise a client could keep the backend ejected by provoking
    /// such responses.
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

    /// Returns the breaker's state after the backend requested a pause, with 429 and `Retry-After`.
    /// The backend gets no requests during the pause.
    #[must_use]
    pub(super) fn backed_off(self, now: Moment, pause: Duration) -> Self {
        Self {
            failures: MAX_FAILURES,
            steps: self.steps.max(1),
            is_on_trial: false,
            is_backing_off: true,
            until: self.until.max(now.plus(pause).0),
        }
    }

    /// Returns the breaker's state after a response began. The ejection is over, but the next
    /// failure ejects the backend again.
    #[must_use]
    pub(super) fn began(self, now: Moment) -> Self {
        match self.steps {
            0 => self,
            _ if self.is_backing_off_at(now) => self,
            _ => Self {
                failures: MAX_FAILURES - 1,
                ..Self::default()
            },
        }
    }

    /// Returns the breaker's state after a complete response, which clears the backend's failures.
    #[must_use]
    pub(super) fn ended(self, now: Moment) -> Self {
        if self.is_backing_off_at(now) {
            return self;
        }
        Self::default()
    }

    /// True during a pause that the backend requested with 429. Responses to earlier requests do
    /// not end the pause.
    fn is_backing_off_at(self, now: Moment) -> bool {
        self.is_backing_off && now.0 < self.until
    }

    /// Packs the breaker into one number, which threads change atomically without a lock. The
    /// number is 0 for a backend without failures.
    pub(super) fn pack(self) -> u64 {
        let until = self.until.min(u64::MAX >> 16);
        until << 16
            | u64::from(self.is_on_trial) << 15
            | u64::from(self.is_backing_off) << 14
            | u64::from(self.steps) << 8
            | u64::from(self.failures)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "each field is cut out of its bits"
    )]
    pub(super) fn unpack(packed: u64) -> Self {
        Self {
            failures: packed as u8,
            steps: (packed >> 8) as u8 & 0x3f,
            is_on_trial: packed >> 15 & 1 == 1,
            is_backing_off: packed >> 14 & 1 == 1,
            until: packed >> 16,
        }
    }
}

/// Returns the duration of the n-th ejection without a response in between (`steps`): 1 s, 2 s,
/// then always 4 s.
fn pause(steps: u8) -> Duration {
    PAUSE * (1 << steps.saturating_sub(1).min(MAX_STEPS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ejected_at(now: u64) -> Breaker {
        let now = Moment(now);
        Breaker::default().failed(now).failed(now).failed(now)
    }

    #[test]
    fn three_consecutive_failures_eject_for_a_second() {
        let now = Moment(500);
        let twice = Breaker::default().failed(now).failed(now);
        assert_eq!(twice.verdict(now), Verdict::Healthy);
        let thrice = twice.failed(now);
        assert_eq!(thrice.verdict(now), Verdict::Ejected(Moment(1500)));
        assert_eq!(thrice.verdict(Moment(1499)), Verdict::Ejected(Moment(1500)));
        assert_eq!(thrice.verdict(Moment(1500)), Verdict::TrialDue);
    }

    #[test]
    fn trial_after_a_pause_is_exactly_one_request() {
        let ejected = ejected_at(0);
        assert_eq!(ejected.tried(Moment(999)), ejected, "not yet");
        let trial = ejected.tried(Moment(1200));
        assert_eq!(trial.verdict(Moment(1200)), Verdict::Ejected(Moment(2200)));
        assert_eq!(trial.tried(Moment(1300)), trial);
        // The trial still has no outcome when its pause ends, so another trial is due.
        assert_eq!(trial.verdict(Moment(2200)), Verdict::TrialDue);
    }

    #[test]
    fn pause_doubles_up_to_four_seconds() {
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
    fn failures_of_requests_sent_before_the_ejection_do_not_prolong_it() {
        let ejected = ejected_at(0);
        let stragglers = (0..300).fold(ejected, |breaker, _| breaker.failed(Moment(700)));
        assert_eq!(stragglers, ejected);
    }

    #[test]
    fn failure_after_a_response_began_ejects_again() {
        let now = Moment(1000);
        let back = ejected_at(0).tried(now).began(now);
        assert_eq!(back.verdict(now), Verdict::Healthy);
        let again = back.failed(now);
        assert_eq!(again.verdict(now), Verdict::Ejected(Moment(2000)));
        let twice = Breaker::default().failed(now).failed(now);
        assert_eq!(twice.began(now), twice, "failures still count");
    }

    #[test]
    fn ejection_does_not_need_three_failures() {
        let now = Moment(1000);
        let ejected = Breaker::default().ejected(now);
        assert_eq!(ejected.verdict(now), Verdict::Ejected(Moment(2000)));
        assert_eq!(ejected.ejected(now), ejected, "already ejected");
        let later = Moment(2000);
        let again = ejected.tried(later).ejected(later);
        assert_eq!(again.verdict(later), Verdict::Ejected(Moment(4000)));
    }

    #[test]
    fn inconclusive_trial_permits_the_next_one() {
        let now = Moment(1000);
        let trial = ejected_at(0).tried(now);
        let next = trial.inconclusive(now);
        assert_eq!(next.verdict(now), Verdict::TrialDue);
        // The inconclusive trial did not lengthen the ejection: the first failed trial ejects for 2 s.
        let failed = next.tried(now).failed(now);
        assert_eq!(failed.verdict(now), Verdict::Ejected(Moment(3000)));
        // Without a running trial, an inconclusive response changes nothing.
        assert_eq!(failed.inconclusive(now), failed);
        let sound = Breaker::default();
        assert_eq!(sound.inconclusive(now), sound);
    }

    #[test]
    fn requested_pause_lasts_as_long_as_requested() {
        let now = Moment(1000);
        let paused = Breaker::default().backed_off(now, Duration::from_secs(30));
        assert_eq!(paused.verdict(now), Verdict::Ejected(Moment(31_000)));
        let longer = paused.backed_off(now, Duration::from_secs(1));
        assert_eq!(longer, paused, "a later request does not shorten it");
        // Outcomes of requests that were sent before the pause change nothing.
        assert_eq!(paused.began(now), paused);
        assert_eq!(paused.ended(now), paused);
        assert_eq!(paused.failed(now), paused);
        let over = Moment(31_000);
        assert_eq!(paused.verdict(over), Verdict::TrialDue);
        let trial = paused.tried(over);
        assert_eq!(trial.began(over).verdict(over), Verdict::Healthy);
        assert_eq!(trial.ended(over), Breaker::default());
    }

    #[test]
    fn breaker_is_the_same_after_packing() {
        assert_eq!(Breaker::default().pack(), 0);
        for breaker in [
            Breaker::default().failed(Moment(0)),
            ejected_at(0),
            ejected_at(1 << 40).tried(Moment(1 << 41)),
            Breaker::default().backed_off(Moment(7), Duration::from_secs(9)),
        ] {
            assert_eq!(Breaker::unpack(breaker.pack()), breaker);
        }
    }
}
