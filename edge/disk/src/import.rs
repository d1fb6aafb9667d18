//! Imports images of other formats into a replica's own raw copy.
//!
//! A guest's disk is a raw file, which both sides read and write by block. Images of other formats (qcow2,
//! VMDK, VDI) are converted once by `qemu-img` (package `qemu-utils`), including their backing files. The
//! source is only read.
//!
//! **The name of an image says its format** (`.qcow2`, `.vmdk`, `.vdi`), and its first bytes must agree.
//! The format is never guessed from the content alone. A guest can write anything to its raw disk, also
//! the header of a qcow2 image whose backing file is some file of the host; a guess would give that file
//! to the guest. (QEMU once did: CVE-2008-2004.) A file that a guest has written stays raw.
//!
//! **`qemu-img` is confined** ([`plover_confine`]), since an image may come from a stranger: it reads the folder of the
//! image, where backing files and extents must be, and writes the new copy. Its memory is limited, and what it
//! writes to the size that the image claims. On a kernel that cannot confine it nothing is imported.

use crate::error::{DiskError, io_error};
use crate::lock::making;
use plover_confine::{Confinement, Files, confines_files};
use plover_types::DISK_BLOCK_BYTES;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::{
    Resource, Rlimit, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit,
};
use serde::Deserialize;
use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Address space of `qemu-img`, which takes some 150 MiB and more for a large table of a qcow2 image.
const TOOL_BYTES_MAX: u64 = 1 << 30;

/// More address space for each folder from which it reads an image: the cache of a table is 32 MiB.
const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// What `qemu-img` writes to inspect an image: its answer, to a pipe.
const NO_FILE: u64 = 0;

/// So many bytes of the errors that `qemu-img` prints are kept. A hostile image may make it print more.
const ERRORS_BYTES_MAX: u64 = 64 << 10;

/// How often the caller is asked whether to go on.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A format that is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// QEMU's.
    Qcow2,
    /// VMware's.
    Vmdk,
    /// VirtualBox's.
    Vdi,
}

impl Format {
    const ALL: [Self; 3] = [Self::Qcow2, Self::Vmdk, Self::Vdi];

    /// `qemu-img`'s name for it, and the ending of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vdi => "vdi",
        }
    }

    /// The format that the name of `path` says; `None` for a raw image.
    pub fn of_name(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?;
        Self::ALL
            .into_iter()
            .find(|format| ending.eq_ignore_ascii_case(format.name()))
    }

    /// The format of an image by its first bytes. A descriptor of VMDK is a text, and may be a short one.
    pub(crate) fn of_content(file: &File) -> io::Result<Option<Self>> {
        let mut start = [0; 512];
        let held = file.read_at(&mut start, 0)?;
        let start = &start[..held];
        let format = if start.starts_with(b"QFI\xfb") {
            Some(Self::Qcow2)
        } else if start.starts_with(b"KDMV") || start.starts_with(b"# Disk DescriptorFile") {
            Some(Self::Vmdk)
        } else if start.get(64..68) == Some(&0xbeda_107f_u32.to_le_bytes()[..]) {
            Some(Self::Vdi)
        } else {
            None
        };
        Ok(format)
    }
}

/// An image to be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
    format: Format,
    /// Bytes of the raw copy, a multiple of a block.
    bytes: u64,
    /// Folders with images that this one holds the changes to, beside its own.
    beside: Vec<PathBuf>,
}

/// The answer of `qemu-img info`.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Info {
    virtual_size: u64,
    #[serde(default)]
    encrypted: bool,
}

impl Source {
    /// Inspects `path`; `None` if its name is that of a raw image.
    ///
    /// # Errors
    /// It cannot be read, is not of the format that its name says, or is encrypted; or `qemu-img` is
    /// missing.
    pub fn look(path: &Path) -> Result<Option<Self>, DiskError> {
        Self::look_with(path, &[])
    }

    /// As [`Self::look`], where the backing files may be in the folders `beside` as well.
    ///
    /// # Errors
    /// As there.
    pub fn look_with(path: &Path, beside: &[PathBuf]) -> Result<Option<Self>, DiskError> {
        let Some(format) = Format::of_name(path) else {
            return Ok(None);
        };
        let file = File::open(path).map_err(io_error("cannot open the disk image", path))?;
        let found = Format::of_content(&file);
        if found.map_err(io_error("cannot read the disk image", path))? != Some(format) {
            return Err(DiskError::OtherFormat {
                path: path.into(),
                format: format.name(),
            });
        }
        let arguments = ["info", "--output=json", "-f", format.name()];
        let mut told = qemu_img(&arguments, path, beside, None, NO_FILE)?;
        let told = told.output().map_err(tool_error(path))?;
        let info: Info = match serde_json::from_slice(&told.stdout) {
            Ok(info) if told.status.success() => info,
            _ => return Err(refused(path, &told)),
        };
        if info.encrypted {
            return Err(DiskError::Encrypted(path.into()));
        }
        let block = DISK_BLOCK_BYTES as u64;
        Ok(Some(Self {
            path: path.into(),
            format,
            bytes: info.virtual_size.div_ceil(block) * block,
            beside: beside.into(),
        }))
    }

    /// The size of the disk in it, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the raw image `to`, whole or not at all, as long as `goes_on`. Calls `progress` with each finished percent.
    ///
    /// # Errors
    /// It cannot be converted, there is no room, `to` is there already, or the caller ended it; the text has the error of
    /// `qemu-img`.
    pub fn import(
        &self,
        to: &Path,
        progress: impl FnMut(u8),
        goes_on: impl FnMut() -> bool,
    ) -> Result<(), DiskError> {
        self.convert(to, progress, goes_on)?.finish()
    }

    /// As [`Source::import`], but for the name.
    ///
    /// # Errors
    /// As there.
    pub fn convert(
        &self,
        to: &Path,
        progress: impl FnMut(u8),
        goes_on: impl FnMut() -> bool,
    ) -> Result<NewImage, DiskError> {
        let new = NewImage::begin(to)?;
        let arguments = ["convert", "-p", "-f", self.format.name(), "-O", "raw"];
        let to_new = Some(new.path.as_path());
        let mut command = qemu_img(&arguments, &self.path, &self.beside, to_new, self.bytes)?;
        let done = convert(&mut command, progress, goes_on).map_err(tool_error(&self.path))?;
        if !done.status.success() {
            return Err(refused(&self.path, &done));
        }
        let sized = new.file.set_len(self.bytes);
        let sized = sized.and_then(|()| new.file.sync_all());
        sized.map_err(io_error("cannot write the disk image", &new.path))?;
        Ok(new)
    }
}

/// An image that is made under another name, and locked. It is removed again unless it is [finished](NewImage::finish).
#[derive(Debug)]
pub struct NewImage {
    path: PathBuf,
    to: PathBuf,
    file: File,
    is_finished: bool,
}

impl NewImage {
    /// Makes it, or takes the one over that a process has left which was killed.
    fn begin(to: &Path) -> Result<Self, DiskError> {
        let mut path = to.as_os_str().to_owned();
        path.push(".new");
        let path = PathBuf::from(path);
        let cannot = || io_error("cannot create the disk image", &path);
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        // The folder may belong to a user who is not the caller.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        loop {
            let file = options.open(&path).map_err(cannot())?;
            if !making(&file, true) {
                return Err(DiskError::InUse(path));
            }
            // The process that had it a moment ago may have given it its name.
            if is_at(&file, &path) {
                let is_ours = file
                    .metadata()
                    .is_ok_and(|it| it.is_file() && it.nlink() == 1);
                if !is_ours {
                    return Err(cannot()(io::ErrorKind::AlreadyExists.into()));
                }
                let emptied = file.set_len(0);
                let emptied =
                    emptied.and_then(|()| file.set_permissions(Permissions::from_mode(0o600)));
                emptied.map_err(cannot())?;
                return Ok(Self {
                    path,
                    to: to.into(),
                    file,
                    is_finished: false,
                });
            }
        }
    }

    /// Gives it to this user and group.
    ///
    /// # Errors
    /// The caller may not.
    pub fn give(&self, user: u32, group: u32) -> Result<(), DiskError> {
        let given = std::os::unix::fs::fchown(&self.file, Some(user), Some(group));
        given.map_err(io_error("cannot give away the disk image", &self.path))
    }

    /// Whether what was written under its name is in it.
    fn is_whole(&self) -> Result<(), DiskError> {
        match is_at(&self.file, &self.path) {
            true => Ok(()),
            false => Err(DiskError::InUse(self.path.clone())),
        }
    }

    /// Gives it its name, durably.
    ///
    /// # Errors
    /// There is a file of that name, which is left alone; or the folder cannot be written, and none is left.
    pub fn finish(mut self) -> Result<(), DiskError> {
        self.is_whole()?;
        let named = self.name();
        named.map_err(io_error("cannot write the disk image", &self.to))
    }

    fn name(&mut self) -> io::Result<()> {
        let (from, to) = (&self.path, &self.to);
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // This file system cannot.
            Err(Errno::INVAL | Errno::NOSYS) if to.exists() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(from, to)?,
            renamed => renamed?,
        }
        self.is_finished = true;
        let synced = match to.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => {
                File::open(dir).and_then(|dir| dir.sync_all())
            }
            _ => Ok(()),
        };
        synced.inspect_err(|_| {
            let _ = std::fs::remove_file(to);
        })
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = std::fs::remove_file(&self.path);
        }
        // A child that another thread is just starting has a copy of the descriptor.
        making(&self.file, false);
    }
}

/// Whether this file has that name.
fn is_at(file: &File, path: &Path) -> bool {
    let number = |it: std::fs::Metadata| (it.dev(), it.ino());
    let named = std::fs::symlink_metadata(path).map(number);
    let opened = file.metadata().map(number);
    matches!((named, opened), (Ok(named), Ok(opened)) if named == opened)
}

/// `qemu-img` with these arguments, for an image that may be hostile. It reads its folder and those `beside`, and writes at
/// most `file_bytes_max` to `to`.
fn qemu_img(
    arguments: &[&str],
    image: &Path,
    beside: &[PathBuf],
    to: Option<&Path>,
    file_bytes_max: u64,
) -> Result<Command, DiskError> {
    // Absolute, so that a name is never read as an option or as "protocol:". Without links, since what the image
    // names is beside the file itself.
    let image = image
        .canonicalize()
        .map_err(io_error("cannot find", image))?;
    let to = to
        .map(|to| std::path::absolute(to).map_err(io_error("cannot find", to)))
        .transpose()?;
    let files = Files {
        read: image
            .parent()
            .into_iter()
            .map(Into::into)
            .chain(beside.iter().cloned())
            .collect(),
        write: to.clone().into_iter().collect(),
    };
    let mut command = Command::new("qemu-img");
    command.args(arguments).arg(&image).args(to);
    confine(&mut command, &image, &files, file_bytes_max)?;
    Ok(command)
}

/// Lets `command`, which is `qemu-img` for `image`, have these files and nothing else, and write at most
/// `file_bytes_max` to one. It ends with the thread that starts it.
pub(crate) fn confine(
    command: &mut Command,
    image: &Path,
    files: &Files,
    file_bytes_max: u64,
) -> Result<(), DiskError> {
    if !confines_files().map_err(DiskError::Confine)? {
        return Err(DiskError::NotConfined(image.into()));
    }
    command.stdin(Stdio::null());
    // glibc sets 64 MiB of addresses aside for each of its threads, of which there may be dozens.
    command.env("MALLOC_ARENA_MAX", "1");
    let address_bytes_max = TOOL_BYTES_MAX + IMAGE_BYTES_MAX * files.read.len() as u64;
    let parent = getpid();
    // SAFETY: between fork and exec the closure makes system calls only: no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            for (what, most) in [
                (Resource::As, address_bytes_max),
                (Resource::Fsize, file_bytes_max),
                (Resource::Core, 0),
            ] {
                let limit = Rlimit {
                    current: Some(most),
                    maximum: Some(most),
                };
                setrlimit(what, limit)?;
            }
            Ok(())
        });
    }
    Confinement::new(files)
        .map_err(DiskError::Confine)?
        .apply(command);
    Ok(())
}

pub(crate) fn tool_error(path: &Path) -> impl FnOnce(io::Error) -> DiskError + use<> {
    let path = path.to_path_buf();
    move |error| match error.kind() {
        io::ErrorKind::NotFound => DiskError::NoTool(path),
        _ => DiskError::Io {
            what: "cannot run qemu-img for",
            path,
            source: error,
        },
    }
}

/// What `qemu-img` has said, in a line; how it ended, if that is nothing.
pub(crate) fn said(done: &Output) -> String {
    let said = String::from_utf8_lossy(&done.stderr);
    match said.trim().trim_start_matches("qemu-img: ") {
        "" => format!("qemu-img has said nothing and ended with {}", done.status),
        why => format!("qemu-img says: {}", why.replace('\n', "; ")),
    }
}

fn refused(path: &Path, done: &Output) -> DiskError {
    let mut why = said(done);
    if why.contains("Permission denied") {
        why += "; backing files and extents must be in the folder of the image";
    }
    DiskError::NotImported {
        path: path.into(),
        why,
    }
}

/// Runs `qemu-img convert -p` to its end, and kills it when it is not to go on.
pub(crate) fn convert(
    command: &mut Command,
    mut progress: impl FnMut(u8),
    mut goes_on: impl FnMut() -> bool,
) -> io::Result<Output> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (told, percents) = channel();
    // Each pipe has a thread: `qemu-img` waits when one of them is full.
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let reader = std::thread::spawn(move || {
        stdout.into_iter().for_each(|stdout| {
            read_progress(stdout, &mut |percent| {
                let _ = told.send(percent);
            });
        });
    });
    let errors = std::thread::spawn(move || stderr.map_or_else(Vec::new, read_errors));
    while child.try_wait()?.is_none() {
        if !goes_on() {
            let _ = child.kill();
        }
        match percents.recv_timeout(LOOK_EVERY) {
            Ok(percent) => progress(percent),
            Err(RecvTimeoutError::Timeout) => {}
            // It has said all, and is about to end.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK_EVERY),
        }
    }
    let _ = reader.join();
    percents.try_iter().for_each(&mut progress);
    Ok(Output {
        status: child.wait()?,
        stdout: Vec::new(),
        stderr: errors.join().unwrap_or_default(),
    })
}

/// The beginning of what is said. Reads the rest, too.
fn read_errors(mut from: impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    let _ = from.by_ref().take(ERRORS_BYTES_MAX).read_to_end(&mut kept);
    let _ = io::copy(&mut from, &mut io::sink());
    kept
}

/// Reads `    (12.34/100%)\r` over and over.
fn read_progress(mut from: impl Read, progress: &mut impl FnMut(u8)) {
    let (mut number, mut told, mut byte) = (String::new(), 0, [0]);
    while from.read(&mut byte).is_ok_and(|count| count == 1) {
        match byte[0] {
            b'(' => number.clear(),
            b'/' => {
                let percent = number.parse::<f64>().map_or(0, |percent| percent as u8);
                if percent > told && percent <= 100 {
                    told = percent;
                    progress(percent);
                }
            }
            other => number.push(char::from(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::time::Instant;

    fn run(arguments: &[&str], dir: &Path) -> bool {
        let mut command = Command::new("qemu-img");
        command.args(arguments).current_dir(dir);
        match command.output() {
            Ok(done) if done.status.success() => true,
            Ok(done) => panic!("{arguments:?}: {done:?}"),
            Err(error) => {
                eprintln!("skipped: qemu-img does not run: {error}");
                false
            }
        }
    }

    #[test]
    fn images_of_each_format_become_raw_ones() {
        let dir = tempfile::tempdir().unwrap();
        let raw: Vec<u8> = (0..3 << 20).map(|i: u32| (i >> 9) as u8).collect();
        // Half a block more, which other formats allow.
        let raw = [raw, vec![9; 512]].concat();
        std::fs::write(dir.path().join("base"), &raw).unwrap();
        for format in Format::ALL {
            let name = format!("disk.{}", format.name());
            let convert = ["convert", "-f", "raw", "-O", format.name(), "base", &name];
            if !run(&convert, dir.path()) {
                return;
            }
            let source = Source::look(&dir.path().join(&name)).unwrap().unwrap();
            let (to, mut told) = (dir.path().join(format.name()), Vec::new());
            let before = std::fs::read(dir.path().join(&name)).unwrap();
            source
                .import(&to, |percent| told.push(percent), || true)
                .unwrap();
            let copy = std::fs::read(&to).unwrap();
            assert_eq!(copy.len() as u64, source.bytes());
            assert_eq!(copy.len() % DISK_BLOCK_BYTES, 0);
            assert!(copy.starts_with(&raw) && copy[raw.len()..].iter().all(|byte| *byte == 0));
            assert_eq!(told.last(), Some(&100), "{told:?}");
            assert!(std::fs::read(dir.path().join(&name)).unwrap() == before);
        }
    }

    #[test]
    fn a_backing_file_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("base"), vec![7; 1 << 20]).unwrap();
        let create = [
            "create",
            "-f",
            "qcow2",
            "-b",
            "base",
            "-F",
            "raw",
            "top.qcow2",
        ];
        if !run(&create, dir.path()) {
            return;
        }
        let source = Source::look(&dir.path().join("top.qcow2"))
            .unwrap()
            .unwrap();
        let to = dir.path().join("raw");
        source.import(&to, |_| (), || true).unwrap();
        assert!(std::fs::read(to).unwrap() == vec![7; 1 << 20]);
        let to = dir.path().join("ended");
        let ended = source.import(&to, |_| (), || false);
        // It may have been quicker than the question.
        assert_eq!(ended.is_ok(), to.exists());
        assert!(!dir.path().join("ended.new").exists());
    }

    #[test]
    fn an_image_is_made_by_one_process_and_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let (to, new) = (dir.path().join("raw"), dir.path().join("raw.new"));
        std::fs::write(&new, "of a process that was killed").unwrap();
        let first = NewImage::begin(&to).unwrap();
        assert_eq!(std::fs::metadata(&new).unwrap().len(), 0);
        let second = NewImage::begin(&to).err().unwrap();
        assert!(
            matches!(&second, DiskError::InUse(path) if *path == new),
            "{second}"
        );
        std::fs::write(&new, "whole").unwrap();
        first.finish().unwrap();
        let second = NewImage::begin(&to).unwrap();
        let refused = second.finish().unwrap_err().to_string();
        assert!(refused.contains("not there before"), "{refused}");
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "whole");
        assert!(!new.exists());
    }

    #[test]
    fn a_conversion_that_is_not_to_go_on_is_killed() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let killed = convert(&mut command, |_| (), || false).unwrap();
        assert_eq!(killed.status.signal(), Some(9));
    }

    /// A stranger's image names a file of the host: as its backing file, as its data file, or as an extent.
    #[test]
    fn an_image_reads_no_file_outside_of_its_folder() {
        let (dir, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = host.path().join("secret");
        std::fs::write(&secret, vec![7; 1 << 20]).unwrap();
        let secret = secret.to_str().unwrap();
        let (data, data_file) = (dir.path().join("data"), host.path().join("data"));
        let data_option = format!("data_file={},data_file_raw=on", data.display());
        let backed = ["-f", "qcow2", "-b", secret, "-F", "raw", "backed.qcow2"];
        let split = ["-f", "qcow2", "-o", &data_option, "split.qcow2", "1M"];
        for create in [&backed[..], &split[..]] {
            if !run(&[&["create"], create].concat(), dir.path()) {
                return;
            }
        }
        // `qemu-img create` would overwrite a data file that is there.
        std::fs::rename(&data, &data_file).unwrap();
        let image = dir.path().join("split.qcow2");
        let bytes = std::fs::read(&image).unwrap();
        let (from, to) = (data.to_str().unwrap(), data_file.to_str().unwrap());
        assert_eq!(from.len(), to.len(), "folders of the same length");
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes());
        let at = at.expect("the image names its data file");
        let bytes = [&bytes[..at], to.as_bytes(), &bytes[at + to.len()..]].concat();
        std::fs::write(&image, bytes).unwrap();
        let extent = format!(
            "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n\
             createType=\"monolithicFlat\"\nRW 2048 FLAT \"{secret}\" 0\n{}",
            "# filled\n".repeat(60)
        );
        std::fs::write(dir.path().join("flat.vmdk"), extent).unwrap();
        for name in ["backed.qcow2", "split.qcow2", "flat.vmdk"] {
            let raw = dir.path().join("raw");
            let looked = Source::look(&dir.path().join(name));
            let error = looked
                .and_then(|source| source.unwrap().import(&raw, |_| (), || true))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("in the folder of the image"),
                "{name}: {error}"
            );
            assert!(!raw.exists() && !dir.path().join("raw.new").exists());
        }
    }

    #[test]
    fn an_image_that_cannot_be_imported_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image.qcow2");
        std::fs::write(&image, vec![0; 8192]).unwrap();
        let error = Source::look(&image).unwrap_err().to_string();
        assert!(
            error.contains("image.qcow2 is named like a qcow2"),
            "{error}"
        );
        std::fs::write(&image, [b"QFI\xfb".to_vec(), vec![0xff; 8192]].concat()).unwrap();
        let error = Source::look(&image).unwrap_err().to_string();
        assert!(error.contains("image.qcow2"), "{error}");
        assert_eq!(Source::look(Path::new("/nowhere/disk.raw")).unwrap(), None);
        let create = ["create", "-f", "qcow2", "locked.qcow2", "1M"];
        if run(&create, dir.path()) {
            // Set AES in the header. Creating an encrypted image measures the processor, which fails on a
            // busy one.
            let locked = dir.path().join("locked.qcow2");
            let mut bytes = std::fs::read(&locked).unwrap();
            bytes[35] = 1;
            std::fs::write(&locked, bytes).unwrap();
            let error = Source::look(&locked).unwrap_err();
            assert!(error.to_string().contains("encrypted"), "{error}");
        }
    }

    #[test]
    fn a_short_image_is_known_by_what_there_is_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("short.vmdk");
        let format = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            Format::of_content(&File::open(&path).unwrap()).unwrap()
        };
        let extent = b"# Disk DescriptorFile\nversion=1\nRW 2048 FLAT \"flat\" 0\n";
        assert_eq!(format(extent), Some(Format::Vmdk));
        assert_eq!(format(&extent[..8]), None);
        assert_eq!(format(b""), None);
        let folder = File::open(dir.path()).unwrap();
        assert!(Format::of_content(&folder).is_err(), "not \"no format\"");
    }

    /// More errors than a pipe holds: the program goes on all the same, and the first of them are told.
    #[test]
    fn a_tool_that_says_much_is_heard_to_its_end() {
        let mut command = Command::new("/bin/sh");
        let much = "i=0; while [ $i -lt 20000 ]; do echo error $i >&2; i=$((i+1)); done; exit 3";
        command.args(["-c", much]);
        let begun = Instant::now();
        let within = || begun.elapsed() < Duration::from_secs(60);
        let done = convert(&mut command, |_| (), within).unwrap();
        assert_eq!(done.status.code(), Some(3));
        assert_eq!(done.stderr.len() as u64, ERRORS_BYTES_MAX);
        assert!(said(&done).starts_with("qemu-img says: error 0; error 1;"));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "kill -9 $$"]);
        let done = convert(&mut command, |_| (), || true).unwrap();
        let why = refused(Path::new("d.qcow2"), &done).to_string();
        assert!(
            why.contains("d.qcow2") && why.contains("signal: 9"),
            "{why}"
        );
    }

    #[test]
    fn progress_is_told_by_percents() {
        let mut told = Vec::new();
        let said =
            "    (0.00/100%)\r    (1.20/100%)\r    (1.90/100%)\r (77.1/100%)\r(100.00/100%)\n";
        read_progress(said.as_bytes(), &mut |percent| told.push(percent));
        assert_eq!(told, [1, 77, 100]);
    }
}
