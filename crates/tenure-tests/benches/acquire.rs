//! Cost of acquiring and releasing a key with this library and with three alternatives. All four
//! take turns in one run, so that changes in the speed of the machine affect them alike:
//!
//! - `tenure`: this library
//! - `bare`: the same system calls without any other code
//! - `fd-lock`: open, lock, unlock, close, without a lock record
//! - `pid-file`: read the pid, create, lock, write, unlink: the usual algorithm
//!
//! The cost of a refusal is measured too, and the time from a release until a waiting process has
//! the key. `cargo bench -p tenure-tests` prints all of these times. scripts/bench-tenure also
//! measures `tenure run` as a whole process.

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
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
    use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
    use tenure::{Key, Store};
    use tenure_tests::contenders::{Contender, Outcome};

    const ROUNDS: usize = 200;
    const EACH: usize = 100;

    pub(super) fn main() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let store = Store::in_dir(path);
        let key = Key::name("bench").unwrap();

        let mut rows = [
            Row::new("tenure", || {
                store.claim(&key).try_acquire().unwrap().release().unwrap();
            }),
            Row::new("bare", || bare(path)),
            Row::new("fd-lock", || fd_lock(path)),
            Row::new("pid-file", || match Contender::PidFile.try_acquire(path) {
                Outcome::Acquired(guard) => guard.release(),
                _ => println!("pid-file: refused"),
            }),
        ];
        interleave(&mut rows);
        println!("acquire + release, {} each, interleaved", ROUNDS * EACH);
        print_rows(&rows);
        let (tenure, bare) = (rows[0].percentile(50), rows[1].percentile(50));
        println!(
            "ratio tenure/bare median={:.2} tenure_p99_us={:.1}",
            tenure / bare,
            rows[0].percentile(99)
        );

        let held = Key::name("held").unwrap();
        let _tenure = store.claim(&held).try_acquire().unwrap();
        let mut kept = Vec::new();
        let mut number = 0;
        let mut rows = [
            Row::new("acquire", || {
                number += 1;
                let key = Key::name(format!("n{number}")).unwrap();
                kept.push(store.claim(&key).try_acquire().unwrap());
                if kept.len() == EACH {
                    kept.clear();
                }
            }),
            Row::new("refusal", || {
                drop(store.claim(&held).try_acquire().unwrap_err());
            }),
        ];
        interleave(&mut rows);
        println!(
            "\nacquire alone against a refusal, {} each, interleaved",
            ROUNDS * EACH
        );
        print_rows(&rows);
        let (acquire, refusal) = (rows[0].percentile(50), rows[1].percentile(50));
        println!("ratio refusal/acquire median={:.2}", refusal / acquire);

        println!("\nfrom release to the next acquire, 8 threads that wait for each other");
        hand_over("tenure", || {
            let tenure = store.claim(&key).acquire(|_| {}).unwrap();
            move || tenure.release().unwrap()
        });
        // Baseline that does less work than `tenure`: a process that waits in `flock` blocks in the
        // kernel, and the owner writes no lock record and removes no file.
        hand_over("flock", || {
            let file = File::create(path.join("relay")).unwrap();
            rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
            move || drop(file)
        });
    }

    struct Row<'a> {
        name: &'static str,
        act: Box<dyn FnMut() + 'a>,
        nanos: Vec<u64>,
    }

    impl<'a> Row<'a> {
        fn new(name: &'static str, act: impl FnMut() + 'a) -> Self {
            Self {
                name,
                act: Box::new(act),
                nanos: Vec::with_capacity(ROUNDS * EACH),
            }
        }

        fn percentile(&self, percent: usize) -> f64 {
            let mut sorted = self.nanos.clone();
            sorted.sort_unstable();
            sorted[(sorted.len() - 1) * percent / 100] as f64 / 1000.0
        }
    }

    fn interleave(rows: &mut [Row<'_>]) {
        for row in rows.iter_mut() {
            for _ in 0..EACH {
                (row.act)();
            }
        }
        for _ in 0..ROUNDS {
            for row in rows.iter_mut() {
                for _ in 0..EACH {
                    let began = Instant::now();
                    (row.act)();
                    row.nanos
                        .push(u64::try_from(began.elapsed().as_nanos()).unwrap());
                }
            }
        }
    }

    fn print_rows(rows: &[Row<'_>]) {
        println!(
            "{:<10} {:>10} {:>10} {:>10}",
            "", "median us", "p90 us", "p99 us"
        );
        for row in rows {
            println!(
                "{:<10} {:>10.2} {:>10.2} {:>10.2}",
                row.name,
                row.percentile(50),
                row.percentile(90),
                row.percentile(99)
            );
        }
    }

    /// Makes only the system calls of docs/lock-protocol.md, as the lower bound of what a lock
    /// costs: without decisions, checks or the content of a lock record.
    fn bare(dir: &Path) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = rustix::fs::open(dir, flags, Mode::empty()).unwrap();
        let inode = rustix::fs::fstat(&dir).unwrap().st_ino;
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let existing = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(&dir, "bare.lock", existing, Mode::empty()).unwrap_err();
        let file = rustix::fs::openat(&dir, "bare.lock", flags, Mode::RUSR | Mode::WUSR).unwrap();
        rustix::fs::fstat(&file).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        rustix::fs::statat(&dir, "bare.lock", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        rustix::fs::statat(&dir, "..", AtFlags::empty()).unwrap();
        let guards = ["inode", "parent"].map(|name| guard(&format!("bare/{name}/{inode:x}")));
        rustix::fs::statat(&dir, "bare.lock", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared).unwrap();
        rustix::fs::fstatfs(&dir).unwrap();
        rustix::io::pwrite(&file, &[b' '; 384], 0).unwrap();

        rustix::fs::statat(&dir, "bare.lock", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        rustix::fs::unlinkat(&dir, "bare.lock", AtFlags::empty()).unwrap();
        for guard in guards {
            rustix::net::shutdown(&guard, Shutdown::Both).unwrap();
        }
        rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    }

    fn guard(name: &str) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let guard = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let guard = guard.unwrap();
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::bind(&guard, &name).unwrap();
        rustix::net::listen(&guard, 16).unwrap();
        guard
    }

    fn fd_lock(dir: &Path) {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("fd"))
            .unwrap();
        drop(fd_lock::RwLock::new(file).try_write().unwrap());
    }

    fn hand_over<R: FnOnce()>(name: &str, acquire: impl Fn() -> R + Sync) {
        let released = std::sync::Mutex::new(Instant::now());
        let taken = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    loop {
                        let release = acquire();
                        let waited = released.lock().unwrap().elapsed();
                        let done = {
                            let mut taken = taken.lock().unwrap();
                            taken.push(waited);
                            taken.len() > 1000
                        };
                        std::thread::sleep(Duration::from_millis(1));
                        *released.lock().unwrap() = Instant::now();
                        release();
                        if done {
                            return;
                        }
                    }
                });
            }
        });
        let mut taken = taken.into_inner().unwrap();
        taken.sort();
        let at = |percent: usize| taken[(taken.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        println!(
            "{name:<10} median_us={:.0} p90_us={:.0} p99_us={:.0}",
            at(50),
            at(90),
            at(99)
        );
    }
}
