//! Mounts below a folder, as the kernel lists them, and taking rights away from them.

use std::{
    ffi::CStr,
    io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use rustix::mount::{MountFlags, mount_remount};

/// A mount of the process, as `/proc/self/mountinfo` has it.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    at: PathBuf,
    flags: MountFlags,
}

/// Makes everything that is mounted at or below a folder read-only, and powerless.
///
/// # Errors
/// Where the mount at the folder itself refuses. Mounts inside of others' may: their own rights hold.
pub(crate) fn protect(folder: &Path, flags: MountFlags) -> io::Result<()> {
    let text = fs_err::read_to_string("/proc/self/mountinfo")?;
    for mount in text.lines().filter_map(parsed).filter(|mount| mount.at.starts_with(folder)) {
        // Flags that it has may be locked: they are said again.
        let changed = mount_remount(&mount.at, mount.flags | flags | MountFlags::BIND, c"");
        if let Err(error) = changed
            && mount.at == folder
        {
            return Err(io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", folder.display())));
        }
    }
    Ok(())
}

/// A line of `mountinfo`: number, parent, device, root, **place**, **options**, ….
fn parsed(line: &str) -> Option<Mount> {
    const NAMES: [(&str, MountFlags); 6] = [
        ("ro", MountFlags::RDONLY),
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC),
        ("noatime", MountFlags::NOATIME),
        ("nodiratime", MountFlags::NODIRATIME),
    ];
    let mut fields = line.split(' ').skip(4);
    let (at, options) = (fields.next()?, fields.next()?);
    let mut flags = MountFlags::empty();
    for option in options.split(',') {
        flags |= NAMES.iter().find(|(name, _)| *name == option).map_or(MountFlags::empty(), |(_, flag)| *flag);
    }
    if options.split(',').any(|option| option == "relatime") {
        flags |= MountFlags::RELATIME;
    }
    Some(Mount { at: unescaped(at), flags })
}

/// Blanks and the like are octal numbers.
fn unescaped(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let number = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let number = number.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(number.unwrap_or(*first));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// A page: a file with content takes at least this.
const PAGE: u64 = 4_096;

/// Files and folders of the smallest file system in memory: those of a tree itself are some hundred.
const FEWEST_FILES: u64 = 1_024;

/// Options of a file system in memory. It holds as many files as it has pages: empty ones take memory, too, and count for nothing.
pub(crate) fn in_memory(mode: &str, bytes: Option<u64>) -> std::ffi::CString {
    // The kernel takes 0 for no bound.
    let bounds = |bytes: u64| format!(",size={},nr_inodes={}", bytes.max(PAGE), (bytes / PAGE).max(FEWEST_FILES));
    let size = bytes.map(bounds).unwrap_or_default();
    std::ffi::CString::new(format!("mode={mode}{size}")).unwrap_or_else(|_| CStr::to_owned(c""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line = r"36 35 98:0 /mnt1 /mnt/a\040b ro,nosuid,relatime master:1 - ext3 /dev/root rw";
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::RELATIME;
        assert_eq!(parsed(line), Some(Mount { at: "/mnt/a b".into(), flags }));
        assert_eq!(parsed("36 35"), None);
        assert_eq!(unescaped(r"a\9"), Path::new(r"a\9"));
    }
}
