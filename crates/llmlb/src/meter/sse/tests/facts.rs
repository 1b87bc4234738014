//! Tests that usage, errors and the end are found in event streams of every API.

use super::*;

#[test]
fn usage_in_every_event_counts_as_that_of_the_last_event() {
    let event = |count: u32| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"x\"}}}}],\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":{count},\"total_tokens\":{}}}}}\n\n",
            count + 5
        )
    };
    let stream: String = (0..20).map(event).collect();
    let summary = every_way(Api::Chat, Hide, &stream, &stream);
    assert_eq!(tokens(&summary, Api::Chat), Some((5, 19)));
    assert!(!summary.saw_end && !summary.saw_finish());
}

#[test]
fn events_of_the_messages_api_are_read() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n";
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    let word = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n";
    let delta = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let stream = [start, ping, word, word, delta, stop].concat();
    let summary = every_way(Api::Messages, Forward, &stream, &stream);
    assert_eq!(tokens(&summary, Api::Messages), Some((30, 15)));
    assert!(summary.saw_end && !summary.saw_error());

    let stream = [start, ping, word, word].concat();
    let summary = every_way(Api::Messages, Forward, &stream, &stream);
    assert!(!summary.counts.report(Api::Messages).unwrap().is_valid());
    assert!(!summary.saw_end && !summary.saw_finish());
    assert_eq!(summary.estimate.tokens(), 2);

    let stream = [start, word, delta].concat();
    let summary = every_way(Api::Messages, Forward, &stream, &stream);
    assert!(!summary.saw_end && summary.saw_finish());

    let error =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let stream = [start, word, error].concat();
    let summary = every_way(Api::Messages, Forward, &stream, &stream);
    assert!(summary.saw_error() && !summary.saw_end);
}

#[test]
fn events_of_the_responses_api_are_read() {
    for (name, is_error) in [
        ("completed", false),
        ("incomplete", false),
        ("failed", true),
    ] {
        let created = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n";
        let word = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n";
        let end = format!(
            "event: response.{name}\ndata: {{\"type\":\"response.{name}\",\"response\":{{\"output\":[{{\"usage\":{{\"input_tokens\":99}}}}],\"usage\":{{\"input_tokens\":4,\"output_tokens\":2}}}}}}\n\n"
        );
        let stream = [created, word, &end].concat();
        let summary = every_way(Api::Responses, Forward, &stream, &stream);
        assert_eq!(tokens(&summary, Api::Responses), Some((4, 2)));
        assert!(summary.saw_end);
        assert_eq!(summary.saw_error(), is_error);
        // Some backends omit the `event:` lines. The `type` field of the data must identify the
        // event.
        let stream = stream.replace("event: ", "id: ");
        let summary = every_way(Api::Responses, Forward, &stream, &stream);
        assert!(summary.saw_end);
    }
}

#[test]
fn truncated_stream_is_distinguished_from_a_finished_one() {
    for (stream, end, finish) in [
        (vec![WORD], false, false),
        (vec![WORD, STOP], false, true),
        (vec![WORD, STOP, USAGE], false, true),
        (vec![WORD, DONE], true, true),
        (vec![WORD, "data:[DONE]\n\n"], true, true),
        (vec![WORD, "data: [DONE]\n"], true, true),
        (vec![WORD, "data: [DONE]"], true, true),
        (vec![WORD, DONE, ": bye\n\n"], true, true),
        (vec!["\u{feff}", DONE], true, true),
        (vec!["\u{feff}", WORD], false, false),
        (
            vec!["data: {\"choices\":[{\"delta\":{\"content\":\"data: [DONE]\"}}]}\n\n"],
            false,
            false,
        ),
        (
            vec![
                "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"finish_reason\\\":\\\"stop\\\"\"}}]}\n\n",
            ],
            false,
            false,
        ),
        (vec!["data: {\"x\":\"[DONE]"], false, false),
        (vec![""], false, false),
    ] {
        let stream = stream.concat();
        let summary = every_way(Api::Chat, Forward, &stream, &stream);
        assert_eq!(
            (summary.saw_end, summary.saw_finish()),
            (end, finish),
            "{stream}"
        );
        every_way(Api::Chat, Hide, &stream, &stream.replace(USAGE, ""));
    }
}

#[test]
fn end_mark_is_recognized_before_it_is_forwarded() {
    let mut sse = Sse::new(Api::Chat, Hide);
    sse.pass(Bytes::from([WORD, STOP, USAGE].concat()));
    assert!(!sse.summary().saw_end);
    sse.pass(Bytes::from_static(b"data: [DONE]"));
    assert!(sse.summary().saw_end);
}

#[test]
fn error_events_within_a_stream_are_recognized() {
    for (event, expected) in [
        ("data: {\"error\":{\"message\":\"no\"}}\n\n", true),
        ("data: {\"error\" : \"no\"}\n\n", true),
        (
            "data: { \"id\":\"x\",\"error\":{\"code\":500},\"choices\":[]}\n\n",
            true,
        ),
        ("data: {\"error\":null,\"choices\":[]}\n\n", false),
        (
            "data: {\"choices\":[{\"delta\":{\"content\":\"{\\\"error\\\":1}\"}}]}\n\n",
            false,
        ),
    ] {
        for stream in [[WORD, event].concat(), [WORD, event, DONE].concat()] {
            let summary = every_way(Api::Chat, Forward, &stream, &stream);
            assert_eq!(summary.saw_error(), expected, "{stream}");
        }
    }
}

#[test]
fn end_mark_must_be_on_a_data_line() {
    for (stream, is_end) in [
        ("data: [DONE]\n\n", true),
        ("data:  [DONE]", true),
        ("data: \n[DONE]\n\n", false),
        ("data:\n [DONE]", false),
    ] {
        let summary = every_way(Api::Chat, Forward, stream, stream);
        assert_eq!(summary.saw_end, is_end, "{stream:?}");
    }
}

#[test]
fn usage_in_a_comment_in_front_of_an_event_does_not_count() {
    let comment = ": \"usage\":{\"prompt_tokens\":9}\n";
    let end = "data: {\"type\":\"message_stop\"}\n\n";
    for usage_events in [Forward, Hide] {
        let stream = [comment, comment, end].concat();
        let summary = every_way(Api::Messages, usage_events, &stream, &stream);
        // The comment has a `usage`, but the event behind it has none. So the event is not parsed,
        // and its end mark is not found.
        assert!(!summary.saw_end);
    }
    let stream = [comment, USAGE, comment, WORD].concat();
    let expected = [comment, comment, WORD].concat();
    let summary = every_way(Api::Chat, Hide, &stream, &expected);
    let alone = every_way(Api::Chat, Hide, USAGE, "");
    assert_eq!(tokens(&summary, Api::Chat), tokens(&alone, Api::Chat));
}

#[test]
fn null_on_a_later_line_than_usage_is_not_its_value() {
    let stream = "data: {\"type\":\"message_stop\",\"usage\"\n\n:null\n\n";
    assert!(every_way(Api::Messages, Forward, stream, stream).saw_end);
    let stream = "data: {\"choices\":[],\"usage\"\n:null\ndata: :{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\n";
    let summary = every_way(Api::Chat, Hide, stream, "");
    assert_eq!(tokens(&summary, Api::Chat), Some((5, 2)));
}
