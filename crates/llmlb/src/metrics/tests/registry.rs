//! Sums of the workers, and the bounds of the page.

use std::sync::Arc;
use std::time::Duration;

use crate::backend_id::BackendId;
use crate::endpoint::Api;
use crate::meter::record::Outcome;
use crate::meter::usage::{TokenUsage, UsageSource};
use crate::metrics::{Exposition, FinishedRequest, Format, Metrics, ModelLabel};

fn request<'a>(model: &'a str, backend: (BackendId, &'a str), key: &'a str) -> FinishedRequest<'a> {
    FinishedRequest {
        model: ModelLabel::Known(model),
        backend: Some(backend),
        key: Some(key),
        api: Api::Chat,
        outcome: Outcome::Complete,
        status: 200,
        code: None,
        usage: Some(TokenUsage {
            prompt: 1,
            completion: 2,
            total: 3,
            source: UsageSource::Reported,
            ..TokenUsage::default()
        }),
        duration: Duration::from_millis(30),
        first_byte: Some(Duration::from_millis(10)),
        queued: Some(Duration::ZERO),
    }
}

fn page(metrics: &Metrics) -> String {
    let mut page = Exposition::new(Format::Prometheus);
    metrics.write(&mut page);
    page.finish()
}

#[test]
fn counts_of_all_workers_are_summed() {
    let metrics = Arc::new(Metrics::default());
    let workers = [metrics.add_worker(), metrics.add_worker()];
    for worker in &workers {
        worker.record(&request("m", (BackendId(1), "b"), "k"), std::iter::empty());
        worker.count_choice("affinity");
    }
    let page = page(&metrics);
    for line in [
        r#"llmlb_requests_total{model="m",backend="b",api="chat",outcome="complete",status_class="2xx"} 2"#,
        r#"llmlb_tokens_total{model="m",backend="b",key="k",type="completion",source="reported"} 4"#,
        r#"llmlb_request_duration_seconds_sum{model="m",backend="b"} 0.06"#,
        r#"llmlb_time_per_output_token_seconds_sum{model="m",backend="b"} 0.04"#,
        r#"llmlb_attempts_total{backend="b",result="response"} 2"#,
        r#"llmlb_choice_total{why="affinity"} 2"#,
    ] {
        assert!(page.lines().any(|one| one == line), "{line}\n{page}");
    }
}

#[test]
fn page_is_bounded_whatever_the_names_are_and_loses_no_request() {
    let metrics = Arc::new(Metrics::default());
    let workers = [metrics.add_worker(), metrics.add_worker()];
    let mut sent = 0_u64;
    for number in 0..400_u32 {
        let names =
            ["m", "b", "k"].map(|kind| format!("{kind}-{}", "x".repeat(90)) + &number.to_string());
        for other in 0..30_u32 {
            let backend = format!("backend-{}", (number + other) % 700);
            let id = BackendId((number + other) % 700);
            let worker = &workers[(other % 2) as usize];
            worker.record(
                &request(&names[0], (id, &backend), &names[2]),
                std::iter::empty(),
            );
            sent += 1;
        }
    }
    let page = page(&metrics);
    let total = |name: &str| -> u64 {
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    assert_eq!(total("llmlb_requests_total{"), sent);
    assert_eq!(total("llmlb_request_duration_seconds_count{"), sent);
    assert_eq!(total("llmlb_tokens_total{"), 3 * sent);
    assert_eq!(total("llmlb_queue_seconds_count{"), sent);
    let lines = page.lines().count();
    assert!(lines < 70_000, "{lines} lines");
    assert!(page.len() < 16 << 20, "{} bytes", page.len());
}
