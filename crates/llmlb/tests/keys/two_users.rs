//! Root and the service's user manage the keys of one data directory in turn.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use testkit::{Finished, Sandbox};

use crate::support::{chat, secret};

const SERVICE: u32 = 65534;
const STRANGER: u32 = 65533;

fn command(sandbox: &Sandbox, user: u32, words: &str) -> Command {
    let llmlb = sandbox.path("llmlb").display().to_string();
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let mut args: Vec<&str> = Vec::new();
    if user != 0 {
        args.extend(["setpriv", &ids[0], &ids[1], "--clear-groups"]);
    }
    args.push(&llmlb);
    args.extend(words.split_whitespace());
    sandbox.command_of(args[0], &args[1..])
}

#[test]
fn key_file_belongs_to_the_owner_of_the_data_directory_whoever_runs_the_command() {
    if !testkit::has_root("to run commands as another user").unwrap() {
        return;
    }
    let sandbox = testkit::sandbox!();
    fs::set_permissions(sandbox.root(), PermissionsExt::from_mode(0o755)).unwrap();
    testkit::copy_program(env!("CARGO_BIN_EXE_llmlb"), &sandbox.path("llmlb")).unwrap();
    for dir in [sandbox.data_dir(), sandbox.locks()] {
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
        chown(&dir, Some(SERVICE), Some(SERVICE)).unwrap();
    }
    let run = |user: u32, words: &str| Finished::run(&mut command(&sandbox, user, words));
    let file = sandbox.data_dir().join("keys.json");
    let mut secrets = Vec::new();
    for (user, name) in [(0, "a"), (SERVICE, "b"), (0, "c"), (SERVICE, "d")] {
        secrets.push(secret(&run(user, &format!("key add {name}"))));
        let found = file.metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (SERVICE, SERVICE), "{name}");
        assert_eq!(found.mode() & 0o777, 0o600);
        let files = fs::read_dir(sandbox.data_dir()).unwrap();
        for file in files {
            let file = file.unwrap();
            assert_eq!(file.metadata().unwrap().uid(), SERVICE, "{file:?}");
        }
    }
    let mut serve = command(&sandbox, SERVICE, "serve -p 0 --demo");
    let server = sandbox.serve_with(&mut serve);
    for secret in &secrets {
        // The demo does not serve the model `m`, so 404 shows that the key was accepted; a wrong
        // key would get 401.
        assert_eq!(chat(&server, secret), 404);
    }
    // Every user may write the directory now. A file that a stranger creates would not be trusted
    // by the server, so the command must refuse.
    fs::set_permissions(sandbox.data_dir(), PermissionsExt::from_mode(0o777)).unwrap();
    let refused = run(STRANGER, "key add e");
    refused.assert_code(1);
    assert!(refused.stdout.is_empty(), "{refused:?}");
    fs::remove_file(&file).unwrap();
    let refused = run(STRANGER, "key add e");
    refused.assert_code(1);
    assert!(refused.stdout.is_empty(), "{refused:?}");
    assert!(!file.exists());
    // A key file that belongs to another user must be refused both for the service's user and for
    // root, because its owner could add keys.
    fs::write(&file, "{}").unwrap();
    chown(&file, Some(STRANGER), Some(STRANGER)).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    for user in [SERVICE, 0] {
        let refused = run(user, "key list");
        refused.assert_code(1);
        let why = "the file belongs to another user";
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
    server
        .process
        .until_output("the API keys stay as they were");
}
