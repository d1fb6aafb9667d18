//! ClamAV's daemon, with a signature of our own. It has no state: a write is the scan of a file, and acknowledged if
//! the verdict is right; to read it back is to scan it again.

use crate::programs::subject::{Client, Subject, Wrong};
use crate::programs::tool;
use anyhow::{Result, bail};
use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

/// What the signature finds.
const MALICIOUS: &str = "plover-test!";

#[derive(Debug)]
pub struct ClamAv;

fn configuration(at: SocketAddrV4, signatures: &Path) -> String {
    format!(
        "Foreground yes\nTCPAddr {}\nTCPSocket {}\nDatabaseDirectory {}\nMaxThreads 2\nSelfCheck 0\n",
        at.ip(),
        at.port(),
        signatures.display()
    )
}

impl Subject for ClamAv {
    fn name(&self) -> &'static str {
        "clamav"
    }

    fn set_up(&self, files: &Path) -> Result<()> {
        let signatures = files.join("signatures");
        std::fs::create_dir_all(&signatures)?;
        let hex: String = MALICIOUS.bytes().map(|it| format!("{it:02x}")).collect();
        std::fs::write(signatures.join("own.ndb"), format!("Own:0:*:{hex}\n"))?;
        let own = SocketAddrV4::new([127, 0, 0, 1].into(), self.port());
        let text = configuration(own, &signatures);
        Ok(std::fs::write(files.join("clamd.conf"), text)?)
    }

    fn command(&self, files: &Path) -> Vec<String> {
        let configuration = files.join("clamd.conf").display().to_string();
        ["clamd", "-c", &configuration].map(String::from).into()
    }

    fn replaces(&self) -> bool {
        false
    }

    fn open(&self, files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>> {
        let dir = tempfile::tempdir()?;
        let text = configuration(at, &files.join("signatures"));
        std::fs::write(dir.path().join("client.conf"), text)?;
        Ok(Box::new(Scans { dir, patience }))
    }
}

struct Scans {
    dir: tempfile::TempDir,
    patience: Duration,
}

/// Whether the file of this key is malicious.
fn is_malicious(key: &str) -> bool {
    key.bytes()
        .fold(0_u32, |sum, byte| sum * 31 % 9973 + u32::from(byte))
        % 2
        == 0
}

impl Scans {
    /// Scans files of these keys and values; for each whether the verdict is right.
    fn scan(&self, files: &[(&str, &str)]) -> Result<Vec<bool>> {
        let mut arguments = vec![
            "-c".to_owned(),
            self.dir.path().join("client.conf").display().to_string(),
            "--stream".into(),
            "--no-summary".into(),
        ];
        for (key, value) in files {
            let path = self.dir.path().join(key);
            let word = if is_malicious(key) {
                MALICIOUS
            } else {
                "harmless"
            };
            std::fs::write(&path, format!("{value} {word}\n"))?;
            arguments.push(path.display().to_string());
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = tool::run("clamdscan", &arguments, self.patience)?;
        if !matches!(output.status.code(), Some(0 | 1)) {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let is_right = |(key, _): &(&str, &str)| {
            let path = self.dir.path().join(key);
            let verdict = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{}: ", path.display())));
            std::fs::remove_file(&path)?;
            let verdict = verdict.unwrap_or_default();
            let expected = if is_malicious(key) { "FOUND" } else { "OK" };
            Ok(verdict.ends_with(expected))
        };
        files.iter().map(is_right).collect()
    }
}

impl Client for Scans {
    fn write(&mut self, key: &str, value: &str) -> Result<()> {
        if self.scan(&[(key, value)])? == [true] {
            return Ok(());
        }
        Err(Wrong(format!("the verdict on {key}")).into())
    }

    /// The values that the verdicts agree with: a value is the number at the end of its key.
    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<String>>> {
        let value = |key: &String| key.rsplit('-').next().unwrap_or_default().to_owned();
        let values: Vec<String> = keys.iter().map(value).collect();
        let files: Vec<(&str, &str)> = keys
            .iter()
            .zip(&values)
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let right = self.scan(&files)?;
        let values = right.into_iter().zip(values);
        Ok(values
            .map(|(right, value)| right.then_some(value))
            .collect())
    }
}
