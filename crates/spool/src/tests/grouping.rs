//! The grouping of the tests, and tallies with this grouping.

use std::path::Path;
use std::time::SystemTime;

use crate::data_dir::DataDir;
use crate::error::Error;
use crate::tally::Tally;
use crate::totals::Grouping;

pub(super) fn grouping() -> Grouping {
    Grouping::by(["customer", "plan", "region"])
        .sum(["tokens"])
        .total_from(["tokens"])
        .count(["status", "source"])
        .trust("region")
}

pub(super) fn tally(
    data: &Path,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
) -> Result<Tally, Error> {
    tally_in(&DataDir::new(data), from, until)
}

pub(super) fn tally_in(
    data: &DataDir,
    from: Option<SystemTime>,
    until: Option<SystemTime>,
) -> Result<Tally, Error> {
    crate::tally::tally_in(data, &grouping(), from, until)
}
