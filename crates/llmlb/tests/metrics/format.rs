//! The page is valid for the programs that read it: `promtool`, Prometheus, and the reference parser of OpenMetrics.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use testkit::backends::{ASK, CHAT, backend, ok};
use testkit::{FakeLlm, Finished, LlmlbServer, Reply, Request, Sandbox, chat_events};

use crate::page::{OPEN_METRICS, Page};

/// Starts a server with two backends, a key with every limit, and requests of every outcome.
fn used_server(sandbox: &Sandbox) -> (LlmlbServer, Vec<FakeLlm>) {
    let streaming = FakeLlm::start("stream", |_| chat_events(&["a", "b", "c"]));
    let failing = FakeLlm::start("m", |_| Reply::json(500, "{}"));
    let backends = vec![backend(ok), streaming.unwrap(), failing.unwrap()];
    let mut config = String::from("[aliases]\nfast = \"m\"\n");
    for (number, backend) in backends.iter().enumerate() {
        let address = backend.address;
        let _ = write!(
            config,
            "[[backend]]\nname = \"b{number}\"\nurl = \"http://{address}\"\n"
        );
    }
    config += "max_concurrent = 9\n";
    sandbox.file("llmlb.toml", config);
    let add =
        "key add alice --rpm 100 --tpm 100000 --concurrency 5 --budget-tokens 1000000 --per day";
    let added = sandbox.run(add);
    added.assert_code(0);
    let secret = format!("Bearer {}", added.stdout.trim());
    let server = sandbox.serve("");
    for body in [
        ASK,
        r#"{"model":"fast"}"#,
        r#"{"model":"stream","stream":true}"#,
        r#"{"model":"absent"}"#,
        "{",
    ] {
        let request = Request::post(CHAT, body).field("authorization", &secret);
        server.send(&request).unwrap();
        server.send(&Request::post(CHAT, body)).unwrap();
    }
    (server, backends)
}

#[test]
fn promtool_finds_no_fault_in_the_page() {
    if !testkit::has_tool("promtool").unwrap() {
        return;
    }
    let sandbox = testkit::sandbox!();
    let (server, _backends) = used_server(&sandbox);
    let page = Page::of(&server);
    for name in [
        "llmlb_requests_total",
        "llmlb_tokens_total",
        "llmlb_time_per_output_token_seconds_count",
        "llmlb_limit_used",
        "llmlb_refused_requests_total",
    ] {
        assert!(page.names().contains(name), "{name}\n{}", page.text);
    }
    let mut promtool = Command::new("promtool");
    let checked = Finished::run_with(promtool.args(["check", "metrics"]), &page.text);
    checked.assert_code(0);
    assert_eq!(checked.output(), "", "promtool has remarks");
}

#[test]
fn page_has_the_same_metrics_in_both_formats() {
    let sandbox = testkit::sandbox!();
    let (server, _backends) = used_server(&sandbox);
    let (text, open) = (Page::of(&server), Page::in_format(&server, OPEN_METRICS));
    assert!(!text.text.contains("# EOF") && open.text.ends_with("# EOF\n"));
    assert_eq!(text.names(), open.names());
    assert_eq!(text.len(), open.len());
    let suffixed = |(name, kind): (&String, &String)| match kind.as_str() {
        "counter" => format!("{name}_total"),
        _ => name.clone(),
    };
    let of_open: Vec<String> = open.types.iter().map(suffixed).collect();
    let of_text: Vec<String> = text.types.keys().cloned().collect();
    let sorted = |mut names: Vec<String>| {
        names.sort_unstable();
        names
    };
    assert_eq!(sorted(of_open), sorted(of_text));
    let get = |accept: &str| {
        let request = Request::get("/metrics").field("accept", accept);
        let head = server.send(&request).unwrap().head;
        head.header("content-type").unwrap()
    };
    assert_eq!(get("*/*"), "text/plain; version=0.0.4; charset=utf-8");
    let open_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(get(OPEN_METRICS), open_type);
}

/// Returns the Python of the tests, which has the reference parser.
fn python() -> Option<PathBuf> {
    // A test for Windows runs in Wine, which cannot wait for programs of the system around it.
    if cfg!(windows) {
        return None;
    }
    let program = std::env::current_exe().unwrap();
    let target = program
        .ancestors()
        .find(|dir| dir.join("test-python").exists());
    let python = target.map(|target| target.join("test-python/bin/python"));
    if python.is_none() {
        testkit::skip("target/test-python: scripts/install-test-tools").unwrap();
    }
    python
}

#[test]
fn reference_parser_reads_the_open_metrics_page() {
    let Some(python) = python() else {
        return;
    };
    let sandbox = testkit::sandbox!();
    let (server, _backends) = used_server(&sandbox);
    let page = Page::in_format(&server, OPEN_METRICS);
    let script = "import sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families\n\
        families = list(text_string_to_metric_families(sys.stdin.read()))\n\
        print(sum(len(family.samples) for family in families))\n";
    let mut parser = Command::new(python);
    let parsed = Finished::run_with(parser.args(["-c", script]), &page.text);
    parsed.assert_code(0);
    assert_eq!(parsed.stdout.trim(), page.len().to_string());
}
