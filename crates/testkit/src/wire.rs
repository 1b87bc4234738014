//! Responses of a fake server, written byte by byte. Write errors are ignored, because the client may
//! have disconnected.

use std::io::Write;
use std::net::TcpStream;

/// Sends a JSON response.
pub fn json(stream: &mut TcpStream, status: u16, body: &str) {
    let _ = stream.write_all(
        format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
}

/// Sends the head of an event stream whose body is sent with chunked transfer encoding.
pub fn begin_stream(stream: &mut TcpStream) {
    let _ = stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
}

/// Sends a chunk. True if the connection accepted it.
pub fn chunk(stream: &mut TcpStream, data: &str) -> bool {
    stream
        .write_all(format!("{:x}\r\n{data}\r\n", data.len()).as_bytes())
        .is_ok()
}

/// Sends the last chunk, which has no data and ends the body of a chunked response.
pub fn end_stream(stream: &mut TcpStream) {
    let _ = stream.write_all(b"0\r\n\r\n");
}
