//! What the operator and fate do to a world: starts, crashes, pauses and cuts.

use super::{HEARTBEAT, Step, TIMEOUT, World};
use apus::{Apus, Config, Start};
use plover_types::{Index, Micros, ReplicaId};

impl World {
    pub fn start(&mut self, node: usize) {
        assert!(self.nodes[node].core.is_none());
        let (me, setup) = (ReplicaId(node as u8), &self.setup);
        let config = Config {
            me,
            members: setup.first_members(),
            first_leader: ReplicaId(0),
            any_voter_stands: setup.any_voter_stands,
            pair: false,
            quorum_selection: setup.quorum_selection,
            heartbeat: HEARTBEAT,
            timeout: TIMEOUT,
            durability: setup.durability,
            log_bytes_max: setup.log_bytes_max,
            message_bytes_max: setup.message_bytes_max,
            seed: self.random.next_u64(),
            canary: setup.canary,
        };
        let start = self.nodes[node].disk.start(setup.durability);
        let cursor = match &start {
            Start::Restarted { base, .. } => base.index,
            Start::Fresh | Start::PromiseLost { .. } => Index(0),
        };
        let core = Apus::new(config, start, self.clock(node));
        let state = &mut self.nodes[node];
        state.core = Some(core);
        state.incarnation += 1;
        state.cursor = Some(cursor);
        state.holds = false;
        state.empty = false;
        state.booting = false;
        state.paused_until = Micros::ZERO;
        state.alive.clear();
        for peer in 0..self.nodes.len() {
            if peer != node && self.nodes[peer].core.is_some() && !self.cut[peer][node] {
                self.tell_link(node, peer, true);
            }
        }
        self.schedule_tick(node);
    }

    pub fn crash(&mut self, node: usize) {
        self.nodes[node].core = None;
        self.nodes[node].holds = false;
        for peer in 0..self.nodes.len() {
            if peer != node && self.random.range(0, 1) == 0 {
                self.schedule(
                    Micros(200),
                    Step::LinkTold {
                        node: peer,
                        peer: node,
                        up: false,
                    },
                );
            }
        }
    }

    pub fn restart(&mut self, node: usize) {
        self.crash(node);
        self.start(node);
    }

    /// The process is stopped: nothing happens in it for a while, then everything at once.
    pub fn pause(&mut self, node: usize, span: Micros) {
        let node = &mut self.nodes[node];
        node.paused_until = node.paused_until.max(self.now + span);
    }

    pub fn cut_one_way(&mut self, from: usize, to: usize) {
        self.cut[from][to] = true;
    }

    pub fn cut(&mut self, a: usize, b: usize) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
        if self.random.range(0, 1) == 0 {
            self.schedule(
                Micros(500),
                Step::LinkTold {
                    node: a,
                    peer: b,
                    up: false,
                },
            );
            self.schedule(
                Micros(700),
                Step::LinkTold {
                    node: b,
                    peer: a,
                    up: false,
                },
            );
        }
    }

    pub fn isolate(&mut self, node: usize) {
        for peer in 0..self.nodes.len() {
            if peer != node {
                self.cut(node, peer);
            }
        }
    }

    pub fn heal(&mut self) {
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                if std::mem::take(&mut self.cut[from][to]) {
                    self.tell_link(from, to, true);
                }
            }
        }
    }

    fn tell_link(&mut self, a: usize, b: usize, up: bool) {
        let (first, second) = (self.random.range(50, 900), self.random.range(50, 900));
        self.schedule(
            Micros(first),
            Step::LinkTold {
                node: a,
                peer: b,
                up,
            },
        );
        self.schedule(
            Micros(second),
            Step::LinkTold {
                node: b,
                peer: a,
                up,
            },
        );
    }
}
