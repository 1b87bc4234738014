//! Tests that usage events are hidden from clients that did not request them, and that all other
//! bytes are forwarded.

use super::*;

#[test]
fn usage_event_is_read_and_hidden_if_the_client_did_not_request_it() {
    let stream = [WORD, STOP, USAGE, DONE].concat();
    let summary = every_way(Api::Chat, Forward, &stream, &stream);
    assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)));
    assert!(summary.saw_end && summary.saw_finish() && !summary.saw_error());
    let summary = every_way(Api::Chat, Hide, &stream, &[WORD, STOP, DONE].concat());
    assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)));
}

#[test]
fn only_events_with_usage_and_empty_choices_are_hidden() {
    let filtered = "data: {\"choices\":[],\"prompt_filter_results\":[{\"x\":1}]}\n\n";
    let null = "data: {\"choices\":[],\"usage\":null}\n\n";
    let with_both = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n";
    let nested = "data: {\"choices\":[{\"usage\":{\"prompt_tokens\":9}}]}\n\n";
    let within = "data: {\"choices\":[],\"x\":{\"usage\":{\"prompt_tokens\":9}}}\n\n";
    let text = "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"choices\\\":[],\\\"usage\\\":{}\"}}]}\n\n";
    let no_choices = "data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n";
    let no_object = "data: {\"choices\":[],\"usage\":7}\n\n";
    let broken = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9}\n\n";
    let comment = ": choices [] usage\n\n";
    let stream = [
        filtered, null, with_both, nested, within, text, no_choices, no_object, broken, comment,
        DONE,
    ]
    .concat();
    every_way(Api::Chat, Hide, &stream, &stream);
}

#[test]
fn usage_event_is_hidden_in_every_spelling() {
    let spellings = [
        "data:{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n",
        "data: { \"usage\" : {\"prompt_tokens\": 9, \"completion_tokens\": 1}, \"choices\" : [ ] }\n\n",
        "id: 7\nevent: x\ndata: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":9,\ndata: \"completion_tokens\":1}}\nretry: 5\n\n",
    ];
    for spelling in spellings {
        let stream = [WORD, spelling, DONE].concat();
        let summary = every_way(Api::Chat, Hide, &stream, &[WORD, DONE].concat());
        assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)), "{spelling}");
        // A second usage event must be hidden like the first one, without adding its numbers. It
        // ends without an empty line.
        let stream = [WORD, spelling, DONE, spelling.trim_end()].concat();
        let summary = every_way(Api::Chat, Hide, &stream, &[WORD, DONE].concat());
        assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)), "{spelling}");
    }
}

#[test]
fn other_fields_of_a_usage_event_are_forwarded_without_usage() {
    let timings = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1},\"timings\":{\"n\":1}}\n\n";
    let passed = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":null}],\"timings\":{\"n\":1}}\n\n";
    for comment in ["", ": note\n"] {
        for (sent, left) in [
            ([comment, timings, DONE].concat(), [comment, passed, DONE]),
            (
                [comment, timings.trim_end()].concat(),
                [comment, passed.trim_end(), ""],
            ),
            (
                [comment, timings, USAGE, DONE].concat(),
                [comment, passed, DONE],
            ),
        ] {
            let stream = [WORD, STOP, &sent].concat();
            let expected = [WORD, STOP, &left.concat()].concat();
            let summary = every_way(Api::Chat, Hide, &stream, &expected);
            assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)));
            every_way(Api::Chat, Forward, &stream, &stream);
        }
    }
}

#[test]
fn comments_in_front_of_a_usage_event_are_forwarded_at_once() {
    let alone = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}";
    for comments in [": note\n", ":\n: b\n", ": a\r\n:\r", ":\r"] {
        let stream = [WORD, comments, alone, "\n\n", DONE].concat();
        let expected = [WORD, comments, DONE].concat();
        every_way(Api::Chat, Hide, &stream, &expected);
    }
    let mut sse = Sse::new(Api::Chat, Hide);
    assert_eq!(sse.pass(Bytes::from(": alive\n")), ": alive\n");
}

#[test]
fn comments_and_byte_order_mark_and_empty_stream_are_forwarded() {
    for usage_events in [Forward, Hide] {
        let stream = [
            "\u{feff}",
            USAGE,
            ": ping\n\n",
            "\n\n\n",
            WORD,
            ":\n\n",
            DONE,
        ]
        .concat();
        let expected = if usage_events == Hide {
            // The byte order mark is in front of the usage event and is removed with it.
            [": ping\n\n", "\n\n\n", WORD, ":\n\n", DONE].concat()
        } else {
            stream.clone()
        };
        let summary = every_way(Api::Chat, usage_events, &stream, &expected);
        assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)));
        every_way(Api::Chat, usage_events, "", "");
        every_way(
            Api::Chat,
            usage_events,
            "no events\nat all",
            "no events\nat all",
        );
    }
}

#[test]
fn long_event_is_read_but_neither_buffered_nor_hidden() {
    let text = "text \\\" and \\\\ ".repeat(20_000);
    let completed = format!(
        "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{{\"output\":\"{text}\",\"usage\":{{\"input_tokens\":4,\"output_tokens\":2}}}}}}\n\n"
    );
    let mut dice = Dice::new(6);
    for longest in [100, 5_000, 100_000] {
        let mut sse = Sse::new(Api::Responses, Forward);
        for piece in dice.pieces(completed.as_bytes(), longest) {
            sse.pass(Bytes::copy_from_slice(piece));
            assert!(sse.partial.length() <= 64 * 1024);
        }
        assert_eq!(tokens(sse.summary(), Api::Responses), Some((4, 2)));
        assert!(sse.summary().saw_end);
    }
    let long = USAGE.replace(
        "\"id\":\"x\"",
        &format!("\"id\":\"{}\"", "x".repeat(20_000)),
    );
    let stream = [WORD, &long, DONE].concat();
    for pieces in [
        stream.as_bytes().chunks(50_000),
        stream.as_bytes().chunks(99),
    ] {
        let passed = pass(Api::Chat, Hide, &pieces.collect::<Vec<_>>());
        assert_eq!(passed.out, stream.as_bytes());
        assert_eq!(tokens(passed.sse.summary(), Api::Chat), Some((9, 1)));
    }
}

#[test]
fn event_is_held_back_only_while_it_may_be_a_usage_event() {
    let mut sse = Sse::new(Api::Chat, Hide);
    let mut forwarded = |data: &str| {
        let out = sse.pass(Bytes::copy_from_slice(data.as_bytes()));
        String::from_utf8(out.to_vec()).unwrap()
    };
    assert_eq!(forwarded(WORD), WORD);
    // Hold back the first bytes of an event, because it can still become a usage event.
    assert_eq!(forwarded("data: {\"id\":\"x\","), "");
    // An event whose `choices` are not empty can be no usage event, so it must be forwarded at
    // once.
    assert_eq!(
        forwarded("\"choices\":[{\"delta"),
        "data: {\"id\":\"x\",\"choices\":[{\"delta"
    );
    assert_eq!(forwarded("\":{\"content\":\"a"), "\":{\"content\":\"a");
    assert_eq!(forwarded("\"}}]}\n\ndata: {"), "\"}}]}\n\n");
    assert_eq!(
        forwarded("\"choices\":[],\"usage\":{\"prompt_tokens\":1"),
        ""
    );
    assert_eq!(forwarded("}}\n"), "");
    assert_eq!(forwarded("\ndata: [DONE]\n\n"), "data: [DONE]\n\n");
    // A list, or a complete object without usage, can be no usage event and must be forwarded at
    // once.
    assert_eq!(forwarded("data: ["), "data: [");
    assert_eq!(forwarded("DONE]\n\n"), "DONE]\n\n");
    assert_eq!(forwarded("data: {\"a\":1}"), "data: {\"a\":1}");
}

#[test]
fn event_too_long_for_a_usage_event_is_forwarded_before_it_ends() {
    let mut sse = Sse::new(Api::Chat, Hide);
    let begin = format!("data: {{\"id\":\"{}", "x".repeat(MAX_HIDDEN - 20));
    assert_eq!(sse.pass(Bytes::from(begin.clone())), "");
    let more = "x".repeat(20);
    assert_eq!(sse.pass(Bytes::from(more.clone())), begin + &more);
    assert_eq!(sse.pass(Bytes::from(more.clone())), more);
}

#[test]
fn chunk_without_usage_is_not_copied_even_when_hiding() {
    let mut sse = Sse::new(Api::Chat, Hide);
    let data = Bytes::from([WORD, WORD].concat());
    let place = data.as_ptr();
    assert_eq!(sse.pass(data).as_ptr(), place);
    // A usage event at the end of a chunk is cut off. The rest must be a slice of the chunk, not a
    // copy.
    let data = Bytes::from([WORD, USAGE].concat());
    let place = data.as_ptr();
    let out = sse.pass(data);
    assert_eq!((out.as_ptr(), &out[..]), (place, WORD.as_bytes()));
}

fn event(dice: &mut Dice, ends: &[&str]) -> String {
    let mut text = String::new();
    for _ in 0..dice.below(4) {
        text.push_str(dice.pick(&[
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3}}",
            "data: {\"choices\":[],\"usage\":{}}",
            "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":4}}",
            "data: {\"usage\":null}",
            "data:{\"choices\":[],",
            "data: \"usage\":{}}",
            "data",
            ": x",
            "event: a",
            "data: [DONE]",
            "\u{feff}",
            "id: \"usage\"",
        ]));
        text.push_str(dice.pick(ends));
    }
    text.push_str(dice.pick(&["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r"]));
    text
}

#[test]
fn random_stream_is_forwarded_the_same_however_it_is_split() {
    let mut dice = Dice::new(7);
    for _ in 0..500 {
        let count = 1 + dice.below(5);
        let ends = ["\n", "\r\n", "\r", "\n", "\n", ""];
        let stream: String = (0..count).map(|_| event(&mut dice, &ends)).collect();
        for usage_events in [Forward, Hide] {
            let whole = pass(Api::Chat, usage_events, &[stream.as_bytes()]);
            for longest in [1, 3, 10, 40] {
                let pieces = dice.pieces(stream.as_bytes(), longest);
                let pieces = pass(Api::Chat, usage_events, &pieces);
                assert_eq!(
                    String::from_utf8_lossy(&pieces.out),
                    String::from_utf8_lossy(&whole.out),
                    "{stream:?}"
                );
                assert_eq!(
                    facts(pieces.sse.summary(), Api::Chat),
                    facts(whole.sse.summary(), Api::Chat),
                    "{stream:?}"
                );
            }
        }
    }
}

fn is_usage_event(event: &str) -> bool {
    let lines = event
        .split('\n')
        .filter_map(|line| line.strip_prefix("data:"));
    let data: Vec<_> = lines.collect();
    let data = data.join("\n");
    let mut values = serde_json::Deserializer::from_str(&data).into_iter::<serde_json::Value>();
    let Some(Ok(value)) = values.next() else {
        return false;
    };
    value["choices"] == serde_json::json!([]) && value["usage"].is_object()
}

#[test]
fn random_stream_loses_exactly_the_usage_events_that_a_parser_finds() {
    let mut dice = Dice::new(9);
    let (mut kept, mut lost) = (0, 0);
    for _ in 0..2000 {
        let count = 1 + dice.below(5);
        let events: Vec<_> = (0..count).map(|_| event(&mut dice, &["\n"])).collect();
        let stream = events.concat().replace("\r\n", "\n").replace('\r', "\n");
        let (mut expected, mut event) = (String::new(), String::new());
        for line in stream.split_inclusive('\n') {
            event.push_str(line);
            if line == "\n" {
                if is_usage_event(&event) {
                    lost += 1;
                    let lines = event.split_inclusive('\n');
                    expected.extend(lines.take_while(|line| line.starts_with(':')));
                } else {
                    kept += 1;
                    expected.push_str(&event);
                }
                event.clear();
            }
        }
        let passed = pass(Api::Chat, Hide, &[stream.as_bytes()]);
        let out = String::from_utf8(passed.out).unwrap();
        assert_eq!(out, expected, "{stream:?}");
    }
    assert!(kept > 1000 && lost > 300, "{kept} {lost}");
}
