//! Memory of this process.

/// Returns the resident memory of this process in bytes.
pub(crate) fn resident_memory() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn parse(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_in_the_status_of_the_process() {
        assert_eq!(
            parse("Name:\tx\nVmRSS:\t    2048 kB\nRssAnon: 1 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(parse("Name:\tx\n"), None);
        assert!(resident_memory().unwrap() > 1 << 20);
    }
}
