//! Fields by which the totals in `usage/*.json` are grouped, summed and counted.
//!
//! A new field of `usage --by` must be added to [`grouping`] and to the report's `By`. Rows of
//! totals that were written earlier have no value for the new field.

use spool::Grouping;

pub(crate) fn grouping() -> Grouping {
    Grouping::by(["model", "key", "backend", "team", "served_model"])
        .sum(["tokens"])
        .sum_suffix("_tokens")
        .count(["outcome", "tokens_from"])
        .total_from(["tokens"])
        // Other programs may stage records without `tokens`, which have only the fields of OpenAI's
        // usage. The total of such a record comes from `total_tokens`, or from its prompt and
        // completion.
        .total_from(["total_tokens"])
        .total_from(["prompt_tokens", "completion_tokens"])
        // Groups are limited in number, and some are reserved for records with a backend. Clients
        // choose model names and may invent keys, but only llmlb sets the backend. So invented
        // names cannot use up the reserved groups.
        .trust("backend")
        // Keep exact sums by key, because groups are limited in number: clients that invent model
        // names must not change the spend of a key. The sums of each server are kept apart, because
        // a server counts its own spend in memory and reads only that of others.
        .exact(["key", "instance"])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use spool::{Durability, Options, Record, Staging, consolidate, tally};
    use tempfile::TempDir;

    use super::*;

    /// Record ids of 2023-06-30. So old records get only totals by day and none by hour, which
    /// keeps the expected files few.
    const IDS: [&str; 3] = [
        "01890a5d-ac96-774b-bcce-b302099a8057",
        "01890a5d-ac96-774b-bcce-b302099a8058",
        "01890a5d-ac96-774b-bcce-b302099a8059",
    ];
    const DAY: &str = "usage/2023-06-30.json";

    fn consolidate_records(dir: &TempDir, records: &[String]) {
        let staging = Staging::open(dir.path().join("_staging")).unwrap();
        for record in records {
            let record = Record::parse(record).unwrap();
            staging.stage(&record, Durability::Process).unwrap();
        }
        staging.close().unwrap();
        let mut options = Options::default();
        options.grouping = grouping();
        consolidate(dir.path(), &options).unwrap();
    }

    /// Returns the totals in the file of the day, without the snapshot and the checksum, which
    /// differ in each run.
    fn day(dir: &TempDir) -> String {
        let text = fs::read_to_string(dir.path().join(DAY)).unwrap();
        let rows = text.find(r#""totals""#).unwrap();
        let end = text.find(r#","crc""#).unwrap();
        assert!(text.starts_with(r#"{"version":1,"day":"2023-06-30","snapshot":""#));
        text[rows..end].to_owned()
    }

    /// Earlier versions wrote no `instance`. Records with and without it must be one group.
    #[test]
    fn totals_have_the_documented_format() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second, third] = IDS;
        consolidate_records(
            &dir,
            &[
                format!(
                    r#"{{"id":"{first}","key":null,"model":"m","backend":"b","outcome":"complete","prompt_tokens":9,"completion_tokens":4,"cached_tokens":0,"tokens":13,"tokens_from":"reported","ms":840,"instance":"gpu-1:1"}}"#
                ),
                format!(
                    r#"{{"id":"{second}","key":null,"model":"m","backend":"b","outcome":"cut","prompt_tokens":1,"completion_tokens":1,"cached_tokens":1,"tokens":2,"estimated_tokens":2,"tokens_from":"estimated"}}"#
                ),
                format!(r#"{{"id":"{third}","key":"k","total_tokens":7,"prompt_tokens":3}}"#),
            ],
        );
        assert_eq!(
            day(&dir),
            concat!(
                r#""totals":[{"model":null,"key":"k","backend":null,"team":null,"served_model":null,"records":1,"total":7,"#,
                r#""sums":{"prompt_tokens":3,"total_tokens":7}},"#,
                r#"{"model":"m","key":null,"backend":"b","team":null,"served_model":null,"records":2,"total":15,"#,
                r#""sums":{"cached_tokens":1,"completion_tokens":5,"estimated_tokens":2,"prompt_tokens":10,"tokens":15},"#,
                r#""counts":{"outcome":{"complete":1,"cut":1},"tokens_from":{"estimated":1,"reported":1}}}],"#,
                r#""exact":{"fields":["key","instance"],"records":3,"#,
                r#""sums":[{"values":["k",null],"records":1,"total":7}]}"#,
            )
        );
    }

    #[test]
    fn totals_of_other_releases_are_added_up_or_kept() {
        let dir = tempfile::tempdir().unwrap();
        let same = r#"{"model":"m","key":null,"backend":"b","team":"t","served_model":null,"records":1,"total":4,"sums":{"tokens":4}}"#;
        // This row of a later release has the field `region`, by which this release does not group.
        // Consolidation must keep the row unchanged.
        let later = r#"{"model":"m","key":null,"backend":"b","team":"t","region":"r","records":5,"total":50,"sums":{"tokens":50}}"#;
        // This row of an earlier release has no field `team`. Its numbers must be kept, but not
        // added to any team.
        let earlier =
            r#"{"model":"m","key":null,"backend":"b","records":2,"total":9,"sums":{"tokens":9}}"#;
        let text = format!(
            r#"{{"version":1,"day":"2023-06-30","snapshot":"{}","totals":[{earlier},{same},{later}]"#,
            IDS[0]
        );
        fs::create_dir(dir.path().join("usage")).unwrap();
        let crc = crc32(text.as_bytes());
        fs::write(
            dir.path().join(DAY),
            format!("{text},\"crc\":\"{crc:08x}\"}}\n"),
        )
        .unwrap();
        let record = format!(
            r#"{{"id":"{}","model":"m","backend":"b","team":"t","tokens":3}}"#,
            IDS[1]
        );
        consolidate_records(&dir, &[record]);
        let added = r#"{"model":"m","key":null,"backend":"b","team":"t","served_model":null,"records":2,"total":7,"sums":{"tokens":7}}"#;
        let exact = r#""exact":{"fields":["key","instance"],"records":9,"sums":[]}"#;
        assert_eq!(
            day(&dir),
            format!(r#""totals":[{earlier},{added},{later}],{exact}"#)
        );
        let rows = tally(dir.path(), &grouping(), None, None).unwrap().rows;
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (row.value("model"), row.value("team"), row.total))
            .collect();
        assert_eq!(
            rows,
            [
                (Some("m"), None, 9),
                (Some("m"), Some("t"), 7),
                (Some("m"), Some("t"), 50)
            ]
        );
    }

    /// Returns the CRC-32 (IEEE) with which the spool ends every line of its files, so that the
    /// test can write valid rows.
    fn crc32(bytes: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
            }
        }
        !crc
    }
}
