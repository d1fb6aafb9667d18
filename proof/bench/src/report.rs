//! Writing the report for programs, and where.

use anyhow::{Context, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The folder `bench` beside that of the build's profile, which this program lies in.
pub(crate) fn folder() -> Result<PathBuf> {
    let me = std::env::current_exe().context("cannot find the program that is running")?;
    let target = me.ancestors().nth(2).context("this program lies nowhere")?;
    let folder = target.join("bench");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Writes `report.json` into `folder`, and returns its path. A bench that is killed meanwhile leaves the report of before.
pub(crate) fn save(folder: &Path, report: &impl Serialize) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (new, path) = (folder.join("report.json.new"), folder.join("report.json"));
    let json = serde_json::to_vec_pretty(report)?;
    let written = std::fs::write(&new, json).and_then(|()| std::fs::rename(&new, &path));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_cannot_be_written_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), &[1]).unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        let before = read();
        // No file can be written where a folder is.
        let new = folder.path().join("report.json.new");
        std::fs::create_dir(&new).unwrap();
        assert!(save(folder.path(), &[2]).is_err());
        assert_eq!(read(), before);
        std::fs::remove_dir(&new).unwrap();
        save(folder.path(), &[2]).unwrap();
        assert_ne!(read(), before);
        assert!(!new.exists());
    }
}
