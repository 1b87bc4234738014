//! Tokens that a request may use, as far as its body states them.

/// Tokens that a request may use. They are reserved when the request is admitted, and replaced by
/// the metered figure when its usage record is final.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenDemand {
    /// Estimated number of tokens of the prompt.
    pub(crate) prompt: u64,
    pub(crate) output: OutputDemand,
    /// Number of responses that the request asks for; 0 counts as 1.
    pub(crate) choices: u64,
}

/// Number of tokens that a model may generate for the request, by which tokens are reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OutputDemand {
    /// The request runs no model, so no tokens are reserved.
    #[default]
    NoModel,
    /// The model generates at most this many tokens in all responses; 0 for embeddings.
    AtMost(u64),
    /// The request sets no maximum for its responses.
    Unlimited,
    /// The tokens cannot be predicted, such as those of an image. Nothing is reserved.
    Unknown,
}

impl TokenDemand {
    /// Returns the smallest number of tokens that the request needs, and the number to reserve if as
    /// many are left. `expected` is the learned output of one response.
    ///
    /// A request that sets its maximum needs all of it. One that does not takes what is left, up to
    /// the expected output: otherwise a small limit would reject every such request.
    pub(super) fn bounds(&self, expected: u64) -> (u64, u64) {
        match self.output {
            OutputDemand::NoModel => (0, 0),
            OutputDemand::Unknown => (1, 0),
            OutputDemand::AtMost(output) => {
                let all = self.prompt.saturating_add(output);
                (all.max(1), all)
            }
            OutputDemand::Unlimited => {
                let output = expected.saturating_mul(self.choices.max(1));
                let least = self.prompt.saturating_add(1);
                (least, self.prompt.saturating_add(output).max(least))
            }
        }
    }

    /// Returns the tokens to reserve, at most `left`; an error with the smallest demand if `left` is
    /// too little.
    pub(super) fn reserve(&self, left: u64, expected: u64) -> Result<u64, u64> {
        let (least, wanted) = self.bounds(expected);
        if left < least {
            return Err(least);
        }
        Ok(wanted.min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(output: OutputDemand, left: u64) -> Result<u64, u64> {
        let demand = TokenDemand {
            prompt: 10,
            output,
            choices: 2,
        };
        demand.reserve(left, 100)
    }

    #[test]
    fn stated_maximum_is_reserved_as_a_whole() {
        assert_eq!(reserve(OutputDemand::AtMost(30), 40), Ok(40));
        assert_eq!(reserve(OutputDemand::AtMost(30), 39), Err(40));
        assert_eq!(reserve(OutputDemand::AtMost(u64::MAX), 39), Err(u64::MAX));
    }

    #[test]
    fn unlimited_request_takes_what_is_left_up_to_the_expected_output() {
        let output = OutputDemand::Unlimited;
        assert_eq!(reserve(output, 1000), Ok(210));
        assert_eq!(reserve(output, 60), Ok(60));
        assert_eq!(reserve(output, 11), Ok(11));
        assert_eq!(reserve(output, 10), Err(11));
    }

    #[test]
    fn request_without_a_model_needs_no_tokens() {
        assert_eq!(reserve(OutputDemand::NoModel, 0), Ok(0));
        assert_eq!(reserve(OutputDemand::Unknown, 0), Err(1));
        assert_eq!(reserve(OutputDemand::Unknown, 1), Ok(0));
    }
}
