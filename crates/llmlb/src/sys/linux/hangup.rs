//! Detects if the program was started with SIGHUP ignored, as `nohup` does.

use std::fs;

/// Bit of SIGHUP (signal 1) in the signal masks of `/proc/self/status`.
const HANGUP: u64 = 1;

/// True if the program was started with SIGHUP ignored, as `nohup` does. The server must then
/// outlive its terminal.
pub(crate) fn is_hangup_ignored() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
}

fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & HANGUP != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status_of_the_process() {
        assert!(ignores_hangup(
            "Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"
        ));
        assert!(!ignores_hangup(
            "Name:\tx\nSigIgn:\t0000000000001000\nSigCgt:\t1\n"
        ));
        assert!(!ignores_hangup("SigCgt:\t0000000000000001\n"));
    }
}
