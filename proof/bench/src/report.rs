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

/// Writes `report.json` into `folder`, and returns its path.
pub(crate) fn save(folder: &Path, report: &impl Serialize) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join("report.json");
    std::fs::write(&path, serde_json::to_vec_pretty(report)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
