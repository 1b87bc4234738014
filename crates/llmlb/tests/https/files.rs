//! Files that cannot be used: `serve` and `check` name the file, the problem and the command to
//! type. (promises L11, L12)

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use testkit::certificates::{Authority, Issued, LOCAL};
use testkit::{Sandbox, backends};

use crate::tunnel::H1;
use crate::world;

/// Returns the standard error of `llmlb check` for these files, which must be rejected.
fn rejected(sandbox: &Sandbox, cert: &Path, key: &Path) -> String {
    let file = format!(
        "[server]\ntls_cert = \"{}\"\ntls_key = \"{}\"\n",
        cert.display(),
        key.display()
    );
    sandbox.file("tls.toml", file);
    let checked = sandbox.run("check --config tls.toml");
    assert_eq!(checked.code, Some(1), "{}", checked.output());
    let served = sandbox.run("serve -p 0 --config tls.toml");
    assert_eq!(served.code, Some(1), "{}", served.output());
    assert_eq!(checked.stderr, served.stderr);
    assert!(sandbox.lock_files().is_empty());
    checked.stderr
}

fn issued(sandbox: &Sandbox) -> Option<(Authority, Issued)> {
    let authority = Authority::create(sandbox.root(), "ours")?;
    let issued = authority.issue("server", LOCAL, 2);
    Some((authority, issued))
}

#[test]
fn unusable_file_is_rejected_with_the_reason_and_a_hint() {
    let sandbox = testkit::sandbox!();
    let Some((authority, good)) = issued(&sandbox) else {
        return;
    };
    let other = authority.issue("other", LOCAL, 2);
    authority.openssl("x509 -in server.pem -outform der -out server.der");
    authority.openssl("pkey -in server.key -aes256 -passout pass:secret -out encrypted.key");
    authority.openssl("ec -in server.key -aes256 -passout pass:secret -out older.key");
    let cert = fs::read_to_string(&good.cert).unwrap();
    let cut = sandbox.file("cut.pem", &cert[..cert.len() - 40]);
    let broken = sandbox.file("broken.pem", cert.replacen('\n', "\n***", 1));
    let wrong = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
    let wrong = sandbox.file("wrong.pem", wrong);
    let empty = sandbox.file("empty.pem", "");
    let large = sandbox.file("large.pem", vec![b'\n'; (1 << 20) + 1]);
    let der = sandbox.path("server.der");
    let secret = |name: &str| {
        let path = sandbox.path(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (encrypted, older) = (secret("encrypted.key"), secret("older.key"));
    let missing = sandbox.path("missing.pem");
    let directory = sandbox.path(".");
    for (cert, key, why, hint) in [
        (
            &good.cert,
            &other.key,
            "does not belong to",
            "openssl x509 -in",
        ),
        (
            &good.cert,
            &good.cert,
            "contains a certificate and no private key",
            "BEGIN PRIVATE KEY",
        ),
        (
            &good.key,
            &good.key,
            "line 1 begins `PRIVATE KEY`",
            "BEGIN CERTIFICATE",
        ),
        (
            &cut,
            &good.key,
            "line 1: the section `CERTIFICATE` has no line",
            "",
        ),
        (
            &broken,
            &good.key,
            "line 1: the section `CERTIFICATE` is not valid",
            "",
        ),
        (&wrong, &good.key, "not a valid certificate", ""),
        (
            &empty,
            &good.key,
            "empty or not PEM",
            "openssl x509 -inform der",
        ),
        (
            &der,
            &good.key,
            "empty or not PEM",
            "openssl x509 -inform der",
        ),
        (&large, &good.key, "larger than 1 MiB", ""),
        (
            &missing,
            &good.key,
            "cannot read the file: No such file",
            "",
        ),
        (&directory, &good.key, "not name a regular file", ""),
        (
            &good.cert,
            &encrypted,
            "line 1: the private key is protected by a passphrase",
            "openssl pkey -in",
        ),
        (
            &good.cert,
            &older,
            "the private key is protected by a passphrase",
            "openssl pkey -in",
        ),
    ] {
        // Keys that others can read are rejected, certificates are not. Protect the certificate
        // that is passed as a key, so that the check of its content is reached.
        if key == &good.cert {
            fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let error = rejected(&sandbox, cert, key);
        assert!(error.contains(why), "{why}: {error}");
        assert!(error.contains(hint), "{hint}: {error}");
        assert!(error.contains("server.tls_"), "{error}");
    }
}

#[test]
fn key_that_others_may_read_is_rejected() {
    let sandbox = testkit::sandbox!();
    let Some((_authority, good)) = issued(&sandbox) else {
        return;
    };
    fs::set_permissions(&good.key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = rejected(&sandbox, &good.cert, &good.key);
    let why = "other users may access the private key (mode 0644)";
    assert!(error.contains(why), "{error}");
    let hint = format!("chmod 600 {}", good.key.display());
    assert!(error.contains(&hint), "{error}");
}

#[test]
fn keys_of_every_kind_and_chains_are_served() {
    let sandbox = testkit::sandbox!();
    let Some((authority, good)) = issued(&sandbox) else {
        return;
    };
    let backend = backends::backend(backends::ok);
    // Key in SEC1 format, and below a file that contains the chain and other text. Both are common
    // results of other tools.
    authority.openssl("ec -in server.key -out sec1.key");
    authority.openssl("genrsa -traditional -out rsa.key 2048");
    authority.openssl("req -new -key rsa.key -subj /CN=rsa -out rsa.csr");
    authority.openssl(
        "x509 -req -in rsa.csr -CA ours.pem -CAkey ours.key -CAcreateserial -days 2 \
         -extfile server.ext -out rsa.pem",
    );
    let chain = [&good.cert, &authority.certificate].map(|path| fs::read_to_string(path).unwrap());
    let chain = sandbox.file("chain.pem", format!("A chain\n{}", chain.concat()));
    let cases = [
        (chain, "sec1.key", "BEGIN EC PRIVATE KEY"),
        (sandbox.path("rsa.pem"), "rsa.key", "BEGIN RSA PRIVATE KEY"),
    ];
    for (cert, key, label) in cases {
        let key = sandbox.path(key);
        assert!(fs::read_to_string(&key).unwrap().contains(label));
        let server = world::serve(&sandbox, &Issued { cert, key }, &backend.url(), &[]);
        let tunnel = world::open(&authority, &server, &H1);
        assert_eq!(testkit::get(tunnel, "/healthz").status(), 200);
    }
}

#[test]
fn expired_certificate_is_served_with_a_warning() {
    let sandbox = testkit::sandbox!();
    let Some(authority) = Authority::create(sandbox.root(), "ours") else {
        return;
    };
    let expired = authority.issue("server", LOCAL, -1);
    let backend = backends::backend(backends::ok);
    let server = world::serve(&sandbox, &expired, &backend.url(), &[]);
    let warning = "the certificate for localhost, 127.0.0.1 expired at";
    assert!(server.log().contains(warning), "{}", server.log());
    let text = sandbox.run(&format!("status -p {}", server.port()));
    assert!(text.stdout.contains("EXPIRED"), "{}", text.stdout);
    let checked = sandbox.run("check --config llmlb.toml");
    assert_eq!(checked.code, Some(0));
    assert!(checked.stdout.contains(warning), "{}", checked.stdout);
}

#[test]
fn certificate_without_a_key_or_key_without_a_certificate_is_rejected() {
    let sandbox = testkit::sandbox!();
    for (setting, flags) in [
        ("server.tls_cert", "--tls-cert a.pem"),
        ("server.tls_key", "--tls-key a.pem"),
    ] {
        let served = sandbox.run(&format!("serve -p 0 {flags}"));
        assert_eq!(served.code, Some(1));
        let why = "set server.tls_cert and server.tls_key, or neither";
        assert!(served.stderr.contains(why), "{}", served.stderr);
        assert!(served.stderr.contains(setting), "{}", served.stderr);
    }
    sandbox.file("ca.toml", "[server]\ntls_client_ca = \"ca.pem\"\n");
    let checked = sandbox.run("check --config ca.toml");
    assert_eq!(checked.code, Some(1));
    assert!(checked.stderr.contains("client certificates need TLS"));
}
