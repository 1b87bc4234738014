//! Readiness of sockets, by number.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Which sockets are ready, asked for level-triggered.
pub struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poll {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(256),
        })
    }

    /// Watches a socket for what can be read.
    pub fn add(&self, socket: impl AsFd, number: usize) -> io::Result<()> {
        let data = EventData::new_u64(number as u64);
        Ok(epoll::add(&self.epoll, socket, data, EventFlags::IN)?)
    }

    /// Whether it is also watched for room to write.
    pub fn also_writable(&self, socket: impl AsFd, number: usize, also: bool) -> io::Result<()> {
        let data = EventData::new_u64(number as u64);
        let flags = if also {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        Ok(epoll::modify(&self.epoll, socket, data, flags)?)
    }

    /// Waits no longer than this, and puts the numbers of what is ready into `ready`.
    pub fn wait(&mut self, most: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        self.events.clear();
        let most = most.map(|most| Timespec {
            tv_sec: most.as_secs().cast_signed(),
            tv_nsec: most.subsec_nanos().into(),
        });
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), most.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        #[expect(clippy::cast_possible_truncation, reason = "it was a usize")]
        ready.extend(self.events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}

/// Lets this process hold as many connections as it may, wakes it on time, and ends it with its
/// parent.
pub fn prepare() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    Ok(())
}
