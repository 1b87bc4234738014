//! Edits to the body of a request, such as another model name. All other bytes stay unchanged.

use std::ops::Range;

use bytes::Bytes;

/// Maximum size of a body that is copied to be changed. A larger copy would double the memory that the
/// body takes, and cost more than it saves in writing.
const COPIED: usize = 64 << 10;

/// A change to a body: these bytes become this text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) place: Range<usize>,
    pub(crate) text: String,
}

/// A body that is sent in pieces, so that a large one need not be copied to be changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyPieces {
    pub(crate) first: Bytes,
    /// The other pieces, the last one first.
    pub(crate) rest: Vec<Bytes>,
}

impl BodyPieces {
    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.rest.iter().map(Bytes::len).sum::<usize>()
    }
}

impl From<Bytes> for BodyPieces {
    fn from(first: Bytes) -> Self {
        let rest = Vec::new();
        Self { first, rest }
    }
}

/// The body with these changes, which do not overlap. They may be in any order.
pub(crate) fn apply(body: &Bytes, edits: &mut [Edit]) -> BodyPieces {
    edits.sort_by_key(|edit| edit.place.start);
    if body.len() > COPIED {
        return in_pieces(body, edits);
    }
    let more: usize = edits.iter().map(|edit| edit.text.len()).sum();
    let mut changed = Vec::with_capacity(body.len() + more);
    let mut at = 0;
    for edit in edits {
        changed.extend_from_slice(body.get(at..edit.place.start).unwrap_or_default());
        changed.extend_from_slice(edit.text.as_bytes());
        at = edit.place.end;
    }
    changed.extend_from_slice(body.get(at..).unwrap_or_default());
    Bytes::from(changed).into()
}

fn in_pieces(body: &Bytes, edits: &[Edit]) -> BodyPieces {
    let mut pieces = Vec::with_capacity(2 * edits.len() + 1);
    let mut at = 0;
    for edit in edits {
        let before = at..edit.place.start.clamp(at, body.len());
        at = edit.place.end.clamp(before.end, body.len());
        pieces.push(body.slice(before));
        pieces.push(Bytes::from(edit.text.clone()));
    }
    pieces.push(body.slice(at..));
    pieces.reverse();
    let first = pieces.pop().unwrap_or_default();
    let rest = pieces;
    BodyPieces { first, rest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_body_is_changed_without_a_copy() {
        let rest = " ".repeat(COPIED);
        let body = Bytes::from(format!(r#"{{"model":"alias","stream":true}}{rest}"#));
        let mut edits = [
            Edit {
                place: 26..30,
                text: "false".to_owned(),
            },
            Edit {
                place: 9..16,
                text: r#""real""#.to_owned(),
            },
        ];
        let pieces = apply(&body, &mut edits);
        assert_eq!(pieces.first, r#"{"model":"#);
        let mut whole = pieces.first.to_vec();
        whole.extend(pieces.rest.iter().rev().flatten());
        assert_eq!(whole.len(), pieces.len());
        assert_eq!(
            whole,
            format!(r#"{{"model":"real","stream":false}}{rest}"#).into_bytes()
        );
        assert_eq!(pieces.rest[0].as_ptr_range().end, body.as_ptr_range().end);
    }
}
