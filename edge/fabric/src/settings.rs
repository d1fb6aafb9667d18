//! What the configurations of all fabrics have in common: members and rings.

use crate::ring::Capacity;
use crate::{FabricError, Lane};
use plover_types::ReplicaId;

/// Refuses members that make no group: each is named once.
pub(crate) fn check_members(
    me: ReplicaId,
    peers: impl IntoIterator<Item = ReplicaId>,
) -> Result<(), FabricError> {
    let mut seen = vec![me];
    for id in peers {
        if seen.contains(&id) {
            return Err(FabricError::Member(id));
        }
        seen.push(id);
    }
    Ok(())
}

/// The sizes of the rings, in the order of [`Lane::ALL`], from what was configured.
pub(crate) fn capacities(
    log_bytes: usize,
    bulk_bytes: usize,
) -> Result<[Capacity; 2], FabricError> {
    let capacity =
        |lane, bytes| Capacity::new(bytes).map_err(|source| FabricError::Ring { lane, source });
    Ok([
        capacity(Lane::Log, log_bytes)?,
        capacity(Lane::Bulk, bulk_bytes)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: [ReplicaId; 3] = [ReplicaId(0), ReplicaId(1), ReplicaId(2)];

    #[test]
    fn nobody_is_a_member_twice() {
        assert!(check_members(R[0], [R[1], R[2]]).is_ok());
        for (peers, twice) in [([R[1], R[0]], R[0]), ([R[2], R[2]], R[2])] {
            let refused = check_members(R[0], peers);
            assert!(matches!(refused, Err(FabricError::Member(id)) if id == twice));
        }
    }

    #[test]
    fn a_ring_of_no_size_is_refused_by_its_lane() {
        let sizes = capacities(4096, 8192)
            .expect("both can be")
            .map(Capacity::bytes);
        assert_eq!(sizes, [4096, 8192]);
        for (log, bulk, wrong) in [(4097, 4096, Lane::Log), (4096, 0, Lane::Bulk)] {
            let refused = capacities(log, bulk);
            assert!(matches!(refused, Err(FabricError::Ring { lane, .. }) if lane == wrong));
        }
    }
}
