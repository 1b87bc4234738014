//! Delivery, lost records and the books.
#![cfg(unix)]

use std::fs;

use testkit::backends::{backend, ok};
use testkit::{FakeLlm, LlmlbServer, Request, Sandbox, UsageReceiver, free_port, until};

use crate::page::Page;

/// Starts a server that delivers to this URL every second.
fn serve(sandbox: &Sandbox, url: &str) -> (FakeLlm, LlmlbServer) {
    let backend = backend(ok);
    let file = format!(
        "[[backend]]\nname = \"b\"\nurl = \"http://{}\"\n",
        backend.address
    );
    sandbox.file("llmlb.toml", file);
    let mut command = sandbox.command("serve -p 0");
    let settings = [("LLMLB_USAGE_URL", url), ("LLMLB_USAGE_EVERY", "1s")];
    let server = sandbox.serve_with(command.envs(settings));
    (backend, server)
}

#[track_caller]
fn chat(server: &LlmlbServer) {
    assert_eq!(
        server.send(&Request::chat("m", "Hi")).unwrap().status(),
        200
    );
}

#[test]
fn delivered_records_and_balanced_books_are_shown() {
    let sandbox = testkit::sandbox!();
    let receiver = UsageReceiver::always(200);
    let (_backend, server) = serve(&sandbox, &receiver.url);
    chat(&server);
    until("the record is delivered and the books are checked", || {
        let page = Page::of(&server);
        page.sum("llmlb_delivery_delivered_records_total", &[]) == Some(1.0)
            && page.sum("llmlb_books_balanced", &[]) == Some(1.0)
    });
    let page = Page::of(&server);
    assert_eq!(page.sum("llmlb_delivery_pending_batches", &[]), Some(0.0));
    assert_eq!(page.sum("llmlb_delivery_failed_files", &[]), Some(0.0));
    assert_eq!(page.sum("llmlb_delivery_failing", &[]), Some(0.0));
    assert_eq!(page.sum("llmlb_books_problems", &[]), Some(0.0));
    let last = page
        .sum("llmlb_delivery_last_success_timestamp_seconds", &[])
        .unwrap();
    let started = page.sum("process_start_time_seconds", &[]).unwrap();
    assert!(last >= started, "{last} {started}");
}

#[test]
fn books_do_not_balance_after_a_pending_batch_was_deleted() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = serve(&sandbox, &format!("http://127.0.0.1:{}/", free_port()));
    chat(&server);
    until("the batch is pending and the books balance", || {
        let page = Page::of(&server);
        page.sum("llmlb_delivery_pending_batches", &[]) == Some(1.0)
            && page.sum("llmlb_books_balanced", &[]) == Some(1.0)
    });
    let failing = Page::of(&server).sum("llmlb_delivery_failing", &[]);
    assert_eq!(failing, Some(1.0));
    let mut deleted = 0;
    for entry in fs::read_dir(sandbox.data_dir().join("spool")).unwrap() {
        let path = entry.unwrap().path();
        if fs::read_to_string(&path).is_ok_and(|text| text.contains("tokens_from")) {
            fs::remove_file(path).unwrap();
            deleted += 1;
        }
    }
    assert_eq!(deleted, 1, "files of batches");
    until("the books do not balance", || {
        Page::of(&server).sum("llmlb_books_balanced", &[]) == Some(0.0)
    });
    assert!(Page::of(&server).sum("llmlb_books_problems", &[]) >= Some(1.0));
    // The command that docs/metrics.md names comes to the same result.
    let verified = sandbox.run("usage verify");
    verified.assert_code(1);
}

#[test]
fn records_that_cannot_be_staged_are_counted_as_lost() {
    let sandbox = testkit::sandbox!();
    fs::create_dir_all(sandbox.data_dir()).unwrap();
    fs::write(sandbox.data_dir().join("_staging"), "in the way").unwrap();
    let (_backend, server) = serve(&sandbox, &format!("http://127.0.0.1:{}/", free_port()));
    chat(&server);
    let page = Page::of(&server);
    assert_eq!(page.sum("llmlb_records_lost_total", &[]), Some(1.0));
    assert_eq!(page.sum("llmlb_staging_errors_total", &[]), Some(1.0));
    assert_eq!(page.sum("llmlb_staging_failing", &[]), Some(1.0));
    assert_eq!(page.sum("llmlb_records_staged_total", &[]), Some(0.0));
}
