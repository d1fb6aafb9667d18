//! Assigns this machine's CPUs to the hosts of a lab.
//!
//! A lab's hosts are one machine. If it has few CPUs, the kernel now and then runs two guests by turns
//! on one CPU. Guests on hosts of their own never do so. Every slot then waits for the slower guest. So
//! the two guests that run are kept apart:
//!
//! ```text
//!   CPU 0   the leader's guest       the followers' plover
//!   CPU 1   the followers' guests    the leader's plover
//! ```

use toml::{Table, Value};

/// The section `[host]` for every replica of a lab on `cpus`, whose guest has `vcpus` processors. `None`
/// if there are enough CPUs for every thread that is often busy, or too few to keep two guests apart.
pub(crate) fn shares(cpus: &[usize], vcpus: usize) -> Option<Table> {
    let (guests, replicas) = (2 * vcpus, 2);
    if cpus.len() < guests || cpus.len() >= guests + replicas {
        return None;
    }
    let (leading, rest) = cpus.split_at(vcpus);
    let (following, spare) = rest.split_at(vcpus);
    let beside = |guest: &[usize]| if spare.is_empty() { guest } else { spare }.to_vec();
    Some(Table::from_iter([
        ("leader".into(), role(leading, &beside(following))),
        ("follower".into(), role(following, &beside(leading))),
    ]))
}

fn role(guest: &[usize], replica: &[usize]) -> Value {
    let list = |cpus: &[usize]| cpus.iter().map(|cpu| Value::from(*cpu as i64)).collect();
    let lists = [("guest", guest), ("replica", replica)];
    Value::Table(Table::from_iter(
        lists.map(|(key, cpus)| (key.to_owned(), Value::Array(list(cpus)))),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cpus: &[usize], vcpus: usize) -> Option<String> {
        shares(cpus, vcpus).map(|table| table.to_string().replace(['\n', ' '], ""))
    }

    #[test]
    fn two_guests_never_share_a_cpu() {
        let two = "[follower]guest=[5]replica=[2][leader]guest=[2]replica=[5]";
        assert_eq!(of(&[2, 5], 1).unwrap(), two);
        let three = "[follower]guest=[1]replica=[2][leader]guest=[0]replica=[2]";
        assert_eq!(of(&[0, 1, 2], 1).unwrap(), three);
    }

    #[test]
    fn the_kernel_decides_where_there_are_enough_or_too_few() {
        assert_eq!(of(&[0, 1, 2, 3], 1), None);
        assert_eq!(of(&[0], 1), None);
        assert_eq!(of(&[0, 1], 2), None);
        assert_eq!(of(&[], 1), None);
    }
}
