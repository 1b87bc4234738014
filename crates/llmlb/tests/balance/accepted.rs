//! Unusual requests of real clients that reach the backend unchanged. (promise L5)

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use testkit::{
    Connection, DEADLINE, Head,
    backends::{ASK, CHAT, asked, backend, backend_of, ok, serve},
    raw, read_chunk, wire,
};

/// Size of the large upload, far beyond `server.max_body`.
const LARGE: usize = 200_000_000;

#[test]
fn curl_data_without_a_content_type_reaches_the_backend_unchanged() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["a", "m"], ok);
    let server = serve(&sandbox, &[&mock], &[]);
    let url = format!("http://{}{CHAT}", server.address);
    // curl sends `-d` data with the content type of a form, or without one if the user removes the
    // header. Chat bodies are read as JSON in both cases.
    for (arguments, kind) in [
        (&[][..], Some("application/x-www-form-urlencoded")),
        (&["-H", "Content-Type:"][..], None),
    ] {
        let Ok(outcome) = Command::new("curl")
            .args(["--silent", "--fail-with-body", "--noproxy", "*", "-d", ASK])
            .args(arguments)
            .arg(&url)
            .output()
        else {
            return testkit::skip("curl").unwrap();
        };
        assert!(outcome.status.success(), "{outcome:?}");
        let asked = asked(&mock);
        let request = asked.last().unwrap();
        assert_eq!(request.head.line, format!("POST {CHAT} HTTP/1.1"));
        assert_eq!(request.head.header("content-type").as_deref(), kind);
        assert_eq!(request.text(), ASK);
    }
}

#[test]
fn multipart_form_of_dot_net_reaches_the_backend_unchanged() {
    let sandbox = testkit::sandbox!();
    let (other, mock) = (backend_of(&["a"], ok), backend_of(&["whisper-1"], ok));
    let server = serve(&sandbox, &[&other, &mock], &[]);
    let boundary = "4d3b8b2c-1d2e-4f53-9a3c-6d2d2c8f9a10";
    let sound: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    // `MultipartFormDataContent`: a quoted boundary, names without quotation marks, `filename*`.
    let body = [
        format!(
            "--{boundary}\r\nContent-Type: audio/wav\r\nContent-Disposition: form-data; \
             name=file; filename=\"=?utf-8?B?Z3J1w58ud2F2?=\"; filename*=utf-8''gru%C3%9F.wav\r\n\r\n"
        )
        .as_bytes(),
        &sound,
        format!(
            "\r\n--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Disposition: form-data; name=model\r\n\r\nwhisper-1\r\n--{boundary}--\r\n"
        )
        .as_bytes(),
    ]
    .concat();
    let kind = format!("multipart/form-data; boundary=\"{boundary}\"");
    let path = "/v1/audio/transcriptions";
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    let answer = client.answer();
    assert_eq!(answer.status(), 200, "{answer:?}");
    let asked = asked(&mock);
    assert_eq!(asked[0].head.line, format!("POST {path} HTTP/1.1"));
    assert_eq!(asked[0].head.header("content-type"), Some(kind));
    assert!(asked[0].body == body);
}

#[test]
fn base_url_with_a_trailing_slash_reaches_the_plain_path() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[]);
    // Clients concatenate `http://host/v1/` and `/chat/completions`, or `http://host/` and `/v1/...`.
    for path in [
        "/v1//chat/completions",
        "//v1/chat/completions",
        "/v1/chat/completions/",
    ] {
        let answer = server.post(path, ASK);
        assert_eq!(answer.status(), 200, "{path}: {answer:?}");
        let asked = asked(&mock);
        let request = asked.last().unwrap();
        assert_eq!(request.head.line, format!("POST {CHAT} HTTP/1.1"), "{path}");
        assert_eq!(request.text(), ASK, "{path}");
    }
}

#[test]
fn upload_of_200_mb_to_files_is_streamed_unchanged() {
    let sandbox = testkit::sandbox!();
    let pattern = pattern();
    let (sender, arrived) = channel();
    let sender = Mutex::new(sender);
    let raw = raw::heads(move |head, reader| {
        let path = head.line.clone();
        let mut expected = Expected::new();
        if head.header("transfer-encoding").is_some() {
            while let Some(Some(chunk)) = read_chunk(reader) {
                expected.check(&chunk);
            }
        } else {
            check_body_with_length(head, reader, &mut expected);
        }
        sender
            .lock()
            .unwrap()
            .send((path, expected.result()))
            .unwrap();
        wire::json(reader.get_mut(), 200, "{}");
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    #[cfg(target_os = "linux")]
    let before = crate::memory::peak(&server);
    let length = FIRST.len() + LARGE + LAST.len();
    for framing in [
        format!("Content-Length: {length}"),
        "Transfer-Encoding: chunked".to_owned(),
    ] {
        let is_chunked = framing.starts_with("Transfer");
        let mut client = Connection::open(server.address);
        client.send(format!(
            "POST /v1/files HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: multipart/form-data; boundary=x\r\n{framing}\r\n\r\n"
        ));
        // Ignore a failed write: a server that wrongly rejects the upload responds early and closes
        // the connection. The assertion below then shows its response.
        let _ = upload(client.reader.get_mut(), &pattern, is_chunked);
        let answer = client.answer();
        assert_eq!(answer.status(), 200, "{answer:?}");
        let (line, received) = arrived.recv_timeout(DEADLINE).unwrap();
        assert_eq!(line, "POST /v1/files HTTP/1.1");
        assert_eq!(received, Ok(length), "{framing}");
    }
    #[cfg(target_os = "linux")]
    {
        let growth = crate::memory::peak(&server) - before;
        assert!(growth < 32 << 20, "memory grew by {} MiB", growth >> 20);
    }
}

fn upload(stream: &mut TcpStream, pattern: &[u8], is_chunked: bool) -> io::Result<()> {
    let mut pieces = vec![pattern; LARGE / pattern.len()];
    pieces.push(&pattern[..LARGE % pattern.len()]);
    pieces.insert(0, FIRST.as_bytes());
    pieces.push(LAST.as_bytes());
    for piece in pieces {
        if is_chunked {
            write!(stream, "{:x}\r\n", piece.len())?;
        }
        stream.write_all(piece)?;
        if is_chunked {
            stream.write_all(b"\r\n")?;
        }
    }
    if is_chunked {
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(())
}

const FIRST: &str = "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
     --x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\
     Content-Type: application/octet-stream\r\n\r\n";
const LAST: &str = "\r\n--x--\r\n";

/// Bytes without a short period, so that a lost, repeated or moved block makes a difference.
fn pattern() -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..1_000_003).map(|_| next()).collect()
}

/// Compares the received body with the large upload piece by piece.
struct Expected {
    pattern: Vec<u8>,
    received: usize,
    differs_at: Option<usize>,
}

impl Expected {
    fn new() -> Self {
        Self {
            pattern: pattern(),
            received: 0,
            differs_at: None,
        }
    }

    fn check(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            let expected = self.rest();
            let length = expected.len().min(piece.len());
            if length == 0 || expected[..length] != piece[..length] {
                self.differs_at = self.differs_at.or(Some(self.received));
                self.received += piece.len();
                return;
            }
            self.received += length;
            piece = &piece[length..];
        }
    }

    /// Returns the bytes that must follow the bytes received so far. The upload repeats `pattern`,
    /// so inside the upload the result ends with the current repetition.
    fn rest(&self) -> &[u8] {
        let (first, last) = (FIRST.as_bytes(), LAST.as_bytes());
        match self.received {
            at if at < first.len() => &first[at..],
            at if at < first.len() + LARGE => {
                let at = at - first.len();
                let start = at % self.pattern.len();
                let end = self.pattern.len().min(start + LARGE - at);
                &self.pattern[start..end]
            }
            at => last.get(at - first.len() - LARGE..).unwrap_or_default(),
        }
    }

    /// Returns the length of the received body, or an error with the position from which the body
    /// differs from the upload.
    fn result(&self) -> Result<usize, usize> {
        self.differs_at.map_or(Ok(self.received), Err)
    }
}

/// Reads a body with a Content-Length piece by piece.
fn check_body_with_length(head: &Head, reader: &mut BufReader<TcpStream>, expected: &mut Expected) {
    let length = head.header("content-length").unwrap().parse().unwrap();
    let mut body = BufReader::with_capacity(1 << 16, reader.take(length));
    loop {
        let piece = body.fill_buf().unwrap();
        if piece.is_empty() {
            return;
        }
        expected.check(piece);
        let length = piece.len();
        body.consume(length);
    }
}
