//! A resource that rejects writes with an old fencing token, and a former owner whose late write it
//! rejects.
//!
//! ```sh
//! cargo run -p tenure --example fencing                                            # lock files
//! cargo run -p tenure --features redis --example fencing -- redis://127.0.0.1:6379
//! ```
//!
//! A lease protects the time before a write, not the write itself: the process can be suspended, or
//! the request delayed, between the last check of `lost` and the arrival of the write. The resource
//! therefore compares tokens. In a database the comparison is part of the statement, for example
//! `UPDATE totals SET value = ?, token = ? WHERE id = ? AND token <= ?`.

use std::time::Duration;

use tenure::{Key, Store};

#[derive(Default)]
struct Resource {
    value: String,
    /// Largest token of all writes up to now. It is stored with the value.
    token: u64,
}

impl Resource {
    /// Writes the value, unless an owner with a larger token has written before: the late write of
    /// a former owner must not replace the value of its successor.
    fn write(&mut self, token: u64, value: &str) -> Result<(), String> {
        if token < self.token {
            return Err(format!(
                "rejected: token {token} is older than {}",
                self.token
            ));
        }
        self.token = token;
        value.clone_into(&mut self.value);
        Ok(())
    }
}

#[expect(clippy::print_stdout, reason = "the output is the example")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let store = match std::env::args().nth(1) {
        Some(url) => Store::connect(&url)?,
        None => Store::in_dir(dir.path()),
    };
    let key = Key::name("fencing-example")?;
    let claim = || store.claim(&key).ttl(Duration::from_secs(2));
    let mut resource = Resource::default();

    let first = claim().try_acquire()?;
    let old_token = first.token();
    resource.write(old_token, "first")?;
    // `leave` ends the renewal without a release, so the lease expires. The store cannot
    // distinguish this from an owner that is suspended, whose lease is not renewed either.
    first.leave()?;

    let second = claim().acquire_within(Duration::from_secs(10), |holder| {
        println!("waiting for {holder}");
    })?;
    resource.write(second.token(), "second")?;

    // The first owner resumes and completes a write that it had begun. Its token is older than that
    // of the second owner, so the resource must reject the write.
    match resource.write(old_token, "late") {
        Err(why) => println!("late write {why}"),
        Ok(()) => return Err("the late write was accepted".into()),
    }
    println!("value: {}", resource.value);
    assert_eq!(resource.value, "second");
    second.release()?;
    Ok(())
}
