//! The kept inputs of every target, and changes of them: the same ones in each run.

use plover_fuzz::{TARGETS, Target, folder, from_hex, to_hex};

/// Changed inputs of each target.
const CHANGES: usize = 5_000;
const SEED: u64 = 7;

/// Bytes at which decoders decide.
const LIKELY: [u8; 6] = [0, 1, 2, 0x7f, 0x80, 0xff];

/// Numbers that look random, the same ones in each run (SplitMix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize % most.max(1)
    }
}

fn changed(input: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    let mut below = |most| rng.below(most);
    for _ in 0..=below(4) {
        let at = below(bytes.len());
        match below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << below(8),
            1 if !bytes.is_empty() => bytes[at] = LIKELY[below(LIKELY.len())],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, LIKELY[below(LIKELY.len())]),
            4 if !bytes.is_empty() => drop(bytes.remove(at)),
            _ => {
                let from = below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from.min(other.len())..]);
            }
        }
    }
    bytes
}

fn run(target: Target) {
    let folder = folder().unwrap();
    let kept = target.kept().unwrap();
    assert!(
        !kept.is_empty(),
        "{}: keep an input",
        target.corpus().display()
    );
    let mut rng = Rng(SEED);
    let mut tried = kept.clone();
    for number in 0..CHANGES {
        let other = &kept[rng.below(kept.len())];
        tried.push(changed(&kept[number % kept.len()], other, &mut rng));
    }
    for input in tried {
        let _shown = Shown(&input, target.name);
        target.run(folder.path(), &input);
    }
}

/// A panic shows the input.
struct Shown<'a>(&'a [u8], &'static str);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} fails with the input {}", self.1, to_hex(self.0));
        }
    }
}

#[test]
fn no_kept_input_and_no_change_of_one_breaks_a_decoder() {
    for target in TARGETS {
        run(target);
    }
}

#[test]
fn a_line_of_a_corpus_is_hexadecimal() {
    assert_eq!(
        from_hex(&to_hex(&[0, 0x9a, 0xff])),
        Some(vec![0, 0x9a, 0xff])
    );
    assert_eq!(from_hex("0"), None);
    assert_eq!(from_hex("0x"), None);
}
