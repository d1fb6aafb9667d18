//! Comparing two hash lists.

use plover_types::{Digest, PageNo};

/// The outcome of comparing the union of dirty pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Pages that differ, rising.
    pub divergent: Vec<PageNo>,
    /// How many were equal.
    pub same: u32,
}

/// Compares both sides' digests of `pages`. Returns `None` if the lists are not of one length,
/// which a correct peer never sends.
pub fn compare(pages: &[PageNo], ours: &[Digest], theirs: &[Digest]) -> Option<Comparison> {
    if pages.len() != ours.len() || pages.len() != theirs.len() {
        return None;
    }
    let mut result = Comparison::default();
    for ((page, our), their) in pages.iter().zip(ours).zip(theirs) {
        if our == their {
            result.same += 1;
        } else {
            result.divergent.push(*page);
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparing_finds_exactly_the_pages_that_differ() {
        let pages = [PageNo(1), PageNo(5), PageNo(9)];
        let ours = [Digest(1), Digest(2), Digest(3)];
        let theirs = [Digest(1), Digest(7), Digest(3)];
        let result = compare(&pages, &ours, &theirs).unwrap();
        assert_eq!(
            result,
            Comparison {
                divergent: vec![PageNo(5)],
                same: 2
            }
        );
        assert_eq!(compare(&pages, &ours, &theirs[..2]), None);
    }
}
