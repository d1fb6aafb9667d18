//! The same programs, fed without consensus.

use anyhow::{Context, Result, anyhow};
use plover_lab::net::Namespace;
use std::net::SocketAddrV4;
use std::thread::JoinHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A proxy that gives each client's bytes to all programs at once, and the first one's answers to the client.
pub(super) struct Feeder {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Feeder {
    /// Listens at `at` on a host, for programs at these addresses.
    pub fn start(host: &Namespace, at: SocketAddrV4, programs: Vec<SocketAddrV4>) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let thread = host.run(|| {
            let listener = std::net::TcpListener::bind(at).context("the bench's proxy")?;
            listener.set_nonblocking(true)?;
            // A thread begins in the namespace of the one that starts it.
            Ok(std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_io()
                    .build();
                match runtime {
                    Ok(runtime) => {
                        runtime.spawn(serve(listener, programs));
                        // With the runtime all that it serves ends.
                        let _ = runtime.block_on(stopped);
                    }
                    Err(error) => eprintln!("bench: the proxy does not start: {error}"),
                }
            }))
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: std::net::TcpListener, programs: Vec<SocketAddrV4>) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        let programs = programs.clone();
        // A client that is cut off tells the bench by itself.
        tokio::spawn(async move { feed(client, programs).await });
    }
}

async fn feed(client: TcpStream, programs: Vec<SocketAddrV4>) -> Result<()> {
    client.set_nodelay(true)?;
    let (mut from, mut to) = client.into_split();
    let mut inputs = Vec::new();
    let mut outputs = Vec::new();
    for at in programs {
        let program = TcpStream::connect(at).await?;
        program.set_nodelay(true)?;
        let (output, input) = program.into_split();
        inputs.push(input);
        outputs.push(output);
    }
    let mut outputs = outputs.into_iter();
    let mut first = outputs.next().ok_or_else(|| anyhow!("no program"))?;
    tokio::spawn(async move { copy(&mut first, &mut to).await });
    for mut output in outputs {
        tokio::spawn(async move { copy(&mut output, &mut sink()).await });
    }
    let mut bytes = vec![0; 64 << 10];
    loop {
        let got = from.read(&mut bytes).await?;
        if got == 0 {
            return Ok(());
        }
        for input in &mut inputs {
            input.write_all(&bytes[..got]).await?;
        }
    }
}
