//! Clients with keys, and strangers.

use crate::{PATIENCE, Running, Sum, free_addresses, server};
use plover_fabric::Keys;
use plover_fabric::keys::{Holder, PrivateKey, PublicKey, trust};
use plover_log::remote::{self, TailEvent};
use plover_log::wire::MemberChange;
use plover_log::{Address, Remote, RemoteError};
use plover_types::{Index, ReplicaId};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const REPLICA: Holder = Holder::Replica(ReplicaId(0));

/// A replica of a group of one that speaks TLS with its clients, and its trust file.
struct Secured {
    running: Running,
    public: PublicKey,
    dir: tempfile::TempDir,
}

impl Secured {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let own = PrivateKey::generate().unwrap();
        let (key, file) = (dir.path().join("key"), dir.path().join("trust"));
        own.write_new(&key).unwrap();
        trust(&file, REPLICA, own.public()).unwrap();
        let keys = Keys::load(&key, &file, ReplicaId(0), []).unwrap();
        let server = server(0, &free_addresses(1), Sum::default(), |_| ());
        Self {
            running: Running::start_with(server, Some(Arc::new(keys))),
            public: own.public(),
            dir,
        }
    }

    fn address(&self) -> &Address {
        &self.running.address
    }

    fn socket(&self) -> TcpStream {
        let Address::Tcp(address) = *self.address() else {
            panic!("a TCP address");
        };
        TcpStream::connect(address).unwrap()
    }

    fn trust_file(&self) -> PathBuf {
        self.dir.path().join("trust")
    }

    /// A new client's key, trusted by the replica as `holders`.
    fn client(&self, holders: &[Holder]) -> Option<Arc<Keys>> {
        let own = PrivateKey::generate().unwrap();
        for holder in holders {
            trust(&self.trust_file(), *holder, own.public()).unwrap();
        }
        Some(Arc::new(Keys::new(own, vec![(REPLICA, self.public)])))
    }

    fn append(&self, keys: Option<Arc<Keys>>) -> Result<(), RemoteError> {
        let client = Remote::new(vec![self.address().clone()], PATIENCE);
        client.with_keys(keys).append(&[1]).map(|_| ())
    }

    /// Appending fails for want of trust, with these words.
    fn refuses(&self, keys: Option<Arc<Keys>>, words: &str) {
        let began = Instant::now();
        let error = self.append(keys).expect_err("it is refused");
        assert!(matches!(error, RemoteError::Untrusted { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(began.elapsed() < PATIENCE, "it does not try for long");
    }
}

#[test]
fn a_client_with_a_trusted_key_appends_and_reads_and_only_an_admin_changes_the_group() {
    let group = Secured::start();
    let (client, admin) = (
        group.client(&[Holder::Client]),
        group.client(&[Holder::Admin]),
    );
    let mut remote = Remote::new(vec![group.address().clone()], PATIENCE).with_keys(client.clone());
    for _ in 0..20 {
        remote.append(&vec![7; 300_000]).unwrap();
    }
    group.append(admin.clone()).unwrap();
    let mut bytes = 0;
    let each = |event: TailEvent<'_>| {
        if let TailEvent::Entry { bytes: entry, .. } = event {
            bytes += entry.len();
        }
        ControlFlow::Continue(())
    };
    remote::tail(group.address(), client.as_ref(), Index(0), false, each).unwrap();
    assert_eq!(bytes, 20 * 300_000 + 1);
    let status = remote::status(group.address(), client.as_ref()).unwrap();
    assert_eq!(status.rejected, 0);
    let remove = MemberChange::Remove { id: ReplicaId(9) };
    let error = remote.change_members(&remove, |_| ()).unwrap_err();
    assert!(error.to_string().contains("`admin`"), "{error}");
    let error = remote::begin(group.address(), client.as_ref()).unwrap_err();
    assert!(error.to_string().contains("`admin`"), "{error}");
    let error = remote::begin(group.address(), admin.as_ref()).unwrap_err();
    assert!(error.to_string().contains("no new log"), "{error}");
}

#[test]
fn strangers_are_refused_with_a_sentence_and_learn_nothing() {
    let group = Secured::start();
    group.refuses(group.client(&[]), "plover key trust FILE client KEY");
    group.refuses(
        group.client(&[Holder::Replica(ReplicaId(1))]),
        "plover key trust FILE client KEY",
    );
    group.refuses(None, "give --key and --trust");
    // A server that is not the one whose key the client has.
    let own = PrivateKey::generate().unwrap();
    let other = PrivateKey::generate().unwrap().public();
    let keys = Keys::new(own, vec![(REPLICA, other)]);
    group.refuses(Some(Arc::new(keys)), &group.public.to_string());
    let mut stranger = group.socket();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stranger.read_to_end(&mut answer).unwrap();
    assert_eq!(
        answer.len(),
        7,
        "an alert of TLS and nothing else: {answer:?}"
    );
    let client = group.client(&[Holder::Client]);
    group.append(client.clone()).unwrap();
    let status = remote::status(group.address(), client.as_ref()).unwrap();
    assert!(status.rejected >= 4, "{}", status.rejected);
    assert_eq!(status.clients, 1);
}

#[test]
fn a_client_with_keys_is_told_that_the_replica_has_none() {
    let server = server(0, &free_addresses(1), Sum::default(), |_| ());
    let running = Running::start(server);
    let own = PrivateKey::generate().unwrap();
    let keys = Keys::new(
        own,
        vec![(REPLICA, PrivateKey::generate().unwrap().public())],
    );
    let error = remote::status(&running.address, Some(&Arc::new(keys))).unwrap_err();
    assert!(error.to_string().contains("leave out --key"), "{error}");
}

#[test]
fn silent_connections_are_closed_and_keep_nobody_out() {
    let group = Secured::start();
    let client = group.client(&[Holder::Client]);
    let silent: Vec<_> = (0..100).map(|_| group.socket()).collect();
    group.append(client.clone()).unwrap();
    for mut socket in silent {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // An end, or a reset: not the timeout, which would be an error of another kind.
        if let Err(error) = socket.read(&mut [0]) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
    let status = remote::status(group.address(), client.as_ref()).unwrap();
    assert_eq!((status.clients, status.rejected), (1, 100));
}

#[test]
fn a_reader_whose_key_is_trusted_no_more_is_cut_off() {
    let group = Secured::start();
    let before = std::fs::read(group.trust_file()).unwrap();
    let client = group.client(&[Holder::Client]);
    group.append(client.clone()).unwrap();
    let each = |_: TailEvent<'_>| {
        std::fs::write(group.trust_file(), &before).unwrap();
        ControlFlow::Continue(())
    };
    // It follows the log for ever, unless the replica ends the connection.
    let error = remote::tail(group.address(), client.as_ref(), Index(0), true, each).unwrap_err();
    assert!(matches!(error, RemoteError::Unreachable { .. }), "{error}");
    group.refuses(client, "plover key trust FILE client KEY");
}

/// A server that says nothing costs a client its patience and no more.
#[test]
fn a_client_does_not_wait_for_a_server_that_says_nothing() {
    let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let own = PrivateKey::generate().unwrap();
    let keys = Keys::new(
        own,
        vec![(REPLICA, PrivateKey::generate().unwrap().public())],
    );
    let error = remote::status(&address, Some(&Arc::new(keys))).unwrap_err();
    assert!(matches!(error, RemoteError::Unreachable { .. }), "{error}");
}
