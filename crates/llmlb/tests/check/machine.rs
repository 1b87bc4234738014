//! `llmlb check` reports problems of this machine too: directories, destination, own address.
//! (promise L12)

use testkit::backends::{backend, backend_of, ok};
use testkit::{Sandbox, ScriptedServer};

fn check(sandbox: &Sandbox, file: &str, words: &str) -> (i32, String) {
    sandbox.file("llmlb.toml", file);
    let checked = sandbox.run(&format!("check {words}"));
    (checked.code.unwrap(), checked.output())
}

#[test]
fn backend_that_is_the_server_itself_is_reported() {
    let sandbox = testkit::sandbox!();
    let file =
        "[server]\nport = 4711\n[[backend]]\nname = \"me\"\nurl = \"http://localhost:4711\"\n";
    let (code, output) = check(&sandbox, file, "");
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("llmlb.toml:3: backend me at"), "{output}");
    assert!(output.contains("is this server itself"), "{output}");
    let (code, output) = check(&sandbox, &file.replace("localhost", "gpu"), "");
    assert_eq!(code, 0, "{output}");
}

#[test]
fn directories_that_cannot_be_used_are_reported() {
    let sandbox = testkit::sandbox!();
    let (code, output) = check(&sandbox, "", "");
    assert_eq!(code, 0, "directories that can be created: {output}");
    std::fs::write(sandbox.data_dir(), "").unwrap();
    std::fs::write(sandbox.locks(), "").unwrap();
    let (code, output) = check(&sandbox, "", "");
    assert_eq!(code, 1);
    for name in ["data directory ", "lock directory "] {
        let line = output.lines().find(|line| line.contains(name));
        let line = line.unwrap_or_else(|| panic!("{name}: {output}"));
        assert!(line.ends_with("this is not a directory"), "{line}");
    }
}

#[test]
fn other_destination_of_the_data_directory_is_reported() {
    let sandbox = testkit::sandbox!();
    spool::claim_destination(&sandbox.data_dir(), Some("https://a.example/usage")).unwrap();
    let file = |name: &str| format!("[usage]\nurl = \"https://{name}.example/usage\"\n");
    let (code, output) = check(&sandbox, &file("a"), "");
    assert_eq!(code, 0, "{output}");
    let (code, output) = check(&sandbox, &file("b"), "");
    assert_eq!(code, 1);
    let words = "the records in this directory go to https://a.example/usage \
                 (usage.url: https://b.example/usage)";
    assert!(output.contains(words), "{output}");
}

#[test]
fn alias_that_no_listed_model_serves_is_reported() {
    let sandbox = testkit::sandbox!();
    let file =
        "[[backend]]\nurl = \"http://gpu\"\nmodels = [\"m\"]\n[aliases]\na = \"m\"\nb = \"x\"\n";
    let (code, output) = check(&sandbox, file, "");
    assert_eq!(code, 1);
    assert!(
        output.contains("llmlb.toml:6: aliases.b: no backend lists x"),
        "{output}"
    );
}

#[test]
fn ask_reports_each_target_and_fails_if_one_does() {
    let sandbox = testkit::sandbox!();
    let (a, b) = (backend(ok), backend_of(&["x", "y"], ok));
    let receiver = ScriptedServer::start(|request| {
        assert_eq!(request.head.method(), "HEAD", "nothing is billed");
        testkit::Reply::response(405, &[], "")
    })
    .unwrap();
    let both = format!(
        "[usage]\nurl = \"{}/usage?key=secret\"\n[[backend]]\nname = \"a\"\nurl = \"{}\"\n\
         [[backend]]\nname = \"b\"\nurl = \"{}\"\n[aliases]\nc = \"x\"\n",
        receiver.url(),
        a.url(),
        b.url()
    );
    let (code, output) = check(&sandbox, &both, "--ask");
    assert_eq!(code, 0, "{output}");
    for words in ["1 model: m", "2 models: x, y", "responded 405 to HEAD"] {
        assert!(output.contains(words), "{words}: {output}");
    }
    assert!(!output.contains("secret"), "{output}");
    let (code, output) = check(&sandbox, &both.replace("c = \"x\"", "c = \"z\""), "--ask");
    assert_eq!(code, 1);
    assert!(
        output.contains("FAIL  aliases.c: no backend serves z"),
        "{output}"
    );
    drop(b);
    let (code, output) = check(&sandbox, &both, "--ask");
    assert_eq!(code, 1);
    assert!(output.contains("FAIL  backend b at"), "{output}");
    assert!(output.contains("ok    backend a at"), "{output}");
}

/// A backend chooses the names of its models. None of them can look like a line of the report.
#[test]
fn ask_prints_the_name_of_a_model_on_one_line() {
    let sandbox = testkit::sandbox!();
    let a = backend_of(&["x\n  ok    backend b"], ok);
    let file = format!("[[backend]]\nname = \"a\"\nurl = \"{}\"\n", a.url());
    let (_, output) = check(&sandbox, &file, "--ask");
    assert!(output.contains("1 model: x?  ok    backend b"), "{output}");
}

#[test]
fn ask_reports_a_rejected_key() {
    let sandbox = testkit::sandbox!();
    let a = testkit::FakeLlm::builder(&["m"])
        .models_reply(|_| testkit::Reply::json(401, "{}"))
        .handle(ok);
    let file = format!("[[backend]]\nname = \"a\"\nurl = \"{}\"\n", a.url());
    let (code, output) = check(&sandbox, &file, "--ask");
    assert_eq!(code, 1);
    assert!(output.contains("the backend requires a key"), "{output}");
}
