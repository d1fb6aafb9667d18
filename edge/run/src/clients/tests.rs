//! Clients that come, and what becomes of them.

use super::*;
use plover_types::{Index, View};
use rustix::event::Timespec;
use rustix::event::epoll::CreateFlags;
use std::net::Ipv4Addr;

const LISTENER: u64 = 3 << 60;

/// Clients that listen at an address.
fn listening() -> (Clients, SocketAddr) {
    let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
    let mut clients = Clients::new(epoll, 1 << 60, LISTENER, READ_BYTES, 2);
    let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    clients.listen(any).unwrap();
    let at = clients.listener.as_ref().unwrap().local_addr().unwrap();
    (clients, at)
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

/// How a client learns of the end of its connection.
fn end(mut client: &TcpStream) -> Result<usize, ErrorKind> {
    client.read(&mut [0]).map_err(|error| error.kind())
}

fn accept(clients: &mut Clients) {
    let mut index = 0;
    clients.accept(&mut |_| {
        index += 1;
        Ok(Viewstamp {
            view: View(1),
            index: Index(index),
        })
    });
}

/// Whether the kernel reports that a client waits.
fn is_told(clients: &Clients) -> bool {
    let mut events = Vec::with_capacity(8);
    let no_time = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let room = rustix::buffer::spare_capacity(&mut events);
    epoll::wait(&*clients.epoll, room, Some(&no_time)).unwrap();
    events.iter().any(|event| event.data.u64() == LISTENER)
}

/// Later the program's connection would find no descriptor, and the program be restored for that.
#[test]
fn a_client_without_descriptors_is_turned_away() {
    let (mut clients, at) = listening();
    clients.clients_max = 1;
    let waiting = [connect(at), connect(at)];
    accept(&mut clients);
    assert_eq!(clients.count(), 1);
    assert_eq!(end(&waiting[1]), Err(ErrorKind::ConnectionReset));
    let (mut clients, at) = listening();
    clients.clients_max = 3;
    let waiting = [connect(at), connect(at)];
    assert_eq!(clients.take_new(2).len(), 1);
    assert_eq!(end(&waiting[1]), Err(ErrorKind::ConnectionReset));
}

#[test]
fn the_loop_is_told_of_no_client_while_there_is_no_room_on_the_host() {
    let (mut clients, at) = listening();
    let _waiting = connect(at);
    assert!(is_told(&clients));
    clients.rest(&io::Error::from_raw_os_error(libc::EMFILE));
    assert!(!is_told(&clients) && clients.rests_until.is_some());
    clients.rests_until = Some(Instant::now() + Duration::from_secs(3600));
    clients.set_reads(true);
    assert!(!is_told(&clients), "the moment is not over");
    clients.rests_until = Some(Instant::now());
    clients.set_reads(true);
    assert!(is_told(&clients));
}

#[test]
fn a_leader_that_is_cut_off_lets_no_client_in() {
    let (mut clients, at) = listening();
    let client = connect(at);
    accept(&mut clients);
    clients.reset_all();
    assert!(!clients.is_listening());
    assert_eq!(end(&client), Err(ErrorKind::ConnectionReset));
}

/// A server refuses an upload that still goes on, answers, and ends the connection.
#[test]
fn a_client_that_goes_on_sending_reads_the_whole_reply() {
    let (mut clients, at) = listening();
    let mut client = connect(at);
    accept(&mut clients);
    let id = *clients.tokens.keys().next().unwrap();
    clients.lease(Instant::now() + LINGERS);
    client.write_all(&[1; 1000]).unwrap();
    let reply = [7; 30_000];
    clients.reply(id, &reply);
    clients.finish(id);
    assert_eq!((clients.count(), clients.lingering.len()), (0, 1));
    client.write_all(&[2; 1000]).unwrap();
    clients.set_reads(true);
    let mut read = Vec::new();
    client.read_to_end(&mut read).unwrap();
    assert!(read == reply);
    drop(client);
    while !clients.lingering.is_empty() {
        clients.set_reads(true);
    }
}
