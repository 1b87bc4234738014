//! The monthly bill of docs/billing.md: its commands run as they are written.

use std::env;
use std::fs;
use std::process::Command;

use testkit::Finished;

use crate::support::{UsageSandbox, record_at};

const PAGE: &str = include_str!("../../../../docs/billing.md");

/// Returns the block of shell commands on the page that follows the comment `<!-- tested: NAME
/// -->`.
fn commands(name: &str) -> String {
    let page = PAGE.replace("\r\n", "\n");
    let mark = format!("<!-- tested: {name} -->\n```sh\n");
    let (_, rest) = page.split_once(&mark).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn bill_per_team_is_made_with_the_commands_of_the_page() {
    let sandbox = UsageSandbox::new();
    let fields = |team: &str, model: &str, served: &str, prompt: u64, completion: u64| {
        format!(
            "\"team\":{team},\"key\":\"k\",\"model\":\"{model}\"{served},\"backend\":\"b\",\
             \"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"cached_tokens\":0,\
             \"tokens\":{}",
            prompt + completion
        )
    };
    let llama = |team, prompt| fields(team, "llama3:8b", "", prompt, 0);
    let lines = [
        // In Berlin this is still 31 October 2026, so the bill of November must not contain this
        // record.
        record_at("2026-10-31T22:59:59Z", &llama("\"search\"", 1_000_000)),
        record_at("2026-10-31T23:00:00Z", &llama("\"search\"", 2_000_000)),
        record_at(
            "2026-11-10T12:00:00Z",
            &fields(
                "\"search\"",
                "fast",
                ",\"served_model\":\"qwen3-32b\"",
                0,
                500_000,
            ),
        ),
        record_at("2026-11-10T13:00:00Z", &llama("\"chat\"", 10_000_000)),
    ];
    sandbox
        .usage_with(&["stage"], lines.concat())
        .assert_code(0);
    sandbox.usage(&["deliver", "--archive"]).assert_code(0);

    let mut command = sandbox.llmlb("");
    let program = std::path::PathBuf::from(command.get_program());
    let path = env::join_paths(
        [program.parent().unwrap().to_owned()]
            .into_iter()
            .chain(env::split_paths(&env::var_os("PATH").unwrap())),
    );
    command = Command::new("sh");
    command.args(["-e", "-c", &commands("bill")]);
    command.env("PATH", path.unwrap());
    command.env("LLMLB_DATA_DIR", sandbox.data());
    command.current_dir(sandbox.data().parent().unwrap());
    let ran = Finished::run(&mut command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // `search` used 2 million prompt tokens at 0.20 and half a million completion tokens at 1.20
    // per million; `chat` used 10 million at 0.20.
    assert!(ran.stdout.contains("chat 2.00\n"), "{ran:?}");
    assert!(ran.stdout.contains("search 1.00\n"), "{ran:?}");
    let table = fs::read_to_string(sandbox.data().with_file_name("november.csv")).unwrap();
    let head = "team,served_model,requests,prompt_tokens,completion_tokens,cached_tokens,";
    assert!(table.starts_with(head), "{table}");
    assert!(table.contains("search,qwen3-32b,1,0,500000,0,"), "{table}");
    let records = fs::read_to_string(sandbox.data().with_file_name("search.csv")).unwrap();
    assert_eq!(records.lines().count(), 3, "{records}");
}
