//! Tests that the scanner finds the same fields as a strict JSON parser.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::*;
use crate::dice::Dice;

fn found(body: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
    let mut all = Vec::new();
    fields(body, |name, value| {
        let value = String::from_utf8(body[value].to_vec()).unwrap();
        let name = String::from_utf8(name.to_vec()).unwrap();
        all.push((name, value));
    })?;
    Ok(all)
}

fn parsed(body: &[u8]) -> Result<Vec<(String, String)>, serde_json::Error> {
    struct Object(Vec<(String, String)>);

    impl<'de> Deserialize<'de> for Object {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Fields;

            impl<'de> Visitor<'de> for Fields {
                type Value = Object;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                    let mut all = Vec::new();
                    while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                        all.push((name, value.get().to_owned()));
                    }
                    Ok(Object(all))
                }
            }

            deserializer.deserialize_map(Fields)
        }
    }

    serde_json::from_slice::<Object>(body).map(|object| object.0)
}

fn push_space(dice: &mut Dice, text: &mut String) {
    for _ in 0..dice.below(8).saturating_sub(5) {
        text.push_str(dice.pick(&[" ", "\n", "\t", "\r"]));
    }
}

fn push_string(dice: &mut Dice, text: &mut String) {
    text.push('"');
    for _ in 0..dice.below(12) {
        text.push_str(dice.pick(&[
            "a",
            "model",
            "stream",
            "\\\"",
            "\\\\",
            "\\n",
            "\\/",
            "\\u0022",
            "\\u005c",
            "\\u00e9",
            "\\ud83d\\ude00",
            "é",
            "日本語",
            "😀",
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "'",
            " ",
        ]));
    }
    if dice.below(20) == 0 {
        text.push_str(&"long ".repeat(dice.below(400)));
    }
    text.push('"');
}

fn push_value(dice: &mut Dice, text: &mut String, deep: usize) {
    let kinds = if deep == 0 { 3 } else { 5 };
    match dice.below(kinds) {
        0 => push_string(dice, text),
        1 => text.push_str(dice.pick(&["true", "false", "null"])),
        2 => {
            text.push_str(dice.pick(&[
                "0",
                "-1",
                "12.5",
                "1e9",
                "-0.0E-7",
                "18446744073709551616",
            ]));
        }
        3 => push_object(dice, text, deep - 1),
        _ => {
            text.push('[');
            for place in 0..dice.below(40) * dice.below(2) + dice.below(3) {
                if place > 0 {
                    text.push(',');
                }
                push_space(dice, text);
                push_value(dice, text, deep - 1);
                push_space(dice, text);
            }
            text.push(']');
        }
    }
}

fn push_object(dice: &mut Dice, text: &mut String, deep: usize) {
    text.push('{');
    push_space(dice, text);
    for place in 0..dice.below(6) {
        if place > 0 {
            text.push(',');
        }
        push_space(dice, text);
        if dice.below(2) == 0 {
            text.push_str(dice.pick(&["\"model\"", "\"stream\"", "\"mod\\u0065l\"", "\"\""]));
        } else {
            push_string(dice, text);
        }
        push_space(dice, text);
        text.push(':');
        push_space(dice, text);
        push_value(dice, text, deep);
        push_space(dice, text);
    }
    text.push('}');
}

#[test]
fn scanner_agrees_with_a_parser_on_valid_json() {
    let mut dice = Dice::new(1);
    for round in 0..4_000 {
        let mut text = String::new();
        push_space(&mut dice, &mut text);
        let deep = dice.below(6);
        push_object(&mut dice, &mut text, deep);
        push_space(&mut dice, &mut text);
        let expected = parsed(text.as_bytes()).unwrap();
        assert_eq!(found(text.as_bytes()), Ok(expected), "{round}: {text}");
    }
}

#[test]
fn scanner_accepts_damaged_json_that_a_parser_accepts_and_never_panics() {
    let mut dice = Dice::new(2);
    let (mut accepted, mut rejected) = (0, 0);
    for round in 0..15_000 {
        let mut text = String::new();
        push_object(&mut dice, &mut text, 3);
        let mut bytes = text.into_bytes();
        for _ in 0..=dice.below(2) {
            let at = dice.below(bytes.len());
            match dice.below(3) {
                0 => drop(bytes.remove(at)),
                1 => bytes.insert(
                    at,
                    dice.pick(&[b"{}[]\",:\\ 1a".as_slice()])[dice.below(11)],
                ),
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.is_empty() {
                bytes.push(b' ');
            }
        }
        // Skip text that was truncated within a character, because the strict parser requires
        // UTF-8.
        if std::str::from_utf8(&bytes).is_err() {
            continue;
        }
        match parsed(&bytes) {
            Ok(expected) => {
                accepted += 1;
                let text = String::from_utf8_lossy(&bytes);
                assert_eq!(found(&bytes), Ok(expected), "{round}: {text}");
            }
            Err(_) => rejected += usize::from(found(&bytes).is_err()),
        }
    }
    assert!(accepted > 300 && rejected > 1000, "{accepted} {rejected}");
}

#[test]
fn duplicate_fields_are_passed_in_order() {
    let body = br#"{"model":"a","x":{"model":"no"},"mod\u0065l":"b"}"#;
    let mut model = None;
    fields(body, |name, value| {
        if name == b"model" {
            model = text(&body[value]);
        }
    })
    .unwrap();
    assert_eq!(model.as_deref(), Some("b"));
}

#[test]
fn malformed_objects_are_rejected() {
    for text in [
        "",
        " ",
        "[]",
        "7",
        "\"a\"",
        "null",
        "{",
        "}",
        "{}x",
        "{} {}",
        "{,}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a" 1}"#,
        r#"{"a":1"#,
        r#"{"a":1,}"#,
        r#"{"a":1 "b":2}"#,
        r#"{"a":1,,"b":2}"#,
        r"{a:1}",
        r"{'a':1}",
        r#"{"a":"x}"#,
        r#"{"a":"x\"}"#,
        r#"{"a":[}"#,
        r#"{"a":[}]}"#,
        r#"{"a":{]}"#,
        r#"{"a":[1}"#,
        r#"{"a":[[1]}"#,
        r#"{"a":tru}"#,
        r#"{"a":nan}"#,
        r#"{"a":1}}"#,
        r#"{"a\q":1}"#,
        r#"{"a\ud800":1}"#,
        "\u{feff}{}",
    ] {
        assert_eq!(found(text.as_bytes()), Err(Malformed), "{text}");
        assert!(parsed(text.as_bytes()).is_err(), "{text}");
    }
    assert_eq!(found(b"{\"\xff\":1}"), Err(Malformed));
}

#[test]
fn deep_nesting_is_rejected_without_recursion() {
    let nested = |deep| format!(r#"{{"a":{}{}}}"#, "[".repeat(deep), "]".repeat(deep));
    assert!(found(nested(128).as_bytes()).is_ok());
    assert_eq!(found(nested(129).as_bytes()), Err(Malformed));
    assert_eq!(found(nested(5_000_000).as_bytes()), Err(Malformed));
    let open = format!(r#"{{"a":{}"#, r#"{"a":["#.repeat(5_000_000));
    assert_eq!(found(open.as_bytes()), Err(Malformed));
}

#[test]
fn brackets_are_found_at_every_distance() {
    for distance in 0..70 {
        let number = "1".repeat(distance + 1);
        let text = format!(r#"{{"a":[{number}],"b":[[{number}],{{"c":{number}}}]}}"#);
        let expected = parsed(text.as_bytes()).unwrap();
        assert_eq!(found(text.as_bytes()), Ok(expected));
    }
}

#[test]
fn text_of_a_string_is_decoded() {
    assert_eq!(text(br#""a""#).as_deref(), Some("a"));
    assert_eq!(text(br#""\u00e9\n\"""#).as_deref(), Some("é\n\""));
    assert_eq!(text(br#""""#).as_deref(), Some(""));
    for other in ["", "\"", "5", "null", "[\"a\"]", r#""\q""#] {
        assert_eq!(text(other.as_bytes()), None, "{other}");
    }
}
