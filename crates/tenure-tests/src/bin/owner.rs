//! Acquires a key, then executes requests from stdin, one on each line: `release`, `drop`, `lost`,
//! `record-error`, `fork`, `fork-drop`, `fork-lost`, `ignore-term`, `set NAME VALUE`, `stop-request`,
//! `write ADDRESS` (to a fenced resource).
//!
//! Usage: `owner STORE KEY`. STORE is a directory or the URL of a lease store. KEY is a name, or a
//! path with more than one component. `--keep-file`, `--wait` and `--ttl=MILLISECONDS` may precede
//! it; `--read` acquires a read lock until stdin ends; `--shared` uses the store of the program
//! `shared` in the temporary directory instead of STORE.

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

use tenure::{Claim, Error, Key, Store, Tenure};
#[cfg(unix)]
use tenure_tests::fenced::ResourceClient;

/// Prints a line for the test that started this program. Write errors are ignored: the test may
/// have ended and closed the pipe.
macro_rules! say {
    ($($text:tt)*) => {
        drop(writeln!(std::io::stdout(), $($text)*))
    };
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut take_option = |name: &str| {
        let found = words.iter().position(|word| word == name);
        found.map(|index| words.remove(index)).is_some()
    };
    let (keep, wait) = (take_option("--keep-file"), take_option("--wait"));
    let (read, shared) = (take_option("--read"), take_option("--shared"));
    let ttl = words
        .iter()
        .position(|word| word.starts_with("--ttl="))
        .and_then(|index| words.remove(index).strip_prefix("--ttl=")?.parse().ok())
        .map(Duration::from_millis);
    let (location, key) = (&words[0], &words[1]);
    let store = if shared {
        Store::for_program("shared")
    } else if location.contains("://") {
        Store::connect(location)
    } else {
        Ok(Store::in_dir(location))
    };
    if read {
        return read_under_lock(store, key);
    }
    match store.and_then(|store| acquire(&store, key, keep, wait, ttl)) {
        Ok(tenure) => {
            say!("held {} {}", std::process::id(), tenure.token());
            execute_requests(tenure);
        }
        Err(error) => match error.holder().map(tenure::Holder::pid) {
            Some(Some(pid)) => say!("refused {pid} {error}"),
            Some(None) => say!("refused unknown {error}"),
            None => say!("failed {error}"),
        },
    }
}

fn parse_key(key: &str) -> Result<Key, Error> {
    if Path::new(key).components().count() > 1 {
        Key::file(key)
    } else {
        Key::name(key)
    }
}

fn read_under_lock(store: Result<Store, Error>, key: &str) {
    match store.and_then(|store| store.read_lock(&parse_key(key)?)) {
        Ok(Some(_reading)) => {
            say!("reading {}", std::process::id());
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        }
        Ok(None) => say!("no file"),
        Err(error) => say!("refused {error}"),
    }
}

fn acquire(
    store: &Store,
    key: &str,
    keep: bool,
    wait: bool,
    ttl: Option<Duration>,
) -> Result<Tenure, Error> {
    let key = parse_key(key)?;
    let mut claim: Claim = store.claim(&key).verb("test").keep_file(keep);
    if let Some(ttl) = ttl {
        claim = claim.ttl(ttl);
    }
    if wait {
        claim.acquire_within(Duration::from_secs(60), |holder| {
            let named = holder.record().map_or(0, tenure::Record::pid);
            say!("waits {}", holder.pid().unwrap_or(named));
        })
    } else {
        claim.try_acquire()
    }
}

fn execute_requests(tenure: Tenure) {
    let mut tenure = Some(tenure);
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let mut words = line.split(' ');
        match words.next().unwrap_or_default() {
            "release" => match tenure.take().map(Tenure::release) {
                Some(Err(error)) => say!("failed {error}"),
                _ => say!("released"),
            },
            "drop" => {
                drop(tenure.take());
                say!("dropped");
            }
            "record-error" => {
                let error = tenure.as_ref().and_then(Tenure::record_error);
                say!("{}", error.map_or("none".to_owned(), Error::to_string));
            }
            "lost" => say!("{}", tenure.as_ref().is_none_or(Tenure::lost)),
            "set" => {
                let (name, value) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
                match tenure.as_mut().map(|tenure| tenure.set_field(name, value)) {
                    Some(Ok(())) => say!("set"),
                    other => say!("failed {other:?}"),
                }
            }
            "stop-request" => {
                let Some(Ok(request)) = tenure.as_mut().map(Tenure::stop_request) else {
                    say!("failed");
                    continue;
                };
                say!("waiting");
                say!(
                    "{}",
                    if request.wait(Duration::from_secs(60)) {
                        "asked"
                    } else {
                        "not asked"
                    }
                );
                return;
            }
            #[cfg(unix)]
            "ignore-term" => ignore_term(),
            #[cfg(unix)]
            "write" => {
                let address = words.next().and_then(|address| address.parse().ok());
                match (address, &tenure) {
                    (Some(address), Some(tenure)) => {
                        let mut resource = ResourceClient::connect(address);
                        let accepted = resource.write(tenure.token());
                        say!("{}", if accepted { "accepted" } else { "rejected" });
                    }
                    _ => say!("failed: no address or no tenure"),
                }
            }
            #[cfg(unix)]
            word @ ("fork" | "fork-drop" | "fork-lost") => fork(word, &mut tenure),
            other => say!("failed: unknown request {other:?}"),
        }
    }
}

/// Forks a child that has the same descriptors, and prints its pid. The child lives until it is
/// killed. With `fork-drop` it first drops its copy of the tenure, and with `fork-lost` it first
/// prints whether its copy is lost.
#[cfg(unix)]
#[expect(unsafe_code, reason = "the test needs fork without exec")]
fn fork(word: &str, tenure: &mut Option<Tenure>) {
    // SAFETY: the only other threads are those that renew a lease. The child uses the allocator,
    // which the C library keeps usable after a fork, and no lock of those threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        match word {
            "fork-drop" => drop(tenure.take()),
            "fork-lost" => say!("copy lost: {}", tenure.as_ref().is_none_or(Tenure::lost)),
            _ => {}
        }
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    say!("{child}");
}

#[cfg(unix)]
#[expect(
    unsafe_code,
    reason = "signals have no safe wrapper in the standard library"
)]
fn ignore_term() {
    // SAFETY: ignoring needs no handler.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    say!("ignored");
}
