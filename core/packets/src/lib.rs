//! Reads the Ethernet frames of a guest: which connection a frame belongs to and what it carries.
//! All parsing of frames in core is here.
//!
//! | module | what it does | used by |
//! |---|---|---|
//! | `packet` | reads a frame as a TCP segment or as a datagram of a flow | comparing outputs, byte counts |
//! | `connections` | puts the frames of each connection next to each other | inputs ordered by connection only |
//! | `tcp_head` | reads a TCP header and moves its sequence numbers and timestamps | sequence-number translation |
//! | `made` | makes segments without data of a stream | ending connections after a takeover |
//! | `options` | walks the options of a TCP header | the two above |
//!
//! No bytes make it panic: frames come from guests and from clients. What cannot be read as IP is a
//! datagram of the flow that its Ethernet header names.
//!
//! ```
//! use plover_packets::{FlowKey, Packet};
//! use plover_types::Frame;
//!
//! let arp = [[0xff; 6].as_slice(), &[0x52, 0x54, 0, 0, 0, 1, 8, 6], &[0; 46]].concat();
//! let frame = Frame(arp);
//! assert!(matches!(Packet::of(&frame), Packet::Datagram(FlowKey::Link(_), _)));
//! assert_eq!(Packet::of(&frame).key().to_string(), "Ethernet type 0x0806");
//! ```

#![forbid(unsafe_code)]

mod connections;
mod made;
mod options;
mod packet;
mod tcp_head;

pub use connections::by_connection;
pub use made::{MACS_BYTES, macs_back, macs_of, question, reset};
pub use packet::{FlowKey, Packet, Route, Segment, Syn, before, payload_bytes};
pub use tcp_head::TcpHead;
