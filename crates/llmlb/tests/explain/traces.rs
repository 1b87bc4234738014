//! W3C trace context: what backends receive.

use testkit::backends::{UNPROBED, asked, serve};

use crate::support::{ask_with, good};

const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn valid_trace_is_forwarded_and_a_malformed_one_is_not() {
    let sandbox = testkit::sandbox!();
    let only = good();
    let server = serve(&sandbox, &[&only], UNPROBED);
    let valid = format!("traceparent: {VALID}\r\n");
    let state = "tracestate: rojo=00f067aa0ba902b7,congo=t61rcWkgMzE\r\n";
    for (fields, has_parent, has_state) in [
        (format!("{valid}{state}"), true, true),
        (valid.clone(), true, false),
        (format!("{valid}tracestate: \u{1}\u{1}=\r\n"), true, false),
        (format!("{valid}tracestate: no member\r\n"), true, false),
        (format!("{valid}{valid}{state}"), false, false),
        (format!("traceparent: 00-zz-01\r\n{state}"), false, false),
        (
            format!("traceparent: {}\r\n{state}", VALID.to_uppercase()),
            false,
            false,
        ),
        (state.to_owned(), false, false),
    ] {
        let before = asked(&only).len();
        let answer = ask_with(&server, "a", &fields);
        if answer.status() == 400 {
            continue; // Control characters are no valid header field.
        }
        let received = asked(&only);
        let head = &received[before].head;
        let parent = head.header("traceparent");
        assert_eq!(parent.as_deref(), has_parent.then_some(VALID), "{fields}");
        assert_eq!(head.header("tracestate").is_some(), has_state, "{fields}");
    }
}
