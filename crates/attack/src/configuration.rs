//! Items 13 and 14n: configuration from files and variables of others.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use testkit::{FakeLlm, Request, Sandbox};

use crate::{Attack, Outcome, Target, Verdict, verdict};

/// Users without accounts: the one who runs llmlb, and the one who wrote the file.
const OPERATOR: u32 = 54_001;
const STRANGER: u32 = 54_002;
const SECRET: &str = "secret-of-the-environment";

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::fast(
            "13-config-of-another-user",
            "another user's llmlb.toml in the working directory sends a variable to its backend",
            |target| strange_file(target, Strangeness::Owner),
        ),
        Attack::fast(
            "13-config-linked-to-another-user",
            "a link to another user's file does the same",
            |target| strange_file(target, Strangeness::Link),
        ),
        Attack::fast(
            "13-config-world-writable",
            "a file that everyone may write does the same",
            |target| strange_file(target, Strangeness::Writable),
        ),
        Attack::fast(
            "13-own-config-is-used",
            "the operator's own file is refused",
            |target| strange_file(target, Strangeness::None),
        ),
        Attack::fast(
            "14n-kubernetes-variables",
            "variables of Kubernetes services named llmlb-* stop the server",
            kubernetes,
        ),
    ]
}

/// Property by which the file is not the operator's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strangeness {
    Owner,
    Link,
    Writable,
    None,
}

/// Starts llmlb as another user in a directory with a file that names a backend of an attacker.
fn strange_file(target: &Target, strangeness: Strangeness) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Ok(Verdict::Skipped(
            "needs root to become other users".to_owned(),
        ));
    }
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let (program, directory) = prepare(&sandbox, strangeness, &llm.url())?;
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
    if strangeness == Strangeness::None {
        let evidence = format!("file used: {is_started} {refusal}");
        return verdict(is_started && leaked > 0, evidence);
    }
    let evidence = if is_started {
        format!("file used, {leaked} requests sent the variable to its backend")
    } else {
        format!("refused: {}", one_line(&refusal))
    };
    // A refusal for another reason, such as a missing directory, does not count.
    let names_file = refusal.contains("llmlb.toml") || refusal.contains("strange.toml");
    verdict(!is_started && leaked == 0 && names_file, evidence)
}

fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(120).collect()
}

/// Returns a copy of the program that every user can run, and the directory to run it in.
fn prepare(
    sandbox: &Sandbox,
    strangeness: Strangeness,
    url: &str,
) -> io::Result<(PathBuf, PathBuf)> {
    let everyone = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode));
    everyone(&sandbox.path("."), 0o755)?;
    let program = sandbox.path("llmlb-copy");
    Target::copy_for_everyone(sandbox.llmlb(), &program)?;
    for name in ["locks", "data", "work"] {
        fs::create_dir(sandbox.path(name))?;
        chown(sandbox.path(name), Some(OPERATOR), Some(OPERATOR))?;
    }
    let directory = sandbox.path("work");
    let text = format!("[[backend]]\nurl = \"{url}\"\napi_key_env = \"SECRET_OF_OPERATOR\"\n");
    let mut file = directory.join("llmlb.toml");
    if strangeness == Strangeness::Link {
        let strange = sandbox.path("strange.toml");
        symlink(&strange, &file)?;
        file = strange;
    }
    fs::write(&file, text)?;
    let (owner, mode) = match strangeness {
        Strangeness::Owner | Strangeness::Link => (STRANGER, 0o644),
        Strangeness::Writable => (OPERATOR, 0o666),
        Strangeness::None => (OPERATOR, 0o644),
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
        Err(error) => verdict(false, format!("refused: {}", one_line(&error.to_string()))),
    }
}
