//! Streams in every pair and heap of pieces: the same is heard, the same bytes go on.

use super::super::usage::Usage;
use super::*;
use crate::dice::Dice;

/// A stream that passed: what went on, and what was heard.
struct Passed {
    out: Vec<u8>,
    sse: Sse,
}

fn pass(api: Api, is_hiding: bool, pieces: &[&[u8]]) -> Passed {
    let mut sse = Sse::new(api, is_hiding);
    let mut out = Vec::new();
    for piece in pieces {
        let data = Bytes::copy_from_slice(piece);
        let place = data.as_ptr();
        let passed = sse.pass(data);
        if !is_hiding {
            assert_eq!(passed.as_ptr(), place, "it is the same memory");
            assert_eq!(&passed[..], *piece);
        }
        out.extend_from_slice(&passed);
    }
    out.extend_from_slice(&sse.finish());
    Passed { out, sse }
}

fn told(heard: &Heard, api: Api) -> (Option<Usage>, bool, bool, bool, u64) {
    (
        heard.counts.usage(api),
        heard.saw_end,
        heard.saw_error(),
        heard.saw_finish(),
        heard.streamed.tokens(),
    )
}

/// Passes it whole, cut in two everywhere, byte by byte and in chance pieces, with every end of
/// a line.
fn every_way(api: Api, is_hiding: bool, stream: &str, expected: &str) -> Heard {
    let as_it_is = pass(api, is_hiding, &[stream.as_bytes()]);
    let heard = told(as_it_is.sse.heard(), api);
    for end in ["\n", "\r\n", "\r"] {
        let stream = stream.replace('\n', end);
        let expected = expected.replace('\n', end);
        let check = |pieces: &[&[u8]]| {
            let passed = pass(api, is_hiding, pieces);
            let out = String::from_utf8_lossy(&passed.out);
            assert_eq!(out, expected, "{pieces:?}");
            assert_eq!(told(passed.sse.heard(), api), heard, "{pieces:?}");
        };
        let bytes = stream.as_bytes();
        check(&[bytes]);
        if bytes.len() < 5000 {
            for at in 0..=bytes.len() {
                check(&[&bytes[..at], &bytes[at..]]);
            }
        }
        check(&bytes.chunks(1).collect::<Vec<_>>());
        let mut dice = Dice::new(5);
        for longest in [3, 30, 300] {
            for _ in 0..20 {
                check(&dice.pieces(bytes, longest));
            }
        }
    }
    as_it_is.sse.heard
}

fn tokens(heard: &Heard, api: Api) -> Option<(u64, u64)> {
    let usage = heard.counts.usage(api)?;
    Some((usage.prompt, usage.completion))
}

const WORD: &str = "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n";
const STOP: &str =
    "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const ALONE: &str = "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[test]
fn usage_that_comes_alone_is_heard_and_taken_out_if_it_was_not_asked_for() {
    let stream = [WORD, STOP, ALONE, DONE].concat();
    let heard = every_way(Api::Chat, false, &stream, &stream);
    assert_eq!(tokens(&heard, Api::Chat), Some((9, 1)));
    assert!(heard.saw_end && heard.saw_finish() && !heard.saw_error());
    let heard = every_way(Api::Chat, true, &stream, &[WORD, STOP, DONE].concat());
    assert_eq!(tokens(&heard, Api::Chat), Some((9, 1)));
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
        ": note\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n",
    ];
    for spelling in spellings {
        let stream = [WORD, spelling, DONE].concat();
        let heard = every_way(Api::Chat, true, &stream, &[WORD, DONE].concat());
        assert_eq!(tokens(&heard, Api::Chat), Some((9, 1)), "{spelling}");
        // Twice is once, and both are taken out; the last has no empty line.
        let stream = [WORD, spelling, DONE, spelling.trim_end()].concat();
        let heard = every_way(Api::Chat, true, &stream, &[WORD, DONE].concat());
        assert_eq!(tokens(&heard, Api::Chat), Some((9, 1)), "{spelling}");
    }
}

#[test]
fn usage_in_every_event_is_that_of_the_last() {
    let event = |count: u32| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"x\"}}}}],\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":{count},\"total_tokens\":{}}}}}\n\n",
            count + 5
        )
    };
    let stream: String = (0..20).map(event).collect();
    let heard = every_way(Api::Chat, true, &stream, &stream);
    assert_eq!(tokens(&heard, Api::Chat), Some((5, 19)));
    assert!(!heard.saw_end && !heard.saw_finish());
}

#[test]
fn anthropics_events_are_heard() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n";
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    let word = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n";
    let delta = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let stream = [start, ping, word, word, delta, stop].concat();
    let heard = every_way(Api::Messages, false, &stream, &stream);
    assert_eq!(tokens(&heard, Api::Messages), Some((30, 15)));
    assert!(heard.saw_end && !heard.saw_error());

    let stream = [start, ping, word, word].concat();
    let heard = every_way(Api::Messages, false, &stream, &stream);
    assert!(heard.counts.is_only_beginning() && !heard.saw_end && !heard.saw_finish());
    assert_eq!(heard.streamed.tokens(), 2);

    let stream = [start, word, delta].concat();
    let heard = every_way(Api::Messages, false, &stream, &stream);
    assert!(!heard.saw_end && heard.saw_finish());

    let error =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let stream = [start, word, error].concat();
    let heard = every_way(Api::Messages, false, &stream, &stream);
    assert!(heard.saw_error() && !heard.saw_end);
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
        let heard = every_way(Api::Responses, false, &stream, &stream);
        assert_eq!(tokens(&heard, Api::Responses), Some((4, 2)));
        assert!(heard.saw_end);
        assert_eq!(heard.saw_error(), is_error);
        // The name is told by the data too.
        let stream = stream.replace("event: ", "id: ");
        let heard = every_way(Api::Responses, false, &stream, &stream);
        assert!(heard.saw_end);
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
        let heard = every_way(Api::Chat, false, &stream, &stream);
        assert_eq!(
            (heard.saw_end, heard.saw_finish()),
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
    assert!(!sse.heard().saw_end);
    sse.pass(Bytes::from_static(b"data: [DONE]"));
    assert!(sse.heard().saw_end);
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
            let heard = every_way(Api::Chat, false, &stream, &stream);
            assert_eq!(heard.saw_error(), expected, "{stream}");
        }
    }
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
        let heard = every_way(Api::Chat, is_hiding, &stream, &expected);
        assert_eq!(tokens(&heard, Api::Chat), Some((9, 1)));
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
        assert_eq!(tokens(sse.heard(), Api::Responses), Some((4, 2)));
        assert!(sse.heard().saw_end);
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
        assert_eq!(tokens(passed.sse.heard(), Api::Chat), Some((9, 1)));
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

#[test]
fn chance_streams_pass_the_same_in_all_pieces() {
    let mut dice = Dice::new(7);
    let event = |dice: &mut Dice| -> String {
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
            text.push_str(dice.of(&["\n", "\r\n", "\r", "\n", "\n", ""]));
        }
        text.push_str(dice.of(&["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r"]));
        text
    };
    for _ in 0..1500 {
        let count = 1 + dice.below(5);
        let stream: String = (0..count).map(|_| event(&mut dice)).collect();
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
                    told(pieces.sse.heard(), Api::Chat),
                    told(whole.sse.heard(), Api::Chat),
                    "{stream:?}"
                );
            }
        }
    }
}
