#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Action, Warm};
    use crate::guest::Arrange;
    use crate::join::tests::witness;
    use crate::log_ops::LogOp;
    use plover_policy::Preset;
    use plover_types::{Index, SyncNo, Unconsumed};

    /// A secondary whose guest runs and is compared.
    fn secondary() -> Replica {
        let policy = Preset::find("hybrid").unwrap().policy;
        let mut replica = witness(policy, Warm::Full);
        replica.set_role(Role::Joining);
        replica.set_role(Role::Secondary);
        replica.holds_state = true;
        replica.guest.power = Power::Paused;
        let nothing = Unconsumed::default();
        let cut = replica
            .guest
            .resume(Micros(1), nothing, Arrange::AsTheyCame, &mut replica.out);
        assert_eq!(cut, None);
        replica.begin_saying(SyncNo(1), true);
        replica.out.clear();
        replica
    }

    /// A datagram with so many bytes.
    fn datagram(bytes: u8) -> Frame {
        let mut frame = vec![0; 42 + usize::from(bytes)];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[17] = 28 + bytes;
        frame[23] = 17;
        frame[39] = 8 + bytes;
        Frame(frame)
    }

    fn paced(replica: &mut Replica, after: u64, name: u8) {
        let op = LogOp::Paced(after, vec![Frame(vec![name])]);
        replica.give_to_guest(Index(u64::from(name)), op);
        replica.tick_pace();
    }

    /// The names of what the guest got since this was last asked.
    fn fed(replica: &mut Replica) -> Vec<u8> {
        let actions = std::mem::take(&mut replica.out);
        let feeds = actions.into_iter().filter_map(|action| match action {
            Action::Feed(frames) => Some(frames),
            _ => None,
        });
        feeds.flatten().map(|frame| frame.0[0]).collect()
    }

    #[test]
    fn an_input_waits_until_the_guest_is_as_far_as_the_leaders() {
        let mut replica = secondary();
        paced(&mut replica, 0, 1);
        paced(&mut replica, 10, 2);
        paced(&mut replica, 15, 3);
        assert_eq!(fed(&mut replica), [1]);
        replica.on_outputs(vec![datagram(4), datagram(6)]);
        replica.tick_pace();
        assert_eq!(fed(&mut replica), [2]);
        let nothing_more = LogOp::Inputs(vec![Frame(vec![4])]);
        replica.give_to_guest(Index(4), nothing_more);
        assert_eq!(fed(&mut replica), [], "inputs keep their order");
        replica.on_outputs(vec![datagram(5)]);
        replica.tick_pace();
        assert_eq!(fed(&mut replica), [3, 4]);
        assert_eq!(replica.pace_deadline(), Micros::NEVER);
    }

    #[test]
    fn a_guest_that_sends_less_is_waited_for_once() {
        let mut replica = secondary();
        paced(&mut replica, 10, 1);
        let deadline = replica.pace_deadline();
        assert_eq!(deadline, replica.now + PACE_WAIT_MAX);
        replica.now = deadline;
        replica.tick_pace();
        assert_eq!(fed(&mut replica), [1]);
        assert_eq!(replica.paced_in_vain(), 10);
        paced(&mut replica, 10, 2);
        assert_eq!(fed(&mut replica), [2]);
        paced(&mut replica, 11, 3);
        assert_eq!(fed(&mut replica), []);
    }

    #[test]
    fn no_input_waits_for_longer_than_it_may_because_others_waited_before_it() {
        let mut replica = secondary();
        paced(&mut replica, 10, 1);
        paced(&mut replica, 20, 2);
        replica.now = replica.now + PACE_WAIT_MAX;
        replica.tick_pace();
        assert_eq!(fed(&mut replica), [1, 2]);
    }

    #[test]
    fn who_is_not_compared_or_takes_over_waits_for_nothing() {
        for takes_over in [false, true] {
            let mut replica = secondary();
            paced(&mut replica, 10, 1);
            assert_eq!(fed(&mut replica), []);
            if takes_over {
                replica.set_role(Role::Leader);
            } else {
                replica.saying = None;
            }
            replica.tick_pace();
            assert_eq!(fed(&mut replica), [1]);
            assert_eq!(replica.paced_in_vain(), 0);
        }
    }

    /// What is before a cut is the guest's before it is paused.
    #[test]
    fn a_cut_does_not_wait() {
        let mut replica = secondary();
        paced(&mut replica, 10, 1);
        paced(&mut replica, 20, 2);
        let at = plover_types::Viewstamp::default();
        let sync = SyncNo(2);
        let cut = crate::guest::Input::Cut(crate::guest::Cut { sync, at });
        let reached = replica.guest.give(replica.now, cut, &mut replica.out);
        assert!(reached.is_some());
        assert_eq!(fed(&mut replica), [1, 2]);
    }
}
