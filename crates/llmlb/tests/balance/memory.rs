//! How much memory requests can make the server take. (L10, L11)

use std::fs;
use testkit::{
    LlmlbServer,
    backends::{CHAT, backend, code, count, ok, serve},
};

/// The most memory that a server had, in bytes.
pub(crate) fn peak(server: &LlmlbServer) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.unwrap().split_whitespace().next().unwrap();
    number.parse::<usize>().unwrap() << 10
}

#[test]
fn large_body_that_is_not_json_is_rejected_without_taking_it_apart() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], &[]);
    let before = peak(&server);
    let many = "1,".repeat(15 << 20);
    let answer = server.post(CHAT, &format!(r#"{{"model":"m","x":[{many}}}"#));
    assert_eq!(answer.status(), 400);
    assert_eq!(code(&answer), "invalid_json");
    let message = answer.json()["error"]["message"].to_string();
    assert!(message.contains("it is not valid"), "{message}");
    assert_eq!(count(&mock), 0);
    // The body, once more while it grows, and some room.
    let more = peak(&server) - before;
    assert!(more < 128 << 20, "{} MiB more", more >> 20);
}
