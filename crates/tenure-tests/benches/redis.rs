//! Cost of acquiring and releasing a lease on Redis, against the bare round trips. Both take turns in
//! one run, so that changes in the speed of the machine affect them alike:
//!
//! - `tenure`: this library, `try_acquire` and `release` on an open store
//! - `bare`: two round trips on one connection of the same client library: `SET key record NX PX ttl`
//!   with a record of the same size, and a script that compares the owner and deletes the key
//!   (`EVALSHA`). No token, no holder, no renewal.
//!
//! Needs `redis-server`. `cargo bench -p tenure-tests --features redis --bench redis` runs it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark stops at the first error and prints rounded figures"
)]

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this benchmark runs on Linux only");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::time::{Duration, Instant};

    use redis::{Client, Connection, Script};
    use tenure::{Key, Store};
    use tenure_tests::servers::RedisServer;

    const ROUNDS: usize = 200;
    const EACH: usize = 50;
    const TTL: Duration = Duration::from_secs(15);

    pub(super) fn main() {
        // The server keeps its data in memory only. Otherwise the cost of writing to disk would
        // hide the cost of the library.
        let server = RedisServer::start_with(&[]).unwrap();
        let store = Store::connect(&server.url()).unwrap();
        let key = Key::name("bench").unwrap();
        let tenure = store.claim(&key).ttl(TTL).try_acquire().unwrap();
        let record = tenure.record().to_json().to_string();
        tenure.release().unwrap();

        let client = Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let delete = Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
             return 0",
        );
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            for (index, times) in times.iter_mut().enumerate() {
                for _ in 0..EACH {
                    let began = Instant::now();
                    if index == 0 {
                        let claim = store.claim(&key).ttl(TTL);
                        claim.try_acquire().unwrap().release().unwrap();
                    } else {
                        bare(&mut connection, &delete, &record);
                    }
                    // The first round only warms up caches and connections, so its durations are
                    // not counted.
                    if round > 0 {
                        times.push(began.elapsed());
                    }
                }
            }
        }
        println!(
            "acquire + release on Redis, {} each, interleaved",
            ROUNDS * EACH
        );
        println!(
            "{:<10} {:>10} {:>10} {:>10}",
            "", "median us", "p90 us", "p99 us"
        );
        for (name, times) in ["tenure", "bare"].iter().zip(&mut times) {
            times.sort();
            println!(
                "{name:<10} {:>10.1} {:>10.1} {:>10.1}",
                micros(times, 50),
                micros(times, 90),
                micros(times, 99)
            );
        }
        let ratio = micros(&times[0], 50) / micros(&times[1], 50);
        println!("ratio tenure-redis/bare median={ratio:.2} limit=2.00");
    }

    fn bare(connection: &mut Connection, delete: &Script, record: &str) {
        let mut set = redis::cmd("SET");
        set.arg("bare").arg(record).arg("NX").arg("PX");
        set.arg(TTL.as_millis().to_string());
        set.query::<String>(connection).unwrap();
        let mut call = delete.prepare_invoke();
        let deleted: i64 = call.key("bare").arg(record).invoke(connection).unwrap();
        assert_eq!(deleted, 1);
    }

    fn micros(sorted: &[Duration], percent: usize) -> f64 {
        sorted[(sorted.len() - 1) * percent / 100].as_nanos() as f64 / 1000.0
    }
}
