//! Which of several backends gets a request. Pure: no sockets, no clock.

/// The least busy one; of equally busy ones, the next in turn.
///
/// `outstanding` has one figure for each candidate. `None`: there are no candidates.
pub(super) fn pick(
    outstanding: impl ExactSizeIterator<Item = usize>,
    turn: usize,
) -> Option<usize> {
    let count = outstanding.len();
    outstanding
        .enumerate()
        .min_by_key(|(index, busy)| (*busy, (index + count - turn % count.max(1)) % count.max(1)))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_busy_one_is_picked() {
        for turn in 0..5 {
            assert_eq!(pick([3, 1, 2].into_iter(), turn), Some(1));
        }
    }

    #[test]
    fn equally_busy_ones_take_turns() {
        let picked: Vec<_> = (0..6)
            .map(|turn| pick([0, 0, 0].into_iter(), turn))
            .collect();
        let expected = [0, 1, 2, 0, 1, 2].map(Some);
        assert_eq!(picked, expected);
        assert_eq!(pick([1, 0, 0].into_iter(), 0), Some(1));
        assert_eq!(pick([1, 0, 0].into_iter(), 2), Some(2));
    }

    #[test]
    fn nobody_is_picked_where_there_is_nobody() {
        assert_eq!(pick([].into_iter(), 7), None);
    }
}
