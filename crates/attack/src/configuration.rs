//! Items 13 and 14n of docs/attacks.md: configuration files of other users, and environment variables of
//! Kubernetes.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use testkit::{FakeLlm, Request, Sandbox};

use crate::{Attack, Outcome, Target, Verdict, verdict};

/// Id of the user that runs llmlb. The user has no account.
const OPERATOR: u32 = 54_001;
/// Id of the user that wrote the configuration file. The user has no account.
const STRANGER: u32 = 54_002;
const SECRET: &str = "secret-of-the-environment";

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::fast(
            "13-config-of-another-user",
            "another user's llmlb.toml in the working directory sends a variable to its backend",
            |target| untrusted_file(target, Untrusted::Owner),
        ),
        Attack::fast(
            "13-config-linked-to-another-user",
            "a symlink to another user's file sends a variable to its backend",
            |target| untrusted_file(target, Untrusted::Link),
        ),
        Attack::fast(
            "13-config-world-writable",
            "a configuration file that every user may write is used",
            |target| untrusted_file(target, Untrusted::Writable),
        ),
        Attack::fast(
            "13-own-config-is-used",
            "the operator's own configuration file is rejected",
            |target| untrusted_file(target, Untrusted::None),
        ),
        Attack::fast(
            "14n-kubernetes-variables",
            "variables of Kubernetes services named llmlb-* stop the server",
            kubernetes,
        ),
    ]
}

/// Reason why llmlb must reject a configuration file: its owner, a link, or write access of others.
/// A file with reason `None` must be accepted, which shows that the attack would work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Untrusted {
    Owner,
    Link,
    Writable,
    None,
}

/// Starts llmlb as the operator in a directory whose configuration file sends a secret environment
/// variable to an attacker's backend. llmlb holds if it rejects a file that another user wrote or
/// can write, and accepts the operator's own file.
fn untrusted_file(target: &Target, untrusted: Untrusted) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Ok(Verdict::Skipped(
            "needs root to become other users".to_owned(),
        ));
    }
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let (program, directory) = prepare(&sandbox, untrusted, &llm.url())?;
    let started = sandbox
        .server()
        .program(&program)
        .in_directory(&directory)
        .variable("SECRET_OF_OPERATOR", SECRET)
        .under(&[
            "setpriv",
            &format!("--reuid={OPERATOR}"),
            &format!("--regid={OPERATOR}"),
            "--clear-groups",
        ])
        .start();
    let is_started = started.is_ok();
    let refusal = match &started {
        Ok(server) => {
            server.send(&Request::chat("m", "hello"))?;
            String::new()
        }
        Err(error) => error.to_string(),
    };
    let has_secret = |request: &testkit::Received| {
        let mut fields = request.head.fields.iter();
        fields.any(|(_, value)| value.contains(SECRET))
    };
    let leaked = llm.executed().iter().filter(|one| has_secret(one)).count();
    if untrusted == Untrusted::None {
        let evidence = format!("file used: {is_started} {refusal}");
        return verdict(is_started && leaked > 0, evidence);
    }
    let evidence = if is_started {
        format!("file used, {leaked} requests sent the variable to its backend")
    } else {
        format!("rejected: {}", one_line(&refusal))
    };
    // A failure for another reason, such as a missing directory, does not count as a rejection.
    let names_file = refusal.contains("llmlb.toml") || refusal.contains("strange.toml");
    verdict(!is_started && leaked == 0 && names_file, evidence)
}

fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(120).collect()
}

fn prepare(sandbox: &Sandbox, untrusted: Untrusted, url: &str) -> io::Result<(PathBuf, PathBuf)> {
    let everyone = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode));
    everyone(&sandbox.path("."), 0o755)?;
    let program = sandbox.path("llmlb-copy");
    testkit::copy_program(sandbox.llmlb(), &program)?;
    for name in ["locks", "data", "work"] {
        fs::create_dir(sandbox.path(name))?;
        chown(sandbox.path(name), Some(OPERATOR), Some(OPERATOR))?;
    }
    let directory = sandbox.path("work");
    let text = format!("[[backend]]\nurl = \"{url}\"\napi_key_env = \"SECRET_OF_OPERATOR\"\n");
    let mut file = directory.join("llmlb.toml");
    if untrusted == Untrusted::Link {
        let strange = sandbox.path("strange.toml");
        symlink(&strange, &file)?;
        file = strange;
    }
    fs::write(&file, text)?;
    let (owner, mode) = match untrusted {
        Untrusted::Owner | Untrusted::Link => (STRANGER, 0o644),
        Untrusted::Writable => (OPERATOR, 0o666),
        Untrusted::None => (OPERATOR, 0o644),
    };
    everyone(&file, mode)?;
    chown(&file, Some(owner), Some(owner))?;
    Ok((program, directory))
}

fn kubernetes(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let variables = [
        ("LLMLB_INTERNAL_PORT", "tcp://10.0.0.1:80"),
        ("LLMLB_INTERNAL_SERVICE_HOST", "10.0.0.1"),
        ("LLMLB_INTERNAL_SERVICE_PORT", "80"),
        ("LLMLB_INTERNAL_SERVICE_PORT_HTTP", "80"),
        ("LLMLB_INTERNAL_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("LLMLB_INTERNAL_PORT_80_TCP_PROTO", "tcp"),
        ("LLMLB_INTERNAL_PORT_80_TCP_PORT", "80"),
        ("LLMLB_INTERNAL_PORT_80_TCP_ADDR", "10.0.0.1"),
    ];
    let mut server = sandbox.server().backend(&llm.url());
    for (name, value) in variables {
        server = server.variable(name, value);
    }
    match server.start() {
        Ok(_) => verdict(true, format!("starts with {} variables", variables.len())),
        Err(error) => verdict(false, format!("rejected: {}", one_line(&error.to_string()))),
    }
}
