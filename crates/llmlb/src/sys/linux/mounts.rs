//! Finds mount options that keep file locks on this machine, so that other machines of a fleet
//! would not see them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Options of network file systems with which locks are not sent to the server, so that other
/// machines do not see them: `flock`, which tenure uses, and all locks.
const LOCAL_LOCKS: [(&str, &[&str]); 2] = [
    ("nfs", &["nolock", "local_lock=flock", "local_lock=all"]),
    ("cifs", &["nobrl"]),
];

/// Returns the mount option with which the locks in a directory are not visible on other machines,
/// and the type of the file system. `None` if there is no such option, or if it is not known.
pub(crate) fn local_lock_option(dir: &Path) -> Option<(String, String)> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    find(&mounts, dir.metadata().ok()?.dev())
}

/// Finds the option in the text of `mountinfo` for the file system with this device number. Every
/// mount of one file system has the same number.
fn find(mounts: &str, device: u64) -> Option<(String, String)> {
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = format!("{}:{}", device.0, device.1);
    mounts.lines().find_map(|line| {
        // The text has lines like: "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root
        // rw,errors=continue"
        let (mount, system) = line.split_once(" - ")?;
        if mount.split(' ').nth(2)? != device {
            return None;
        }
        let (system, options) = system.split_once(' ')?;
        let options = options.split(' ').nth(1)?;
        let is_local = |option: &&str| {
            let systems = LOCAL_LOCKS.iter();
            let mut systems = systems.filter(|(prefix, _)| system.starts_with(prefix));
            systems.any(|(_, local)| local.contains(option))
        };
        let option = options.split(',').find(is_local)?;
        Some((option.to_owned(), system.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(system: &str, options: &str) -> Option<String> {
        let mounts = format!(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw,nolock\n\
             90 22 0:51 / /data\\040x rw,relatime shared:1 - {system} server:/data {options}\n"
        );
        find(&mounts, rustix::fs::makedev(0, 51)).map(|(option, _)| option)
    }

    #[test]
    fn options_that_keep_locks_on_this_machine_are_found() {
        for (system, options, found) in [
            ("nfs", "rw,vers=3,nolock,addr=1.2.3.4", Some("nolock")),
            ("nfs", "rw,vers=3,local_lock=none", None),
            ("nfs4", "rw,vers=4.2,local_lock=none", None),
            ("nfs4", "rw,local_lock=flock", Some("local_lock=flock")),
            ("nfs", "rw,local_lock=all", Some("local_lock=all")),
            // This option keeps fcntl locks on this machine. It must not be found, because tenure
            // uses flock.
            ("nfs", "rw,local_lock=posix", None),
            ("cifs", "rw,vers=3.1.1,nobrl", Some("nobrl")),
            ("cifs", "rw,vers=3.1.1,nolock", None),
            ("fuse.sshfs", "rw,user_id=0", None),
        ] {
            assert_eq!(option(system, options).as_deref(), found, "{options}");
        }
        assert_eq!(
            find("garbage\n1 2 0:51 - \n", rustix::fs::makedev(0, 51)),
            None
        );
    }
}
