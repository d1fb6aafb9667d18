//! `examples/counter.rs` does what it says.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn three_processes_count_to_ten() {
    // Cargo puts examples beside the directory of the tests, and builds them before.
    let test = std::env::current_exe().expect("a path");
    let program = test
        .ancestors()
        .nth(2)
        .expect("target/debug")
        .join("examples/counter");
    let addresses = common::free_addresses(3);
    let start = |id: usize| {
        Command::new(&program)
            .arg(id.to_string())
            .args(addresses.iter().map(|it| it.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts")
    };
    let mut children: Vec<_> = (0..3).map(start).collect();
    let mut lines = Vec::new();
    for child in &mut children {
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it speaks");
        lines.push(line);
    }
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
    }
    assert_eq!(
        lines,
        ["r0 counts 10\n", "r1 counts 10\n", "r2 counts 10\n"]
    );
}
