//! Multipart forms with files, which name the model in a field. (promises L5, L6)

use testkit::{
    Answer, Connection, LlmlbServer,
    backends::{asked, backend_of, code, count, ok, serve},
};

/// Returns a multipart form. Each field has a name, text that follows the name in its
/// `Content-Disposition` header (such as a file name), and a value.
fn form(boundary: &str, fields: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, parameters, value) in fields {
        out.extend(
            format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{parameters}\r\n\r\n"
            )
            .bytes(),
        );
        out.extend(*value);
        out.extend(b"\r\n");
    }
    out.extend(format!("--{boundary}--\r\n").bytes());
    out
}

fn send(server: &LlmlbServer, path: &str, kind: &str, body: &[u8]) -> Answer {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    ));
    client.send(body);
    client.answer()
}

const PATH: &str = "/v1/audio/transcriptions";
const FILE: &str = "; filename=\"a.wav\"\r\nContent-Type: audio/wav";

fn noise() -> Vec<u8> {
    (0..=255).cycle().take(300_000).collect()
}

#[test]
fn form_is_routed_by_its_model_field() {
    let sandbox = testkit::sandbox!();
    let (first, second) = (backend_of(&["a"], ok), backend_of(&["whisper"], ok));
    let server = serve(&sandbox, &[&first, &second], &[]);
    let noise = noise();
    let fields: [(&str, &str, &[u8]); 3] = [
        ("file", FILE, &noise),
        ("model", "", b"whisper"),
        ("language", "", b"en"),
    ];
    // The model must be found at any position among the fields of the form.
    for position in 0..3 {
        let mut fields = fields;
        fields.rotate_left(position);
        let body = form("XyZ", &fields);
        let answer = send(&server, PATH, "multipart/form-data; boundary=XyZ", &body);
        assert_eq!(answer.status(), 200, "{answer:?}");
        let asked = asked(&second);
        assert!(asked.last().unwrap().body == body);
        let kind = asked.last().unwrap().head.header("content-type");
        assert_eq!(kind.as_deref(), Some("multipart/form-data; boundary=XyZ"));
    }
    assert_eq!((count(&first), count(&second)), (0, 3));
}

#[test]
fn boundary_is_parsed_in_every_valid_form() {
    let sandbox = testkit::sandbox!();
    let (first, second) = (backend_of(&["a"], ok), backend_of(&["whisper"], ok));
    let server = serve(&sandbox, &[&first, &second], &[]);
    let long = "----WebKitFormBoundary7MA4YWxkTrZu0gW";
    for (kind, boundary) in [
        ("multipart/form-data; boundary=\"a:b\"", "a:b"),
        ("Multipart/Form-Data; charset=utf-8; Boundary=abc", "abc"),
        ("multipart/form-data;boundary=abc; charset=utf-8", "abc"),
        (&format!("multipart/form-data; boundary={long}"), long),
    ] {
        let body = form(boundary, &[("model", "", b"whisper"), ("x", "", b"1")]);
        let answer = send(&server, PATH, kind, &body);
        assert_eq!(answer.status(), 200, "{kind}: {answer:?}");
    }
    assert_eq!((count(&first), count(&second)), (0, 4));
}

#[test]
fn content_of_a_file_is_not_read_as_a_field() {
    let sandbox = testkit::sandbox!();
    let (first, second) = (backend_of(&["evil"], ok), backend_of(&["whisper"], ok));
    let server = serve(&sandbox, &[&first, &second], &[]);
    let other = form("other", &[("model", "", b"evil")]);
    let files: [(&str, &str, &[u8]); 5] = [
        ("file", FILE, &other),
        ("models", "", b"evil"),
        ("x", "; filename=\"name=model\"", b"evil"),
        ("x", "; filename=\"a; name=model; b\"", b"evil"),
        ("x", "\r\nX-Other: form-data; name=\"model\"", b"evil"),
    ];
    for file in files {
        let before = (count(&first), count(&second));
        let body = form("XyZ", &[file, ("model", "", b"whisper")]);
        let answer = send(&server, PATH, "multipart/form-data; boundary=XyZ", &body);
        let file = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(answer.status(), 200, "{file}: {answer:?}");
        let after = (count(&first), count(&second));
        assert_eq!(after, (before.0, before.1 + 1), "{file}");
    }
}

#[test]
fn form_that_parsers_read_differently_is_rejected() {
    let sandbox = testkit::sandbox!();
    let (first, second) = (backend_of(&["evil"], ok), backend_of(&["whisper"], ok));
    let server = serve(&sandbox, &[&first, &second], &[]);
    let evil = b"content-disposition: form-data; name=\"model\"\r\n\r\nevil\r\n";
    let in_line = [b"in a line --XyZ\r\n", &evil[..], b"--XyZ\r\n"].concat();
    let longer = [b"\r\n--XyZ-and-more\r\n", &evil[..]].concat();
    let bare = [b"\n--XyZ\n", &evil[..]].concat();
    let files: [(&str, &str, &[u8]); 4] = [
        ("file", FILE, &in_line),
        ("file", FILE, &longer),
        ("file", FILE, &bare),
        ("x", "; filename=\"a; name=\\\"model\\\"; b\"", b"evil"),
    ];
    for file in files {
        let body = form("XyZ", &[file, ("model", "", b"whisper")]);
        let answer = send(&server, PATH, "multipart/form-data; boundary=XyZ", &body);
        assert_eq!(answer.status(), 400, "{answer:?}");
    }
    let body = form("XyZ", &[("model", "", b"whisper")]);
    for kind in [
        "multipart/form-data; boundary=XyZ; boundary=abc",
        "multipart/form-data; boundary*=utf-8''XyZ",
        "multipart/form-data",
    ] {
        let answer = send(&server, PATH, kind, &body);
        assert_eq!(answer.status(), 400, "{kind}: {answer:?}");
    }
    let two = "multipart/form-data; boundary=XyZ\r\ncontent-type: multipart/form-data; boundary=a";
    assert_eq!(send(&server, PATH, two, &body).status(), 400);
    assert_eq!((count(&first), count(&second)), (0, 0));
}

#[test]
fn unknown_model_in_a_form_gets_404() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["whisper"], ok);
    let server = serve(&sandbox, &[&mock], &[]);
    let body = form("XyZ", &[("model", "", b"other")]);
    let answer = send(&server, PATH, "multipart/form-data; boundary=XyZ", &body);
    assert_eq!(answer.status(), 404);
    assert_eq!(code(&answer), "model_not_found");
}

#[test]
fn form_without_a_model_goes_unchanged_to_the_first_backend() {
    let sandbox = testkit::sandbox!();
    let (first, second) = (backend_of(&["a"], ok), backend_of(&["b"], ok));
    let server = serve(&sandbox, &[&first, &second], &[]);
    let noise = noise();
    let whole = form("XyZ", &[("purpose", "", b"batch"), ("file", FILE, &noise)]);
    for body in [&whole[..], b"no form at all", b""] {
        let answer = send(
            &server,
            "/v1/files",
            "multipart/form-data; boundary=XyZ",
            body,
        );
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert!(asked(&first).last().unwrap().body == body);
    }
    assert_eq!((count(&first), count(&second)), (3, 0));
}

#[test]
fn form_in_chunks_is_routed_by_its_model_field() {
    let sandbox = testkit::sandbox!();
    let (first, second) = (backend_of(&["a"], ok), backend_of(&["whisper"], ok));
    let server = serve(&sandbox, &[&first, &second], &[]);
    let noise = noise();
    let body = form("XyZ", &[("file", FILE, &noise), ("model", "", b"whisper")]);
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\
         content-type: multipart/form-data; boundary=XyZ\r\n\r\n"
    ));
    for piece in body.chunks(10_000) {
        client.send(format!("{:x}\r\n", piece.len()));
        client.send(piece);
        client.send("\r\n");
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().status(), 200);
    assert!(asked(&second)[0].body == body);
}

#[test]
fn form_beyond_max_body_is_rejected() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["whisper"], ok);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_MAX_BODY", "1KiB")]);
    let noise = [7; 2000];
    let body = form("XyZ", &[("model", "", b"whisper"), ("file", FILE, &noise)]);
    let answer = send(&server, PATH, "multipart/form-data; boundary=XyZ", &body);
    assert_eq!(answer.status(), 413);
    assert_eq!(code(&answer), "body_too_large");
    assert_eq!(count(&mock), 0);
}
