//! HTTP/2 frames (RFC 9113, section 4).

use std::io::{self, Read};

/// Type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of RFC 9113")]
pub enum FrameKind {
    Data,
    Headers,
    Priority,
    Reset,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// Type that RFC 9113 does not define.
    Other(u8),
}

impl FrameKind {
    const KNOWN: [Self; 10] = [
        Self::Data,
        Self::Headers,
        Self::Priority,
        Self::Reset,
        Self::Settings,
        Self::PushPromise,
        Self::Ping,
        Self::GoAway,
        Self::WindowUpdate,
        Self::Continuation,
    ];

    fn from_code(code: u8) -> Self {
        let known = Self::KNOWN.get(usize::from(code)).copied();
        known.unwrap_or(Self::Other(code))
    }

    fn code(self) -> u8 {
        match self {
            Self::Other(code) => code,
            known => {
                let position = Self::KNOWN.iter().position(|kind| *kind == known);
                position
                    .and_then(|code| u8::try_from(code).ok())
                    .unwrap_or(u8::MAX)
            }
        }
    }
}

/// One frame, with nothing checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Type of the frame.
    pub kind: FrameKind,
    /// Flags of the frame.
    pub flags: u8,
    /// Stream of the frame; 0 is the connection.
    pub stream: u32,
    /// Bytes after the head of the frame.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Flag of DATA and HEADERS that end their stream.
    pub const END_STREAM: u8 = 1;
    /// Flag of SETTINGS and PING that acknowledge.
    pub const ACK: u8 = 1;
    /// Flag of HEADERS and CONTINUATION that end the header block.
    pub const END_HEADERS: u8 = 4;

    /// Returns a frame.
    pub fn new(kind: FrameKind, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            flags,
            stream,
            payload: payload.into(),
        }
    }

    /// Returns the frame as it is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let mut bytes = length.to_be_bytes()[1..].to_vec();
        bytes.extend_from_slice(&[self.kind.code(), self.flags]);
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// True if the frame ends its stream.
    pub fn ends_stream(&self) -> bool {
        matches!(self.kind, FrameKind::Data | FrameKind::Headers)
            && self.flags & Self::END_STREAM != 0
    }

    /// Four bytes of the payload as a number: an error code or an increment.
    pub(super) fn number_at(&self, at: usize) -> u32 {
        let bytes = self.payload.get(at..at + 4).unwrap_or(&[0; 4]);
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u32::from(*byte))
    }

    /// Reads the next frame; `None` at the end of the connection.
    pub(super) fn read(reader: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; 9];
        match reader.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let length = head[..3]
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte));
        let mut payload = vec![0; length];
        reader.read_exact(&mut payload)?;
        let stream = head[5..]
            .iter()
            .fold(0, |stream, byte| stream << 8 | u32::from(*byte));
        Ok(Some(Self {
            kind: FrameKind::from_code(head[3]),
            flags: head[4],
            stream: stream & 0x7fff_ffff,
            payload,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_the_same_after_it_was_sent() {
        for kind in [FrameKind::Data, FrameKind::GoAway, FrameKind::Other(77)] {
            let frame = Frame::new(kind, 5, 7, vec![1, 2, 3, 4]);
            let read = Frame::read(&mut frame.to_bytes().as_slice());
            assert_eq!(read.unwrap(), Some(frame.clone()));
            assert_eq!(frame.number_at(0), 0x0102_0304);
        }
        assert_eq!(Frame::read(&mut &[][..]).unwrap(), None);
    }
}
