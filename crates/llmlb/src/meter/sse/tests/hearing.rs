//! What is heard of a stream.

use super::*;

#[test]
fn usage_in_every_event_is_that_of_the_last() {
    let event = |count: u32| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"x\"}}}}],\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":{count},\"total_tokens\":{}}}}}\n\n",
            count + 5
        )
    };
    let stream: String = (0..20).map(event).collect();
    let summary = every_way(Api::Chat, true, &stream, &stream);
    assert_eq!(tokens(&summary, Api::Chat), Some((5, 19)));
    assert!(!summary.saw_end && !summary.saw_finish());
}

#[test]
fn anthropics_events_are_heard() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n";
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    let word = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n";
    let delta = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let stream = [start, ping, word, word, delta, stop].concat();
    let summary = every_way(Api::Messages, false, &stream, &stream);
    assert_eq!(tokens(&summary, Api::Messages), Some((30, 15)));
    assert!(summary.saw_end && !summary.saw_error());

    let stream = [start, ping, word, word].concat();
    let summary = every_way(Api::Messages, false, &stream, &stream);
    assert!(!summary.counts.report(Api::Messages).unwrap().is_valid());
    assert!(!summary.saw_end && !summary.saw_finish());
    assert_eq!(summary.streamed.tokens(), 2);

    let stream = [start, word, delta].concat();
    let summary = every_way(Api::Messages, false, &stream, &stream);
    assert!(!summary.saw_end && summary.saw_finish());

    let error =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let stream = [start, word, error].concat();
    let summary = every_way(Api::Messages, false, &stream, &stream);
    assert!(summary.saw_error() && !summary.saw_end);
}

#[test]
fn the_events_of_responses_are_heard() {
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
        let summary = every_way(Api::Responses, false, &stream, &stream);
        assert_eq!(tokens(&summary, Api::Responses), Some((4, 2)));
        assert!(summary.saw_end);
        assert_eq!(summary.saw_error(), is_error);
        // The name is told by the data too.
        let stream = stream.replace("event: ", "id: ");
        let summary = every_way(Api::Responses, false, &stream, &stream);
        assert!(summary.saw_end);
    }
}

#[test]
fn an_early_end_is_told_from_a_late_one() {
    for (stream, end, finish) in [
        (vec![WORD], false, false),
        (vec![WORD, STOP], false, true),
        (vec![WORD, STOP, ALONE], false, true),
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
        let summary = every_way(Api::Chat, false, &stream, &stream);
        assert_eq!(
            (summary.saw_end, summary.saw_finish()),
            (end, finish),
            "{stream}"
        );
        every_way(Api::Chat, true, &stream, &stream.replace(ALONE, ""));
    }
}

#[test]
fn the_end_is_known_before_it_goes_on() {
    let mut sse = Sse::new(Api::Chat, true);
    sse.pass(Bytes::from([WORD, STOP, ALONE].concat()));
    assert!(!sse.summary().saw_end);
    sse.pass(Bytes::from_static(b"data: [DONE]"));
    assert!(sse.summary().saw_end);
}

#[test]
fn errors_within_an_answer_are_heard() {
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
            let summary = every_way(Api::Chat, false, &stream, &stream);
            assert_eq!(summary.saw_error(), expected, "{stream}");
        }
    }
}

#[test]
fn the_end_mark_is_on_the_line_of_its_data() {
    for (stream, is_end) in [
        ("data: [DONE]\n\n", true),
        ("data:  [DONE]", true),
        ("data: \n[DONE]\n\n", false),
        ("data:\n [DONE]", false),
    ] {
        let summary = every_way(Api::Chat, false, stream, stream);
        assert_eq!(summary.saw_end, is_end, "{stream:?}");
    }
}
