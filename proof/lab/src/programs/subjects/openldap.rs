//! OpenLDAP, with checkpoints by ending it: its database is whole on the disk then.
//!
//! It has two threads at least, and answers two requests of a connection in any order if the second comes before
//! the first is answered. A follower is given requests as fast as it reads them, so outputs are not compared.

use crate::programs::subject::{Client, Subject, Wrong};
use crate::programs::tool::{self, Tool};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

const BASE: &str = "o=shop";
const ADMIN: &str = "cn=admin,o=shop";
const PASSWORD: &str = "secret";

#[derive(Debug)]
pub struct OpenLdap;

impl Subject for OpenLdap {
    fn name(&self) -> &'static str {
        "openldap"
    }

    fn set_up(&self, files: &Path) -> Result<()> {
        let configuration = format!(
            "include /etc/ldap/schema/core.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\npidfile slapd.pid\n\
             threads 2\ndatabase mdb\nmaxsize 268435456\nsuffix \"{BASE}\"\nrootdn \"{ADMIN}\"\nrootpw {PASSWORD}\n\
             directory db\nindex cn eq\n"
        );
        std::fs::write(files.join("slapd.conf"), configuration)?;
        let base = format!("dn: {BASE}\nobjectClass: organization\no: shop\n");
        Ok(std::fs::write(files.join("base.ldif"), base)?)
    }

    fn command(&self, files: &Path) -> Vec<String> {
        let (port, files) = (self.port(), files.display());
        let script = format!(
            "test -d db || {{ mkdir db && slapadd -f {files}/slapd.conf -l {files}/base.ldif; }} || exit 1; \
             exec slapd -d 0 -h ldap://127.0.0.1:{port} -f {files}/slapd.conf"
        );
        ["sh", "-c", &script].map(String::from).into()
    }

    fn keys(&self) -> String {
        "check = \"off\"\nsnapshot_by_stop = true".into()
    }

    fn open(&self, _files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>> {
        let url = format!("ldap://{at}");
        // It buffers its answers unless it is told not to.
        let arguments = [
            "-oL",
            "ldapmodify",
            "-v",
            "-x",
            "-D",
            ADMIN,
            "-w",
            PASSWORD,
            "-H",
            &url,
        ];
        let tool = Tool::start("stdbuf", &arguments, patience)?;
        Ok(Box::new(Ldap {
            tool,
            url,
            patience,
        }))
    }

    /// All that there are: of single ones each takes 20 ms or more, since slapd's answers are two segments, of which the second
    /// waits for the client's acknowledgement of the first.
    fn keys_at_once(&self) -> usize {
        usize::MAX
    }

    fn replaces(&self) -> bool {
        false
    }
}

struct Ldap {
    tool: Tool,
    url: String,
    patience: Duration,
}

impl Client for Ldap {
    fn write(&mut self, key: &str, value: &str) -> Result<()> {
        let entry = format!(
            "dn: cn={key},{BASE}\nchangetype: add\nobjectClass: device\ncn: {key}\ndescription: {value}\n\n"
        );
        let done = |line: &str| line == "modify complete" || line.starts_with("ldap_");
        // The first line says that a connection begins.
        let begun = |line: &str| line.starts_with("ldap_initialize(");
        let answer = self.tool.ask(&entry, |line| done(line) && !begun(line))?;
        match answer.last().map(String::as_str) {
            Some("modify complete") => Ok(()),
            Some(line) if line.contains("contact LDAP server") => anyhow::bail!("{line}"),
            line => Err(Wrong(line.unwrap_or_default().into()).into()),
        }
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<String>>> {
        // As the administrator, who has no limit of entries.
        let arguments = [
            "-LLL",
            "-x",
            "-D",
            ADMIN,
            "-w",
            PASSWORD,
            "-H",
            &self.url,
            "-b",
            BASE,
            "(objectClass=device)",
            "cn",
            "description",
        ];
        let output = tool::run("ldapsearch", &arguments, self.patience)?;
        ensure!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let mut found = BTreeMap::new();
        for entry in text.split("\n\n") {
            let field = |name: &str| entry.lines().find_map(|line| line.strip_prefix(name));
            if let (Some(cn), Some(value)) = (field("cn: "), field("description: ")) {
                found.insert(cn.to_owned(), value.to_owned());
            }
        }
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }
}
