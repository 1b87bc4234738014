//! What a client may write at any length is not repeated at that length. (L10, L13)

use crate::backends::{CHAT, backend, code, serve};
use crate::process::until;
use crate::support::Place;

#[test]
fn the_log_says_no_more_of_a_models_name_than_one_can_read() {
    let place = Place::new();
    let mock = backend(crate::backends::ok);
    let server = serve(&place, &[&mock], &[]);
    for letter in ["x", "é", "\\u0001"] {
        let name = letter.repeat(1 << 20);
        let answer = server.post(CHAT, &format!(r#"{{"model":"{name}"}}"#));
        assert_eq!(answer.status(), 404);
        assert_eq!(code(&answer), "model_not_found");
    }
    let path = format!("/v1/{}", "y".repeat(50_000));
    assert_eq!(server.get(&path).status(), 200);
    until("all are logged", || {
        let said = server.process.err();
        said.lines().filter(|line| line.contains(" id=")).count() == 4
    });
    let said = server.process.err();
    let longest = said.lines().map(str::len).max().unwrap_or_default();
    assert!(longest < 4000, "a line of {longest} bytes");
    assert!(said.contains("model=xxxx"), "{said}");
}
