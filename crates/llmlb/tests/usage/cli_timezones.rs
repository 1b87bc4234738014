//! Days and hours of `llmlb usage --tz`: exact, or refused.

use std::fs;

use testkit::Finished;

use crate::support::{UsageSandbox, day_ago, record_at};

fn stage(sandbox: &UsageSandbox, lines: &[String]) {
    sandbox
        .usage_with(&["stage"], lines.concat())
        .assert_code(0);
}

/// Returns the lines of the CSV, without the header and without the columns after the tokens.
fn csv(sandbox: &UsageSandbox, words: &[&str]) -> Vec<String> {
    let ran = sandbox.usage(&[words, &["--csv"]].concat());
    assert_eq!(
        (ran.code, &*ran.stderr),
        (Some(0), ""),
        "{words:?}: {ran:?}"
    );
    let cells = |line: &str| {
        let mut cells: Vec<&str> = line.split(',').collect();
        let tokens = cells[cells.len() - 3].to_owned();
        cells.truncate(cells.len() - 7);
        cells.push(&tokens);
        cells.join(",")
    };
    ran.stdout.lines().skip(1).map(cells).collect()
}

fn tokens(count: u64) -> String {
    format!("\"model\":\"m\",\"team\":\"t\",\"tokens\":{count}")
}

#[test]
fn days_are_cut_in_the_zone_for_staged_and_consolidated_records() {
    let sandbox = UsageSandbox::new();
    let (day, next) = (day_ago(5), day_ago(4));
    stage(
        &sandbox,
        &[
            record_at(&format!("{day}T12:00:00Z"), &tokens(1)),
            // At this time in UTC the next day has begun in Berlin, in summer and in winter, so the
            // report must count the record there.
            record_at(&format!("{day}T23:30:00Z"), &tokens(20)),
            record_at(&format!("{next}T12:00:00Z"), &tokens(300)),
        ],
    );
    let check = || {
        let berlin = ["--tz", "Europe/Berlin", "--by", "day"];
        let rows = csv(&sandbox, &berlin);
        assert_eq!(rows, [format!("{day},1"), format!("{next},320")]);
        assert_eq!(
            csv(&sandbox, &["--by", "day,team"]),
            [format!("{day},t,21"), format!("{next},t,300")]
        );
        // `--since` and `--until` must mean days of the time zone too, otherwise records near
        // midnight would be on the wrong side.
        let only = ["--since", &*next, "--until", &*next];
        for by in ["team", "day,team"] {
            let words = [&only[..], &["--tz", "Europe/Berlin", "--by", by]].concat();
            let rows = csv(&sandbox, &words);
            assert!(
                rows.len() == 1 && rows[0].ends_with("t,320"),
                "{by}: {rows:?}"
            );
        }
        let words = [&only[..], &["--by", "team"]].concat();
        assert_eq!(csv(&sandbox, &words), ["t,300"]);
        let words = [&only[..], &["--tz", "europe/berlin"]].concat();
        let ran = sandbox.usage(&words);
        let head = format!("Usage on {next} (Europe/Berlin)\n");
        assert!(ran.stdout.starts_with(&head), "{ran:?}");
        let json = sandbox.usage(&[&words[..], &["--json"]].concat()).json();
        assert_eq!(json["tz"], "Europe/Berlin");
        assert_eq!(json["total"]["tokens"], 320);
    };
    check();
    sandbox.usage(&["deliver", "--archive"]).assert_code(0);
    check();
    // Without the archived records, the report must have the same days, because the totals by hour
    // are enough.
    fs::remove_dir_all(sandbox.data().join("archive")).unwrap();
    check();
}

#[test]
fn hours_at_the_end_of_summer_time_are_apart() {
    let sandbox = UsageSandbox::new();
    stage(
        &sandbox,
        &[
            record_at("2024-10-27T00:30:00Z", &tokens(1)),
            record_at("2024-10-27T01:30:00Z", &tokens(20)),
            record_at("2024-10-27T22:59:59.999Z", &tokens(300)),
            record_at("2024-10-27T23:00:00Z", &tokens(4000)),
        ],
    );
    let check = || {
        let berlin = [
            "--since",
            "2024-10-27",
            "--until",
            "2024-10-27",
            "--tz",
            "Europe/Berlin",
        ];
        let rows = csv(&sandbox, &[&berlin[..], &["--by", "hour"]].concat());
        let expected = [
            "2024-10-27T02:00+02:00,1",
            "2024-10-27T02:00+01:00,20",
            "2024-10-27T23:00+01:00,300",
        ];
        let mut sorted = expected.map(str::to_owned);
        sorted.sort();
        assert_eq!(rows, sorted);
        let rows = csv(&sandbox, &[&berlin[..], &["--by", "day"]].concat());
        assert_eq!(rows, ["2024-10-27,321"]);
    };
    check();
    // The totals by hour of such old records are not kept, so the records themselves are summed.
    sandbox.usage(&["deliver", "--archive"]).assert_code(0);
    check();
}

#[test]
fn old_days_without_records_on_disk_are_refused_in_other_zones() {
    let sandbox = UsageSandbox::new();
    stage(&sandbox, &[record_at("2024-10-27T23:30:00Z", &tokens(7))]);
    sandbox.usage(&["deliver", "--archive"]).assert_code(0);
    fs::remove_dir_all(sandbox.data().join("archive")).unwrap();
    let period = ["--since", "2024-10-27", "--until", "2024-10-28"];
    for words in [
        &["--tz", "Europe/Berlin", "--by", "day"] as &[&str],
        &["--tz", "Europe/Berlin", "--since", "2024-10-28"],
        &["--by", "hour"],
    ] {
        let ran: Finished = sandbox.usage(&[&period[..words.len().min(4)], words].concat());
        let ran = if words.contains(&"--since") {
            sandbox.usage(&[words, &["--until", "2024-10-28"]].concat())
        } else {
            ran
        };
        assert_eq!(
            (ran.code, &*ran.stdout),
            (Some(1), ""),
            "{words:?}: {ran:?}"
        );
        let missing = "1 record of 2024-10-27 (UTC) are no longer on disk";
        assert!(ran.stderr.contains(missing), "{words:?}: {ran:?}");
        assert!(ran.stderr.contains("whole days in UTC"), "{ran:?}");
    }
    let words = [&period[..], &["--by", "day"]].concat();
    assert_eq!(csv(&sandbox, &words), ["2024-10-27,7"]);
}

#[test]
fn zones_with_half_hours_need_the_records() {
    let sandbox = UsageSandbox::new();
    let (day, next) = (day_ago(5), day_ago(4));
    stage(
        &sandbox,
        &[
            // 23:59 and 00:00 in Kolkata.
            record_at(&format!("{day}T18:29:59Z"), &tokens(1)),
            record_at(&format!("{day}T18:30:00Z"), &tokens(20)),
        ],
    );
    let kolkata = ["--tz", "Asia/Kolkata", "--since", &*next, "--until", &*next];
    let check = || {
        let rows = csv(&sandbox, &["--tz", "Asia/Kolkata", "--by", "day"]);
        assert_eq!(rows, [format!("{day},1"), format!("{next},20")]);
        let rows = csv(&sandbox, &["--tz", "Asia/Kathmandu", "--by", "day"]);
        assert_eq!(rows, [format!("{next},21")]);
        assert_eq!(
            csv(&sandbox, &[&kolkata[..], &["--by", "team"]].concat()),
            ["t,20"]
        );
    };
    check();
    sandbox.usage(&["deliver", "--archive"]).assert_code(0);
    check();
    fs::remove_dir_all(sandbox.data().join("archive")).unwrap();
    let ran = sandbox.usage(&kolkata);
    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("2 records of "), "{ran:?}");
}

#[test]
fn unknown_zone_is_refused_with_a_suggestion() {
    let sandbox = UsageSandbox::new();
    for (zone, words) in [
        ("berlin", "did you mean Europe/Berlin?"),
        ("", "allowed: UTC, or a name such as Europe/Berlin"),
        (
            "../etc/passwd",
            "allowed: UTC, or a name such as Europe/Berlin",
        ),
    ] {
        let ran = sandbox.usage(&["--tz", zone]);
        assert_eq!((ran.code, &*ran.stdout), (Some(2), ""), "{zone}: {ran:?}");
        assert!(ran.stderr.contains(words), "{zone}: {ran:?}");
    }
}
