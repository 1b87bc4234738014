//! `llmlb key add`, `list`, `revoke` and `rotate`: their output, and changes that are made at the same time.
//! (promise L11)

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};
use testkit::Finished;

use crate::support::{add, key, secret};

#[test]
fn only_the_secret_is_printed_to_stdout_and_it_is_stored_nowhere() {
    let sandbox = testkit::sandbox!();
    let done = key(&sandbox, "add alice");
    let alice = secret(&done);
    assert!(
        done.stderr.contains("created the API key `alice`"),
        "{done:?}"
    );
    assert!(done.stderr.contains("this is the first key"), "{done:?}");
    let bob = key(&sandbox, "add bob --quiet");
    assert_ne!(secret(&bob), alice);
    assert_eq!(bob.stderr, "");
    let file = sandbox.data_dir().join("keys.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        !text.contains(&alice) && text.contains("\"alice\""),
        "{text}"
    );
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    let mut names: Vec<_> = std::fs::read_dir(sandbox.data_dir())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["keys.json"],
        "no temporary file and no lock is left"
    );
}

#[test]
fn list_shows_all_keys_of_file_and_configuration_without_secrets_and_hashes() {
    let sandbox = testkit::sandbox!();
    sandbox.file(
        "llmlb.toml",
        "[[key]]\nname = \"ci\"\nkey_env = \"UNSET_VARIABLE\"\nrpm = 5\n\
         [[key]]\nname = \"bob\"\nkey_env = \"OTHER\"\n",
    );
    assert!(key(&sandbox, "list --json --config llmlb.toml").json()["keys"].is_array());
    let alice = add(
        &sandbox,
        "alice --team search --models a,b* --rpm 60 --tpm 9000 --concurrency 4 \
         --budget-tokens 1000000 --per month --expires 2999-12-31 --admin",
    );
    add(&sandbox, "carol");
    key(&sandbox, "revoke carol").assert_code(0);
    key(&sandbox, "rotate alice --grace 24h").assert_code(0);
    let text = key(&sandbox, "list");
    text.assert_code(0);
    let json = key(&sandbox, "list --json");
    let file = std::fs::read_to_string(sandbox.data_dir().join("keys.json")).unwrap();
    let file: Value = serde_json::from_str(&file).unwrap();
    for secret in [
        alice.as_str(),
        file["hmac_key"].as_str().unwrap(),
        file["keys"][0]["hash"].as_str().unwrap(),
    ] {
        assert!(!text.output().contains(secret) && !json.output().contains(secret));
    }
    let keys = json.json()["keys"].as_array().unwrap().clone();
    let found: Vec<_> = keys
        .iter()
        .map(|key| [&key["name"], &key["state"], &key["source"]].map(|text| text.as_str().unwrap()))
        .collect();
    assert_eq!(
        found,
        [
            ["ci", "active", "llmlb.toml:1"],
            ["bob", "active", "llmlb.toml:5"],
            ["alice", "active", "keys.json"],
            ["carol", "revoked", "keys.json"],
        ]
    );
    let alice = &keys[2];
    assert_eq!(alice["models"], json!(["a", "b*"]));
    assert_eq!(alice["expires"], "3000-01-01T00:00:00Z");
    assert_eq!(
        [
            &alice["rpm"],
            &alice["tpm"],
            &alice["concurrency"],
            &alice["budget_tokens"]
        ],
        [60, 9000, 4, 1_000_000]
    );
    assert_eq!(
        (&alice["per"], &alice["admin"]),
        (&json!("month"), &json!(true))
    );
    assert!(alice["old_secret_until"].is_string());
    assert!(
        text.stdout
            .contains("rpm=60 tpm=9000 concurrency=4 1000000 tokens/month")
    );
}

#[test]
fn names_are_unique_and_commands_say_what_to_type() {
    let sandbox = testkit::sandbox!();
    sandbox.file(
        "llmlb.toml",
        "[[key]]\nname = \"ci\"\nkey_env = \"CI_KEY\"\n",
    );
    let old = add(&sandbox, "alice");
    for (words, why, hint) in [
        (
            "add alice",
            "has an API key `alice` already",
            "`llmlb key rotate alice`",
        ),
        (
            "add ci",
            "`ci` is declared in llmlb.toml:1",
            "choose another name",
        ),
        ("rotate ci", "`ci` is declared in llmlb.toml:1", "key_env"),
        (
            "revoke ci",
            "`ci` is declared in llmlb.toml:1",
            "remove the key",
        ),
        ("revoke bob", "has no API key `bob`", "`llmlb key list`"),
        ("rotate bob", "has no API key `bob`", "`llmlb key list`"),
    ] {
        let done = key(&sandbox, words);
        done.assert_code(1);
        assert!(done.stdout.is_empty(), "{words}: {done:?}");
        assert!(done.stderr.contains(why), "{words}: {done:?}");
        assert!(done.stderr.contains(hint), "{words}: {done:?}");
    }
    for words in [
        "add",
        "add a/b",
        "add x --rpm 0",
        "add x --budget-tokens 5",
        "add x --per day",
        "add x --expires 2020-01-01",
        "add x --models a*b",
        "rotate alice --grace soon",
    ] {
        key(&sandbox, words).assert_code(2);
    }
    // The name of a revoked key may be used again. The new key must have another secret, so that
    // the revoked secret stays invalid.
    key(&sandbox, "revoke alice").assert_code(0);
    key(&sandbox, "revoke alice").assert_code(1);
    assert_ne!(add(&sandbox, "alice"), old);
}

/// Commands that run at the same time lose no change, also if some of them are killed.
#[test]
fn concurrent_commands_lose_no_change() {
    let sandbox = testkit::sandbox!();
    let running: Vec<_> = (0..12)
        .map(|number| sandbox.start(&mut sandbox.command(&format!("key add k{number}"))))
        .collect();
    let secrets: HashSet<String> = running
        .into_iter()
        .map(|process| secret(&process.finish()))
        .collect();
    assert_eq!(secrets.len(), 12);
    let victim = sandbox.start(&mut sandbox.command("key add victim"));
    victim.kill();
    let (backend, server) = crate::support::serve(&sandbox, "");
    for secret in &secrets {
        assert_eq!(crate::support::chat(&server, secret), 200);
    }
    assert_eq!(testkit::backends::asked(&backend).len(), 12);
    assert!(secret(&key(&sandbox, "add after")).len() > 6);
}

#[test]
fn data_directory_can_be_named_and_is_named_in_hints() {
    let sandbox = testkit::sandbox!();
    let done = key(&sandbox, "add alice --data other");
    secret(&done);
    assert!(sandbox.path("other/keys.json").exists());
    assert!(!sandbox.data_dir().exists());
    let done = key(&sandbox, "--data other revoke bob");
    done.assert_code(1);
    assert!(
        done.stderr.contains("`llmlb key --data other list`"),
        "{done:?}"
    );
    let listed = Finished::run(&mut sandbox.command("key list"));
    assert!(listed.stdout.contains("no API keys"), "{listed:?}");
}
