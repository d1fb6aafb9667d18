//! A small disk by which a cloud image configures itself at its first boot: cloud-init's data source NoCloud, a FAT file
//! system with the label `CIDATA` and the files `user-data`, `meta-data` and `network-config`.

use anyhow::{Context, Result, ensure};
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use std::io::{Cursor, Write};
use std::path::Path;

/// The label by which cloud-init finds the disk.
const LABEL: [u8; 11] = *b"CIDATA     ";

const MIB: usize = 1 << 20;

/// How much of the disk FAT's own tables may take.
const TABLES: usize = 64 << 10;

/// The beginnings of user data that cloud-init understands; it ignores what begins otherwise.
const BEGINNINGS: [&str; 3] = ["#", "Content-Type:", "MIME-Version:"];

/// Makes the disk's content, of whole MiB.
///
/// * `user_data`: the file with what the guest is to do at its first boot, such as `#cloud-config`.
/// * `network`: the file with the guest's network configuration (version 2); without it the guest asks DHCP.
/// * `instance`: the guest's identity: with another one, cloud-init takes the boot for the first one again.
/// * `host`: the guest's host name.
///
/// # Errors
/// A file cannot be read, is empty, or is nothing that cloud-init understands.
pub fn make(
    user_data: &Path,
    network: Option<&Path>,
    instance: &str,
    host: &str,
) -> Result<Vec<u8>> {
    let meta = format!("instance-id: {instance}\nlocal-hostname: {host}\n");
    let mut files = vec![
        ("user-data", read(user_data)?),
        ("meta-data", meta.into_bytes()),
    ];
    let beginning = String::from_utf8_lossy(&files[0].1);
    ensure!(
        BEGINNINGS.iter().any(|it| beginning.starts_with(it)),
        "{} is no user data of cloud-init: its first line is something like #cloud-config or #!/bin/sh",
        user_data.display()
    );
    if let Some(network) = network {
        files.push(("network-config", read(network)?));
    }
    let bytes: usize = files.iter().map(|(_, content)| content.len()).sum();
    let mut disk = vec![0; (bytes + TABLES).next_multiple_of(MIB)];
    fill(&mut disk, &files).context("cannot make cloud-init's disk")?;
    Ok(disk)
}

fn fill(disk: &mut [u8], files: &[(&str, Vec<u8>)]) -> std::io::Result<()> {
    let mut disk = Cursor::new(disk);
    fatfs::format_volume(&mut disk, FormatVolumeOptions::new().volume_label(LABEL))?;
    let system = FileSystem::new(disk, FsOptions::new())?;
    for (name, content) in files {
        system.root_dir().create_file(name)?.write_all(content)?;
    }
    system.unmount()
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let content = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(!content.is_empty(), "{} is empty", file.display());
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn file(content: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file
    }

    #[test]
    fn the_disk_has_what_cloud_init_looks_for() {
        let large = format!("#cloud-config\n{}", "# word\n".repeat(300_000));
        for (user, mib) in [("#!/bin/sh\ntrue\n", 1), (&large, 3)] {
            let (user_data, network) = (file(user), file("version: 2\n"));
            let disk = make(user_data.path(), Some(network.path()), "shop-1", "shop").unwrap();
            assert_eq!(disk.len(), mib * MIB);
            let system = FileSystem::new(Cursor::new(disk), FsOptions::new()).unwrap();
            assert_eq!(system.volume_label(), "CIDATA");
            let content = |name| {
                let mut text = String::new();
                let mut file = system.root_dir().open_file(name).unwrap();
                file.read_to_string(&mut text).unwrap();
                text
            };
            assert_eq!(content("user-data"), user);
            assert_eq!(content("network-config"), "version: 2\n");
            assert_eq!(
                content("meta-data"),
                "instance-id: shop-1\nlocal-hostname: shop\n"
            );
        }
    }

    #[test]
    fn a_file_that_cloud_init_would_ignore_is_refused() {
        for (user, words) in [("packages: [nginx]\n", "#cloud-config"), ("", "is empty")] {
            let user = file(user);
            let error = make(user.path(), None, "shop-1", "shop").unwrap_err();
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
        let error = make(Path::new("/no/user-data"), None, "shop-1", "shop").unwrap_err();
        assert!(format!("{error:#}").contains("/no/user-data"), "{error:#}");
    }
}
