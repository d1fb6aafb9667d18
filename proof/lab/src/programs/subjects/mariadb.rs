//! MariaDB, with checkpoints by `mariadb-backup`.
//!
//! Its login sends a random number, which a password would be mixed with. A follower's program sends another number
//! and would refuse the answer, so the account has no password. The output check reports each login.

use crate::programs::subject::{Client, Subject, Wrong};
use crate::programs::tool::Tool;
use anyhow::Result;
use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

#[derive(Debug)]
pub struct MariaDb;

impl Subject for MariaDb {
    fn name(&self) -> &'static str {
        "mariadb"
    }

    /// A pool of one thread executes the statements of different connections one after the other. Preloaded, it sees
    /// that its clients are on another host.
    fn command(&self, _files: &Path) -> Vec<String> {
        let script = format!(
            "test -d db || mariadb-install-db --no-defaults --datadir=\"$PWD/db\" --user=root --skip-test-db \
             --auth-root-authentication-method=normal >install.log 2>&1 || exit 1; \
             printf '%s\\n' \"create user if not exists root@'%';\" \"grant all on *.* to root@'%';\" >init.sql; \
             exec mariadbd --no-defaults --datadir=\"$PWD/db\" --user=root --port={} --bind-address=127.0.0.1 \
             --socket=\"$PWD/socket\" --skip-name-resolve --innodb-buffer-pool-size=32M --innodb-log-file-size=8M \
             --thread-handling=pool-of-threads --thread-pool-size=1 \
             --init-file=\"$PWD/init.sql\"",
            self.port()
        );
        ["sh", "-c", &script].map(String::from).into()
    }

    fn keys(&self) -> String {
        // A checkpoint is the backup alone: the directory of the running server is not archived whole.
        "check = \"off\"\nstart_s = 120\n\
         snapshot_cmd = '''rm -rf backup && mariadb-backup --no-defaults --backup --user=root --socket=\"$PWD/socket\" \
         --datadir=\"$PWD/db\" --target-dir=\"$PWD/backup\" >backup.log 2>&1'''\n\
         restore_cmd = '''mariadb-backup --no-defaults --prepare --target-dir=\"$PWD/backup\" >prepare.log 2>&1 && \
         rm -rf db && mv backup db'''"
            .into()
    }

    fn open(&self, _files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>> {
        let (host, port) = (at.ip().to_string(), at.port().to_string());
        let arguments = [
            "--no-defaults",
            "-h",
            &host,
            "-P",
            &port,
            "-u",
            "root",
            "--batch",
            "--unbuffered",
            "--skip-column-names",
            "--skip-reconnect",
            "--connect-timeout=1",
        ];
        let mut tool = Tool::start("mariadb", &arguments, patience)?;
        let ready = "create database if not exists shop; create table if not exists shop.pairs (name varchar(64) \
                     primary key, value varchar(64)); select 'ready';\n";
        sql(&mut tool, ready, "ready")?;
        Ok(Box::new(Sql(tool, 0)))
    }
}

struct Sql(Tool, u64);

/// Executes statements whose last answer is `last`.
fn sql(tool: &mut Tool, text: &str, last: &str) -> Result<Vec<String>> {
    let is_error = |line: &str| line.starts_with("ERROR");
    let mut lines = tool.ask(text, |line| line == last || is_error(line))?;
    let end = lines.pop().unwrap_or_default();
    // An error ends the client; errors 2000 to 2999 are of the connection. 1205 and 1213 refuse a statement, since another
    // one had its row.
    let is_excused = ["ERROR 2", "ERROR 1205", "ERROR 1213"]
        .iter()
        .any(|error| end.starts_with(error));
    if is_error(&end) && !is_excused {
        return Err(Wrong(end).into());
    }
    anyhow::ensure!(end == last, "{end}");
    Ok(lines)
}

impl Sql {
    fn mark(&mut self) -> String {
        self.1 += 1;
        format!("done {}", self.1)
    }
}

impl Client for Sql {
    fn write(&mut self, key: &str, value: &str) -> Result<()> {
        let mark = self.mark();
        let text =
            format!("replace into shop.pairs values ('{key}', '{value}'); select '{mark}';\n");
        sql(&mut self.0, &text, &mark).map(drop)
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<String>>> {
        let (mark, keys_quoted) = (self.mark(), keys.join("', '"));
        let text = format!(
            "select name, value from shop.pairs where name in ('{keys_quoted}'); select '{mark}';\n"
        );
        let lines = sql(&mut self.0, &text, &mark)?;
        let found: std::collections::BTreeMap<&str, &str> =
            lines.iter().filter_map(|it| it.split_once('\t')).collect();
        let value = |key: &String| found.get(key.as_str()).map(|it| (*it).to_owned());
        Ok(keys.iter().map(value).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_statement_is_no_wrong_answer() {
        let answer = |line: &str| {
            let script = format!("read statement; echo '{line}'");
            let mut tool = Tool::start("sh", &["-c", &script], Duration::from_secs(20)).unwrap();
            let answer = sql(&mut tool, "select 1;\n", "done");
            answer.map_err(|error| error.is::<Wrong>())
        };
        assert_eq!(answer("done"), Ok(Vec::new()));
        for (line, is_wrong) in [
            ("ERROR 2013 (HY000) at line 1: Lost connection", false),
            ("ERROR 1213 (40001) at line 1: Deadlock found", false),
            ("ERROR 1205 (HY000) at line 1: Lock wait timeout", false),
            ("ERROR 1062 (23000) at line 1: Duplicate entry", true),
        ] {
            assert_eq!(answer(line), Err(is_wrong), "{line}");
        }
    }
}
