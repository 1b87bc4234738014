//! Memory of the server process. (promises L10, L11)

use std::fs;
use testkit::{
    LlmlbServer,
    backends::{CHAT, backend, code, count, ok, serve},
};

pub(crate) fn peak(server: &LlmlbServer) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.unwrap().split_whitespace().next().unwrap();
    number.parse::<usize>().unwrap() << 10
}

#[test]
fn large_body_that_is_not_json_is_rejected_without_building_values() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[]);
    let before = peak(&server);
    let many = "1,".repeat(15 << 20);
    let answer = server.post(CHAT, &format!(r#"{{"model":"m","x":[{many}}}"#));
    assert_eq!(answer.status(), 400);
    assert_eq!(code(&answer), "invalid_json");
    let message = answer.json()["error"]["message"].to_string();
    assert!(message.contains("not valid JSON"), "{message}");
    assert_eq!(count(&mock), 0);
    // The body has 30 MiB, and its buffer may be copied while it grows. Parsed values would need
    // several times as much, and the process could run out of memory.
    let growth = peak(&server) - before;
    assert!(growth < 128 << 20, "memory grew by {} MiB", growth >> 20);
}
