use super::*;

/// Stages an input. Returns the number of staged records, of rejected records, and of records on
/// disk.
fn staged(input: &[u8]) -> (u64, u64, usize) {
    let dir = tempfile::tempdir().unwrap();
    let staging = Staging::open(dir.path()).unwrap();
    let mut run = StagingRun {
        staging: &staging,
        bar: ProgressLine::new(true),
        group: Vec::new(),
        group_bytes: 0,
        group_start: String::new(),
        staged: 0,
        rejected: 0,
    };
    run.stage_lines("test", input).unwrap();
    let counts = (run.staged, run.rejected);
    drop(run);
    staging.close().unwrap();
    let files = std::fs::read_dir(dir.path()).unwrap();
    let text: String = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    (counts.0, counts.1, text.matches("marked").count())
}

#[test]
fn valid_lines_are_staged_and_invalid_lines_are_rejected() {
    let input = b"\xef\xbb\xbf{\"marked\":1}\r\n\n  \n{\"marked\":2}\nnonsense\n[1]\n\"x\"\n\xff\n\
        {\"marked\":3,\"id\":\"not an id\"}\n{\"marked\":4}";
    assert_eq!(staged(input), (3, 5, 3));
    assert_eq!(staged(b""), (0, 0, 0));
}

#[test]
fn input_larger_than_a_group_is_staged_completely() {
    let lines = "{\"marked\":1}\n".repeat(MAX_GROUP_RECORDS * 2 + 7);
    let count = MAX_GROUP_RECORDS * 2 + 7;
    assert_eq!(staged(lines.as_bytes()), (count as u64, 0, count));
}

#[test]
fn parse_error_names_the_column_but_not_the_line() {
    let bad = Record::parse("{\"a\":}").unwrap_err();
    let why = why(&bad);
    assert!(
        why.contains("at column 6") && !why.contains("line"),
        "{why}"
    );
}
