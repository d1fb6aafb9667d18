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
//!
//! **Root may import, too** (`plover disk import`), into a folder of the service's user. That user can change the folder at any
//! time, and point a name in it to any file of the host. So the new file is made [as that user](owner::Owner), and `qemu-img` gets it
//! as an open descriptor, never by name.

mod new;
mod owner;
mod tool;

use crate::error::{DiskError, io_error};
pub use new::{NewImage, make_folder};
use plover_types::DISK_BLOCK_BYTES;
use serde::Deserialize;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
pub(crate) use tool::{confine, convert, inherit, said, tool_error};
use tool::{inspect, qemu_img, refused};

/// What `qemu-img` writes to inspect an image: its answer, to a pipe.
const NO_FILE: u64 = 0;

/// A format that is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// QEMU's.
    Qcow2,
    /// VMware's.
    Vmdk,
    /// VirtualBox's.
    Vdi,
    /// The content of the disk as it is. Only a person can say so of a file: see [`Source::look_as`].
    Raw,
}

impl Format {
    /// Those that the name of an image says.
    const ALL: [Self; 3] = [Self::Qcow2, Self::Vmdk, Self::Vdi];

    /// `qemu-img`'s name for it, and the ending of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vdi => "vdi",
            Self::Raw => "raw",
        }
    }

    /// The format of this name of `qemu-img`'s.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter().chain([Self::Raw]);
        all.find(|format| format.name() == name)
    }

    /// The format that the name of `path` says; `None` for a raw image.
    pub fn of_name(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?;
        Self::ALL
            .into_iter()
            .find(|format| ending.eq_ignore_ascii_case(format.name()))
    }

    /// The format of an image by its first bytes. A descriptor of VMDK is a text, and may be a short one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_content(file: &File) -> io::Result<Option<Self>> {
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
        Format::of_name(path)
            .map(|format| Self::look_as(format, path, beside))
            .transpose()
    }

    /// As [`Self::look_with`], of this format whatever the name says. A raw image has the content of the file, also if that
    /// begins like an image of another format.
    ///
    /// # Errors
    /// As there.
    pub fn look_as(format: Format, path: &Path, beside: &[PathBuf]) -> Result<Self, DiskError> {
        let file = File::open(path).map_err(io_error("cannot open the disk image", path))?;
        let found = Format::of_content(&file);
        let found = found.map_err(io_error("cannot read the disk image", path))?;
        if format != Format::Raw && found != Some(format) {
            return Err(DiskError::OtherFormat {
                path: path.into(),
                format: format.name(),
            });
        }
        let arguments = ["info", "--output=json", "-f", format.name()];
        let mut command = qemu_img(&arguments, path, beside, None, NO_FILE)?;
        let told = inspect(&mut command).map_err(tool_error(path))?;
        let info: Info = match serde_json::from_slice(&told.stdout) {
            Ok(info) if told.status.success() => info,
            _ => return Err(refused(path, &told)),
        };
        if info.encrypted {
            return Err(DiskError::Encrypted(path.into()));
        }
        let block = DISK_BLOCK_BYTES as u64;
        Ok(Self {
            path: path.into(),
            format,
            bytes: info.virtual_size.div_ceil(block) * block,
            beside: beside.into(),
        })
    }

    /// The size of the disk in it, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Has the raw copy end with zeroes up to so many bytes, if it is shorter.
    pub fn at_least(self, bytes: u64) -> Self {
        Self {
            bytes: self.bytes.max(bytes),
            ..self
        }
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
        let to_new = Some(&new.file);
        let mut command = qemu_img(&arguments, &self.path, &self.beside, to_new, self.bytes)?;
        let done = convert(&mut command, progress, goes_on).map_err(tool_error(&self.path))?;
        if !done.status.success() {
            return Err(refused(&self.path, &done));
        }
        new.has(self.bytes)?;
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::tool::{ERRORS_BYTES_MAX, read_progress};
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::{Duration, Instant};

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
