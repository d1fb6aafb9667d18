use super::*;
use plover_types::SplitMix64;

const KEY: HashKey = HashKey::Universal([7; 32]);

const PAGES: u32 = 2000;

fn set(pages: &[u32]) -> PageSet {
    let mut set = PageSet::new(PAGES);
    pages.iter().for_each(|page| set.insert(PageNo(*page)));
    set
}

#[test]
fn equal_pages_are_not_copied() {
    let mut stream = Stream::new(ReplicaId(2), 7, PAGES);
    stream.opened(None, 1000);
    let mut asked = Vec::new();
    while let Some(pages) = stream.next_comparison(2) {
        asked.push(pages.clone());
        // Every other page is the same; the last comparison's are all the same.
        let theirs = if pages.end == PAGES {
            vec![Digest(1)]
        } else {
            pages.clone().map(|p| Digest(u128::from(p % 2))).collect()
        };
        assert_eq!(stream.compared(pages.start, theirs), Some(pages.clone()));
        stream.hashed(&vec![Digest(1); pages.len()]);
    }
    assert_eq!(asked, [1000..1256, 1256..1512, 1512..1768, 1768..2000]);
    assert!(!stream.is_comparing());
    assert_eq!(stream.begin_sweep(PageNo(0)), 1000 + 3 * 128);
    assert_eq!(stream.compared(1000, vec![Digest(0)]), None, "nobody asked");
}

/// The fear: this side's hash is of the page before a write, and the write is forgotten.
#[test]
fn a_page_written_while_it_is_hashed_stays_owed() {
    let mut stream = Stream::new(ReplicaId(2), 7, PAGES);
    stream.opened(None, 0);
    let pages = stream.next_comparison(1).unwrap();
    let same = vec![Digest(1); pages.len()];
    assert!(stream.compared(0, same.clone()).is_some());
    stream.owe(&set(&[5, 300]));
    stream.owe_page(PageNo(7));
    stream.hashed(&same);
    let owed: Vec<u32> = stream.owed().iter().map(|page| page.0).take(3).collect();
    assert_eq!(owed, [5, 7, COMPARE_PAGES]);
}

/// A guest that stands writes no page, and its copy was whole before the link broke.
#[test]
fn a_stream_that_is_opened_anew_is_as_whole_as_before() {
    let mut stream = Stream::new(ReplicaId(2), 7, PAGES);
    stream.opened(None, PAGES);
    assert!(!stream.was_swept());
    stream.begin_sweep(PageNo(0));
    let mut chunks = 0;
    while let Some((seq, _)) = stream.next_chunk(4) {
        chunks = seq + 1;
        stream.acked(chunks);
    }
    assert!(stream.was_swept());
    stream.reopen(2, KEY, Micros::ZERO);
    stream.opened(Some(chunks), PAGES);
    assert!(stream.was_swept());
    stream.owe_page(PageNo(7));
    stream.reopen(3, KEY, Micros::ZERO);
    stream.opened(Some(chunks), PAGES);
    assert!(!stream.was_swept(), "a page was written");
    stream.reopen(4, KEY, Micros::ZERO);
    stream.opened(None, PAGES);
    assert!(!stream.was_swept(), "the target has nothing of it");
}

/// The fear: a chunk is lost, and its pages with it.
#[test]
fn pages_of_lost_chunks_are_owed_again() {
    let mut stream = Stream::new(ReplicaId(2), 7, PAGES);
    stream.opened(None, PAGES);
    stream.begin_sweep(PageNo(0));
    for seq in 0..4 {
        assert_eq!(stream.next_chunk(4).map(|(seq, _)| seq), Some(seq));
    }
    assert_eq!(stream.next_chunk(4), None, "the window is full");
    stream.acked(1);
    // The link breaks; two more had arrived.
    stream.reopen(2, KEY, Micros(1));
    assert_eq!(stream.next_chunk(9), None, "it is not open");
    stream.opened(Some(3), 0);
    assert_eq!(stream.begin_sweep(PageNo(0)), PAGES - 3 * 32);
    assert_eq!(stream.next_chunk(4).map(|(seq, _)| seq), Some(3));
    // A target that says what cannot be is copied anew.
    stream.opened(Some(2), PAGES);
    assert_eq!(stream.begin_sweep(PageNo(0)), PAGES);
}

/// At 512 chunks a second they are counted once around in three months.
#[test]
fn a_copy_outlives_the_counter_of_its_chunks() {
    let mut stream = Stream::new(ReplicaId(2), 7, PAGES);
    stream.opened(None, PAGES);
    stream.sent = u32::MAX - 1;
    stream.begin_sweep(PageNo(0));
    for seq in [u32::MAX - 1, u32::MAX, 0, 1] {
        assert_eq!(stream.next_chunk(4).map(|(seq, _)| seq), Some(seq));
    }
    stream.acked(u32::MAX);
    assert_eq!(stream.behind(), PAGES - 32);
    stream.reopen(2, KEY, Micros(1));
    stream.opened(Some(1), 0);
    assert_eq!(stream.begin_sweep(PageNo(0)), PAGES - 3 * 32);
    assert_eq!(stream.next_chunk(4).map(|(seq, _)| seq), Some(1));
}

/// A source and a target with random writes, losses and reopenings: what differs is owed or on
/// its way, always.
#[test]
fn a_page_that_differs_is_owed_or_on_its_way() {
    let mut random = SplitMix64::new(3);
    for _ in 0..50 {
        let mut stream = Stream::new(ReplicaId(2), 7, PAGES);
        let (mut ours, mut theirs) = ([1u32; PAGES as usize], [0u32; PAGES as usize]);
        (0..500).for_each(|page| theirs[page] = 1);
        let (mut written, mut road) = (0, VecDeque::new());
        // This side's hashes, made and not yet told.
        let mut late: VecDeque<Vec<Digest>> = VecDeque::new();
        stream.opened(None, random.range(0, u64::from(PAGES)) as u32);
        for step in 2..400u32 {
            match random.range(0, 9) {
                0 => {
                    let page = random.range(0, u64::from(PAGES) - 1) as u32;
                    ours[page as usize] = step;
                    stream.owe(&set(&[page]));
                }
                1 => {
                    // What is on the road is lost, from some place on.
                    let kept = random.range(0, road.len() as u64) as usize;
                    road.truncate(kept);
                    for (page, value) in road.drain(..).flatten() {
                        theirs[page as usize] = value;
                    }
                    written += kept as u32;
                    stream.reopen(u64::from(step), KEY, Micros(1));
                    stream.opened(Some(written), 0);
                    late.clear();
                }
                2 if !late.is_empty() => {
                    let own = late.pop_front().unwrap();
                    stream.hashed(&own);
                }
                2 | 3 => {
                    if let Some(pages) = stream.next_comparison(1) {
                        let digest = |value: &u32| Digest(u128::from(*value));
                        let range = pages.start as usize..pages.end as usize;
                        let seen = theirs[range.clone()].iter().map(digest).collect();
                        assert_eq!(stream.compared(pages.start, seen), Some(pages));
                        let own: Vec<_> = ours[range].iter().map(digest).collect();
                        late.push_back(own);
                    }
                }
                4 if stream.is_swept() && !stream.is_comparing() => {
                    stream.begin_sweep(PageNo(0));
                }
                5..=7 => {
                    if let Some((_, pages)) = stream.next_chunk(8) {
                        let read = pages.iter().map(|page| (page.0, ours[page.0 as usize]));
                        road.push_back(read.collect::<Vec<_>>());
                    }
                }
                _ => {
                    if let Some(chunk) = road.pop_front() {
                        for (page, value) in chunk {
                            theirs[page as usize] = value;
                        }
                        written += 1;
                        stream.acked(written);
                    }
                }
            }
            for page in (0..PAGES).filter(|page| ours[*page as usize] != theirs[*page as usize]) {
                let page = PageNo(page);
                assert!(stream.owed().contains(page) || stream.is_in_flight(page));
            }
        }
    }
}
