//! Checks that every transaction which PostgreSQL acknowledged is in its tables.
//!
//! `pgbench` runs its TPC-B with one addition: each transaction also writes its client and its count
//! into the row that it adds to `pgbench_history`. `pgbench --log` notes each transaction, by the same
//! two numbers, when its `COMMIT` was acknowledged. So afterwards
//!
//! - each line of the log has its row, exactly once;
//! - at most one row for each client has no line: a commit whose answer did not arrive;
//! - the sums of all accounts, tellers, branches and of the history agree, which is TPC-B's own
//!   condition of consistency: no transaction is there by half;
//! - `pg_amcheck` finds no fault in tables and indexes.
//!
//! A client of `pgbench` never connects again. A client whose connection is lost is aborted, and the
//! exit status says so.

use crate::wait_within;
use anyhow::{Context, Result, bail, ensure};
use plover_lab::Lab;
use plover_lab::net::Namespace;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The TPC-B of `pgbench`, with client and count in each row.
const SCRIPT: &str = "\
\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
\\set transaction :transaction + 1
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime, filler)
    VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP, concat(:client_id, ' ', :transaction));
END;
";

/// Sums of a table's changes.
const SUMS: &str = "\
SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
       (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history)";

/// How much longer than it was told to `pgbench` may take: its last transactions may wait for a failover.
const LATE: Duration = Duration::from_secs(120);

/// How long any other program of theirs may take, in seconds.
const WITHIN_S: u64 = 600;

/// A transaction: its client, and its count at that client, from 1.
pub type Transaction = (u32, u64);

/// PostgreSQL's own client programs, and how they reach the server.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The folder of `pgbench`, `psql` and `pg_amcheck`: `guests/build postgres` makes one beside
    /// its image.
    pub programs: PathBuf,
    /// The server.
    pub server: Ipv4Addr,
    /// The namespace to run them in; without it, this process's own.
    pub namespace: Option<Namespace>,
}

impl Clients {
    /// Clients of a lab's guest, on the lab's client host.
    pub fn in_lab(lab: &Lab, programs: PathBuf) -> Self {
        Self {
            programs,
            server: *lab.service().ip(),
            namespace: Some(lab.topology().client()),
        }
    }

    fn path(&self, program: &str) -> Result<PathBuf> {
        let path = self.programs.join(program);
        ensure!(
            path.exists(),
            "{} is missing: build it with `guests/build postgres`",
            path.display()
        );
        Ok(path)
    }

    /// Makes a command of one of the programs reach the server.
    fn reach(&self, mut command: Command) -> Result<Command> {
        command
            .env("PGHOST", self.server.to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres")
            .stdin(Stdio::null());
        match &self.namespace {
            Some(namespace) => namespace.exec_in(command),
            None => Ok(command),
        }
    }

    /// Runs a program to its end and returns its output.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        /// The exit code of `timeout` when it has ended the program.
        const TIMED_OUT: i32 = 124;
        let mut limited = Command::new("timeout");
        // In the group of this process, which Ctrl-C reaches.
        limited
            .args(["--foreground", &WITHIN_S.to_string()])
            .arg(self.path(program)?);
        let output = self
            .reach(limited)?
            .args(arguments)
            .output()
            .with_context(|| format!("cannot run {program}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        ensure!(
            output.status.code() != Some(TIMED_OUT),
            "{program} {} has no answer to all it asked {} after {WITHIN_S} s",
            arguments.join(" "),
            self.server
        );
        if !output.status.success() {
            bail!(
                "{program} failed ({}):\n{}\n{}",
                output.status,
                text(&output.stdout),
                text(&output.stderr)
            );
        }
        Ok(text(&output.stdout))
    }

    /// Makes the tables, with 100,000 accounts for each unit of `scale`.
    pub fn fill(&self, scale: u32) -> Result<()> {
        self.run("pgbench", &["-i", "-q", "-s", &scale.to_string()])?;
        Ok(())
    }

    /// Puts `clients` connections to work for `seconds`. `dir` gets the script and the log of
    /// commits.
    pub fn start(&self, dir: &Path, clients: u32, seconds: u64) -> Result<Load> {
        let script = dir.join("tpcb.sql");
        std::fs::write(&script, SCRIPT)
            .with_context(|| format!("cannot write {}", script.display()))?;
        let child = self
            .reach(Command::new(self.path("pgbench")?))?
            // One thread, so that there is one log.
            .args(["--no-vacuum", "--jobs=1", "--define=transaction=0"])
            .arg(format!("--client={clients}"))
            .arg(format!("--time={seconds}"))
            .arg("--file")
            .arg(&script)
            .args(["--log", "--log-prefix=commits"])
            .current_dir(dir)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run pgbench")?;
        Ok(Load {
            log: dir.join(format!("commits.{}", child.id())),
            child,
            seconds,
            ends_by: Instant::now() + Duration::from_secs(seconds) + LATE,
        })
    }

    /// Compares the log of commits with the tables.
    fn audit(&self, commits: &Commits) -> Result<Audit> {
        let query = |sql| self.run("psql", &["-X", "-A", "-t", "-F", " ", "-c", sql]);
        let rows = query("SELECT filler FROM pgbench_history")?;
        let rows: Result<Vec<_>> = rows.lines().map(transaction).collect();
        let sums = query(SUMS)?;
        let sums: Result<Vec<i64>, _> = sums.split_whitespace().map(str::parse).collect();
        Ok(Audit::of(
            &commits.acknowledged,
            &rows.context("pgbench_history holds a row of nobody's")?,
            sums.context("the sums are no numbers")?,
        ))
    }

    /// Waits for the end of `load`, then audits its commits and checks the tables. Prints the results on
    /// standard error.
    ///
    /// # Errors
    /// Those of [`Load::finish`], of the audit and of `pg_amcheck`.
    pub fn settle(&self, load: Load) -> Result<Commits> {
        let commits = load.finish()?;
        eprintln!("{}", commits.report);
        let audit = self.audit(&commits)?;
        eprintln!("{audit}");
        ensure!(audit.is_clean(), "{audit}");
        self.amcheck().context("after the load")?;
        Ok(commits)
    }

    /// Checks tables and indexes page by page.
    ///
    /// # Errors
    /// The faults, in the words of `pg_amcheck`.
    fn amcheck(&self) -> Result<()> {
        let arguments = [
            "--install-missing",
            "--heapallindexed",
            "--database=postgres",
        ];
        self.run("pg_amcheck", &arguments)?;
        Ok(())
    }
}

/// A `pgbench` at work. Dropping it ends it.
#[derive(Debug)]
pub struct Load {
    child: Child,
    log: PathBuf,
    seconds: u64,
    ends_by: Instant,
}

/// The log and the report of a `pgbench` that ran to its end.
#[derive(Clone, Debug)]
pub struct Commits {
    /// The transactions whose commit was acknowledged.
    pub acknowledged: Vec<Transaction>,
    /// How many of them were acknowledged in the time that it was given.
    pub in_time: usize,
    /// Its output: rates and latencies.
    pub report: String,
}

impl Load {
    /// Waits for the end.
    ///
    /// # Errors
    /// A client lost its connection, met an error, or waits for an answer long after the time.
    fn finish(mut self) -> Result<Commits> {
        let limit = self.ends_by.saturating_duration_since(Instant::now());
        let ended = wait_within(&mut self.child, limit);
        let status = ended.context("pgbench, whose clients wait for answers")?;
        let mut report = String::new();
        // A report of some lines: the pipe has room for it.
        if let Some(mut output) = self.child.stdout.take() {
            output.read_to_string(&mut report)?;
        }
        ensure!(
            status.success(),
            "pgbench failed ({status}), as it does when a connection is lost:\n{report}"
        );
        let text = std::fs::read_to_string(&self.log)
            .with_context(|| format!("cannot read pgbench's log {}", self.log.display()))?;
        let acknowledged: Result<Vec<_>> = text.lines().map(transaction).collect();
        Ok(Commits {
            acknowledged: acknowledged?,
            in_time: committed_within(&text, self.seconds),
            report,
        })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many transactions of a log were committed within so many seconds from when the first of them began. `pgbench`
/// begins no transaction after its time, but the log has the last one of each client, which ends later.
pub fn committed_within(log: &str, seconds: u64) -> usize {
    // `client transaction time script epoch microseconds`: how long it took, in µs, and when it ended.
    let span = |line: &str| -> Option<(u64, u64)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let end = number(4)? * 1_000_000 + number(5)?;
        Some((end.checked_sub(number(2)?)?, end))
    };
    let spans: Vec<(u64, u64)> = log.lines().filter_map(span).collect();
    let first = spans.iter().map(|(begin, _)| *begin).min();
    let until = first.unwrap_or_default() + seconds * 1_000_000;
    spans.iter().filter(|(_, end)| *end <= until).count()
}

/// The first two numbers of a line: of the log, or of a row of the history.
fn transaction(line: &str) -> Result<Transaction> {
    let mut words = line.split_whitespace();
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let read = number().zip(number());
    read.and_then(|(client, count)| Some((client.try_into().ok()?, count)))
        .with_context(|| format!("{line:?} names no transaction"))
}

/// The comparison of the tables with the acknowledged transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Transactions whose commit was acknowledged.
    pub acknowledged: usize,
    /// Acknowledged transactions without a row.
    pub lost: Vec<Transaction>,
    /// Transactions with more than one row.
    pub repeated: Vec<Transaction>,
    /// Rows without an acknowledgement, beyond one for each client.
    pub unexplained: Vec<Transaction>,
    /// Sums of accounts, tellers, branches and history.
    pub sums: Vec<i64>,
}

impl Audit {
    fn of(acknowledged: &[Transaction], rows: &[Transaction], sums: Vec<i64>) -> Self {
        let mut counts: BTreeMap<Transaction, i64> = BTreeMap::new();
        for row in rows {
            *counts.entry(*row).or_default() += 1;
        }
        let repeated = which(&counts, |rows| rows > 1);
        // The transaction after a client's last acknowledged one may have been committed unseen.
        let mut last: BTreeMap<u32, u64> = BTreeMap::new();
        for transaction in acknowledged {
            *counts.entry(*transaction).or_default() -= 1;
            let last = last.entry(transaction.0).or_default();
            *last = (*last).max(transaction.1);
        }
        let mut unexplained = which(&counts, |rows| rows > 0);
        unexplained
            .retain(|(client, count)| *count != last.get(client).copied().unwrap_or_default() + 1);
        Self {
            acknowledged: acknowledged.len(),
            lost: which(&counts, |rows| rows < 0),
            repeated,
            unexplained,
            sums,
        }
    }

    /// Whether everything that was acknowledged is there, once and whole.
    pub fn is_clean(&self) -> bool {
        self.acknowledged > 0
            && self.lost.is_empty()
            && self.repeated.is_empty()
            && self.unexplained.is_empty()
            && self.sums.len() == 4
            && self.sums.windows(2).all(|pair| pair[0] == pair[1])
    }
}

/// The transactions whose count fulfils `such`.
fn which(counts: &BTreeMap<Transaction, i64>, such: impl Fn(i64) -> bool) -> Vec<Transaction> {
    let chosen = counts.iter().filter(|(_, count)| such(**count));
    chosen.map(|(transaction, _)| *transaction).collect()
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} transactions acknowledged: {} lost, {} repeated, {} of nobody's; sums {:?}",
            self.acknowledged,
            self.lost.len(),
            self.repeated.len(),
            self.unexplained.len(),
            self.sums
        )?;
        for (what, which) in [
            ("lost", &self.lost),
            ("repeated", &self.repeated),
            ("of nobody's", &self.unexplained),
        ] {
            for (client, count) in which.iter().take(5) {
                write!(f, "\n  {what}: transaction {count} of client {client}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_and_the_rows_are_compared() {
        let acknowledged = [(0, 1), (0, 2), (1, 1)];
        let audit = |rows: &[Transaction]| Audit::of(&acknowledged, rows, vec![7; 4]);
        let good = audit(&[(0, 2), (1, 1), (0, 1)]);
        assert!(good.is_clean(), "{good}");
        let unseen = audit(&[(0, 1), (0, 2), (0, 3), (1, 1)]);
        assert!(unseen.is_clean(), "{unseen}");

        let lost = audit(&[(0, 1), (1, 1)]);
        assert_eq!(lost.lost, [(0, 2)]);
        let repeated = audit(&[(0, 1), (0, 1), (0, 2), (1, 1)]);
        assert_eq!(repeated.repeated, [(0, 1)]);
        let unexplained = audit(&[(0, 1), (0, 2), (0, 4), (1, 1)]);
        assert_eq!(unexplained.unexplained, [(0, 4)]);
        let by_half = Audit::of(&acknowledged, &acknowledged, vec![7, 7, 7, 8]);
        let nothing = Audit::of(&[], &[], vec![7; 4]);
        for bad in [lost, repeated, unexplained, by_half, nothing] {
            assert!(!bad.is_clean(), "{bad}");
        }
    }

    /// Two clients for three seconds. One of them waits for its last answer until long after.
    #[test]
    fn a_transaction_that_ends_too_late_is_not_one_of_the_time() {
        let log = "0 1 1000000 0 1700000001 500000\n1 1 1400000 0 1700000002 0\n0 2 1500000 0 1700000003 0\n\
                   1 2 9000000 0 1700000011 0\n0 3 failed 0 1700000003 100000\n";
        assert_eq!(committed_within(log, 3), 3);
        assert_eq!(committed_within(log, 2), 2);
        assert_eq!(committed_within("", 3), 0);
    }

    #[test]
    fn lines_are_read() {
        let line = "7 12 2345 0 1763737000 123456";
        assert_eq!(transaction(line).unwrap(), (7, 12));
        assert_eq!(transaction("3 4                   ").unwrap(), (3, 4));
        assert!(transaction("3").is_err() && transaction("a b").is_err());
    }
}
