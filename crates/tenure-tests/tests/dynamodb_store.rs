//! Tests of leases on DynamoDB, as moto implements it, through the public API.
#![cfg(all(unix, feature = "dynamodb"))]
#![expect(
    clippy::unwrap_used,
    reason = "an error in a helper must fail its test"
)]

#[path = "stores/common.rs"]
mod common;
#[path = "stores/cutting_proxy.rs"]
mod cutting_proxy;

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure::{Key, Store};
use tenure_tests::servers::DynamoDbServer;

use common::{TTL, try_acquire};
use cutting_proxy::start_cutting_proxy;

#[test]
fn claims_refuse_hand_over_and_expire() {
    let Some(server) = DynamoDbServer::start() else {
        return;
    };
    let url = server.url();
    common::check_acquire_refuse_release(&url);
    thread::scope(|scope| {
        scope.spawn(|| common::check_hand_over(&url, Duration::from_secs(1)));
        scope.spawn(|| common::check_expiry(&url, TTL + Duration::from_secs(1)));
        scope.spawn(|| common::check_stop_request(&url));
        scope.spawn(|| common::check_record_update(&url));
        scope.spawn(|| {
            common::check_deletion_is_noticed(&url, |name| {
                let key = json!({"key": {"S": name}});
                let table = DynamoDbServer::TABLE;
                server.request("DeleteItem", &json!({"TableName": table, "Key": key}));
            });
        });
    });
    // The item of a released key keeps only the token counter, so that tokens increase over all
    // owners. A remaining owner or record would be left behind forever.
    let items = server.request("Scan", &json!({"TableName": DynamoDbServer::TABLE}));
    for item in items["Items"].as_array().unwrap() {
        let names: Vec<&String> = item.as_object().unwrap().keys().collect();
        assert_eq!(names.len(), 2, "{item}");
        assert!(
            item.get("key").is_some() && item.get("token").is_some(),
            "{item}"
        );
    }
}

#[test]
fn refusal_takes_one_renewal_and_the_next_one_is_immediate() {
    let Some(server) = DynamoDbServer::start() else {
        return;
    };
    let (store, other) = (
        Store::connect(&server.url()).unwrap(),
        Store::connect(&server.url()).unwrap(),
    );
    let tenure = try_acquire(&store, "k").unwrap();
    let start = Instant::now();
    assert!(try_acquire(&other, "k").unwrap_err().is_held());
    assert!(start.elapsed() < TTL, "{:?}", start.elapsed());
    let start = Instant::now();
    assert!(try_acquire(&other, "k").unwrap_err().is_held());
    assert!(start.elapsed() < TTL / 4, "{:?}", start.elapsed());
    tenure.release().unwrap();
    try_acquire(&other, "k").unwrap().release().unwrap();
}

#[test]
fn expired_lease_is_acquired_by_exactly_one_of_many_claims() {
    let Some(server) = DynamoDbServer::start() else {
        return;
    };
    let url = server.url();
    let key = Key::name("k").unwrap();
    let store = Store::connect(&url).unwrap();
    let crashed = try_acquire(&store, "k").unwrap();
    let token = crashed.token();
    crashed.leave().unwrap();
    let claims: Vec<_> = (0..4)
        .map(|_| {
            let (store, key) = (Store::connect(&url).unwrap(), key.clone());
            thread::spawn(move || store.claim(&key).ttl(TTL).try_acquire())
        })
        .collect();
    // All results are collected before any is dropped. The winner would otherwise release the lease
    // while other claims are still running, and a second one could acquire it.
    let results: Vec<_> = claims
        .into_iter()
        .map(|claim| claim.join().unwrap())
        .collect();
    let owners: Vec<_> = results
        .iter()
        .filter_map(|result| result.as_ref().ok())
        .collect();
    assert_eq!(owners.len(), 1);
    assert_eq!(owners[0].token(), token + 1);
    assert!(!owners[0].lost());
    let refused = results.iter().filter_map(|result| result.as_ref().err());
    assert!(refused.into_iter().all(tenure::Error::is_held));
}

#[test]
fn lost_response_does_not_cost_the_key() {
    let Some(server) = DynamoDbServer::start() else {
        return;
    };
    // moto closes the connection after each response, so the second connection has the request that
    // writes the owner. The proxy drops the response to this request.
    let proxy = start_cutting_proxy(server.port(), |index| match index {
        1 => 0,
        _ => usize::MAX,
    });
    let url =
        format!("dynamodb://test:test@tenure?region=us-east-1&endpoint=http://127.0.0.1:{proxy}");
    let tenure = try_acquire(&Store::connect(&url).unwrap(), "k").unwrap();
    let other = Store::connect(&server.url()).unwrap();
    let status = other.status(&Key::name("k").unwrap()).unwrap();
    let record = status.holder().unwrap().record().unwrap();
    assert_eq!(record.token(), tenure.token());
    tenure.release().unwrap();
}

#[test]
fn missing_table_and_foreign_table_are_reported_with_the_command() {
    let Some(server) = DynamoDbServer::start_without_table() else {
        return;
    };
    let store = Store::connect(&server.url()).unwrap();
    let error = try_acquire(&store, "k").unwrap_err();
    assert!(!error.is_unreachable(), "{error}");
    let command = format!(
        "aws dynamodb create-table --table-name tenure --region us-east-1 --endpoint-url {} \
         --billing-mode PAY_PER_REQUEST \
         --attribute-definitions AttributeName=key,AttributeType=S \
         --key-schema AttributeName=key,KeyType=HASH",
        server.endpoint()
    );
    assert!(error.to_string().contains(&command), "{error}");

    server.request(
        "CreateTable",
        &json!({
            "TableName": DynamoDbServer::TABLE,
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        }),
    );
    let error = try_acquire(&store, "k").unwrap_err();
    assert!(!error.is_unreachable(), "{error}");
    assert!(error.to_string().contains("has another key"), "{error}");
}

#[test]
fn unreachable_server_is_reported_with_its_reason() {
    let url = "dynamodb://id:secret@tenure?region=us-east-1&endpoint=http://127.0.0.1:1";
    let error = try_acquire(&Store::connect(url).unwrap(), "k").unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let error = error.to_string();
    assert!(error.contains("refused"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn missing_region_and_credentials_are_reported_with_their_setting() {
    let error = connect_in_child("dynamodb://tenure", &[]);
    assert!(error.contains("?region=us-east-1"), "{error}");
    let error = connect_in_child("dynamodb://tenure", &[("AWS_REGION", "eu-west-1")]);
    assert!(error.contains("AWS_ACCESS_KEY_ID"), "{error}");
    let keys = [
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    let error = connect_in_child("dynamodb://tenure", &keys);
    assert!(error.contains("connected"), "{error}");
}

/// Connects in a process with these environment variables only, and returns its output.
fn connect_in_child(url: &str, environment: &[(&str, &str)]) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_connects", "--ignored", "--nocapture"])
        .env_clear()
        .env("HOME", home.path())
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("STORE_URL", url)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "a process of another test runs it"]
fn child_connects() {
    match Store::connect(&std::env::var("STORE_URL").unwrap()) {
        Ok(_) => println!("connected"),
        Err(error) => println!("{error}"),
    }
}
