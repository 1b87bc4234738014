use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::disk::RealDisk;
use crate::journal::encode;

const ID_OF_2023: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn data_dir() -> (tempfile::TempDir, DataDir) {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::new(dir.path());
    data.make(&RealDisk).unwrap();
    (dir, data)
}

fn by_customer() -> Grouping {
    Grouping::by(["customer", "region"])
        .sum(["bytes"])
        .sum_suffix("_bytes")
        .total_from(["bytes"])
}

fn fold(data: &DataDir, grouping: &Grouping, texts: &[&str], snapshot: Uuid) {
    let mut totals = Totals::new(snapshot, grouping);
    for text in texts {
        totals.add(&Record::parse(text).unwrap()).unwrap();
    }
    totals.fold(&RealDisk, data, snapshot).unwrap();
}

fn rows(data: &DataDir, name: &str) -> Vec<Value> {
    let bytes = std::fs::read(data.usage.join(name)).unwrap();
    check(name, &bytes).unwrap();
    let mut file: Value = serde_json::from_slice(&bytes).unwrap();
    serde_json::from_value(file["totals"].take()).unwrap()
}

#[test]
fn records_are_grouped_and_integers_are_summed_once() {
    let (_dir, data) = data_dir();
    let now = Uuid::now_v7();
    let id = format!(r#""id":"{now}""#);
    let named = r#""customer":"a","region":"r""#;
    let big = format!(r#"{{{id},{named},"sent_bytes":18446744073709551615}}"#);
    let first = format!(r#"{{{id},{named},"sent_bytes":7,"status":200}}"#);
    let odd = format!(r#"{{{id},"customer":7,"bytes":-1,"x_bytes":1.5,"y_bytes":"9"}}"#);
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    fold(&data, &by_customer(), &[&first, &odd], one);
    // Add the same snapshot again, as consolidation does after a crash. Its records must not be
    // added twice.
    fold(&data, &by_customer(), &[&first, &odd], one);
    fold(&data, &by_customer(), &[&big], two);
    let now = Moment::from_id(now);
    for period in [now.day(), now.hour()] {
        let rows = rows(&data, &format!("{period}.json"));
        assert_eq!(
            rows,
            [
                json!({"customer": null, "region": null, "records": 1, "total": 0, "sums": {}}),
                json!({
                    "customer": "a", "region": "r", "records": 2, "total": 0,
                    "sums": { "sent_bytes": u64::MAX }, // Sums do not overflow.
                }),
            ]
        );
    }
}

#[test]
fn without_a_grouping_records_are_only_counted() {
    let (_dir, data) = data_dir();
    let record = format!(r#"{{"id":"{ID_OF_2023}","customer":"a","bytes":4}}"#);
    fold(&data, &Grouping::default(), &[&record], Uuid::now_v7());
    let text = std::fs::read_to_string(data.usage.join("2023-06-30.json")).unwrap();
    let expected = r#""totals":[{"records":1,"total":0,"sums":{}}],"#;
    assert!(text.contains(expected), "{text}");
}

#[test]
fn fields_are_written_in_the_order_of_the_grouping() {
    let (_dir, data) = data_dir();
    let record = format!(r#"{{"id":"{ID_OF_2023}","a":"1","b":"2","status":"ok"}}"#);
    let grouping = Grouping::by(["b", "a", "c", "b"]).count(["status"]);
    fold(&data, &grouping, &[&record], Uuid::now_v7());
    let text = std::fs::read_to_string(data.usage.join("2023-06-30.json")).unwrap();
    let expected = r#""totals":[{"b":"2","a":"1","c":null,"records":1,"total":0,"sums":{},"counts":{"status":{"ok":1}}}],"#;
    assert!(text.contains(expected), "{text}");
}

#[test]
fn rows_of_other_groupings_are_kept_as_they_are() {
    let (_dir, data) = data_dir();
    let record = |region: &str| {
        format!(r#"{{"id":"{ID_OF_2023}","customer":"a","region":{region},"bytes":1}}"#)
    };
    let groupings = [
        by_customer(),
        Grouping::by(["region", "customer"]),
        Grouping::by(["customer"]),
        Grouping::default(),
        Grouping::by(["customer", "region", "plan"]),
    ];
    // The groupings are used twice, so that each one reads the rows of every other one.
    for grouping in groupings.iter().chain(&groupings) {
        let records = [record("null"), record(r#""r""#)];
        let records = records.each_ref().map(String::as_str);
        fold(&data, grouping, &records, Uuid::now_v7());
    }
    let mut found = BTreeMap::new();
    for row in rows(&data, "2023-06-30.json") {
        let mut group = row.as_object().unwrap().clone();
        let records = group.remove("records").unwrap().as_u64().unwrap();
        group.retain(|name, _| !["total", "sums"].contains(&&**name));
        let previous = found.insert(Value::from(group).to_string(), records);
        assert_eq!(previous, None, "{row}");
    }
    let expected = [
        // The first two groupings have the same fields, so their rows are added up.
        (r#"{"customer":"a","region":null}"#, 4),
        (r#"{"customer":"a","region":"r"}"#, 4),
        (r#"{"customer":"a"}"#, 4),
        ("{}", 4),
        (r#"{"customer":"a","plan":null,"region":null}"#, 2),
        (r#"{"customer":"a","plan":null,"region":"r"}"#, 2),
    ];
    assert_eq!(
        found,
        expected.map(|(group, n)| (group.to_owned(), n)).into()
    );
}

#[test]
fn file_without_totals_of_rows_is_read() {
    let (_dir, data) = data_dir();
    let old = json!({
        "version": 1, "day": "2023-06-30", "snapshot": Uuid::now_v7(), "totals": [
            { "customer": null, "region": null, "records": 2, "sums": { "bytes": 5 } },
        ],
    });
    std::fs::write(data.usage.join("2023-06-30.json"), encode(&old)).unwrap();
    let record = format!(r#"{{"id":"{ID_OF_2023}","bytes":4}}"#);
    fold(&data, &by_customer(), &[&record], Uuid::now_v7());
    let expected = json!({
        "customer": null, "region": null, "records": 3, "total": 9, "sums": { "bytes": 9 },
    });
    assert_eq!(rows(&data, "2023-06-30.json"), [expected]);
}

#[test]
fn old_hours_are_deleted_and_days_are_kept() {
    let (_dir, data) = data_dir();
    let old = format!(r#"{{"id":"{ID_OF_2023}"}}"#);
    std::fs::write(data.usage.join("2023-06-30T02.json"), "").unwrap();
    fold(&data, &by_customer(), &[&old, "{}"], Uuid::now_v7());
    assert!(data.usage.join("2023-06-30.json").exists());
    let names: Vec<_> = std::fs::read_dir(&data.usage).unwrap().collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn records_with_implausible_times_share_one_day() {
    let (_dir, data) = data_dir();
    let now = Uuid::now_v7();
    let mut totals = Totals::new(Uuid::now_v7(), &by_customer());
    // The records are 366 days apart, from 1970 far into the future.
    for year in 0..5000_u128 {
        let millis = year * 366 * 24 * 3600 * 1000;
        let id = Uuid::from_u128(millis << 80 | 0x7000_8000_0000_0000_0000);
        let record = Record::parse(&format!(r#"{{"id":"{id}"}}"#)).unwrap();
        totals.add(&record).unwrap();
    }
    totals.fold(&RealDisk, &data, now).unwrap();
    let files = std::fs::read_dir(&data.usage).unwrap().count();
    assert!(files <= 12, "{files}");
    let rows = rows(&data, "1970-01-01.json");
    let records: u64 = rows
        .iter()
        .map(|row| row["records"].as_u64().unwrap())
        .sum();
    assert!(records > 4980, "{records}");
}

#[test]
fn file_of_a_newer_version_is_refused_and_kept() {
    let (_dir, data) = data_dir();
    let now = Uuid::now_v7();
    let path = data
        .usage
        .join(format!("{}.json", Moment::from_id(now).day()));
    let newer = encode(&json!({ "version": 2, "days": [] }));
    std::fs::write(&path, &newer).unwrap();
    let mut totals = Totals::new(now, &by_customer());
    totals.add(&Record::parse("{}").unwrap()).unwrap();
    assert!(totals.fold(&RealDisk, &data, now).is_err());
    assert_eq!(std::fs::read(path).unwrap(), newer);
}
