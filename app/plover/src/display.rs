//! `plover display`: the guest's display for viewers that speak VNC, wherever the guest is.

use crate::output;
use anyhow::{Result, bail};
use plover_lab::control::Control;
use plover_node::join_sockets;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

/// A viewer that does not say its version by then is not told why it sees nothing.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// When the next viewer is waited for after one that could not connect: where too many files are open, the next one cannot either.
const AFTER_AN_ERROR: Duration = Duration::from_millis(100);

/// Shows the display to whoever connects, until the process is ended.
pub fn serve(listen: SocketAddr, control: &Control) -> Result<ExitCode> {
    if !listen.ip().is_loopback() {
        bail!(
            "{listen} is not an address of this host alone, and viewers are not asked for a password: take 127.0.0.1, and \
             forward the port to other hosts, as with `ssh -L 5900:127.0.0.1:{} HOST`",
            listen.port()
        );
    }
    // Whether there is anything to show is said here and not to the first viewer.
    drop(control.display()?);
    let listener = TcpListener::bind(listen).map_err(|error| {
        anyhow::anyhow!("cannot listen on {listen}: {error}; choose another address with --listen")
    })?;
    output::line(format_args!(
        "the guest's display is at {} for viewers of VNC; Ctrl-C ends this",
        listener.local_addr()?
    ))?;
    for viewer in listener.incoming() {
        let viewer = match viewer {
            Ok(viewer) => viewer,
            // That one has gone already, or too many files are open; others may still come.
            Err(error) => {
                tell!("plover: a viewer could not connect: {error}");
                std::thread::sleep(AFTER_AN_ERROR);
                continue;
            }
        };
        let control = control.clone();
        std::thread::spawn(move || {
            let shown = match control.display() {
                Ok(display) => viewer
                    .set_nodelay(true)
                    .and_then(|()| join_sockets(&viewer, &display)),
                Err(why) => {
                    tell!("plover: a viewer sees nothing: {why}");
                    refuse(viewer, &why.to_string())
                }
            };
            // Fails only where the viewer or the display has gone.
            drop(shown);
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells a viewer why it sees nothing, as a server of version 3.3 or later does (RFC 6143, 7.1).
fn refuse(mut viewer: TcpStream, why: &str) -> std::io::Result<()> {
    viewer.set_read_timeout(Some(HELLO_WITHIN))?;
    viewer.write_all(b"RFB 003.008\n")?;
    let mut version = [0; 12];
    viewer.read_exact(&mut version)?;
    let mut said = match &version {
        b"RFB 003.003\n" => vec![0; 4],
        _ => vec![0],
    };
    said.extend((why.len() as u32).to_be_bytes());
    said.extend(why.as_bytes());
    viewer.write_all(&said)
}
