//! Tests of the fake LLM server and the raw clients against each other.

use std::time::Duration;

use testkit::{
    BodyHandling, FakeLlm, Gate, Http1, Reply, Request, Step, UsageReceiver, chat_events,
    cpp_httplib, eventually, is_reached, send,
};

fn smuggling() -> Request {
    let hidden = Request::chat("m", "hidden").to_bytes();
    Request::get("/v1/anything").body(hidden)
}

#[test]
fn server_reads_bodies_and_keeps_connections() {
    let llm = FakeLlm::answering("m").unwrap();
    let mut client = Http1::connect(llm.address).unwrap();
    for _ in 0..2 {
        client.send(Request::chat("m", "hello").to_bytes()).unwrap();
        let response = client.response().unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.json()["usage"]["total_tokens"], 150);
    }
    let requests = llm.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].json()["messages"][0]["content"], "hello");
    assert_eq!(requests[1].connection, 1);
}

#[test]
fn model_list_is_served_without_the_script() {
    let llm = FakeLlm::builder(&["a", "b"])
        .start(|_| Reply::nothing())
        .unwrap();
    let list = send(llm.address, &Request::get("/v1/models")).unwrap();
    assert_eq!(list.json()["data"][1]["id"], "b");
    assert_eq!((llm.requests().len(), llm.probes().len()), (0, 1));
}

#[test]
fn unread_body_is_executed_as_the_next_request() {
    let builder = FakeLlm::builder(&["m"]).bodies(cpp_httplib::body_rule);
    let llm = builder.start(|_| Reply::json(200, "{}")).unwrap();
    let mut client = Http1::connect(llm.address).unwrap();
    client.send(smuggling().to_bytes()).unwrap();
    assert_eq!(client.response().unwrap().status(), 200);
    assert_eq!(client.response().unwrap().status(), 200);
    let paths: Vec<_> = llm
        .requests()
        .iter()
        .map(|one| one.path().to_owned())
        .collect();
    assert_eq!(paths, ["/v1/anything", "/v1/chat/completions"]);
    let all = smuggling().to_bytes();
    assert!(llm.received_bytes()[0] == all, "every byte is logged");
}

#[test]
fn body_is_read_after_an_early_reply() {
    let builder = FakeLlm::builder(&["m"]).bodies(|_| BodyHandling::ReadAfterReply);
    let llm = builder.start(|_| Reply::json(200, "{}")).unwrap();
    let mut client = Http1::connect(llm.address).unwrap();
    let bytes = Request::post("/v1/x", "{}").to_bytes();
    client.send(&bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(client.response().unwrap().status(), 200);
    client.send("}").unwrap();
    client.send(&bytes).unwrap();
    assert_eq!(client.response().unwrap().status(), 200);
    assert_eq!(llm.requests().len(), 2);
}

#[test]
fn stream_arrives_in_events_and_can_be_reset() {
    let llm = FakeLlm::start("m", |request| match request.path() {
        "/v1/cut" => Reply::stream().event("one").then(Step::Reset),
        _ => chat_events(&["Hel", "lo"]),
    })
    .unwrap();
    let whole = send(llm.address, &Request::get("/v1/whole")).unwrap();
    assert!(whole.is_complete && whole.text().ends_with("data: [DONE]\n\n"));
    let cut = send(llm.address, &Request::get("/v1/cut")).unwrap();
    assert!(!cut.is_complete);
    assert!(is_reached(Duration::from_secs(10), || llm
        .open_connections()
        == 0));
}

#[test]
fn reply_waits_for_its_gate() {
    let gate = Gate::new();
    let script = {
        let gate = gate.clone();
        move |_: &testkit::Received| Reply::json(200, "{}").after_gate(&gate)
    };
    let llm = FakeLlm::start("m", script).unwrap();
    let mut client = Http1::connect(llm.address).unwrap();
    client.send(Request::get("/v1/x").to_bytes()).unwrap();
    eventually("the request arrives", || llm.requests().pop());
    assert!(client.response_within(Duration::from_millis(20)).is_err());
    gate.open();
    assert_eq!(client.response().unwrap().status(), 200);
}

#[test]
fn receiver_collects_records() {
    let receiver = UsageReceiver::accepting().unwrap();
    let address = receiver.url.replace("http://", "").replace("/usage", "");
    let batch = r#"{"idempotency_key":"k","records":[{"id":"1"},{"id":"2"}]}"#;
    let response = send(address.parse().unwrap(), &Request::post("/usage", batch)).unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(receiver.records().len(), 2);
}
