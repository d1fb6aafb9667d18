//! Fingerprints of all wire forms, so that a changed form gets a new [`wire::WIRE_VERSION`].
//!
//! Replicas of neighbouring releases talk to each other. So a form of a released version never changes: a release adds
//! kinds of messages and entries, raises the version, and sends a new kind only once its group has that version
//! ([`wire::encode_since`]). A kind is removed when the oldest version that the release speaks is newer than the last one
//! that sent it. Two kinds of tests enforce that the version is raised: each crate that sends messages has a test
//! with an example of each ([`assert_form`]), and a test here has the fingerprint of all forms together
//! for each version.
//!
//! ```text
//!  a message changes ─▶ assert_form fails: add a kind instead, with a line of its own in FORMS
//!                                  └─▶ the test of this module fails: raise WIRE_VERSION
//! ```
//!
//! The handshake's layout is the same in all versions. A log on disk is written in the forms of its group's version.
//! Other files have versions of their own, which are tested where they are written.

use crate::wire;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The wire forms, with the fingerprints of their examples (without the version byte).
pub const FORMS: [(&str, u64); 21] = [
    ("consensus", 0x55b0_e115_3e70_df28),
    ("entries", 0x17e2_9cb6_9d1d_f77a),
    ("log operations of version 2", 0xcb66_1338_2de1_7564),
    ("log operations of version 3", 0x55f0_2e25_8d58_6683),
    ("log operations", 0x611b_7a67_bfad_cb04),
    ("syncvm of version 2", 0x2ea8_ce0f_71bb_d79f),
    ("syncvm of version 3", 0x49ae_ac5f_53d2_a8a3),
    ("syncvm", 0xe4ca_beca_3278_2d06),
    ("connections", 0x8361_abd9_415f_7a43),
    ("page chunks", 0xbb9a_a07b_d1fa_082f),
    ("handshake", 0x8843_c361_638f_1ec7),
    ("ring records", 0xad32_8152_d949_416e),
    ("tcp frames", 0xa4f3_a102_1aff_b646),
    ("death reports", 0xa015_7b1c_b979_b838),
    ("relayed requests", 0xbdd7_f095_99cf_b5a4),
    ("compressed records", 0x3cf0_6e3f_5a56_a1d2),
    ("log clients", 0x63d9_8be2_f51a_830d),
    ("log servers", 0xbe71_a8e7_e8ae_e88d),
    ("programs", 0xd28e_9251_2777_e0c9),
    ("members", 0x10cd_561d_5dde_3755),
    ("stored log", 0x6e13_4964_59e3_1ac3),
];

/// A 64-bit fingerprint (FNV-1a) of `examples`; enough for accidental changes.
pub fn fingerprint<'a>(examples: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for example in examples {
        let length = (example.len() as u64).to_le_bytes();
        for byte in length.iter().chain(example) {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    sum
}

/// For tests: asserts that a form of [`FORMS`] has not changed.
///
/// # Panics
/// If it has.
pub fn assert_form(name: &str, examples: &[Vec<u8>]) {
    let found = fingerprint(examples.iter().map(Vec::as_slice));
    let known = FORMS.iter().find(|(known, _)| *known == name);
    let (_, due) = known.unwrap_or_else(|| panic!("plover_types::forms::FORMS has no '{name}'"));
    assert!(
        found == *due,
        "the wire form '{name}' has changed: replicas of the last release will not understand it. Put \
         {found:#018x} into plover_types::forms::FORMS, and follow the test there"
    );
}

/// For tests: asserts that `examples` has one of every kind of an enum, so that a new kind gets one,
/// too.
///
/// # Panics
/// If one is missing.
pub fn assert_every_kind<T: Serialize + Deserialize<'static>>(examples: &[T]) {
    let shown: BTreeSet<u8> = examples
        .iter()
        .filter_map(|example| wire::encode_part(example, Vec::new()).first().copied())
        .collect();
    // An enum begins with the number of its kind. Zeroes decode as any number, name or list.
    let is_kind = |kind: &u8| {
        let mut bytes = vec![0; 512];
        bytes[0] = *kind;
        wire::decode_part::<T>(bytes.leak()).is_ok()
    };
    let kinds: BTreeSet<u8> = (0..=u8::MAX).take_while(is_kind).collect();
    assert_eq!(shown, kinds, "the kinds that have examples, and all kinds");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WIRE_VERSION;

    /// Every version and the fingerprint of its forms. Lines are added; only the line of a version that
    /// was never released may change.
    const VERSIONS: [(u8, u64); 3] = [
        (2, 0x6e12_9543_0a2b_1bcb),
        (3, 0x0fda_b908_593f_7813),
        (4, 0xc203_206a_1334_ad0f),
    ];

    #[test]
    fn a_changed_form_is_another_version() {
        let forms = FORMS.map(|(name, sum)| [name.as_bytes(), &sum.to_le_bytes()].concat());
        let found = fingerprint(forms.iter().map(Vec::as_slice));
        let (version, due) = VERSIONS[VERSIONS.len() - 1];
        assert_eq!(version, WIRE_VERSION, "VERSIONS ends with the present one");
        assert!(
            found == due,
            "a wire form has changed, and WIRE_VERSION is still {WIRE_VERSION}: raise it, and add \
             ({}, {found:#018x}) to VERSIONS",
            WIRE_VERSION + 1
        );
    }

    #[test]
    fn fingerprints_know_examples_apart() {
        let sums = [
            vec!["a", "b"],
            vec!["b", "a"],
            vec!["ab"],
            vec!["ab", ""],
            vec![],
        ];
        let fingerprint =
            |examples: Vec<&str>| super::fingerprint(examples.iter().map(|it| it.as_bytes()));
        let sums: BTreeSet<u64> = sums.into_iter().map(fingerprint).collect();
        assert_eq!(sums.len(), 5);
    }

    #[test]
    fn a_kind_without_an_example_is_missed() {
        let all = [Some(3), None];
        assert_every_kind(&all);
        for one in all {
            let one = [one];
            assert!(std::panic::catch_unwind(|| assert_every_kind(&one)).is_err());
        }
    }
}
