//! Tests of the token counts that result from the usage reports of backends.

use super::*;

type Numbers = (u64, u64, u64, u64, u64);

fn usage(api: Api, objects: &[&str]) -> Option<(Numbers, &'static str)> {
    let mut counts = TokenCounts::default();
    for object in objects {
        counts.merge(&TokenCounts::read(object.as_bytes()));
    }
    counts.usage(api).map(|usage| {
        let TokenUsage {
            prompt,
            completion,
            cached,
            reasoning,
            total,
            source,
        } = usage;
        (
            (prompt, completion, cached, reasoning, total),
            source.name(),
        )
    })
}

fn reported(api: Api, objects: &[&str]) -> Option<Numbers> {
    usage(api, objects).map(|(numbers, source)| {
        assert_eq!(source, "reported", "{objects:?}");
        numbers
    })
}

#[test]
fn openai_usage_is_read_with_its_details() {
    let usage = r#"{"prompt_tokens":10,"completion_tokens":7,"total_tokens":17,
        "prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0},
        "completion_tokens_details":{"reasoning_tokens":3,"accepted_prediction_tokens":0}}"#;
    assert_eq!(reported(Api::Chat, &[usage]), Some((10, 7, 4, 3, 17)));
    let usage = r#"{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},
        "output_tokens":7,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":17}"#;
    assert_eq!(reported(Api::Responses, &[usage]), Some((10, 7, 4, 3, 17)));
}

#[test]
fn anthropic_prompt_includes_tokens_read_from_and_written_to_the_cache() {
    let start = r#"{"input_tokens":25,"cache_creation_input_tokens":100,
        "cache_read_input_tokens":50,"output_tokens":1,"service_tier":"standard"}"#;
    let delta = r#"{"output_tokens":15}"#;
    assert_eq!(
        reported(Api::Messages, &[start, delta]),
        Some((175, 15, 50, 0, 190))
    );
    let both = r#"{"input_tokens":25,"cache_read_input_tokens":50,"output_tokens":20}"#;
    assert_eq!(
        reported(Api::Messages, &[start, delta, both]),
        Some((175, 20, 50, 0, 195))
    );
    // On the chat endpoint `cache_read_input_tokens` is part of `prompt_tokens`. Adding it would
    // count these tokens twice.
    let chat = r#"{"prompt_tokens":75,"cache_read_input_tokens":50,"completion_tokens":1}"#;
    assert_eq!(reported(Api::Chat, &[chat]), Some((75, 1, 50, 0, 76)));
}

#[test]
fn repeated_reports_are_not_summed() {
    let growing = [
        r#"{"prompt_tokens":10,"completion_tokens":0,"total_tokens":10}"#,
        r#"{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}"#,
        r#"{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}"#,
        r#"{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}"#,
        r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#,
        "null",
        "{}",
    ];
    assert_eq!(reported(Api::Chat, &growing), Some((10, 2, 0, 0, 12)));
}

#[test]
fn prompt_or_total_suffices_for_apis_that_generate_no_text() {
    for (object, expected) in [
        (r#"{"total_tokens":8}"#, (8, 0, 0, 0, 8)),
        (r#"{"prompt_tokens":8}"#, (8, 0, 0, 0, 8)),
        (r#"{"prompt_tokens":8,"total_tokens":8}"#, (8, 0, 0, 0, 8)),
        (r#"{"prompt_tokens":8,"total_tokens":10}"#, (8, 2, 0, 0, 10)),
        (
            r#"{"completion_tokens":8,"total_tokens":10}"#,
            (2, 8, 0, 0, 10),
        ),
    ] {
        for api in [Api::Embeddings, Api::Rerank, Api::Images, Api::Unknown] {
            assert_eq!(reported(api, &[object]), Some(expected), "{object}");
        }
    }
    let output = r#"{"completion_tokens":8}"#;
    let expected = Some(((0, 8, 0, 0, 8), "estimated"));
    assert_eq!(usage(Api::Unknown, &[output]), expected);
}

#[test]
fn partial_report_of_generated_text_is_marked_estimated() {
    for (object, expected) in [
        (r#"{"total_tokens":8}"#, (0, 0, 0, 0, 8)),
        (r#"{"prompt_tokens":8}"#, (8, 0, 0, 0, 8)),
        (r#"{"prompt_tokens":8,"total_tokens":8}"#, (8, 0, 0, 0, 8)),
        (r#"{"completion_tokens":8}"#, (0, 8, 0, 0, 8)),
        (
            r#"{"completion_tokens":8,"total_tokens":10}"#,
            (0, 8, 0, 0, 10),
        ),
    ] {
        for api in [Api::Chat, Api::Responses, Api::OllamaGenerate] {
            let expected = Some((expected, "estimated"));
            assert_eq!(usage(api, &[object]), expected, "{object}");
        }
    }
    // Anthropic's cached tokens alone are not the whole prompt, so the prompt must be estimated.
    let cached = r#"{"cache_read_input_tokens":50,"output_tokens":4}"#;
    let expected = Some(((0, 4, 0, 0, 4), "estimated"));
    assert_eq!(usage(Api::Messages, &[cached]), expected);
}

#[test]
fn total_is_at_least_the_sum_of_prompt_and_completion() {
    let less = r#"{"prompt_tokens":8,"completion_tokens":2,"total_tokens":3}"#;
    for api in [Api::Chat, Api::Embeddings] {
        let expected = Some(((8, 2, 0, 0, 10), "estimated"));
        assert_eq!(usage(api, &[less]), expected);
    }
    // The total is larger than the sum because some backends count reasoning in the total but not
    // in the completion. The larger total must be kept.
    let more = r#"{"prompt_tokens":8,"completion_tokens":2,"total_tokens":15}"#;
    assert_eq!(reported(Api::Chat, &[more]), Some((8, 2, 0, 0, 15)));
    // The events of a stream may each report a part of the numbers. The total must be at least the
    // sum of the parts of all events.
    let parts = [
        r#"{"prompt_tokens":8,"completion_tokens":null}"#,
        r#"{"completion_tokens":2,"total_tokens":10}"#,
    ];
    assert_eq!(reported(Api::Chat, &parts), Some((8, 2, 0, 0, 10)));
}

#[test]
fn values_that_are_no_counts_are_ignored() {
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
        assert_eq!(reported(Api::Chat, &[usage]), None, "{usage}");
    }
    let odd = r#"{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":null,
        "completion_tokens_details":{"reasoning_tokens":"9"}}"#;
    assert_eq!(reported(Api::Chat, &[odd]), Some((5, 1, 0, 0, 6)));
    // More cached tokens than prompt tokens: the uncached part must not become negative.
    let odd =
        r#"{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":9}}"#;
    assert_eq!(reported(Api::Chat, &[odd]), Some((5, 1, 5, 0, 6)));
}

#[test]
fn count_may_have_a_fraction_of_zeros() {
    for (number, is_valid) in [
        ("7", true),
        ("7.0", true),
        ("7.000", true),
        ("7.", false),
        (".0", false),
        ("7.5", false),
        ("7.0e1", false),
        ("-7.0", false),
        ("1000000000.0", true),
        ("1000000001.0", false),
    ] {
        assert_eq!(count(number.as_bytes()).is_some(), is_valid, "{number}");
    }
}

#[test]
fn output_of_the_first_event_is_not_final() {
    let mut counts = TokenCounts::read(br#"{"input_tokens":5,"output_tokens":1}"#).as_first_event();
    assert!(!counts.report(Api::Messages).unwrap().is_valid());
    counts.merge(&TokenCounts::read(br#"{"output_tokens":4}"#));
    assert!(counts.report(Api::Messages).unwrap().is_valid());
    assert_eq!(TokenCounts::default().report(Api::Messages), None);
}
