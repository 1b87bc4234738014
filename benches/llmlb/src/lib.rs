//! What the mock backend and the load generator share: the answers, byte for byte, and the means to
//! serve and watch many connections from one thread. Linux.

pub mod answer;
pub mod poll;
pub mod request;
pub mod response;
pub mod watch;

/// The value of `--name` among the arguments.
pub fn option(name: &str) -> Option<String> {
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == name {
            return words.next();
        }
    }
    None
}

/// The number given by `--name`, or the usual one.
pub fn number(name: &str, usual: f64) -> f64 {
    option(name).map_or(usual, |word| word.parse().expect(name))
}
