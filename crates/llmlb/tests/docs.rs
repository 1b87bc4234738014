//! The documentation matches the code: error codes, messages, tests of promises, links, and the README in
//! both languages.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    text.replace("\r\n", "\n")
}

fn page(name: &str) -> String {
    read(&root().join(name))
}

/// Returns every file below a directory whose name has this suffix, except build output.
fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && !["target", "node_modules"].contains(&&*name) && !name.starts_with('.')
        {
            found.extend(files(&path, suffix));
        } else if name.ends_with(suffix) {
            found.push(path);
        }
    }
    found
}

fn is_code(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

/// Returns the error codes in a source file: literals that follow a status, are passed to `refused`, or are
/// constants.
fn codes(source: &str) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let source = source.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = BTreeSet::new();
    for (at, _) in source.match_indices('"') {
        let before = source[..at].trim_end();
        let argument = before.strip_suffix(',').unwrap_or_default();
        let word = argument.rsplit([' ', '(']).next().unwrap_or_default();
        let is_constant = before.ends_with(": &str =") || before.ends_with("let code =");
        let follows_status = word == "status" || word.starts_with("StatusCode::");
        if is_constant || follows_status || before.ends_with("refused(") {
            let (literal, rest) = source[at + 1..].split_once('"').unwrap_or_default();
            let is_field = rest.starts_with(':');
            found.extend((is_code(literal) && !is_field).then(|| literal.to_owned()));
        }
    }
    found
}

/// Returns the texts in backquotes that begin the rows of the tables of a section.
fn first_column(page: &str, heading: &str) -> BTreeSet<String> {
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap_or_default();
    let rows = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    rows.map(str::to_owned).collect()
}

#[test]
fn troubleshooting_page_lists_every_error_code() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let marks = ["StatusCode::", "HTTP/1.1 {", "raw_response::error("];
    let makes_errors = |text: &str| marks.iter().any(|mark| text.contains(mark));
    let sources: Vec<String> = files(&source, ".rs")
        .iter()
        .filter(|path| !path.iter().any(|part| part == "tests" || part == "demo"))
        .map(|path| read(path))
        .filter(|text| makes_errors(text))
        .collect();
    let in_code: BTreeSet<String> = sources.iter().flat_map(|text| codes(text)).collect();
    assert!(in_code.len() > 30, "the parser finds only {in_code:?}");
    let page = page("docs/troubleshooting.md");
    let missing: Vec<_> = (in_code.iter())
        .filter(|code| !page.contains(&format!("`{code}`")))
        .collect();
    assert!(missing.is_empty(), "not on the page: {missing:?}");
    let listed = first_column(&page, "## Error codes");
    let quoted = |code: &String| {
        sources
            .iter()
            .any(|text| text.contains(&format!("\"{code}\"")))
    };
    let gone: Vec<_> = listed.iter().filter(|code| !quoted(code)).collect();
    assert!(
        gone.is_empty(),
        "on the page, but not in the code: {gone:?}"
    );
}

/// Words in a quoted message that stand for a value.
const PLACEHOLDERS: [&str; 12] = [
    "N", "M", "MAX", "NAME", "URL", "MODEL", "PATH", "CAUSE", "USER", "PID", "TIME", "..",
];

/// Returns the constant parts of a message that a page quotes, except short ones.
fn fragments(message: &str) -> Vec<String> {
    let is_value = |word: &str| {
        let word = word.trim_matches(|c: char| ",:;()".contains(c));
        PLACEHOLDERS.contains(&word) || word.contains(|c: char| c.is_ascii_digit())
    };
    let words: Vec<&str> = message.split(' ').collect();
    let parts = words.split(|word| is_value(word));
    let texts = parts.map(|words| words.join(" "));
    let trimmed = texts.map(|text| text.trim_matches(|c: char| ",:;.()".contains(c)).to_owned());
    trimmed.filter(|text| text.len() > 5).collect()
}

/// Returns every text in backquotes in the first column of the tables of a section.
fn quoted_in_first_column(page: &str, heading: &str) -> Vec<String> {
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.strip_prefix("| ")?.split(" | ").next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned))
        .collect()
}

#[test]
fn troubleshooting_page_quotes_messages_of_the_code() {
    let crates = ["llmlb", "spool", "tenure", "tenure-cli"];
    let dirs = crates.map(|name| root().join("crates").join(name).join("src"));
    let sources = dirs.iter().flat_map(|dir| files(dir, ".rs"));
    let is_test = |path: &PathBuf| {
        path.iter()
            .any(|part| part == "tests" || part == "tests.rs")
    };
    let sources = sources.filter(|path| !is_test(path));
    let sources: Vec<String> = sources.map(|path| read(&path)).collect();
    // A string literal may continue on the next line. Join such lines, so that a message which a
    // page quotes is found.
    let pieces = sources.iter().flat_map(|text| text.split("\\\n"));
    let code: String = pieces.map(str::trim_start).collect();
    let page = page("docs/troubleshooting.md");
    let mut unknown = Vec::new();
    for heading in [
        "## Frequent log lines",
        "## llmlb status",
        "## tenure status",
        "## usage pending",
        "## usage verify",
    ] {
        let quoted = quoted_in_first_column(&page, heading);
        assert!(quoted.len() > 5, "{heading}: {quoted:?}");
        for message in quoted {
            let missing = fragments(&message)
                .into_iter()
                .find(|part| !code.contains(part));
            unknown.extend(missing.map(|part| format!("{heading}: `{message}`: {part}")));
        }
    }
    assert!(unknown.is_empty(), "not in the code: {unknown:#?}");
}

/// True if a file defines the test, and `part` is the file's name without its suffix or the name of one of
/// its directories.
fn has_test(sources: &[(PathBuf, String)], part: &str, test: &str) -> bool {
    let wanted = format!("fn {test}(");
    sources.iter().any(|(path, text)| {
        let stem = path.file_stem().unwrap_or_default();
        text.contains(&wanted) && (stem == part || path.iter().any(|name| name == part))
    })
}

#[test]
fn promises_page_names_existing_tests_for_every_promise() {
    let page = page("docs/promises.md");
    let (tables, _) = page.split_once("## Promises kept in another form").unwrap();
    let mut sources = std::collections::BTreeMap::new();
    let mut listed = Vec::new();
    let mut problems = Vec::new();
    for row in tables.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [promise, _, tests] = cells[..] else {
            panic!("{row}");
        };
        if promise == "promise" {
            continue;
        }
        listed.push(promise.to_owned());
        for test in tests.split(", ") {
            let [krate, part, name] = test.split("::").collect::<Vec<_>>()[..] else {
                panic!("{promise}: {test}");
            };
            let sources = sources.entry(krate.to_owned()).or_insert_with(|| {
                let dir = root().join("crates").join(krate);
                let all = files(&dir, ".rs").into_iter();
                all.map(|path| (path.strip_prefix(&dir).unwrap().to_owned(), read(&path)))
                    .collect::<Vec<_>>()
            });
            if !has_test(sources, part, name) {
                problems.push(format!("{promise}: {test}"));
            }
        }
    }
    assert!(problems.is_empty(), "no such tests: {problems:#?}");
    let all = [("T", 12), ("S", 12), ("L", 14)];
    let expected: Vec<String> = all
        .iter()
        .flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}")))
        .collect();
    assert_eq!(listed, expected);
}

fn blocks(page: &str) -> Vec<String> {
    let parts = page.split("\n```").skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

/// Removes the comments from shell commands. The Japanese README translates them, so the commands
/// of both READMEs are compared without comments.
fn without_comments(block: &str) -> String {
    let lines = block.lines();
    let commands = lines.map(|line| line.split(" #").next().unwrap_or_default().trim_end());
    commands.collect::<Vec<_>>().join("\n")
}

#[test]
fn readme_has_the_same_commands_in_both_languages() {
    let commands = |name| {
        let blocks = blocks(&page(name));
        blocks
            .iter()
            .map(|block| without_comments(block))
            .collect::<Vec<_>>()
    };
    assert_eq!(commands("README.ja.md"), commands("README.md"));
}

/// Returns the anchor that a forge generates for a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the targets of a page's links to files of the repository.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.contains(' '))
        .collect()
}

#[test]
fn links_between_pages_lead_to_existing_headings() {
    let mut broken = Vec::new();
    for path in files(&root(), ".md") {
        let text = read(&path);
        for target in links(&text) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let is_good = to.exists()
                && (heading.is_empty()
                    || (read(&to).lines())
                        .any(|line| line.starts_with('#') && anchor(line) == heading));
            if !is_good {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
