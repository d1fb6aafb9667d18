//! `plover pages`: the manual pages and the completions of shells, from the definition of the command line.
//!
//! ```text
//!   FOLDER/man/plover.1, plover-status.1, …   one page a command
//!   FOLDER/complete/bash, zsh, fish
//! ```

use crate::cli::Arguments;
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;
use std::process::ExitCode;

const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash"),
    (Shell::Zsh, "zsh"),
    (Shell::Fish, "fish"),
];

/// Writes them all.
pub fn run(folder: &Path) -> Result<ExitCode> {
    let (man, complete) = (folder.join("man"), folder.join("complete"));
    for folder in [&man, &complete] {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    clap_mangen::generate_to(Arguments::command(), &man)
        .with_context(|| format!("cannot write into {}", man.display()))?;
    for (shell, name) in SHELLS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), "plover", &mut text);
        let file = complete.join(name);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_is_completed() {
        let folder = std::env::temp_dir().join(format!("plover-pages-{}", std::process::id()));
        run(&folder).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.join("man").join(name));
        let top = page("plover.1").unwrap();
        let completions =
            SHELLS.map(|(_, name)| std::fs::read_to_string(folder.join("complete").join(name)));
        let pages = page("plover-pages.1");
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            if command.is_hide_set() {
                continue;
            }
            assert!(page(&format!("plover-{name}.1")).is_ok(), "{name}");
            assert!(
                top.contains(&format!("plover\\-{}(1)", name.replace('-', "\\-"))),
                "{name}: {top}"
            );
            for text in &completions {
                assert!(text.as_ref().unwrap().contains(name), "{name}");
            }
        }
        assert!(pages.is_err(), "this command is none of the user's");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
