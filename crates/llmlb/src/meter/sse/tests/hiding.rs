//! What goes on of a stream, and what does not.

use super::*;

#[test]
fn usage_that_comes_alone_is_heard_and_taken_out_if_it_was_not_asked_for() {
    let stream = [WORD, STOP, ALONE, DONE].concat();
    let summary = every_way(Api::Chat, false, &stream, &stream);
    assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)));
    assert!(summary.saw_end && summary.saw_finish() && !summary.saw_error());
    let summary = every_way(Api::Chat, true, &stream, &[WORD, STOP, DONE].concat());
    assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)));
}

#[test]
fn only_that_event_is_taken_out() {
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
    every_way(Api::Chat, true, &stream, &stream);
}

#[test]
fn it_is_taken_out_in_every_spelling() {
    let spellings = [
        "data:{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n",
        "data: { \"usage\" : {\"prompt_tokens\": 9, \"completion_tokens\": 1}, \"choices\" : [ ] }\n\n",
        "id: 7\nevent: x\ndata: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":9,\ndata: \"completion_tokens\":1}}\nretry: 5\n\n",
    ];
    for spelling in spellings {
        let stream = [WORD, spelling, DONE].concat();
        let summary = every_way(Api::Chat, true, &stream, &[WORD, DONE].concat());
        assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)), "{spelling}");
        // Twice is once, and both are taken out; the last has no empty line.
        let stream = [WORD, spelling, DONE, spelling.trim_end()].concat();
        let summary = every_way(Api::Chat, true, &stream, &[WORD, DONE].concat());
        assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)), "{spelling}");
    }
}

#[test]
fn what_rides_with_the_usage_goes_on_without_it() {
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
                [comment, timings, ALONE, DONE].concat(),
                [comment, passed, DONE],
            ),
        ] {
            let stream = [WORD, STOP, &sent].concat();
            let expected = [WORD, STOP, &left.concat()].concat();
            let summary = every_way(Api::Chat, true, &stream, &expected);
            assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)));
            every_way(Api::Chat, false, &stream, &stream);
        }
    }
}

#[test]
fn comments_before_usage_pass_at_once() {
    let alone = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}";
    for comments in [": note\n", ":\n: b\n", ": a\r\n:\r", ":\r"] {
        let stream = [WORD, comments, alone, "\n\n", DONE].concat();
        let expected = [WORD, comments, DONE].concat();
        every_way(Api::Chat, true, &stream, &expected);
    }
    let mut sse = Sse::new(Api::Chat, true);
    assert_eq!(sse.pass(Bytes::from(": alive\n")), ": alive\n");
}

#[test]
fn comments_a_byte_order_mark_and_nothing_at_all_pass() {
    for is_hiding in [false, true] {
        let stream = [
            "\u{feff}",
            ALONE,
            ": ping\n\n",
            "\n\n\n",
            WORD,
            ":\n\n",
            DONE,
        ]
        .concat();
        let expected = if is_hiding {
            // The mark belongs to the event.
            [": ping\n\n", "\n\n\n", WORD, ":\n\n", DONE].concat()
        } else {
            stream.clone()
        };
        let summary = every_way(Api::Chat, is_hiding, &stream, &expected);
        assert_eq!(tokens(&summary, Api::Chat), Some((9, 1)));
        every_way(Api::Chat, is_hiding, "", "");
        every_way(
            Api::Chat,
            is_hiding,
            "no events\nat all",
            "no events\nat all",
        );
    }
}

#[test]
fn a_long_event_is_neither_kept_nor_taken_out_but_heard() {
    let text = "text \\\" and \\\\ ".repeat(20_000);
    let completed = format!(
        "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{{\"output\":\"{text}\",\"usage\":{{\"input_tokens\":4,\"output_tokens\":2}}}}}}\n\n"
    );
    let mut dice = Dice::new(6);
    for longest in [100, 5_000, 100_000] {
        let mut sse = Sse::new(Api::Responses, false);
        for piece in dice.pieces(completed.as_bytes(), longest) {
            sse.pass(Bytes::copy_from_slice(piece));
            assert!(sse.open.length() <= 64 * 1024);
        }
        assert_eq!(tokens(sse.summary(), Api::Responses), Some((4, 2)));
        assert!(sse.summary().saw_end);
    }
    let long = ALONE.replace(
        "\"id\":\"x\"",
        &format!("\"id\":\"{}\"", "x".repeat(20_000)),
    );
    let stream = [WORD, &long, DONE].concat();
    for pieces in [
        stream.as_bytes().chunks(50_000),
        stream.as_bytes().chunks(99),
    ] {
        let passed = pass(Api::Chat, true, &pieces.collect::<Vec<_>>());
        assert_eq!(passed.out, stream.as_bytes());
        assert_eq!(tokens(passed.sse.summary(), Api::Chat), Some((9, 1)));
    }
}

#[test]
fn no_more_is_held_back_than_may_be_usage() {
    let mut sse = Sse::new(Api::Chat, true);
    let mut given = |data: &str| {
        let out = sse.pass(Bytes::copy_from_slice(data.as_bytes()));
        String::from_utf8(out.to_vec()).unwrap()
    };
    assert_eq!(given(WORD), WORD);
    // It may become anything.
    assert_eq!(given("data: {\"id\":\"x\","), "");
    // It has choices.
    assert_eq!(
        given("\"choices\":[{\"delta"),
        "data: {\"id\":\"x\",\"choices\":[{\"delta"
    );
    assert_eq!(given("\":{\"content\":\"a"), "\":{\"content\":\"a");
    assert_eq!(given("\"}}]}\n\ndata: {"), "\"}}]}\n\n");
    assert_eq!(given("\"choices\":[],\"usage\":{\"prompt_tokens\":1"), "");
    assert_eq!(given("}}\n"), "");
    assert_eq!(given("\ndata: [DONE]\n\n"), "data: [DONE]\n\n");
    // These cannot be it.
    assert_eq!(given("data: ["), "data: [");
    assert_eq!(given("DONE]\n\n"), "DONE]\n\n");
    assert_eq!(given("data: {\"a\":1}"), "data: {\"a\":1}");
}

#[test]
fn what_is_too_long_to_be_usage_goes_on_before_it_ends() {
    let mut sse = Sse::new(Api::Chat, true);
    let begin = format!("data: {{\"id\":\"{}", "x".repeat(LONGEST_HIDDEN - 20));
    assert_eq!(sse.pass(Bytes::from(begin.clone())), "");
    let more = "x".repeat(20);
    assert_eq!(sse.pass(Bytes::from(more.clone())), begin + &more);
    assert_eq!(sse.pass(Bytes::from(more.clone())), more);
}

#[test]
fn frames_without_usage_are_not_copied_even_when_hiding() {
    let mut sse = Sse::new(Api::Chat, true);
    let data = Bytes::from([WORD, WORD].concat());
    let place = data.as_ptr();
    assert_eq!(sse.pass(data).as_ptr(), place);
    // Taken out at the end: what is left is a slice.
    let data = Bytes::from([WORD, ALONE].concat());
    let place = data.as_ptr();
    let out = sse.pass(data);
    assert_eq!((out.as_ptr(), &out[..]), (place, WORD.as_bytes()));
}

/// An event of chance lines; `ends` are what may end them.
fn event(dice: &mut Dice, ends: &[&str]) -> String {
    let mut text = String::new();
    for _ in 0..dice.below(4) {
        text.push_str(dice.of(&[
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
        text.push_str(dice.of(ends));
    }
    text.push_str(dice.of(&["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r"]));
    text
}

#[test]
fn chance_streams_pass_the_same_in_all_pieces() {
    let mut dice = Dice::new(7);
    for _ in 0..500 {
        let count = 1 + dice.below(5);
        let ends = ["\n", "\r\n", "\r", "\n", "\n", ""];
        let stream: String = (0..count).map(|_| event(&mut dice, &ends)).collect();
        for is_hiding in [false, true] {
            let whole = pass(Api::Chat, is_hiding, &[stream.as_bytes()]);
            for longest in [1, 3, 10, 40] {
                let pieces = dice.pieces(stream.as_bytes(), longest);
                let pieces = pass(Api::Chat, is_hiding, &pieces);
                assert_eq!(
                    String::from_utf8_lossy(&pieces.out),
                    String::from_utf8_lossy(&whole.out),
                    "{stream:?}"
                );
                assert_eq!(
                    told(pieces.sse.summary(), Api::Chat),
                    told(whole.sse.summary(), Api::Chat),
                    "{stream:?}"
                );
            }
        }
    }
}

/// Whether a parser would say of these lines that they are usage alone.
fn is_alone(event: &str) -> bool {
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
fn chance_streams_lose_what_a_parser_says_they_should() {
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
                if is_alone(&event) {
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
        let passed = pass(Api::Chat, true, &[stream.as_bytes()]);
        let out = String::from_utf8(passed.out).unwrap();
        assert_eq!(out, expected, "{stream:?}");
    }
    assert!(kept > 1000 && lost > 300, "{kept} {lost}");
}
