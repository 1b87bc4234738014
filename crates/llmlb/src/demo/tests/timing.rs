//! Timing of responses, on tokio's paused clock.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::fields::RequestFields;
use super::super::reply::Reply;
use super::super::{PROFILES, Pace, Profile, completions};
use super::support::chat;

async fn ask(profile: &Profile, more: &Value) -> Reply {
    let fields = RequestFields::parse(chat(more).to_string().as_bytes()).unwrap();
    completions::chat(profile, &fields).await.unwrap()
}

/// Returns for each event of a stream the time at which it arrives.
async fn arrivals(profile: &Profile, more: &Value) -> Vec<Duration> {
    let start = Instant::now();
    let mut body = ask(profile, more).await.into_body();
    let mut arrivals = Vec::new();
    while let Some(frame) = body.frame().await {
        assert!(frame.unwrap().is_data());
        arrivals.push(start.elapsed());
    }
    arrivals
}

/// Returns the time until a response that is not streamed arrives.
async fn whole(profile: &Profile, more: &Value) -> Duration {
    let start = Instant::now();
    let reply = ask(profile, more).await;
    assert!(reply.status().is_success());
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn tokens_arrive_at_the_pace_of_the_backend() {
    for (profile, first, per_second) in [
        (PROFILES[0], 50.0, 60.0),
        (PROFILES[1], 150.0, 30.0),
        (PROFILES[2], 400.0, 12.0),
    ] {
        let arrivals = arrivals(&profile, &json!({"stream": true})).await;
        // The role arrives with the first token; `finish_reason` and `[DONE]` arrive with the last token.
        let [role, tokens @ .., _reason, done] = arrivals.as_slice() else {
            panic!("{arrivals:?}");
        };
        assert_eq!(role, &tokens[0]);
        assert_eq!(done, &tokens[tokens.len() - 1]);
        assert!(tokens.windows(2).all(|two| two[0] < two[1]), "{tokens:?}");

        let near = |is: f64, wanted: f64| (0.8..1.2).contains(&(is / wanted));
        assert!(near(role.as_secs_f64() * 1000.0, first), "{role:?}");
        let talking = done.saturating_sub(*role).as_secs_f64();
        let steps = u32::try_from(tokens.len() - 1).unwrap();
        let speed = f64::from(steps) / talking;
        assert!(near(speed, per_second), "{speed} per second");
    }
}

#[tokio::test(start_paused = true)]
async fn whole_response_takes_as_long_as_its_stream() {
    let limit = json!({"max_tokens": 20});
    let streamed = arrivals(&PROFILES[1], &json!({"max_tokens": 20, "stream": true})).await;
    let whole = whole(&PROFILES[1], &limit).await;
    let streamed = *streamed.last().unwrap();
    // Timers have a resolution of a millisecond, so the two durations may differ slightly.
    assert!(
        whole.abs_diff(streamed) <= Duration::from_millis(2),
        "{whole:?}, {streamed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn delay_of_a_whole_response_is_limited() {
    let pace = Pace::new(Duration::from_secs(1), Duration::from_secs(1));
    let slow = Profile {
        pace,
        ..PROFILES[2]
    };
    let took = whole(&slow, &json!({})).await;
    assert!((3_000..3_010).contains(&took.as_millis()), "{took:?}");
}
