//! Writing the report for programs.

use anyhow::{Context, Result};
use serde::Serialize;
use std::path::Path;

/// Writes `report.json` into `folder`, and prints its path.
pub(crate) fn write(folder: &Path, report: &impl Serialize) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join("report.json");
    std::fs::write(&path, serde_json::to_vec_pretty(report)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}
