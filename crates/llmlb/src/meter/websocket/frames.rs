//! Reads the frames of a WebSocket (RFC 6455, section 5) that a server sends, and finds its text messages.
//!
//! Frames may arrive in any chunks and have any size. Payloads are passed on in the pieces in which they arrive,
//! so the reader buffers at most one frame header.

/// Maximum length of a WebSocket frame header from a server: two bytes and a length of 64 bits,
/// without the mask that only clients send.
const MAX_HEADER: usize = 10;
/// Maximum length of the payload of a WebSocket control frame. A longer one violates the protocol.
const MAX_CONTROL: u64 = 125;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0F;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7F;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessagePart<'a> {
    Text(&'a [u8]),
    /// The current text message ends. A message may have several frames, so the end of a frame is
    /// not enough to know.
    End,
}

#[derive(Debug, Default)]
pub(super) struct FrameReader {
    header: [u8; MAX_HEADER],
    length: usize,
    frame: Option<Frame>,
    /// Kind of the WebSocket message that has begun and not ended. Control frames may arrive
    /// between its frames, so it is kept across them.
    message: Option<MessageKind>,
    state: ReaderState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReaderState {
    #[default]
    Open,
    /// The server sent a close frame. No message may follow, so the rest is not read.
    Closed,
    /// The server violated the WebSocket protocol. The rest of its bytes has no known meaning and
    /// is not read.
    Broken,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    message: Option<MessageKind>,
    is_last: bool,
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    Text,
    Binary,
}

impl FrameReader {
    /// True if the server violated the WebSocket protocol, so that messages may be missing and the
    /// usage counts as estimated.
    pub(super) fn is_broken(&self) -> bool {
        self.state == ReaderState::Broken
    }

    /// Reads the next chunk of the connection, and passes the parts of text messages in it to
    /// `each`.
    pub(super) fn read(&mut self, mut data: &[u8], mut each: impl FnMut(MessagePart<'_>)) {
        while self.state == ReaderState::Open && !data.is_empty() {
            let mut frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.read_header(&mut data) {
                    Some(frame) => frame,
                    None => continue,
                },
            };
            let present =
                usize::try_from(frame.left).map_or(data.len(), |left| left.min(data.len()));
            let (payload, rest) = data.split_at(present);
            data = rest;
            frame.left -= present as u64;
            let is_text = frame.message == Some(MessageKind::Text);
            if is_text && !payload.is_empty() {
                each(MessagePart::Text(payload));
            }
            if frame.left > 0 {
                self.frame = Some(frame);
            } else if frame.message.is_some() && frame.is_last {
                self.message = None;
                if is_text {
                    each(MessagePart::End);
                }
            }
        }
    }

    /// Removes the bytes of a frame header from `data`. `None` if the header is not complete, or if
    /// the server has closed or violated the protocol.
    fn read_header(&mut self, data: &mut &[u8]) -> Option<Frame> {
        while self.length < self.header_length() {
            let (byte, rest) = data.split_first()?;
            self.header[self.length] = *byte;
            self.length += 1;
            *data = rest;
        }
        let header = self.header;
        self.length = 0;
        let frame = self.frame(header);
        if frame.is_none() && self.state == ReaderState::Open {
            self.state = ReaderState::Broken;
        }
        frame
    }

    /// Returns the length of the current frame header, as far as its bytes tell; more bytes may
    /// announce a longer header.
    fn header_length(&self) -> usize {
        if self.length < 2 {
            return 2;
        }
        match self.header[1] & LENGTH {
            126 => 4,
            127 => MAX_HEADER,
            _ => 2,
        }
    }

    /// Interprets a complete frame header. `None` for a close frame, and for a frame that violates
    /// the protocol: no later bytes are read.
    fn frame(&mut self, header: [u8; MAX_HEADER]) -> Option<Frame> {
        let [first, second, ..] = header;
        let is_final = first & FINAL != 0;
        let left = match second & LENGTH {
            126 => u64::from(u16::from_be_bytes([header[2], header[3]])),
            127 => {
                let [_, _, length @ ..] = header;
                u64::from_be_bytes(length)
            }
            length => u64::from(length),
        };
        // Reject reserved bits, because llmlb removes all extensions from the handshake. Reject
        // masks, which only clients may use, and lengths with the highest bit, which must be 0.
        if first & RESERVED != 0 || second & MASKED != 0 || left > u64::MAX / 2 {
            return None;
        }
        let message = match (first & OPCODE, self.message) {
            (0, Some(begun)) => begun,
            (1, None) => MessageKind::Text,
            (2, None) => MessageKind::Binary,
            (8..=10, _) if !is_final || left > MAX_CONTROL => return None,
            (8, _) => {
                self.state = ReaderState::Closed;
                return None;
            }
            (9 | 10, _) => {
                return Some(Frame {
                    message: None,
                    is_last: true,
                    left,
                });
            }
            _ => return None,
        };
        self.message = Some(message);
        Some(Frame {
            message: Some(message),
            is_last: is_final,
            left,
        })
    }
}
