use super::*;

/// What became of an input.
fn taken(input: &[u8]) -> (u64, u64, usize) {
    let dir = tempfile::tempdir().unwrap();
    let staging = Staging::open(dir.path()).unwrap();
    let mut intake = Intake {
        staging: &staging,
        bar: Bar::new(true),
        group: Vec::new(),
        group_bytes: 0,
        group_start: String::new(),
        staged: 0,
        refused: 0,
    };
    intake.take_lines("test", input).unwrap();
    let counts = (intake.staged, intake.refused);
    drop(intake);
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
fn good_lines_are_staged_whatever_is_between_them() {
    let input = b"\xef\xbb\xbf{\"marked\":1}\r\n\n  \n{\"marked\":2}\nnonsense\n[1]\n\"x\"\n\xff\n\
        {\"marked\":3,\"id\":\"not an id\"}\n{\"marked\":4}";
    assert_eq!(taken(input), (3, 5, 3));
    assert_eq!(taken(b""), (0, 0, 0));
}

#[test]
fn more_than_fits_into_a_group_is_staged_too() {
    let lines = "{\"marked\":1}\n".repeat(MOST_RECORDS * 2 + 7);
    let count = MOST_RECORDS * 2 + 7;
    assert_eq!(taken(lines.as_bytes()), (count as u64, 0, count));
}

#[test]
fn the_place_of_a_mistake_is_told_once() {
    let bad = Record::parse("{\"a\":}").unwrap_err();
    let why = why(&bad);
    assert!(
        why.contains("at column 6") && !why.contains("line"),
        "{why}"
    );
}
