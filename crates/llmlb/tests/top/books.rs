//! A snapshot says that the books do not balance when records are damaged.

use std::fs;

use testkit::Request;

#[test]
fn damaged_batch_unbalances_the_books() {
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve("--demo");
    let request = Request::chat("demo", "Hello");
    assert_eq!(server.send(&request).unwrap().status(), 200);
    assert_eq!(server.stop(), Some(0));
    // The last export has archived the record.
    let archive = sandbox.data_dir().join("demo").join("archive");
    let batch = fs::read_dir(&archive)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let books = |server: &testkit::LlmlbServer| {
        testkit::eventually("the books are checked", || {
            let snapshot = server.get("/dashboard/snapshot").json();
            let spool = snapshot["spool"].clone();
            Some(spool).filter(|spool| spool["books"] != "unknown")
        })
    };
    let server = sandbox.serve("--demo");
    assert_eq!(books(&server)["books"], "balanced");
    assert_eq!(server.stop(), Some(0));
    let mut bytes = fs::read(&batch).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&batch, bytes).unwrap();
    let server = sandbox.serve("--demo");
    let spool = books(&server);
    assert_eq!(spool["books"], "unbalanced", "{spool}");
    assert!(spool["books_problem"].is_string(), "{spool}");
    let shown = sandbox.run("top --once").stdout;
    assert!(shown.contains("books unbalanced"), "{shown}");
}
