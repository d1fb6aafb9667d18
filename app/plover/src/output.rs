//! Writing results without a panic on a closed pipe.

use anyhow::Result;
use std::io::Write;

/// Prints to the standard output. `println!` would panic on a closed pipe.
pub fn print(text: impl std::fmt::Display) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    write!(stdout, "{text}")?;
    stdout.flush()?;
    Ok(())
}

/// Prints a line.
pub fn line(text: impl std::fmt::Display) -> Result<()> {
    print(format_args!("{text}\n"))
}
