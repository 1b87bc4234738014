//! Readiness of sockets, identified by numbers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{Resource, getrlimit, setrlimit};

/// A level-triggered epoll instance.
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

    /// Registers a socket for readability.
    pub fn add(&self, socket: impl AsFd, number: usize) -> io::Result<()> {
        let data = EventData::new_u64(number as u64);
        Ok(epoll::add(&self.epoll, socket, data, EventFlags::IN)?)
    }

    /// Registers or removes a socket for writability, in addition to readability.
    pub fn also_writable(&self, socket: impl AsFd, number: usize, also: bool) -> io::Result<()> {
        let data = EventData::new_u64(number as u64);
        let flags = if also {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        Ok(epoll::modify(&self.epoll, socket, data, flags)?)
    }

    /// Waits at most this long, and stores the numbers of the ready sockets in `ready`.
    pub fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        self.events.clear();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        match epoll::wait(
            &self.epoll,
            spare_capacity(&mut self.events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the number was registered as a usize"
        )]
        ready.extend(self.events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}

/// Raises the limit of file descriptors, makes timers exact, and ends this process with its parent.
pub fn prepare() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    Ok(())
}
