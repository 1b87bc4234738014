//! Two ways to write records that survive the end of the process, in minimal code: without format and
//! checksum, and otherwise equal.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Length at which a segment is sealed, the same as in spool.
pub const LENGTH: usize = 16 << 20;

/// A file that records are added to.
pub trait Segment: Send + Sized {
    fn create(path: &Path) -> Self;
    /// Appends a line. Returns false if the segment is full.
    fn add(&mut self, line: &[u8]) -> bool;
    /// Returns a handle that a keeper syncs periodically while producers append.
    fn file(&self) -> File;
    /// Truncates the file to its content and syncs it.
    fn seal(self);
}

/// One `write` for each record.
pub struct Appended {
    file: File,
    length: usize,
}

impl Segment for Appended {
    fn create(path: &Path) -> Self {
        let file = File::create_new(path).expect("a file");
        Self { file, length: 0 }
    }

    fn add(&mut self, line: &[u8]) -> bool {
        if self.length + line.len() > LENGTH {
            return false;
        }
        self.file.write_all(line).expect("a write");
        self.length += line.len();
        true
    }

    fn file(&self) -> File {
        self.file.try_clone().expect("a handle")
    }

    fn seal(self) {
        self.file.sync_data().expect("a sync");
    }
}

/// A copy into the shared mapping of a preallocated file.
pub struct Mapped {
    file: File,
    start: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone, and moves with it.
unsafe impl Send for Mapped {}

impl Segment for Mapped {
    fn create(path: &Path) -> Self {
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true);
        let file = file.open(path).expect("a file");
        // Without preallocated blocks, a full disk would raise a signal during a copy.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LENGTH as u64).expect("space");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                LENGTH,
                access,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        Self {
            file,
            start: start.expect("a mapping").cast(),
            length: 0,
        }
    }

    fn add(&mut self, line: &[u8]) -> bool {
        if self.length + line.len() > LENGTH {
            return false;
        }
        // SAFETY: the range lies in the mapping, which has LENGTH bytes, and no reference to it exists.
        unsafe {
            let to = self.start.add(self.length);
            std::ptr::copy_nonoverlapping(line.as_ptr(), to, line.len());
        }
        self.length += line.len();
        true
    }

    fn file(&self) -> File {
        self.file.try_clone().expect("a handle")
    }

    fn seal(self) {
        // SAFETY: the mapping has this length, and no pointer into it is used afterwards.
        unsafe { rustix::mm::munmap(self.start.cast(), LENGTH) }.expect("munmap");
        self.file
            .set_len(self.length as u64)
            .expect("a truncated file");
        self.file.sync_data().expect("a sync");
    }
}

/// A sequence of segments, of which the last is open.
pub struct Log<S> {
    dir: PathBuf,
    count: u32,
    open: Option<S>,
}

impl<S: Segment> Log<S> {
    pub fn new(dir: &Path) -> Self {
        std::fs::create_dir(dir).expect("a directory");
        Self {
            dir: dir.to_owned(),
            count: 0,
            open: None,
        }
    }

    pub fn add(&mut self, line: &[u8]) {
        if self.open.as_mut().is_some_and(|open| open.add(line)) {
            return;
        }
        self.seal();
        self.count += 1;
        let mut open = S::create(&self.dir.join(self.count.to_string()));
        assert!(open.add(line));
        self.open = Some(open);
    }

    pub fn file(&self) -> Option<File> {
        self.open.as_ref().map(S::file)
    }

    pub fn seal(&mut self) {
        if let Some(full) = self.open.take() {
            full.seal();
        }
    }
}
