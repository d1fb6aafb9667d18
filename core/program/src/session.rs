//! Connections that outlive a checkpoint, and what a restored program is told of them.
//!
//! A restored program has no connections. Those that clients have still are opened to it anew, so it goes on as if
//! it had had them all the time. That needs clients that wait for the answer to each request, and a program that
//! remembers nothing of a connection, or nothing but its login. Between two requests there is nothing to
//! remember then, and a checkpoint is taken only when each request of each connection is answered.
//!
//! *Answered* is exact, although a follower lags: the log says with each input how many bytes the leader's
//! program had sent on that connection before ([`Entry::Bytes`](crate::Entry::Bytes)). A client that waits for its answers had read them all. So what a program sends beyond
//! them belongs to the answer to this input.

use crate::{Client, ConnectionId};
use plover_types::wire;
use serde::{Deserialize, Serialize};

/// A login that is longer is not kept, and no checkpoint is taken while its connection is open.
const LOGIN_BYTES_MAX: usize = 4096;

/// How clients' connections outlive a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sessions {
    /// They do not: clients are cut off, and connect again (the default).
    #[default]
    Reconnect,
    /// The program remembers nothing of a connection between two requests.
    Stateless,
    /// It remembers what a connection's first request has said, which a restored program is told again.
    Login,
}

/// A connection that is open at a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its name.
    pub connection: ConnectionId,
    /// The client.
    pub client: Client,
    /// With [`Sessions::Login`]: all that the client has sent before the program's first answer.
    #[serde(with = "serde_bytes")]
    pub login: Vec<u8>,
    /// Bytes that the program has sent before the first input, once there is one.
    pub greeting: Option<u64>,
    /// Bytes that it has sent up to the end of its first answer, once there is input behind it.
    pub login_end: Option<u64>,
    /// Bytes that it has sent.
    pub sent: u64,
}

/// The part of a checkpoint that is not in the program's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The program's time ([`Entry::Clock`](crate::Entry::Clock)), µs since 1970; 0 if the log has none.
    pub time: u64,
    /// The connections that are open.
    pub sessions: Vec<Session>,
}

impl State {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode_part(self, Vec::new())
    }

    /// Decodes it; `None` if it is of another release.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match wire::decode_part(bytes) {
            Ok((state, [])) => Some(state),
            _ => None,
        }
    }
}

/// A connection, as the feed has it.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub session: Session,
    /// Bytes that the leader's program had sent before the last input.
    after: u64,
    /// It was open before the program was restored. Its output is not compared, since the checkpoint may have been
    /// taken in the middle of an answer.
    pub inherited: bool,
    /// Until the first input of an inherited one: bytes that the program repeats, of its greeting and its answer to a
    /// login.
    repeats: Option<u64>,
    /// The client sends nothing more.
    pub ended: bool,
    /// The program has ended it.
    pub finished: bool,
}

impl Open {
    /// A client has connected.
    pub fn new(connection: ConnectionId, client: Client) -> Self {
        Self::of(Session {
            connection,
            client,
            login: Vec::new(),
            greeting: None,
            login_end: None,
            sent: 0,
        })
    }

    fn of(session: Session) -> Self {
        Self {
            session,
            after: 0,
            inherited: false,
            repeats: None,
            ended: false,
            finished: false,
        }
    }

    /// The connection of a program that is restored, to which it is opened anew.
    pub fn again(mut session: Session, sessions: Sessions) -> Self {
        let repeats = match sessions {
            Sessions::Login => session.login_end,
            Sessions::Reconnect | Sessions::Stateless => session.greeting,
        };
        let repeats = repeats.unwrap_or(session.sent);
        session.sent = 0;
        Self {
            inherited: true,
            repeats: Some(repeats),
            ..Self::of(session)
        }
    }

    /// The program is given input, behind `after` bytes of the leader's program.
    pub fn gives(&mut self, after: u64, bytes: &[u8], sessions: Sessions) {
        let session = &mut self.session;
        if let Some(repeats) = self.repeats.take() {
            // All before was answered at the checkpoint. Only what the program repeats may be still to come.
            session.sent = after.saturating_sub(repeats.saturating_sub(session.sent));
        }
        self.after = after;
        let greeting = *session.greeting.get_or_insert(after);
        if after > greeting {
            session.login_end.get_or_insert(after);
        } else if sessions == Sessions::Login && session.login.len() <= LOGIN_BYTES_MAX {
            session.login.extend_from_slice(bytes);
        }
    }

    /// Whether the program has sent as much as the leader's had when its client left, or sends nothing more.
    pub fn has_sent(&self, by_leader: u64) -> bool {
        // The output of a restored program is counted from the next input on. All input before that was answered.
        self.finished || self.repeats.is_some() || self.session.sent >= by_leader
    }

    /// Whether the program has answered all that it was given, or sends nothing more.
    pub fn is_answered(&self) -> bool {
        let Session { greeting, sent, .. } = &self.session;
        let is_answered = match self.repeats {
            Some(repeats) => *sent >= repeats,
            None => greeting.is_none() || *sent > self.after,
        };
        self.finished || is_answered
    }

    /// Whether it has, and a restored program can go on with this connection.
    pub fn is_between_requests(&self) -> bool {
        self.is_answered() && !self.ended && self.session.login.len() <= LOGIN_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Open {
        Open::new(ConnectionId::default(), Client::default())
    }

    #[test]
    fn a_request_in_parts_is_answered_by_what_follows_it() {
        let mut it = open();
        assert!(it.is_between_requests(), "nothing was asked");
        for (after, sent, is_answered) in
            [(0, 0, false), (0, 0, false), (0, 7, true), (7, 7, false)]
        {
            it.session.sent = sent;
            it.gives(after, b"x", Sessions::Stateless);
            assert_eq!(it.is_between_requests(), is_answered, "{after} {sent}");
        }
        // The answer to the input before comes late, on a follower.
        let mut late = open();
        late.gives(0, b"one", Sessions::Stateless);
        late.gives(5, b"two", Sessions::Stateless);
        late.session.sent = 5;
        assert!(!late.is_between_requests());
        late.session.sent = 6;
        assert!(late.is_between_requests());
        late.ended = true;
        assert!(!late.is_between_requests());
    }

    #[test]
    fn what_a_restored_program_repeats_is_no_answer() {
        let mut it = open();
        it.session.sent = 10; // a greeting
        it.gives(10, b"log", Sessions::Login);
        it.gives(10, b"in", Sessions::Login);
        it.gives(15, b"a request", Sessions::Login);
        it.session.sent = 18; // the beginning of an answer of 8 bytes
        assert_eq!(it.session.login, b"login");
        let mut again = Open::again(it.session.clone(), Sessions::Login);
        assert!(!again.is_between_requests(), "it has not logged in");
        again.session.sent += 15;
        assert!(again.is_between_requests());
        again.gives(23, b"another", Sessions::Login);
        assert!(!again.is_between_requests());
        again.session.sent += 1;
        assert!(again.is_between_requests());

        let mut hasty = Open::again(it.session, Sessions::Stateless);
        hasty.session.sent += 4; // of the greeting
        hasty.gives(23, b"another", Sessions::Stateless);
        hasty.session.sent += 6;
        assert!(!hasty.is_between_requests(), "that was its greeting");
        hasty.session.sent += 1;
        assert!(hasty.is_between_requests());
        let unspoken = Open::again(open().session, Sessions::Login);
        assert!(unspoken.is_between_requests());
    }

    #[test]
    fn a_login_is_not_of_any_length() {
        let mut it = open();
        it.gives(0, &[1; LOGIN_BYTES_MAX], Sessions::Login);
        it.session.sent = 1;
        assert!(it.is_between_requests());
        let mut it = open();
        it.gives(0, &[1; LOGIN_BYTES_MAX + 1], Sessions::Login);
        it.session.sent = 1;
        assert!(!it.is_between_requests());
        it.gives(0, &[1; 1 << 20], Sessions::Login);
        assert!(it.session.login.len() <= LOGIN_BYTES_MAX + 1);
    }
}
