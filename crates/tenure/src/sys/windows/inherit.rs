//! A command cannot inherit a lock on Windows, where locks belong to a process. Instead the command
//! runs in a job that ends with this process, so that no command outlives the lock.

use std::io;
use std::os::windows::io::AsRawHandle;
use std::os::windows::process::CommandExt;
use std::process::{Child, Command};
use std::ptr;

use windows_sys::Win32::Foundation::INVALID_HANDLE_VALUE;
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation,
    SetInformationJobObject,
};
use windows_sys::Win32::System::Threading::{
    CREATE_SUSPENDED, OpenThread, ResumeThread, THREAD_SUSPEND_RESUME,
};

use super::deletion_guard::DeletionGuard;
use super::file::LockFile;
use super::handle::Handle;

/// Job of the command. Closing it kills the command.
#[derive(Debug)]
pub(crate) struct CommandJob(Handle);

impl CommandJob {
    /// Removes the limit that kills the job's processes when the job is closed, so that background
    /// processes of the command keep running.
    pub(crate) fn release(self) {
        let _ = limit(&self.0, 0);
    }
}

pub(crate) fn spawn(
    command: &mut Command,
    _file: &LockFile,
    _guard: &DeletionGuard,
) -> io::Result<(Child, CommandJob)> {
    spawn_in_job(command)
}

/// Starts a command in a job. Dropping the job kills the command, so that it does not outlive the
/// lease of this process.
pub(crate) fn spawn_on_lease(command: &mut Command) -> io::Result<(Child, CommandJob)> {
    spawn_in_job(command)
}

fn spawn_in_job(command: &mut Command) -> io::Result<(Child, CommandJob)> {
    // SAFETY: no name, no security attributes; the handle is checked.
    let job = Handle::new(unsafe { CreateJobObjectW(ptr::null(), ptr::null()) })?;
    limit(&job, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE)?;
    // The command is started suspended: it must be in the job before it can start processes outside
    // of it.
    let mut child = command.creation_flags(CREATE_SUSPENDED).spawn()?;
    // SAFETY: both handles are open.
    let assigned = unsafe { AssignProcessToJobObject(job.raw(), child.as_raw_handle()) };
    let started = if assigned == 0 {
        Err(io::Error::last_os_error())
    } else {
        resume(child.id())
    };
    if let Err(error) = started {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok((child, CommandJob(job)))
}

fn limit(job: &Handle, flags: u32) -> io::Result<()> {
    let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    limits.BasicLimitInformation.LimitFlags = flags;
    let size = u32::try_from(size_of_val(&limits)).unwrap_or(0);
    // SAFETY: the structure has the announced kind and size.
    let done = unsafe {
        SetInformationJobObject(
            job.raw(),
            JobObjectExtendedLimitInformation,
            (&raw const limits).cast(),
            size,
        )
    };
    if done == 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Resumes the only thread of a process that was started suspended.
fn resume(pid: u32) -> io::Result<()> {
    // SAFETY: plain numbers; the handle is checked.
    let raw = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0) };
    if raw == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    let snapshot = Handle::new(raw)?;
    let mut entry = THREADENTRY32 {
        dwSize: u32::try_from(size_of::<THREADENTRY32>()).unwrap_or(0),
        ..THREADENTRY32::default()
    };
    // SAFETY: the snapshot is open and the structure contains its size.
    let mut more = unsafe { Thread32First(snapshot.raw(), &raw mut entry) };
    while more != 0 {
        if entry.th32OwnerProcessID == pid {
            // SAFETY: plain numbers; the handle is checked.
            let thread =
                Handle::new(unsafe { OpenThread(THREAD_SUSPEND_RESUME, 0, entry.th32ThreadID) })?;
            // SAFETY: the handle is open and allows this.
            if unsafe { ResumeThread(thread.raw()) } == u32::MAX {
                return Err(io::Error::last_os_error());
            }
            return Ok(());
        }
        // SAFETY: the snapshot is open and the structure contains its size.
        more = unsafe { Thread32Next(snapshot.raw(), &raw mut entry) };
    }
    Err(io::Error::other("the command has no thread to start"))
}
