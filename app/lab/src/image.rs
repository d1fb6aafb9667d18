//! The files a lab's guest boots from.
//!
//! Those of `--kernel` and `--initrd`, or `.cache/guests/NAME` in the working directory, in the folders
//! above it, or in those above the program. A lab boots from its own copy: a rebuild of the image removes
//! the old one, and a replica that joins hours later must start from the same files.

use crate::guests::Guest;
use crate::options::Options;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The files that a guest boots from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// The disk whose system the kernel starts, a raw image. Replicas get copies of their own.
    pub disk: Option<PathBuf>,
    /// The kernel's command line, without what differs between labs.
    pub cmdline: String,
}

/// Used where no file `cmdline` lies beside the kernel.
const DEFAULT_CMDLINE: &str = "console=ttyS0 quiet panic=1";

impl Image {
    /// The same as [`Image::find`]; `None` for a guest that firmware starts from the user's own disk,
    /// which needs no image.
    pub fn needed(options: &Options) -> Result<Option<Self>, String> {
        let own_disk = !options.disks.is_empty() && !options.guest.is_disk();
        if options.firmware().is_some() && own_disk {
            return Ok(None);
        }
        Self::find(options).map(Some)
    }

    /// Finds the image that `options` name. The error is one sentence that says what to do.
    pub fn find(options: &Options) -> Result<Self, String> {
        match &options.kernel {
            Some(kernel) => Self::of_files(kernel.clone(), options.initrd.clone()),
            None if options.initrd.is_some() => {
                Err("--initrd goes with --kernel: name both".into())
            }
            None => Self::of_cache(options.guest, places()),
        }
    }

    fn of_files(kernel: PathBuf, initrd: Option<PathBuf>) -> Result<Self, String> {
        for file in [Some(&kernel), initrd.as_ref()].into_iter().flatten() {
            std::fs::File::open(file)
                .map_err(|error| format!("the guest image {}: {error}", file.display()))?;
        }
        let beside = kernel.with_file_name("cmdline");
        let cmdline = std::fs::read_to_string(beside).unwrap_or_else(|_| DEFAULT_CMDLINE.into());
        Ok(Self {
            kernel,
            initrd,
            disk: None,
            cmdline: cmdline.trim().into(),
        })
    }

    fn of_cache(guest: Guest, places: impl Iterator<Item = PathBuf>) -> Result<Self, String> {
        let mut is_source = false;
        for place in places {
            is_source |= place.join("guests/build").exists();
            let dir = place.join(".cache/guests").join(guest.name());
            if dir.join("kernel").exists() {
                // A guest without a kernel of Linux has no RAM disk.
                let initrd = Some(dir.join("initrd")).filter(|initrd| initrd.exists());
                let files = Self::of_files(dir.join("kernel"), initrd)?;
                let disk = dir.join("disk.raw");
                return Ok(Self {
                    disk: disk.exists().then_some(disk),
                    ..files
                });
            }
        }
        let (name, script) = (guest.name(), guest.script());
        Err(match is_source {
            true => format!(
                "there is no guest image '{name}': build it with `{script}`, or name another with --kernel and --initrd"
            ),
            // The packages have no guests.
            false => format!(
                "there is no guest image '{name}' here: start a disk of yours with `--disk FILE --bios` (or `--uefi`) and \
                 `--answers PORT`, name a kernel with --kernel and --initrd, or build the image with `{script}` in Plover's \
                 source tree and run the lab there"
            ),
        })
    }

    /// Copies the files into `dir`, except the disk.
    pub fn copy_into(&self, dir: &Path) -> Result<Self> {
        let copy = |from: &Path, name: &str| {
            let to = dir.join(name);
            std::fs::copy(from, &to).with_context(|| {
                format!(
                    "cannot copy the guest image {} to {}",
                    from.display(),
                    to.display()
                )
            })?;
            anyhow::Ok(to)
        };
        Ok(Self {
            kernel: copy(&self.kernel, "kernel")?,
            initrd: self
                .initrd
                .as_deref()
                .map(|initrd| copy(initrd, "initrd"))
                .transpose()?,
            disk: self.disk.clone(),
            cmdline: self.cmdline.clone(),
        })
    }
}

/// The working directory and the program, and the folders above them.
fn places() -> impl Iterator<Item = PathBuf> {
    let above = |path: PathBuf| path.ancestors().map(Path::to_path_buf).collect::<Vec<_>>();
    [std::env::current_dir(), std::env::current_exe()]
        .into_iter()
        .flatten()
        .flat_map(above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_missing_file() {
        let options = Options {
            kernel: Some("/nowhere/kernel".into()),
            ..Options::default()
        };
        assert!(
            Image::find(&options)
                .unwrap_err()
                .contains("/nowhere/kernel")
        );
        let options = Options {
            initrd: Some("/nowhere/initrd".into()),
            ..Options::default()
        };
        assert!(Image::find(&options).unwrap_err().contains("--kernel"));
        let options = Options {
            guest: Guest::Nginx,
            bios: true,
            disks: vec![PathBuf::from("/d.raw").into()],
            ..Options::default()
        };
        assert_eq!(Image::needed(&options), Ok(None));
        let error = Image::of_cache(Guest::Redis, std::iter::once("/nowhere".into())).unwrap_err();
        assert!(error.contains("--disk FILE --bios"), "{error}");
        let source = tempfile::tempdir().unwrap();
        std::fs::create_dir(source.path().join("guests")).unwrap();
        std::fs::write(source.path().join("guests/build"), "").unwrap();
        let error = Image::of_cache(Guest::Redis, std::iter::once(source.path().into()));
        let error = error.unwrap_err();
        assert!(
            error.contains("build it with `guests/build redis`"),
            "{error}"
        );
    }

    #[test]
    fn a_cached_image_is_found_and_copied() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_path_buf();
        let cache = root.join(".cache/guests/redis");
        std::fs::create_dir_all(&cache).unwrap();
        for (name, text) in [
            ("kernel", "k"),
            ("initrd", "i"),
            ("cmdline", "console=ttyS0 \n"),
        ] {
            std::fs::write(cache.join(name), text).unwrap();
        }
        let places = ["/nowhere".into(), root.clone()];
        let image = Image::of_cache(Guest::Redis, places.into_iter()).unwrap();
        assert_eq!(image.cmdline, "console=ttyS0");
        let copy = image.copy_into(&root).unwrap();
        assert_eq!(std::fs::read_to_string(copy.initrd.unwrap()).unwrap(), "i");
        assert_eq!(copy.kernel, root.join("kernel"));
    }
}
