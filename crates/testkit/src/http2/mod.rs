//! An HTTP/2 client that sends any frames. No library checks them, so that windows, resets, pings and
//! pseudo-header fields can be forged.

mod frame;
pub mod hpack;

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use socket2::{Domain, Socket, Type};

use crate::wait::DEADLINE;
pub use frame::{Frame, FrameKind};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum payload of a frame, unless the peer's settings allow a larger one.
const FRAME_SIZE: usize = 16 << 10;
/// Initial flow-control window of a connection, in bytes: the number of body bytes that may be sent
/// before the first window update.
const FIRST_WINDOW: u64 = 65_535;

const SETTING_HEADER_TABLE_SIZE: u16 = 1;
const SETTING_INITIAL_WINDOW_SIZE: u16 = 4;

/// Options of an [`Http2`] connection: window size, acknowledgement of pings, and local address.
#[derive(Clone, Debug)]
pub struct Http2Options {
    /// Initial flow-control window of each response's stream, in bytes, which this client announces
    /// in its settings. The server may send that much of a body before a window update.
    pub initial_window: u32,
    /// True if pings of the server are acknowledged.
    pub answers_pings: bool,
    /// Local address from which the client connects, so that it can appear as another machine;
    /// `None` leaves the choice to the system.
    pub source: Option<IpAddr>,
}

impl Default for Http2Options {
    fn default() -> Self {
        Self {
            initial_window: 1 << 20,
            answers_pings: true,
            source: None,
        }
    }
}

/// Way in which the stream of a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// Response was received whole.
    Complete,
    /// Server reset the stream with this error code.
    Reset(u32),
}

/// Client connection that sends any frames. A thread collects the frames of the server and
/// acknowledges its settings and pings. Flow control is left to the caller.
pub struct Http2 {
    stream: TcpStream,
    next_stream: u32,
    shared: Arc<Shared>,
    reading: Option<JoinHandle<()>>,
}

struct Shared {
    received: Mutex<Received>,
    writer: Mutex<TcpStream>,
    /// Number of bytes of request bodies that this client has sent so far on all streams. They use
    /// up the connection's flow-control window.
    sent_data: AtomicU64,
}

#[derive(Default)]
struct Received {
    streams: BTreeMap<u32, Stream>,
    /// Frames of the connection itself (stream 0).
    control: Vec<Frame>,
    is_closed: bool,
}

#[derive(Default)]
struct Stream {
    status: Option<u16>,
    body: Vec<u8>,
    end: Option<StreamEnd>,
}

impl Shared {
    fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let writer = self.writer.lock();
        writer
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(bytes)
    }
}

impl Http2 {
    /// Connects with the default options.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_with(address, &Http2Options::default())
    }

    /// Connects, and sends the preface and the settings.
    pub fn connect_with(address: SocketAddr, options: &Http2Options) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if let Some(source) = options.source {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        socket.connect_timeout(&address.into(), DEADLINE)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(DEADLINE))?;
        let shared = Arc::new(Shared {
            received: Mutex::default(),
            writer: Mutex::new(stream.try_clone()?),
            sent_data: AtomicU64::new(0),
        });
        let reading = {
            let (shared, stream) = (Arc::clone(&shared), stream.try_clone()?);
            let answers_pings = options.answers_pings;
            thread::spawn(move || {
                // A read error is treated as the end of the connection, because servers also end
                // connections with a reset.
                let _ = read(stream, &shared, answers_pings);
                shared.received().is_closed = true;
            })
        };
        let client = Self {
            stream,
            next_stream: 1,
            shared,
            reading: Some(reading),
        };
        let mut settings = Vec::new();
        for (name, value) in [
            // The server must not use a dynamic table, because the decoder of responses has none.
            (SETTING_HEADER_TABLE_SIZE, 0),
            (SETTING_INITIAL_WINDOW_SIZE, options.initial_window),
        ] {
            settings.extend_from_slice(&name.to_be_bytes());
            settings.extend_from_slice(&value.to_be_bytes());
        }
        let settings = Frame::new(FrameKind::Settings, 0, 0, settings);
        client.send_bytes(&[PREFACE, &settings.to_bytes()].concat())?;
        Ok(client)
    }

    /// Sends any bytes.
    pub fn send_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        self.shared.write(bytes)
    }

    /// Sends any frame.
    pub fn send(&self, frame: &Frame) -> io::Result<()> {
        self.send_bytes(&frame.to_bytes())
    }

    /// Opens a stream with these fields, pseudo-header fields included, and returns its number.
    pub fn open(&mut self, fields: &[(&str, &str)], is_ended: bool) -> io::Result<u32> {
        let (stream, bytes) = self.opening(fields, is_ended);
        self.send_bytes(&bytes)?;
        Ok(stream)
    }

    /// Returns the number of a new stream, and the encoded frames with its fields that open the
    /// stream. The caller sends the frames, for example together with others in one write.
    pub fn opening(&mut self, fields: &[(&str, &str)], is_ended: bool) -> (u32, Vec<u8>) {
        let stream = self.next_stream;
        self.next_stream += 2;
        let block = hpack::encode(fields);
        let mut parts = block.chunks(FRAME_SIZE).peekable();
        let mut bytes = Vec::new();
        let mut kind = FrameKind::Headers;
        while let Some(part) = parts.next() {
            let mut flags = if parts.peek().is_none() {
                Frame::END_HEADERS
            } else {
                0
            };
            if kind == FrameKind::Headers && is_ended {
                flags |= Frame::END_STREAM;
            }
            bytes.extend(Frame::new(kind, flags, stream, part).to_bytes());
            kind = FrameKind::Continuation;
        }
        (stream, bytes)
    }

    /// Sends a GET and returns the number of its stream.
    pub fn get(&mut self, path: &str) -> io::Result<u32> {
        self.open(&pseudo("GET", path), true)
    }

    /// Sends a POST of a JSON body and returns the number of its stream.
    pub fn post(&mut self, path: &str, body: &[u8]) -> io::Result<u32> {
        let stream = self.open_post(path)?;
        self.data(stream, body, true)?;
        Ok(stream)
    }

    /// Sends the head of a POST of a JSON body and returns the number of its stream.
    pub fn open_post(&mut self, path: &str) -> io::Result<u32> {
        let mut fields = pseudo("POST", path).to_vec();
        fields.push(("content-type", "application/json"));
        self.open(&fields, false)
    }

    /// Sends a part of a request's body. Flow control is ignored.
    pub fn data(&self, stream: u32, data: &[u8], is_ended: bool) -> io::Result<()> {
        self.shared
            .sent_data
            .fetch_add(data.len() as u64, Ordering::Relaxed);
        let mut parts = data.chunks(FRAME_SIZE).peekable();
        if parts.peek().is_none() {
            let flags = if is_ended { Frame::END_STREAM } else { 0 };
            return self.send(&Frame::new(FrameKind::Data, flags, stream, []));
        }
        while let Some(part) = parts.next() {
            let is_last = is_ended && parts.peek().is_none();
            let flags = if is_last { Frame::END_STREAM } else { 0 };
            self.send(&Frame::new(FrameKind::Data, flags, stream, part))?;
        }
        Ok(())
    }

    /// Bytes of request bodies that the connection's window allows to send now.
    pub fn connection_window(&self) -> u64 {
        let received = self.shared.received();
        let updates = received.control.iter();
        let updates = updates.filter(|frame| frame.kind == FrameKind::WindowUpdate);
        let enlarged: u64 = updates.map(|frame| u64::from(frame.number_at(0))).sum();
        let sent = self.shared.sent_data.load(Ordering::Relaxed);
        (FIRST_WINDOW + enlarged).saturating_sub(sent)
    }

    /// Resets a stream with this error code.
    pub fn reset(&self, stream: u32, code: u32) -> io::Result<()> {
        let payload = code.to_be_bytes();
        self.send(&Frame::new(FrameKind::Reset, 0, stream, payload))
    }

    /// Sends a window update, which allows the server to send this many more bytes. Stream 0
    /// enlarges the window of the connection.
    pub fn enlarge_window(&self, stream: u32, increment: u32) -> io::Result<()> {
        let payload = increment.to_be_bytes();
        self.send(&Frame::new(FrameKind::WindowUpdate, 0, stream, payload))
    }

    /// Status of a response whose head was received.
    pub fn status(&self, stream: u32) -> Option<u16> {
        self.shared.received().streams.get(&stream)?.status
    }

    /// Body of a response, as far as it was received.
    pub fn body(&self, stream: u32) -> Vec<u8> {
        let received = self.shared.received();
        let stream = received.streams.get(&stream);
        stream.map(|stream| stream.body.clone()).unwrap_or_default()
    }

    /// End of a response's stream, if it has ended.
    pub fn end(&self, stream: u32) -> Option<StreamEnd> {
        self.shared.received().streams.get(&stream)?.end
    }

    /// Number of streams that the server ended.
    pub fn ended_streams(&self) -> usize {
        let received = self.shared.received();
        let is_ended = |stream: &&Stream| stream.end.is_some();
        received.streams.values().filter(is_ended).count()
    }

    /// Error code of the server's last GOAWAY.
    pub fn goaway(&self) -> Option<u32> {
        let received = self.shared.received();
        let mut control = received.control.iter().rev();
        let frame = control.find(|frame| frame.kind == FrameKind::GoAway)?;
        Some(frame.number_at(4))
    }

    /// Frames of the connection itself (stream 0) that were received.
    pub fn control_frames(&self) -> Vec<Frame> {
        self.shared.received().control.clone()
    }

    /// True once the server has closed the connection.
    pub fn is_closed(&self) -> bool {
        self.shared.received().is_closed
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
    }
}

/// Returns the pseudo-header fields of a request to `localhost`.
fn pseudo<'a>(method: &'a str, path: &'a str) -> [(&'a str, &'a str); 4] {
    [
        (":method", method),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", path),
    ]
}

/// Reads the server's frames until the connection ends, and stores them for the test. Settings are
/// acknowledged, and pings if the options permit it.
fn read(stream: TcpStream, shared: &Shared, answers_pings: bool) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(frame) = Frame::read(&mut reader)? {
        let is_ack = frame.flags & Frame::ACK != 0;
        let ack = match frame.kind {
            FrameKind::Settings if !is_ack => Some(Vec::new()),
            FrameKind::Ping if !is_ack && answers_pings => Some(frame.payload.clone()),
            _ => None,
        };
        if let Some(payload) = ack {
            let ack = Frame::new(frame.kind, Frame::ACK, 0, payload);
            shared.write(&ack.to_bytes())?;
        }
        note(&mut shared.received(), frame);
    }
    Ok(())
}

fn note(received: &mut Received, frame: Frame) {
    if frame.stream == 0 {
        received.control.push(frame);
        return;
    }
    let stream = received.streams.entry(frame.stream).or_default();
    if frame.ends_stream() {
        stream.end = Some(StreamEnd::Complete);
    }
    match frame.kind {
        FrameKind::Headers if stream.status.is_none_or(|status| status < 200) => {
            stream.status = hpack::status(&frame.payload);
        }
        FrameKind::Data => stream.body.extend(frame.payload),
        FrameKind::Reset => stream.end = Some(StreamEnd::Reset(frame.number_at(0))),
        _ => {}
    }
}
