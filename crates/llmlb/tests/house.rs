//! Rules of the code base that the compiler does not check.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

use std::fs;
use std::path::{Path, PathBuf};

/// Returns every source file: its path under `src` and its text.
fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &mut found);
    let named = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_string_lossy();
        let text = fs::read_to_string(path).unwrap();
        (name.replace('\\', "/"), text)
    };
    found.iter().map(named).collect()
}

/// Modules of the crate, lowest layer first. A module imports only modules in front of it in this list.
const LAYERS: &[&str] = &[
    "dice",
    "text",
    "sys",
    "episode",
    "json",
    "headers",
    "trace_context",
    "endpoint",
    "issued_ids",
    "client_network",
    "dropped_headers",
    "short_writes",
    "backend_id",
    "atomic_duration",
    "known_hosts",
    "contention",
    "body_deadline",
    "body_edit",
    "memory_budget",
    "config",
    "lock",
    "tls",
    "data_dir",
    "keys",
    "descriptors",
    "listen",
    "notify",
    "receiver",
    "request_settings",
    "upstream",
    "balance",
    "issuer_file",
    "issuer_store",
    "meter",
    "metrics",
    "limits",
    "recent",
    "otlp",
    "fleet",
    "exporter",
    "request",
    "forward",
    "health",
    "snapshot",
    "dashboard",
    "server",
    "demo",
    "reload",
    "app",
    "cli",
    "fuzz",
];

/// Returns the files outside `allowed` that contain one of the texts.
fn offenders(texts: &[&str], allowed: &[&str]) -> Vec<String> {
    sources()
        .into_iter()
        .filter(|(name, _)| !allowed.iter().any(|prefix| name.starts_with(prefix)))
        .filter(|(name, _)| !name.contains("tests"))
        .filter(|(_, text)| texts.iter().any(|wanted| text.contains(wanted)))
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn only_the_configuration_reads_the_environment() {
    let readers = offenders(
        &["env::var", "env::vars", "env::set_var"],
        &["config/env.rs"],
    );
    assert_eq!(readers, [""; 0]);
    assert!(
        !offenders(&["env::var"], &[]).is_empty(),
        "the environment is read in one file"
    );
}

#[test]
fn only_the_command_line_prints() {
    assert_eq!(
        offenders(&["io::stdout()", "io::stderr()"], &["cli/"]),
        [""; 0]
    );
}

#[test]
fn systems_differ_only_under_sys() {
    let differing = offenders(&["cfg(unix)", "cfg(windows)", "target_os"], &["sys/"]);
    assert_eq!(differing, [""; 0]);
}

#[test]
fn balancing_does_no_io() {
    let of_balance = |texts: &[&str]| -> Vec<String> {
        let mut names = offenders(texts, &[]);
        names.retain(|name| name.starts_with("balance/"));
        names.sort_unstable();
        names
    };
    let io = ["::net", "::fs", "::io", "hyper"];
    assert_eq!(of_balance(&io), [""; 0]);
    // The wait for a slot is the only asynchronous operation in `balance`, so only these two files
    // have `async` code.
    let waiting = of_balance(&["async ", ".await"]);
    assert_eq!(waiting, ["balance/pool.rs", "balance/queue.rs"]);
}

/// Returns the top-level modules that a source file names after `crate::`, or after as many `super::` as
/// lead to the root of the crate. Tests in the file count too.
fn imports(name: &str, text: &str) -> Vec<String> {
    let code: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    let code = code.join("\n");
    let to_root = "super::".repeat(name.trim_end_matches("/mod.rs").split('/').count());
    let mut found = Vec::new();
    for root in ["crate::", &to_root] {
        for (at, _) in code.match_indices(root) {
            found.extend(first_names(&code[at + root.len()..]));
        }
    }
    found
}

/// Returns the first segment of a Rust path, such as `server` of `server::Shared`. For a group in
/// braces, returns the first segment of each path in the group.
fn first_names(path: &str) -> Vec<String> {
    let ident = |text: &str| -> String {
        let is_part = |char: &char| char.is_alphanumeric() || *char == '_';
        text.trim_start().chars().take_while(is_part).collect()
    };
    let Some(group) = path.strip_prefix('{') else {
        return vec![ident(path)];
    };
    let (mut depth, mut start, mut names) = (0, 0, Vec::new());
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth == 0 => {
                names.push(ident(&group[start..at]));
                start = at + 1;
            }
            '}' => {
                names.push(ident(&group[start..at]));
                break;
            }
            _ => {}
        }
    }
    names
}

/// Returns the position of a module in [`LAYERS`]; `None` if the name is not a module of this list.
fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == module)
}

/// Returns descriptions of a source file's imports that violate the order of [`LAYERS`], because
/// the imported module is in a higher layer. A module that is not in the list is reported, too.
fn back_edges(name: &str, text: &str) -> Vec<String> {
    let module = name.split('/').next().unwrap().trim_end_matches(".rs");
    let Some(own) = rank(module) else {
        return vec![format!("{name}: `{module}` is not in LAYERS")];
    };
    let mut edges: Vec<_> = imports(name, text)
        .into_iter()
        .filter(|import| rank(import).is_some_and(|other| other > own))
        .map(|import| format!("{name}: `{module}` imports `{import}`, which is a higher layer"))
        .collect();
    edges.dedup();
    edges
}

#[test]
fn modules_import_only_lower_layers() {
    let edges: Vec<_> = sources()
        .iter()
        .filter(|(name, _)| !["lib.rs", "main.rs"].contains(&name.as_str()))
        .flat_map(|(name, text)| back_edges(name, text))
        .collect();
    assert_eq!(edges, [""; 0], "the order is in LAYERS and ARCHITECTURE.md");
}

#[test]
fn back_edges_are_found_however_they_are_written() {
    let edge = |text: &str| !back_edges("request/body.rs", text).is_empty();
    for text in [
        "use crate::server::Shared;",
        "use crate::{headers, server::Shared};",
        "use crate::{\n    json::{self, text},\n    app,\n};",
        "fn serve(app: &crate::app::App) {}",
        "use super::super::forward::Relay;",
        "#[cfg(test)]\nmod tests {\n    use crate::forward;\n}",
    ] {
        assert!(edge(text), "{text}");
    }
    for text in [
        "use crate::upstream::AddressLimit;",
        "use crate::request::Refusal;",
        "use crate::{json::{self, app}, meter};",
        "/// See [`crate::server`].",
        "use super::server::X;",
    ] {
        assert!(!edge(text), "{text}");
    }
}

#[test]
fn layers_are_the_modules_of_the_crate_and_documented() {
    let (_, root) = sources()
        .into_iter()
        .find(|(name, _)| name == "lib.rs")
        .unwrap();
    let mut modules: Vec<_> = root
        .lines()
        .filter_map(|line| {
            let line = line.strip_prefix("pub ").unwrap_or(line);
            line.strip_prefix("mod ")?.strip_suffix(';')
        })
        .collect();
    let mut layers = LAYERS.to_vec();
    modules.sort_unstable();
    layers.sort_unstable();
    assert_eq!(modules, layers);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    let page = fs::read_to_string(page).unwrap();
    let words: Vec<_> = page.split_whitespace().collect();
    assert!(
        words.join(" ").contains(&LAYERS.join(" < ")),
        "ARCHITECTURE.md lists the layers in this order:\n{}",
        LAYERS.join(" < ")
    );
}
