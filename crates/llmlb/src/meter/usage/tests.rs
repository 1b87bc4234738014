//! What backends tell, and what is made of it.

use super::*;

fn told(api: Api, objects: &[&str]) -> Option<(u64, u64, u64, u64, u64)> {
    let mut counts = Counts::default();
    for object in objects {
        counts.merge(&Counts::read(object.as_bytes()));
    }
    counts.usage(api).map(|usage| {
        assert_eq!(usage.source, Source::Reported);
        let Usage {
            prompt,
            completion,
            cached,
            reasoning,
            total,
            ..
        } = usage;
        (prompt, completion, cached, reasoning, total)
    })
}

#[test]
fn openai_tells_prompt_and_completion_with_details() {
    let usage = r#"{"prompt_tokens":10,"completion_tokens":7,"total_tokens":17,
        "prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0},
        "completion_tokens_details":{"reasoning_tokens":3,"accepted_prediction_tokens":0}}"#;
    assert_eq!(told(Api::Chat, &[usage]), Some((10, 7, 4, 3, 17)));
    let usage = r#"{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},
        "output_tokens":7,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":17}"#;
    assert_eq!(told(Api::Responses, &[usage]), Some((10, 7, 4, 3, 17)));
}

#[test]
fn anthropics_prompt_includes_what_its_cache_had_and_took() {
    let start = r#"{"input_tokens":25,"cache_creation_input_tokens":100,
        "cache_read_input_tokens":50,"output_tokens":1,"service_tier":"standard"}"#;
    let delta = r#"{"output_tokens":15}"#;
    assert_eq!(
        told(Api::Messages, &[start, delta]),
        Some((175, 15, 50, 0, 190))
    );
    let both = r#"{"input_tokens":25,"cache_read_input_tokens":50,"output_tokens":20}"#;
    assert_eq!(
        told(Api::Messages, &[start, delta, both]),
        Some((175, 20, 50, 0, 195))
    );
    // A chat answer with the same words has them inside of its prompt.
    let chat = r#"{"prompt_tokens":75,"cache_read_input_tokens":50,"completion_tokens":1}"#;
    assert_eq!(told(Api::Chat, &[chat]), Some((75, 1, 50, 0, 76)));
}

#[test]
fn usage_is_never_added_up() {
    let growing = [
        r#"{"prompt_tokens":10,"completion_tokens":0,"total_tokens":10}"#,
        r#"{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}"#,
        r#"{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}"#,
        r#"{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}"#,
        r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#,
        "null",
        "{}",
    ];
    assert_eq!(told(Api::Chat, &growing), Some((10, 2, 0, 0, 12)));
}

#[test]
fn a_missing_part_is_what_the_total_leaves() {
    for (usage, expected) in [
        (r#"{"total_tokens":8}"#, (8, 0, 0, 0, 8)),
        (r#"{"prompt_tokens":8,"total_tokens":8}"#, (8, 0, 0, 0, 8)),
        (r#"{"prompt_tokens":8,"total_tokens":10}"#, (8, 2, 0, 0, 10)),
        (
            r#"{"completion_tokens":8,"total_tokens":10}"#,
            (2, 8, 0, 0, 10),
        ),
        (r#"{"completion_tokens":8}"#, (0, 8, 0, 0, 8)),
        // Some think outside of what they complete.
        (
            r#"{"prompt_tokens":8,"completion_tokens":2,"total_tokens":15}"#,
            (8, 2, 0, 0, 15),
        ),
        // A total that cannot be.
        (
            r#"{"prompt_tokens":8,"completion_tokens":2,"total_tokens":3}"#,
            (8, 2, 0, 0, 10),
        ),
    ] {
        assert_eq!(told(Api::Embeddings, &[usage]), Some(expected), "{usage}");
    }
}

#[test]
fn what_is_no_count_is_not_there() {
    for usage in [
        "null",
        "{}",
        "[]",
        "7",
        "\"x\"",
        r#"{"seconds":4.5,"type":"duration"}"#,
        r#"{"prompt_tokens":null}"#,
        r#"{"prompt_tokens":-1,"completion_tokens":1.5,"total_tokens":"12"}"#,
        r#"{"prompt_tokens":1e3}"#,
        r#"{"prompt_tokens":18446744073709551616}"#,
        r#"{"prompt_tokens":1000000001}"#,
        r#"{"prompt_tokens":{"a":1},"completion_tokens":[1]}"#,
        r#"{"prompt_tokens_details":{"cached_tokens":4}}"#,
        r#"{"prompt_tokens":5"#,
    ] {
        assert_eq!(told(Api::Chat, &[usage]), None, "{usage}");
    }
    let odd = r#"{"prompt_tokens":5,"completion_tokens":-1,"prompt_tokens_details":null,
        "completion_tokens_details":{"reasoning_tokens":"9"}}"#;
    assert_eq!(told(Api::Chat, &[odd]), Some((5, 0, 0, 0, 5)));
    // More cached than given: a mistake that must not make the rest negative.
    let odd = r#"{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":9}}"#;
    assert_eq!(told(Api::Chat, &[odd]), Some((5, 0, 5, 0, 5)));
}

#[test]
fn a_beginning_is_told_from_a_count() {
    let begun = Counts::read(br#"{"input_tokens":5,"output_tokens":1}"#).as_beginning();
    assert!(begun.is_only_beginning());
    let mut counts = begun;
    counts.merge(&Counts::read(br#"{"output_tokens":4}"#));
    assert!(!counts.is_only_beginning());
    assert!(!Counts::default().is_only_beginning());
}
