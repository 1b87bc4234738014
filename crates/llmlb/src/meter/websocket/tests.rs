//! Tests that the usage of a WebSocket session is found however its bytes are split into chunks.

use super::*;
use crate::dice::Dice;

type Sums = (u64, u64, u64, u64, &'static str);

fn sums(tap: &SessionTap) -> Sums {
    let usage = tap.usage();
    (
        usage.prompt,
        usage.completion,
        usage.cached,
        usage.total,
        usage.source.name(),
    )
}

/// Reads a session in one chunk, split in two at every offset, byte by byte and in random chunks.
/// Every way must find the same usage.
fn session(bytes: &[u8]) -> Sums {
    let read = |pieces: &[&[u8]]| {
        let mut tap = SessionTap::default();
        for piece in pieces {
            tap.read(piece);
        }
        sums(&tap)
    };
    let expected = read(&[bytes]);
    for at in (0..bytes.len()).step_by(1 + bytes.len() / 1000) {
        assert_eq!(read(&[&bytes[..at], &bytes[at..]]), expected, "{at}");
    }
    assert_eq!(read(&bytes.chunks(1).collect::<Vec<_>>()), expected);
    let mut dice = Dice::new(5);
    for _ in 0..20 {
        assert_eq!(read(&dice.pieces(bytes, 40)), expected);
    }
    expected
}

/// Returns a WebSocket frame with this first byte, which has the opcode and the final bit.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len();
    let mut frame = vec![first];
    match u16::try_from(length) {
        Ok(short @ 0..=125) => frame.push(short.to_le_bytes()[0]),
        Ok(short) => {
            frame.push(126);
            frame.extend_from_slice(&short.to_be_bytes());
        }
        Err(_) => {
            frame.push(127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}

fn text(message: &str) -> Vec<u8> {
    frame(0x81, message.as_bytes())
}

fn done(usage: &str) -> String {
    format!(
        r#"{{"type":"response.done","event_id":"e","response":{{"object":"realtime.response",
        "output":[{{"text":"\"usage\":{{\"input_tokens\":9}}"}}],"usage":{usage}}}}}"#
    )
}

const CREATED: &str = r#"{"type":"response.created","response":{"usage":null}}"#;
const USAGE: &str = r#"{"total_tokens":30,"input_tokens":20,"output_tokens":10,
    "input_token_details":{"text_tokens":12,"audio_tokens":8,"cached_tokens":6,
        "cached_tokens_details":{"text_tokens":6,"audio_tokens":0}},
    "output_token_details":{"text_tokens":4,"audio_tokens":6},"later":{"input_tokens":99}}"#;

#[test]
fn usage_of_all_responses_of_a_session_is_summed() {
    let one = [text(CREATED), text(&done(USAGE))].concat();
    assert_eq!(session(&one), (20, 10, 6, 30, "reported"));
    let delta =
        r#"{"type":"response.output_audio.delta","delta":"AAAA","usage":{"input_tokens":7}}"#;
    let three = [&one, &text(delta), &one, &one[..]].concat();
    assert_eq!(session(&three), (60, 30, 18, 90, "reported"));
    let other = r#"{"response":{"usag\u0065":{"input_tokens":1,"output_tokens":2}},"type":"response.done"}"#;
    assert_eq!(session(&text(other)), (1, 2, 0, 3, "reported"));
}

#[test]
fn responses_and_transcriptions_report_usage_in_other_events_too() {
    let of_response = |name: &str| {
        text(&format!(
            r#"{{"type":"{name}","response":{{"usage":{{"input_tokens":5,"output_tokens":1,
            "input_tokens_details":{{"cached_tokens":4}},"total_tokens":6}}}}}}"#
        ))
    };
    for name in [
        "response.completed",
        "response.incomplete",
        "response.failed",
    ] {
        assert_eq!(session(&of_response(name)), (5, 1, 4, 6, "reported"));
    }
    for name in [
        "response.in_progress",
        "response.created",
        "response.done.x",
        "session.updated",
    ] {
        assert_eq!(session(&of_response(name)), (0, 0, 0, 0, "none"), "{name}");
    }
    let transcribed = |usage: &str| {
        text(&format!(
            r#"{{"type":"conversation.item.input_audio_transcription.completed","item_id":"i",
            "transcript":"Hi","usage":{usage}}}"#
        ))
    };
    let tokens = r#"{"type":"tokens","total_tokens":48,"input_tokens":38,
        "input_token_details":{"text_tokens":10,"audio_tokens":28},"output_tokens":10}"#;
    assert_eq!(session(&transcribed(tokens)), (38, 10, 0, 48, "reported"));
    let duration = transcribed(r#"{"type":"duration","seconds":3}"#);
    assert_eq!(session(&duration), (0, 0, 0, 0, "none"));
    let both = [duration, text(&done(USAGE))].concat();
    assert_eq!(session(&both), (20, 10, 6, 30, "reported"));
    let vllm = r#"{"type":"transcription.done","text":"Hi","usage":
        {"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}"#;
    assert_eq!(session(&text(vllm)), (7, 2, 0, 9, "reported"));
}

#[test]
fn session_is_estimated_if_the_sum_is_too_low() {
    let ended = [text(CREATED), text(&done(USAGE))].concat();
    let known = (20, 10, 6, 30);
    let (prompt, completion, cached, total) = known;
    let partial = (prompt, completion, cached, total, "estimated");
    // A response has begun and not ended, so its usage is missing in the sum.
    let unfinished = [&ended, &text(CREATED)[..]].concat();
    assert_eq!(session(&unfinished), partial);
    for usage in [
        "null",
        "{}",
        r#"{"input_tokens":1000000001,"output_tokens":-3}"#,
        r#"{"input_tokens":18446744073709551616,"output_tokens":"7"}"#,
    ] {
        let bytes = [&ended, &text(&done(usage))[..]].concat();
        assert_eq!(session(&bytes), partial, "{usage}");
        assert_eq!(session(&text(&done(usage))), (0, 0, 0, 0, "none"));
    }
    // Numbers that a report lacks follow from its total, so the usage stays reported.
    let usage = r#"{"input_tokens":4,"total_tokens":10}"#;
    assert_eq!(session(&text(&done(usage))), (4, 6, 0, 10, "estimated"));
    let usage = r#"{"output_tokens":4,"total_tokens":10}"#;
    assert_eq!(session(&text(&done(usage))), (6, 4, 0, 10, "estimated"));
    // This report is invalid, because its total is less than its parts.
    let usage = r#"{"input_tokens":8,"output_tokens":4,"total_tokens":10}"#;
    assert_eq!(session(&text(&done(usage))), (8, 4, 0, 12, "estimated"));
}

#[test]
fn message_may_be_fragmented_with_control_frames_in_between() {
    let message = done(USAGE);
    let (begin, rest) = message.as_bytes().split_at(50);
    let (middle, end) = rest.split_at(60);
    let bytes = [
        frame(0x01, begin),
        frame(0x89, b"ping"),
        frame(0x00, middle),
        frame(0x8A, b""),
        frame(0x00, b""),
        frame(0x80, end),
    ];
    assert_eq!(session(&bytes.concat()), (20, 10, 6, 30, "reported"));
    // An empty last frame must end the message.
    let bytes = [frame(0x01, message.as_bytes()), frame(0x80, b"")];
    assert_eq!(session(&bytes.concat()), (20, 10, 6, 30, "reported"));
    // Binary messages between text messages must not change the usage.
    let bytes = [
        frame(0x02, message.as_bytes()),
        frame(0x80, message.as_bytes()),
        text(&message),
    ];
    assert_eq!(session(&bytes.concat()), (20, 10, 6, 30, "reported"));
}

#[test]
fn long_message_is_read_without_buffering() {
    for length in [125, 126, 65_535, 65_536, 3_000_000] {
        let filler = "x".repeat(length);
        let long = done(USAGE).replacen("realtime.response", &filler, 1);
        let audio = format!(r#"{{"type":"response.audio.delta","delta":"{filler}"}}"#);
        let bytes = [text(&audio), text(&long), frame(0x82, filler.as_bytes())].concat();
        let mut tap = SessionTap::default();
        for piece in bytes.chunks(8 << 10) {
            tap.read(piece);
        }
        assert_eq!(sums(&tap), (20, 10, 6, 30, "reported"), "{length}");
    }
    // A frame header may announce any length. Nothing may be allocated for it, otherwise a backend
    // could use up memory.
    let mut tap = SessionTap::default();
    tap.read(&text(&done(USAGE)));
    tap.read(&[
        0x81, 127, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, b'{',
    ]);
    assert_eq!(sums(&tap), (20, 10, 6, 30, "reported"));
}

#[test]
fn frames_after_a_violation_of_the_protocol_are_not_metered() {
    let good = text(&done(USAGE));
    let mut masked = good.clone();
    masked[1] |= 0x80;
    let bad: [Vec<u8>; 10] = [
        masked,
        frame(0xC1, b"compressed"),
        frame(0xA1, b"{}"),
        frame(0x91, b"{}"),
        frame(0x83, b"reserved opcode"),
        frame(0x8B, b"reserved control frame"),
        frame(0x80, b"a continuation of nothing"),
        frame(0x09, b"a fragmented ping"),
        frame(0x89, &[b'x'; 126]),
        vec![0x81, 127, 0x80, 0, 0, 0, 0, 0, 0, 0],
    ];
    for bad in bad {
        assert_eq!(
            session(&[&bad, &good[..]].concat()),
            (0, 0, 0, 0, "none"),
            "{bad:?}"
        );
        let bytes = [&good, &bad, &good[..]].concat();
        assert_eq!(session(&bytes), (20, 10, 6, 30, "estimated"), "{bad:?}");
    }
    // A new message that begins inside another one violates the protocol. The frames after it must
    // not be metered.
    let bytes = [&frame(0x01, b"{"), &good[..]].concat();
    assert_eq!(session(&bytes), (0, 0, 0, 0, "none"));
    // Messages after a close frame must not be metered.
    let bytes = [&good, &frame(0x88, &[3, 232]), &good[..]].concat();
    assert_eq!(session(&bytes), (20, 10, 6, 30, "reported"));
}

#[test]
fn messages_that_are_no_events_are_ignored() {
    for message in [
        "",
        "hello",
        "[]",
        "null",
        r#"{"usage":{"input_tokens":5,"output_tokens":5}}"#,
        r#"{"type":7,"response":{"usage":{"input_tokens":5,"output_tokens":5}}}"#,
        r#"{"type":"response.done","response":{"usage":{"input_tokens":5,"output_tokens":5}}"#,
        r#"{"x":{"type":"response.done"},"response":{"usage":{"input_tokens":5,"output_tokens":5}}}"#,
        r#"{"type":"other","type":"response.done","response":{"usage":{"input_tokens":5,"output_tokens":5}}}"#,
    ] {
        assert_eq!(session(&text(message)), (0, 0, 0, 0, "none"), "{message}");
        let bytes = [text(message), text(&done(USAGE))].concat();
        assert_eq!(session(&bytes), (20, 10, 6, 30, "reported"), "{message}");
    }
}

#[test]
fn read_returns_true_when_the_usage_changed() {
    let mut tap = SessionTap::default();
    assert!(!tap.read(&text(r#"{"type":"session.created"}"#)));
    assert!(tap.read(&text(CREATED)));
    let message = text(&done(USAGE));
    let (last, rest) = message.split_last().unwrap();
    assert!(!tap.read(rest));
    assert!(tap.read(&[*last]));
}
