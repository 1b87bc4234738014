//! Clients that may see and use the dashboard.

use testkit::backends::{backend, code, ok, serve};
use testkit::{Finished, LlmlbServer, Sandbox, until};

use crate::support::{PageRequest, token};

const DRAIN: &str = "/dashboard/drain";

/// Starts a server with one backend, `b`, and these further lines of configuration.
#[track_caller]
fn serve_with(sandbox: &Sandbox, config: &str) -> (testkit::FakeLlm, LlmlbServer) {
    let backend = backend(ok);
    let address = backend.address;
    let file = format!("{config}\n[[backend]]\nname = \"b\"\nurl = \"http://{address}\"\n");
    sandbox.file("llmlb.toml", file);
    let server = sandbox.serve("");
    (backend, server)
}

#[test]
fn page_has_a_strict_policy_and_every_file_that_it_names() {
    let sandbox = testkit::sandbox!();
    let server = serve(&sandbox, &[&backend(ok)], &[]);
    let page = server.get("/dashboard");
    assert_eq!(page.status(), 200);
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("content-type", "text/html; charset=utf-8"),
    ] {
        assert_eq!(page.head.header(name).as_deref(), Some(value));
    }
    let policy = page.head.header("content-security-policy").unwrap();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    ] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let app = server.get("/dashboard/app.js");
    let named = [page.text(), app.text()].concat();
    let mut files = 0;
    for text in named.split(['"', '\'']) {
        let name = text.strip_prefix("/dashboard/").or(text.strip_prefix("./"));
        let Some(name) = name.filter(|name| {
            let extension = name.rsplit_once('.').map(|(_, extension)| extension);
            matches!(extension, Some("js" | "css"))
        }) else {
            continue;
        };
        let file = server.get(&format!("/dashboard/{name}"));
        assert_eq!(file.status(), 200, "{name}");
        assert!(file.head.header("content-security-policy").is_some());
        files += 1;
    }
    assert!(files >= 8, "{files}");
    for path in [
        "/dashboard/mod.rs",
        "/dashboard/index.html/x",
        "/dashboards",
    ] {
        assert_eq!(server.get(path).status(), 404, "{path}");
    }
}

#[test]
fn clients_of_other_machines_get_the_page_and_only_admins_get_data() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = serve_with(&sandbox, "");
    let secret = |words: &str| {
        let done = Finished::run(&mut sandbox.command(&format!("key add {words}")));
        done.assert_code(0);
        done.stdout.trim().to_owned()
    };
    let (user, admin) = (secret("user"), secret("ops --admin"));
    // A request through a proxy counts as one of another machine.
    let remote = |secret: Option<&str>| PageRequest {
        fields: secret.map_or_else(String::new, |secret| {
            format!("authorization: Bearer {secret}\r\n")
        }) + "x-forwarded-for: 203.0.113.9\r\n",
        ..PageRequest::new(&server)
    };
    let admins = remote(Some(&admin));
    until("the keys are known", || {
        admins
            .send(&server, "GET", "/dashboard/session", "")
            .status()
            == 200
    });
    let data = ["session", "snapshot", "keys"].map(|name| format!("/dashboard/{name}"));
    let body = r#"{"backend":"b"}"#;
    for secret in [None, Some("wrong"), Some(&*user)] {
        let request = remote(secret);
        let page = request.send(&server, "GET", "/dashboard", "");
        assert_eq!(page.status(), 200);
        for path in &data {
            let answer = request.send(&server, "GET", path, "");
            assert_eq!(
                (answer.status(), code(&answer)),
                (403, "forbidden".to_owned())
            );
        }
        assert_eq!(request.act(&server, DRAIN, body).status(), 403);
    }
    for path in &data {
        assert_eq!(
            admins.send(&server, "GET", path, "").status(),
            200,
            "{path}"
        );
    }
    assert_eq!(admins.act(&server, DRAIN, body).status(), 200);
    until("the action is logged", || {
        server.log().contains("API key `ops` drained backend b")
    });
    let session = admins.send(&server, "GET", "/dashboard/session", "");
    assert_eq!(session.json()["who"], "ops");
    assert_eq!(sandbox.records().unwrap().len(), 0, "pages are not metered");
}

#[test]
fn actions_need_the_token_and_the_origin_of_the_server() {
    let sandbox = testkit::sandbox!();
    let config = "[server]\nhosts = [\"llm.example.com\"]\n";
    let (_backend, server) = serve_with(&sandbox, config);
    let request = PageRequest::new(&server);
    let port = server.port();
    let body = r#"{"backend":"b"}"#;
    let origins = [
        None,
        Some("null".to_owned()),
        Some(String::new()),
        Some(format!("http://127.0.0.1:{}", port ^ 1)),
        Some(format!("http://localhost:{port}")),
        Some(format!("http://127.0.0.1:{port}.evil.example")),
        Some("https://evil.example".to_owned()),
    ];
    for origin in origins {
        let shown = format!("{origin:?}");
        let foreign = PageRequest {
            origin,
            ..request.clone()
        };
        let answer = foreign.act(&server, DRAIN, body);
        assert_eq!(answer.status(), 403, "{shown}");
        assert_eq!(code(&answer), "forbidden_origin", "{shown}");
    }
    let of_page = token(&server);
    for wrong in [
        None,
        Some(String::new()),
        Some(of_page[1..].to_owned()),
        Some(format!("{of_page}0")),
        Some(of_page.replace(&of_page[..1], "x")),
    ] {
        let forged = PageRequest {
            token: wrong,
            ..request.clone()
        };
        let answer = forged.act(&server, DRAIN, body);
        assert_eq!(answer.status(), 403);
        assert_eq!(code(&answer), "invalid_csrf_token");
    }
    for site in ["cross-site", "same-site", "none"] {
        let foreign = PageRequest {
            fields: format!("sec-fetch-site: {site}\r\n"),
            ..request.clone()
        };
        assert_eq!(foreign.act(&server, DRAIN, body).status(), 403, "{site}");
    }
    assert_eq!(server.get(DRAIN).status(), 405);
    let drained = || server.backend_status("b").unwrap()["drained"].clone();
    assert_eq!(drained(), false, "no request had an effect");
    let same_site = PageRequest {
        fields: "sec-fetch-site: same-origin\r\n".to_owned(),
        ..request
    };
    assert_eq!(same_site.act(&server, DRAIN, body).status(), 200);
    assert_eq!(drained(), true);
    // A reverse proxy in front of the server changed `Host`.
    let behind_a_proxy = PageRequest {
        origin: Some("https://llm.example.com".to_owned()),
        ..same_site
    };
    let answer = behind_a_proxy.act(&server, "/dashboard/undrain", body);
    assert_eq!(answer.status(), 200, "{answer:?}");
}

#[test]
fn local_data_is_not_for_pages_under_a_foreign_name_even_on_a_public_server() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = serve_with(&sandbox, "[server]\nallow_public = true\n");
    let request = PageRequest::new(&server);
    // With DNS rebinding the page and the server have the same name.
    let host = format!("evil.example:{}", server.port());
    let rebound = PageRequest {
        origin: Some(format!("http://{host}")),
        host,
        ..request
    };
    for path in [
        "/dashboard/session",
        "/dashboard/snapshot",
        "/dashboard/events",
        "/dashboard/keys",
    ] {
        let answer = rebound.send(&server, "GET", path, "");
        assert_eq!(answer.status(), 403, "{path}");
    }
    let answer = rebound.act(&server, DRAIN, r#"{"backend":"b"}"#);
    assert_eq!(code(&answer), "forbidden_host");
}

#[test]
fn responses_to_other_origins_have_no_permission_to_be_read() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = serve_with(&sandbox, "");
    let mut request = PageRequest::new(&server);
    request.origin = Some(format!("http://localhost:{}", server.port() ^ 1));
    let answer = request.send(&server, "GET", "/dashboard/session", "");
    assert_eq!(answer.head.header("access-control-allow-origin"), None);
    let no_store = answer.head.header("cache-control");
    assert_eq!(no_store.as_deref(), Some("no-store"));
}
