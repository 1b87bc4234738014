//! Only admins and programs on this machine get the page. It contains no secrets.

use std::fmt::Write as _;

use testkit::backends::{backend, ok};
use testkit::{Request, Response};

use crate::page::Page;

const SECRET: &str = "sk-of-the-backend-0123456789";

#[test]
fn page_is_refused_through_a_proxy_without_an_admin_key() {
    let sandbox = testkit::sandbox!();
    let add = |words: &str| {
        let added = sandbox.run(&format!("key add {words}"));
        added.assert_code(0);
        added.stdout.trim().to_owned()
    };
    let (user, admin) = (add("alice"), add("root --admin"));
    let backend = backend(ok);
    let mut config = format!(
        "[[backend]]\nname = \"b\"\nurl = \"http://{}\"\n",
        backend.address
    );
    let _ = writeln!(config, "api_key_env = \"BACKEND_KEY\"");
    sandbox.file("llmlb.toml", config);
    let mut command = sandbox.command("serve -p 0");
    let server = sandbox.serve_with(command.env("BACKEND_KEY", SECRET));
    let get = |fields: &[(&str, &str)]| -> Response {
        let request = Request::get("/metrics");
        let request = fields
            .iter()
            .fold(request, |request, (name, value)| request.field(name, value));
        server.send(&request).unwrap()
    };
    let forwarded = ("x-forwarded-for", "10.0.0.1");
    let bearer = |secret: &str| format!("Bearer {secret}");
    assert_eq!(get(&[]).status(), 200);
    for field in [
        ("via", "1.1 proxy"),
        ("forwarded", "for=10.0.0.1"),
        forwarded,
    ] {
        let refused = get(&[field]);
        assert_eq!(
            (refused.status(), &*refused.error_code()),
            (403, "forbidden")
        );
        assert!(!refused.text().contains("llmlb_"));
    }
    assert_eq!(
        get(&[forwarded, ("authorization", &bearer(&user))]).status(),
        403
    );
    assert_eq!(
        get(&[forwarded, ("authorization", &bearer("wrong"))]).status(),
        403
    );
    assert_eq!(
        get(&[forwarded, ("authorization", &bearer(&admin))]).status(),
        200
    );
    let post = server.post("/metrics", "{}");
    assert_eq!(post.status(), 405);

    let chat = Request::chat("m", "the text of a prompt").field("authorization", bearer(&user));
    let chat = chat.field("x-request-id", "id-of-a-request");
    assert_eq!(server.send(&chat).unwrap().status(), 200);
    let page = Page::of(&server);
    assert_eq!(
        page.sum("llmlb_requests_total", &[("model", "m")]),
        Some(1.0)
    );
    let absent = [
        &user,
        &admin,
        SECRET,
        "the text of a prompt",
        "id-of-a-request",
        "10.0.0.1",
    ];
    for text in absent {
        assert!(!page.text.contains(text), "{text}");
    }
}
