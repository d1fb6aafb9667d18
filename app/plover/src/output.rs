//! Writing results without a panic on a closed pipe.

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Write;

/// Prints a line to the error output. `eprintln!` would panic on a closed pipe, in the middle of what it tells of.
macro_rules! tell {
    ($($text:tt)*) => {{
        let _ = ::std::io::Write::write_fmt(
            &mut ::std::io::stderr(),
            format_args!("{}\n", format_args!($($text)*)),
        );
    }};
}

/// Prints to the standard output. `println!` would panic on a closed pipe.
pub fn print(text: impl std::fmt::Display) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    write!(stdout, "{text}")?;
    stdout.flush()?;
    Ok(())
}

/// Whether nobody can read the standard output any more.
pub fn is_closed() -> bool {
    let stdout = std::io::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::OUT)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut asked, Some(&at_once)).is_ok()
        && asked[0]
            .revents()
            .intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Prints a line.
pub fn line(text: impl std::fmt::Display) -> Result<()> {
    print(format_args!("{text}\n"))
}

/// Rows of cells as text, each column as wide as its widest cell.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
