//! The file tree of a sandbox: the system and the named folders, read-only; its own folder; nothing else of the machine.
//!
//! ```text
//! /usr /bin /lib … (read-only)   /etc: some files   /proc: its own   /dev: null, random …   /tmp, /dev/shm: in memory
//! DATA/prepared/environments/ENV (read-only)   DATA/runs/N/scratch (its own: that of the disk, or one in memory)
//! ```
//! The tree is a file system in memory, and all that is written in memory is in that one: it has one bound.
//! All keep their paths. A folder that is hidden is empty even where a readable one contains it.

use std::{
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{PermissionsExt as _, chown, symlink},
    },
    path::{Path, PathBuf},
};

use fs_err as fs;
use rustix::{
    fs::{Mode, OFlags, open},
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change, unmount,
    },
};

use crate::{
    files::gpu_devices,
    mounts::{in_memory, protect},
    passing,
    spec::{Mechanisms, Network, Sandbox, Storage},
};

/// Folders and files of the system that programs need: no configuration of services, no home, nothing that runs.
pub(crate) const SYSTEM: [&str; 28] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/fonts",
    "/etc/host.conf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/OpenCL",
    "/etc/pki",
    "/etc/protocols",
    "/etc/python3",
    "/etc/services",
    "/etc/ssl",
    "/etc/timezone",
    "/etc/vulkan",
];

/// Sources of names and addresses, where the machine's network is reached.
pub(crate) const NAMES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

/// Users and addresses, which the tree has files of its own for.
pub(crate) const ACCOUNTS: [&str; 3] = ["/etc/passwd", "/etc/group", "/etc/hosts"];

/// Devices that hold no data of anybody.
pub(crate) const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Beginnings of the names of GPUs' devices.
pub(crate) const GPU_DEVICES: [&str; 4] = ["nvidia", "dri", "kfd", "dxg"];

/// Files that drivers of GPUs read.
pub(crate) const GPU_READABLE: [&str; 3] = ["/sys", "/run/nvidia-persistenced", "/etc/nvidia"];

/// Folders in memory that everybody may write.
pub(crate) const MEMORY_FILES: [&str; 2] = ["/tmp", "/dev/shm"];

/// Links of /dev that shells and libraries take for granted.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
];

const READ_ONLY: MountFlags = MountFlags::RDONLY.union(MountFlags::NOSUID).union(MountFlags::NODEV);
const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// The process's own folder in memory, which is shown at its path.
const OWN: &str = "/.own";

/// A tree under construction.
struct Tree<'a> {
    /// The folder it is mounted on, until it is the root.
    at: &'a Path,
    /// Folders that are shown whole, and those that hide what is below: the deepest that contains a path counts.
    shown: Vec<(PathBuf, bool)>,
}

/// Makes the tree, and makes it the root of this process.
pub(crate) fn enter(sandbox: &Sandbox, mechanisms: Mechanisms) -> io::Result<()> {
    // Nothing that is mounted here is seen outside, nor the other way.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // The tree is mounted over the process's own folder, which is kept open to be shown in it.
    let own = fs::File::open(&sandbox.folder)?;
    let options = in_memory("755", sandbox.limits.memory_files);
    mount("tmpfs", &sandbox.folder, "tmpfs", PLAIN, options.as_c_str())?;
    let mut tree = Tree { at: &sandbox.folder, shown: Vec::new() };
    tree.devices(sandbox)?;
    for path in MEMORY_FILES {
        tree.memory(path, 0o1777)?;
    }
    let mut paths: Vec<(PathBuf, bool)> = SYSTEM.iter().map(|path| (PathBuf::from(path), true)).collect();
    if sandbox.network == Network::Machine {
        paths.extend(NAMES.map(|path| (path.into(), true)));
    }
    if sandbox.gpus {
        paths.extend(GPU_READABLE.map(|path| (path.into(), true)));
    }
    paths.push(("/sys/devices/system".into(), true));
    paths.extend(sandbox.readable.iter().map(|path| (path.clone(), true)));
    paths.extend(sandbox.hidden.iter().map(|path| (path.clone(), false)));
    // What contains others comes first; of equals, what hides.
    paths.sort_by_key(|(path, shown)| (path.components().count(), *shown));
    for (path, shown) in &paths {
        if *shown { tree.show(path)? } else { tree.hide(path)? }
    }
    let sent = tree.own(&own, sandbox)?;
    tree.accounts(sandbox)?;
    tree.processes(mechanisms)?;
    protect_root(tree.at)?;
    std::env::set_current_dir(tree.at)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")?;
    // Last: whoever has it may remove the folder that the tree was mounted on.
    sent.map_or(Ok(()), |folder| passing::send_folder(&folder))
}

/// The root itself, not what is mounted in it.
fn protect_root(at: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(at, READ_ONLY | MountFlags::BIND, c"")?)
}

impl Tree<'_> {
    fn inside(&self, path: &Path) -> PathBuf {
        self.at.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// True if it can be seen as part of a folder above it.
    fn is_shown(&self, path: &Path) -> bool {
        let above = self.shown.iter().filter(|(above, _)| path.starts_with(above));
        above.max_by_key(|(above, _)| above.components().count()).is_some_and(|(_, shown)| *shown)
    }

    /// Shows a file or folder where it is, read-only. One that is not there is left out.
    fn show(&mut self, path: &Path) -> io::Result<()> {
        if self.is_shown(path) {
            return Ok(());
        }
        let Ok(about) = fs::symlink_metadata(path) else { return Ok(()) };
        // `/bin` is a link to `usr/bin` nearly everywhere.
        if about.is_symlink() && path.components().count() == 2 {
            let target = fs::read_link(path)?;
            return symlink(target, self.inside(path));
        }
        let Ok(source) = fs::canonicalize(path) else { return Ok(()) };
        self.bind(&source, path, READ_ONLY)?;
        self.shown.push((path.to_owned(), true));
        Ok(())
    }

    /// Hides what is in a folder under an empty file system in memory; a folder that is not there stays so.
    fn hide(&mut self, path: &Path) -> io::Result<()> {
        let Ok(path) = fs::canonicalize(path) else { return Ok(()) };
        if self.is_shown(&path) {
            mount("tmpfs", self.inside(&path), "tmpfs", PLAIN, in_memory("755", Some(1 << 20)).as_c_str())?;
        }
        self.shown.push((path, false));
        Ok(())
    }

    fn bind(&self, source: &Path, path: &Path, flags: MountFlags) -> io::Result<()> {
        let told = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let target = self.inside(path);
        if fs::metadata(source)?.is_dir() {
            fs::create_dir_all(&target)?;
        } else {
            target.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::OpenOptions::new().create(true).append(true).open(&target)?;
        }
        mount_bind_recursive(source, &target).map_err(|error| told(error.into()))?;
        protect(&target, flags).map_err(told)
    }

    /// A folder in memory that can be written: a mount of its own, since that of the tree becomes read-only.
    fn memory(&self, path: &str, mode: u32) -> io::Result<PathBuf> {
        let folder = self.inside(Path::new(path));
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode))?;
        mount_bind(&folder, &folder)?;
        Ok(folder)
    }

    fn devices(&self, sandbox: &Sandbox) -> io::Result<()> {
        fs::create_dir(self.inside(Path::new("/dev")))?;
        let gpus = if sandbox.gpus { gpu_devices().collect() } else { Vec::new() };
        for device in DEVICES.iter().map(PathBuf::from).chain(gpus) {
            if device.exists() {
                self.bind(&device, &device, MountFlags::NOSUID)?;
            }
        }
        for (target, name) in LINKS {
            symlink(target, self.inside(Path::new("/dev")).join(name))?;
        }
        Ok(())
    }

    /// The process's own folder, which the tree covers until it is the root; or one in memory, with copies of its files. Returned where it
    /// is to be sent.
    fn own(&self, own: &fs::File, sandbox: &Sandbox) -> io::Result<Option<OwnedFd>> {
        let (source, target) = (format!("/proc/self/fd/{}", own.as_raw_fd()), self.inside(&sandbox.folder));
        fs::create_dir_all(&target)?;
        if sandbox.storage == Storage::Disk {
            // Not what is mounted on it, which is this tree.
            mount_bind(source, &target)?;
            return protect(&target, PLAIN).map(|()| None);
        }
        // What is at its path may be the folder of something that is shown or hidden.
        mount_bind(self.memory(OWN, 0o700)?, &target)?;
        let give = |path: &Path| sandbox.user.map_or(Ok(()), |user| chown(path, Some(user), Some(user)));
        for file in fs::read_dir(source)? {
            let file = file?;
            let copy = target.join(file.file_name());
            fs::copy(file.path(), &copy)?;
            give(&copy)?;
        }
        give(&target)?;
        if sandbox.storage == Storage::Memory {
            return Ok(None);
        }
        Ok(Some(open(&target, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// The users that there are: libraries look up their own.
    fn accounts(&self, sandbox: &Sandbox) -> io::Result<()> {
        let home = sandbox.folder.display();
        let id = sandbox.user.unwrap_or_else(|| match rustix::process::getuid().as_raw() {
            0 => 65_534,
            id => id,
        });
        let accounts = format!("root:x:0:0::/:/bin/false\nmodel:x:{id}:{id}::{home}:/bin/sh\n");
        fs::write(self.inside(Path::new("/etc/passwd")), accounts)?;
        fs::write(self.inside(Path::new("/etc/group")), format!("root:x:0:\nmodel:x:{id}:\n"))?;
        if sandbox.network == Network::None {
            fs::write(self.inside(Path::new("/etc/hosts")), "127.0.0.1 localhost\n::1 localhost\n")?;
        }
        Ok(())
    }

    /// The processes of the namespace; those of the machine where it has none.
    fn processes(&self, mechanisms: Mechanisms) -> io::Result<()> {
        let target = self.inside(Path::new("/proc"));
        fs::create_dir(&target)?;
        if mechanisms.processes {
            // Read-only: files of the kernel's settings are root's, also where root has no privileges.
            return Ok(mount("proc", &target, "proc", READ_ONLY | MountFlags::NOEXEC, c"")?);
        }
        self.bind(Path::new("/proc"), Path::new("/proc"), READ_ONLY)
    }
}
