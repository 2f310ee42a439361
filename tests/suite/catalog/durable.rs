//! What a command acknowledges on local files has been synced, and so has the directory that names it: counted by tracing the
//! command's own calls of fsync.
//!
//! A file's bytes and its name are durable only after `fsync` of the file and then of its directory. The page cache hides a
//! missing one from everything that reads, so the system calls themselves are what this looks at.
#![allow(unsafe_code, reason = "ptrace has no safe interface in the crates that this project builds with")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use libc::{c_int, c_long, c_uint, c_void, pid_t};
use metashift::environment::Environment;

/// One request about a tracee.
fn ptrace(request: c_uint, pid: pid_t, data: c_long) -> c_long {
    // SAFETY: the requests made here (SEIZE, INTERRUPT, SYSCALL) read no memory of this process; a tracee that is gone is an error.
    unsafe { libc::ptrace(request, pid, std::ptr::null_mut::<c_void>(), data as *mut c_void) }
}

/// What the next child or tracee of this thread did; `None` when none is left.
fn wait() -> Option<(pid_t, c_int)> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for an int. __WNOTHREAD leaves the children of other tests alone.
    let pid =
        unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD | libc::WUNTRACED) };
    (pid > 0).then_some((pid, status))
}

/// The file that a thread, stopped at a system call, is syncing.
fn synced(thread: pid_t) -> Option<PathBuf> {
    let call = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let mut words = call.split_whitespace();
    let number: c_long = words.next()?.parse().ok()?;
    let descriptor = u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
    let syncs = [libc::SYS_fsync, libc::SYS_fdatasync].contains(&number);
    syncs.then(|| std::fs::read_link(format!("/proc/{thread}/fd/{descriptor}")).ok()).flatten()
}

/// Runs the command to its end and says, in order, which files and directories it synced.
fn traced(arguments: &[&str]) -> Vec<PathBuf> {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    // Tracing is a thread's affair.
    std::thread::spawn(move || {
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
        // The shell waits for its tracer before it becomes the command.
        let mut child = Command::new("sh");
        child
            .args(["-c", "kill -STOP $$; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_metashift")])
            .args(&arguments);
        #[allow(clippy::zombie_processes, reason = "it is waited for below, with its threads")]
        let child = child.stdout(std::process::Stdio::null()).spawn().unwrap();
        let main = pid_t::try_from(child.id()).unwrap();
        let (stopped, status) = wait().unwrap();
        assert!(stopped == main && libc::WIFSTOPPED(status), "{status:x}");
        assert_eq!(
            ptrace(libc::PTRACE_SEIZE, main, c_long::from(options)),
            0,
            "{}",
            std::io::Error::last_os_error()
        );
        assert_eq!(ptrace(libc::PTRACE_INTERRUPT, main, 0), 0);
        let mut all = Vec::new();
        let mut continued = false;
        while let Some((thread, status)) = wait() {
            if libc::WIFEXITED(status) && thread == main {
                assert_eq!(libc::WEXITSTATUS(status), 0, "{arguments:?}");
            }
            if !libc::WIFSTOPPED(status) {
                continue;
            }
            let signal = libc::WSTOPSIG(status);
            let at_call = signal == libc::SIGTRAP | 0x80;
            if at_call {
                // Once as it enters and once as it leaves; twice is as good as once here.
                all.extend(synced(thread));
            }
            let traps = at_call || status >> 16 != 0 || signal == libc::SIGTRAP || signal == libc::SIGSTOP;
            ptrace(libc::PTRACE_SYSCALL, thread, if traps { 0 } else { c_long::from(signal) });
            if !continued {
                continued = true;
                // SAFETY: a signal to the child that this thread started.
                unsafe { libc::kill(main, libc::SIGCONT) };
            }
        }
        all
    })
    .join()
    .unwrap()
}

/// Every file below a directory, and every directory.
fn below(root: &Path) -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
    let (mut files, mut directories) = (BTreeSet::new(), BTreeSet::new());
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.insert(entry.path());
                left.push(entry.path());
            } else {
                files.insert(entry.path());
            }
        }
    }
    (files, directories)
}

/// Holds a command to it: everything that it left below `root` and that was not there before is synced, then its directory.
fn all_synced(root: &Path, before: &BTreeSet<PathBuf>, events: &[PathBuf]) -> BTreeMap<String, usize> {
    let (files, directories) = below(root);
    let mut counted: BTreeMap<String, usize> = BTreeMap::new();
    for file in files.difference(before) {
        // A file is written under a name with a number behind it, and renamed or linked once it is synced.
        let staged = format!("{}#", file.display());
        let content = events.iter().position(|event| {
            event
                .to_str()
                .and_then(|name| name.strip_prefix(&staged))
                .is_some_and(|number| number.parse::<u64>().is_ok())
        });
        let content = content.unwrap_or_else(|| panic!("{} was never synced", file.display()));
        let named = events.iter().skip(content).any(|event| Some(event.as_path()) == file.parent());
        assert!(named, "the directory of {} was not synced after it", file.display());
        let kind = file.parent().and_then(Path::file_name).unwrap_or_default();
        *counted.entry(kind.to_string_lossy().into_owned()).or_default() += 1;
    }
    for directory in directories.iter().filter(|directory| !before.contains(*directory)) {
        let named = events.iter().any(|event| Some(event.as_path()) == directory.parent());
        assert!(named, "the parent of {} was not synced", directory.display());
    }
    counted
}

#[test]
fn every_object_that_a_command_leaves_on_local_files_is_synced_with_its_directory() {
    let root = std::env::temp_dir().join(format!("metashift-durable-{}", Environment::system().id()));
    std::fs::create_dir_all(&root).unwrap();
    let root = std::fs::canonicalize(root).unwrap();
    let mut counted: BTreeMap<String, usize> = BTreeMap::new();
    // The directories of the store are made by the first command of each.
    let url = |name: &str| format!("file://{}", root.join("new").join(name).display());
    let (native, log) = (url("native"), url("log"));
    for arguments in [
        vec!["catalog", "create", &native, "--sample", "8"],
        vec!["catalog", "run", &native, "--local", "--to-format", "9", "--checkpoint"],
        vec!["catalog", "run", &native, "--local", "--to-format", "11"],
        vec!["catalog", "adopt-log", &native],
        vec!["catalog", "run", &native, "--local"],
        vec!["catalog", "create", &log, "--commit-log"],
        vec!["catalog", "truncate-log", &log, "--keep", "0"],
    ] {
        let (files, directories) = below(&root);
        let before: BTreeSet<_> = files.union(&directories).cloned().collect();
        let events = traced(&arguments);
        for (kind, number) in all_synced(&root, &before, &events) {
            *counted.entry(kind).or_default() += number;
        }
    }
    // Slots, log objects, manifests and tables were all among them.
    for (kind, least) in [("commits", 4), ("wal", 10), ("manifest", 10), ("compacted", 8)] {
        assert!(counted.get(kind).is_some_and(|number| *number >= least), "{kind}: {counted:?}");
    }
    std::fs::remove_dir_all(&root).unwrap();
}
