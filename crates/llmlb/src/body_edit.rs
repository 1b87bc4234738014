//! Edits to the body of a request, such as another model name. All other bytes stay unchanged.

use std::ops::Range;

use bytes::Bytes;

/// Maximum size of a body that is copied to be edited. A larger body is sent in pieces: a copy would double
/// its memory, and cost more CPU than a write with several pieces.
const MAX_COPIED: usize = 64 << 10;

/// Replacement of a range of a body by a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) range: Range<usize>,
    pub(crate) text: String,
}

/// Request body in pieces, so that a large body need not be copied to be edited.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyPieces {
    pub(crate) first: Bytes,
    /// The other pieces in reverse order, so that the next piece is popped from the end.
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

/// Applies edits to a body. The edits may be in any order but must not overlap.
pub(crate) fn apply(body: &Bytes, edits: &mut [Edit]) -> BodyPieces {
    edits.sort_by_key(|edit| edit.range.start);
    if body.len() > MAX_COPIED {
        return in_pieces(body, edits);
    }
    let more: usize = edits.iter().map(|edit| edit.text.len()).sum();
    let mut changed = Vec::with_capacity(body.len() + more);
    let mut at = 0;
    for edit in edits {
        changed.extend_from_slice(body.get(at..edit.range.start).unwrap_or_default());
        changed.extend_from_slice(edit.text.as_bytes());
        at = edit.range.end;
    }
    changed.extend_from_slice(body.get(at..).unwrap_or_default());
    Bytes::from(changed).into()
}

fn in_pieces(body: &Bytes, edits: &[Edit]) -> BodyPieces {
    let mut pieces = Vec::with_capacity(2 * edits.len() + 1);
    let mut at = 0;
    for edit in edits {
        let before = at..edit.range.start.clamp(at, body.len());
        at = edit.range.end.clamp(before.end, body.len());
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
    fn large_body_is_edited_without_a_copy() {
        let rest = " ".repeat(MAX_COPIED);
        let body = Bytes::from(format!(r#"{{"model":"alias","stream":true}}{rest}"#));
        let mut edits = [
            Edit {
                range: 26..30,
                text: "false".to_owned(),
            },
            Edit {
                range: 9..16,
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
