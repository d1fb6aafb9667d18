//! nginx, which takes files by `PUT` (WebDAV) and serves them. Its checkpoints need no command: all of its state is
//! files.
//!
//! Every answer has the time in it, so outputs are not compared.

use crate::programs::subject::{Client, Subject, Wrong};
use crate::programs::tool;
use anyhow::{Result, bail, ensure};
use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

#[derive(Debug)]
pub struct Nginx;

impl Subject for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn set_up(&self, files: &Path) -> Result<()> {
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {{}}\n\
             http {{ access_log off; client_body_temp_path temporary;\n\
             server {{ listen 127.0.0.1:{}; root files; dav_methods PUT; }} }}\n",
            self.port()
        );
        Ok(std::fs::write(files.join("nginx.conf"), text)?)
    }

    fn command(&self, files: &Path) -> Vec<String> {
        let script = format!(
            "mkdir -p files temporary && exec nginx -p \"$PWD\" -c {}/nginx.conf",
            files.display()
        );
        ["sh", "-c", &script].map(String::from).into()
    }

    fn keys(&self) -> String {
        "check = \"off\"\nsnapshot_cmd = \"true\"".into()
    }

    fn open(&self, _files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>> {
        Ok(Box::new(Curl { at, patience }))
    }
}

/// `curl`, once for each request: a connection each.
struct Curl {
    at: SocketAddrV4,
    patience: Duration,
}

impl Client for Curl {
    fn write(&mut self, key: &str, value: &str) -> Result<()> {
        let url = format!("http://{}/{key}", self.at);
        let arguments = [
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-X",
            "PUT",
            "--data-binary",
            value,
            &url,
        ];
        let output = tool::run("curl", &arguments, self.patience)?;
        ensure!(output.status.success(), "{}", output.status);
        match String::from_utf8_lossy(&output.stdout).as_ref() {
            "201" | "204" => Ok(()),
            code => Err(Wrong(format!("PUT {key}: {code}")).into()),
        }
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<String>>> {
        let mut arguments = vec!["-s".to_owned(), "-w".into(), "\t%{http_code}\n".into()];
        arguments.extend(keys.iter().map(|key| format!("http://{}/{key}", self.at)));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = tool::run("curl", &arguments, self.patience)?;
        ensure!(output.status.success(), "{}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let mut values = Vec::new();
        let mut before = String::new();
        for line in text.split('\n') {
            match line.rsplit_once('\t') {
                Some((rest, "200")) => values.push(Some(std::mem::take(&mut before) + rest)),
                Some((_, "404")) => {
                    before.clear();
                    values.push(None);
                }
                _ => before.push_str(line),
            }
        }
        if values.len() != keys.len() {
            bail!("not one answer for each file: {text}");
        }
        Ok(values)
    }
}
