//! T1, T5, T9 across users: a key whose lock the kernel does not show does not count as free.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use tenure_tests::Owner;
use tenure_tests::run_as::{RunAs, SharedDir, UNNAMED_USER, USER, set_mode};

use crate::OWNER;

/// Users that share a directory, with a copy of the owner program that all of them can execute.
struct Users {
    shared_dir: SharedDir,
    program: PathBuf,
}

impl Users {
    fn new() -> Option<Self> {
        let shared_dir = SharedDir::new()?;
        let program = shared_dir.copy_of(OWNER);
        Some(Self {
            shared_dir,
            program,
        })
    }

    fn start(&self, run_as: RunAs, file: &Path) -> Owner {
        Owner::start(
            run_as.command(&self.program),
            &self.shared_dir.path("unused"),
            file.to_str().unwrap(),
        )
    }

    fn start_shared(&self, run_as: RunAs, temp: &Path) -> Owner {
        let mut command = run_as.command(&self.program);
        command.env("TMPDIR", temp).arg("--shared");
        Owner::start(command, &self.shared_dir.path("unused"), "k")
    }
}

fn assert_held(owner: &mut Owner) {
    let answer = owner.answer();
    assert!(answer.starts_with("held "), "{answer}");
}

/// Asserts a refusal because the kernel shows an owner.
fn assert_refused(mut owner: Owner) -> String {
    let answer = owner.answer();
    assert!(answer.starts_with("refused "), "{answer}");
    answer
}

/// Asserts a refusal because the kernel does not show whether there is an owner. The refusal names
/// the file and its user.
fn assert_unknown(mut owner: Owner, file: &Path, user: &str) {
    let answer = owner.answer();
    assert!(answer.starts_with("failed "), "{answer}");
    assert!(answer.contains(file.to_str().unwrap()), "{answer}");
    assert!(answer.contains(user), "{answer}");
    assert!(answer.contains("cannot determine whether"), "{answer}");
}

/// Environments in which `/proc/locks` is missing or incomplete, so that an unlisted lock may be
/// held.
fn blind_views() -> [RunAs; 3] {
    [
        RunAs::user(USER).in_pid_namespace(),
        RunAs::user(USER).with_proc("subset=pid"),
        RunAs::user(USER).in_pid_namespace().with_proc("subset=pid"),
    ]
}

/// Root holds the key in its lock directory. Another user creates lock files in a directory of its
/// own and could lock its file there, so it must be refused while it cannot see root's locks.
#[test]
fn user_that_cannot_see_the_locks_of_another_user_is_refused() {
    for run_as in blind_views() {
        let Some(users) = Users::new() else { return };
        let temp = users.shared_dir.dir("tmp", 0, 0o1777);
        let mut owner = users.start_shared(RunAs::root(), &temp);
        assert_held(&mut owner);
        let file = temp.join("shared/name_k.lock");
        let separate = run_as.in_network_namespace();
        assert_unknown(users.start_shared(separate, &temp), &file, "root");
        // In the owner's network namespace, the sockets of the deletion guard show the owner that
        // `/proc/locks` does not list here. The refusal can therefore name the owner's user.
        let answer = assert_refused(users.start_shared(run_as, &temp));
        assert!(
            answer.contains("another user's process (user root)"),
            "{answer}"
        );
        // The user is refused after the owner's death as well: where `/proc/locks` is incomplete,
        // a lock that is free looks like a lock that is not listed.
        owner.kill();
        assert_unknown(users.start_shared(run_as, &temp), &file, "root");
        assert_held(&mut users.start_shared(RunAs::user(USER), &temp));
    }
}

#[test]
fn refusal_names_the_other_user_where_its_locks_are_visible() {
    let Some(users) = Users::new() else { return };
    let temp = users.shared_dir.dir("tmp", 0, 0o1777);
    let mut owner = users.start_shared(RunAs::root(), &temp);
    assert_held(&mut owner);
    for run_as in [RunAs::user(USER), RunAs::user(USER).with_proc("hidepid=2")] {
        let answer = assert_refused(users.start_shared(run_as, &temp));
        assert!(
            answer.contains("another user's process (user root)"),
            "{answer}"
        );
    }
}

/// The lock table of a container does not list a lock whose acquirer has exited, so an unlisted
/// lock must not count as free there.
#[test]
fn user_in_a_container_is_refused_after_the_wrapper_was_killed() {
    let Some(users) = Users::new() else { return };
    let temp = users.shared_dir.dir("tmp", 0, 0o1777);
    let script = format!(
        r"
        export TMPDIR={temp}
        mkfifo {temp}/orders
        {program} --shared unused k < {temp}/orders > {temp}/answers & owner=$!
        exec 3> {temp}/orders
        until grep -q held {temp}/answers; do sleep 0.02; done
        echo fork >&3
        until [ $(wc -l < {temp}/answers) = 2 ]; do sleep 0.02; done
        kill -9 $owner; wait $owner
        {program} --shared unused k < /dev/null
        {user} {program} --shared unused k < /dev/null
        unshare --net {user} {program} --shared unused k < /dev/null",
        temp = temp.display(),
        program = users.program.display(),
        user = "setpriv --reuid=65534 --regid=65534 --clear-groups",
    );
    let mut container = RunAs::root().in_pid_namespace().command("sh");
    let outcome = container.args(["-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&outcome.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{outcome:?}");
    assert!(lines[0].starts_with("refused "), "the same user: {text}");
    assert!(
        lines[1].starts_with("refused "),
        "another user, by the guard: {text}"
    );
    assert!(lines[2].starts_with("failed "), "another user: {text}");
    assert!(lines[2].contains("cannot determine whether"), "{text}");
    assert!(lines[2].contains("root"), "{text}");
}

/// Files in an inaccessible directory of another user are invisible, so the key does not count as
/// free.
#[test]
fn user_is_refused_while_it_may_not_search_the_first_directory() {
    let Some(users) = Users::new() else { return };
    let temp = users.shared_dir.dir("tmp", 0, 0o1777);
    let closed = users.shared_dir.dir("tmp/shared", 0, 0o700);
    let mut owner = users.start_shared(RunAs::root(), &temp);
    assert_held(&mut owner);
    let answer = assert_refused(users.start_shared(RunAs::user(USER), &temp));
    assert!(
        answer.contains("user root"),
        "found through the deletion guard: {answer}"
    );
    let separate = RunAs::user(USER).in_network_namespace();
    assert_unknown(users.start_shared(separate, &temp), &closed, "root");
    owner.kill();
    assert_unknown(
        users.start_shared(RunAs::user(USER), &temp),
        &closed,
        "root",
    );
    set_mode(&closed, 0o755);
    assert_held(&mut users.start_shared(RunAs::user(USER), &temp));
}

/// Other users must be able to see which locks are held, whatever the umask of the user who created
/// the directory.
#[test]
fn shared_directory_can_be_searched_by_all_users() {
    use std::os::unix::fs::PermissionsExt;
    let Some(users) = Users::new() else { return };
    let temp = users.shared_dir.dir("tmp", 0, 0o1777);
    let mut command = RunAs::user(USER).command("sh");
    command.args(["-c", "umask 077; exec \"$0\" --shared \"$@\""]);
    command.arg(&users.program).env("TMPDIR", &temp);
    assert_held(&mut Owner::start(command, Path::new("unused"), "k"));
    let mode = fs::metadata(temp.join("shared"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
}

/// The socket names of the deletion guard are the same for all users. Otherwise root and a user, or
/// one user inside and outside of a user namespace, could both own a key whose file was deleted.
#[test]
fn deletion_guard_refuses_other_users_after_the_file_is_deleted() {
    let (root, user) = (RunAs::root(), RunAs::user(USER));
    let mapped = user.in_user_namespace();
    for (holds, tries) in [
        (user, root),
        (root, user),
        (user, mapped),
        (mapped, user),
        (root, mapped),
        (mapped, root),
    ] {
        let Some(users) = Users::new() else { return };
        let file = users.shared_dir.dir("theirs", USER, 0o755).join("f.lock");
        let mut owner = users.start(holds, &file);
        assert_held(&mut owner);
        fs::remove_file(&file).unwrap();
        let answer = assert_refused(users.start(tries, &file));
        assert!(
            answer.contains("deleted or replaced"),
            "{holds:?}, {tries:?}: {answer}"
        );
        assert_eq!(owner.request("lost"), "true");
        drop(owner);
        assert_held(&mut users.start(tries, &file));
    }
}

#[test]
fn deletion_guard_refuses_other_users_in_a_sticky_directory() {
    let Some(users) = Users::new() else { return };
    let file = users.shared_dir.dir("tmp", 0, 0o1777).join("f.lock");
    let mut owner = users.start(RunAs::user(UNNAMED_USER), &file);
    assert_held(&mut owner);
    fs::remove_file(&file).unwrap();
    let answer = assert_refused(users.start(RunAs::user(USER), &file));
    assert!(
        answer.contains(&format!("user uid {UNNAMED_USER}")),
        "from the kernel: {answer}"
    );
}

/// Both containers use the same path, but in different file systems: two different keys, so neither
/// owner may refuse the other.
#[test]
fn containers_with_a_common_network_do_not_refuse_each_other() {
    let Some(users) = Users::new() else { return };
    let dir = users.shared_dir.dir("data", 0, 0o755);
    let script = format!(
        "mount -t tmpfs tmpfs {0} && exec {1} {0} k",
        dir.display(),
        users.program.display()
    );
    let container = || {
        let mut command = RunAs::root().in_pid_namespace().command("sh");
        command.args(["-c", &script]);
        Owner::start(command, &dir, "k")
    };
    let (mut one, mut two) = (container(), container());
    assert_held(&mut one);
    assert_held(&mut two);
}

/// T9: another user's file that is not held may be replaced if only this user may write its
/// directory. Elsewhere it is refused.
#[test]
fn file_of_another_user_is_replaced_only_in_a_directory_that_this_user_alone_may_write() {
    let user = RunAs::user(USER);
    for owner_of_file in [0, UNNAMED_USER] {
        for mode in [0o600, 0o644] {
            let Some(users) = Users::new() else { return };
            let dir = users.shared_dir.dir("own", USER, 0o755);
            let file = dir.join("f.lock");
            let leave = || {
                fs::write(&file, "{\"pid\":1}").unwrap();
                chown(&file, Some(owner_of_file), Some(owner_of_file)).unwrap();
                set_mode(&file, mode);
            };
            leave();
            for mode in [0o775, 0o1777] {
                set_mode(&dir, mode);
                let answer = users.start(user, &file).answer();
                assert!(answer.starts_with("failed "), "{mode:o}: {answer}");
                assert!(answer.contains("belongs to"), "{mode:o}: {answer}");
            }
            set_mode(&dir, 0o755);
            assert_held(&mut users.start(user, &file));
            assert_eq!(
                fs::read_dir(&dir).unwrap().count(),
                1,
                "nothing else is left"
            );
        }
    }
}

#[test]
fn file_that_another_user_holds_is_never_replaced() {
    let Some(users) = Users::new() else { return };
    let dir = users.shared_dir.dir("own", USER, 0o755);
    let file = dir.join("f.lock");
    let mut root = users.start(RunAs::root(), &file);
    assert_held(&mut root);
    // The file belongs to root, as in earlier builds, which did not give it to the owner of the
    // directory.
    chown(&file, Some(0), Some(0)).unwrap();
    let before = fs::read(&file).unwrap();
    let separate = RunAs::user(USER).in_network_namespace();
    for run_as in [RunAs::user(USER), separate] {
        assert_refused(users.start(run_as, &file));
    }
    for run_as in blind_views() {
        assert_unknown(
            users.start(run_as.in_network_namespace(), &file),
            &file,
            "root",
        );
        // In the owner's network namespace, the sockets of the deletion guard show the owner that
        // `/proc/locks` does not list here. The key is therefore known to be held.
        assert_refused(users.start(run_as, &file));
    }
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(root.request("lost"), "false");
    root.kill();
    for run_as in blind_views() {
        assert_unknown(users.start(run_as, &file), &file, "root");
    }
    assert_held(&mut users.start(RunAs::user(USER), &file));
}

/// Root of a user namespace cannot give files to a user outside of it.
#[test]
fn root_of_a_user_namespace_acquires_a_key_in_the_directory_of_an_unknown_user() {
    let Some(users) = Users::new() else { return };
    let file = users
        .shared_dir
        .dir("tmp", UNNAMED_USER, 0o1777)
        .join("f.lock");
    let mapped = RunAs::user(USER).in_user_namespace();
    assert_held(&mut users.start(mapped, &file));
}

/// A refused attempt on another user's file must not acquire the deletion guard, which the file's
/// user may need at that moment.
#[test]
fn refused_user_leaves_the_deletion_guard_alone() {
    let Some(users) = Users::new() else { return };
    let file = users
        .shared_dir
        .dir("theirs", UNNAMED_USER, 0o755)
        .join("f.lock");
    fs::write(&file, "").unwrap();
    chown(&file, Some(UNNAMED_USER), Some(UNNAMED_USER)).unwrap();
    set_mode(&file, 0o600);
    let trace = users.shared_dir.dir("trace", USER, 0o755).join("binds");
    let mut traced = RunAs::user(USER).command("strace");
    traced.arg("--trace=bind").arg("--output").arg(&trace);
    traced.arg(&users.program);
    let unused = users.shared_dir.path("unused");
    let mut user = Owner::start(traced, &unused, file.to_str().unwrap());
    let answer = user.answer();
    assert!(answer.starts_with("failed "), "{answer}");
    assert!(answer.contains("no process holds it"), "{answer}");
    assert!(user.wait_for_success());
    let binds = fs::read_to_string(&trace).unwrap();
    assert!(
        binds.contains("exited with"),
        "strace saw the whole run: {binds}"
    );
    assert!(!binds.contains("bind("), "{binds}");
}

/// On layered file systems `/proc/locks` has other inode numbers than `stat`, so an unlisted lock
/// is unknown.
#[test]
fn user_is_refused_where_the_lock_table_has_other_inode_numbers() {
    let Some(users) = Users::new() else { return };
    let dir = users.shared_dir.dir("layers", 0, 0o755);
    let script = format!(
        r"
        cd {dir} && mkdir low up merged && mount -t tmpfs tmpfs up && mkdir up/upper up/work low/tmp
        chmod 1777 low/tmp
        mount -t overlay -o lowerdir=low,upperdir=up/upper,workdir=up/work overlay merged || exit 9
        export TMPDIR=$PWD/merged/tmp
        mkfifo orders
        {program} --shared unused k < orders > answers & exec 3> orders
        until grep -q held answers; do sleep 0.02; done
        unshare --net {user} {program} --shared unused k < /dev/null
        exec 3>&-; wait",
        dir = dir.display(),
        program = users.program.display(),
        user = "setpriv --reuid=65534 --regid=65534 --clear-groups",
    );
    // In the initial PID namespace `/proc/locks` lists every lock, so only its other inode numbers
    // can hide the owner's lock.
    let mut shell = RunAs::root().command("sh");
    let outcome = shell.args(["-c", &script]).output().unwrap();
    if outcome.status.code() == Some(9) {
        return tenure_tests::skip("no overlay can be mounted here");
    }
    let text = String::from_utf8_lossy(&outcome.stdout);
    assert!(text.starts_with("failed "), "{outcome:?}");
    assert!(text.contains("cannot determine whether"), "{outcome:?}");
    assert!(text.contains("this file system's locks"), "{outcome:?}");
}
