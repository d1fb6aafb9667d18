//! Gerbera, the successor of MediaTomb: its content directory is browsed. It has no writes that a client of a media
//! player makes: a write is a browse whose answer is right.

use crate::programs::subject::{Client, Subject, Wrong};
use crate::programs::tool;
use anyhow::{Result, ensure};
use plover_lab::net::replica_ip;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

#[derive(Debug)]
pub struct Gerbera;

impl Subject for Gerbera {
    fn name(&self) -> &'static str {
        "gerbera"
    }

    fn port(&self) -> u16 {
        49152
    }

    /// It takes a device other than the loopback alone.
    fn command(&self, _files: &Path) -> Vec<String> {
        let script = format!(
            "mkdir -p media && HOME=\"$PWD\" exec gerbera --home \"$PWD\" --interface repl0 --port {} --add media \
             --logfile gerbera.log",
            self.port()
        );
        ["sh", "-c", &script].map(String::from).into()
    }

    fn address(&self, host: usize) -> Ipv4Addr {
        replica_ip(host)
    }

    /// Each answer has the time in it. It listens before it answers.
    fn keys(&self) -> String {
        let own = "$(ip -4 -o addr show dev repl0 | sed \"s|.*inet \\([^/]*\\).*|\\1|; q\")";
        let port = self.port();
        format!("check = \"off\"\nready_cmd = 'curl -sf http://{own}:{port}/description.xml'")
    }

    /// There are no checkpoints: a browse changes nothing that would have to be kept.
    fn log_mib(&self) -> u32 {
        64
    }

    fn open(&self, _files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>> {
        Ok(Box::new(Browse { at, patience }))
    }

    fn replaces(&self) -> bool {
        false
    }
}

struct Browse {
    at: SocketAddrV4,
    patience: Duration,
}

const REQUEST: &str = "<?xml version=\"1.0\"?><s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\">\
    <s:Body><u:Browse xmlns:u=\"urn:schemas-upnp-org:service:ContentDirectory:1\"><ObjectID>0</ObjectID>\
    <BrowseFlag>BrowseDirectChildren</BrowseFlag><Filter>*</Filter><StartingIndex>0</StartingIndex>\
    <RequestedCount>10</RequestedCount><SortCriteria></SortCriteria></u:Browse></s:Body></s:Envelope>";

impl Client for Browse {
    fn write(&mut self, key: &str, _value: &str) -> Result<()> {
        let url = format!("http://{}/upnp/control/cds", self.at);
        let action = "SOAPACTION: \"urn:schemas-upnp-org:service:ContentDirectory:1#Browse\"";
        let arguments = [
            "-s",
            "-H",
            "Content-Type: text/xml",
            "-H",
            action,
            "--data",
            REQUEST,
            &url,
        ];
        let output = tool::run("curl", &arguments, self.patience)?;
        ensure!(output.status.success(), "{}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains("<NumberReturned>") {
            return Ok(());
        }
        Err(Wrong(format!("{key}: {text}")).into())
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<String>>> {
        keys.iter()
            .map(|key| {
                let value = key.rsplit('-').next().unwrap_or_default().to_owned();
                self.write(key, &value).map(|()| Some(value))
            })
            .collect()
    }
}
