//! Longest-prefix matching by one exact search for each prefix length in use.
//!
//! A reference wants to be obviously right before it is fast: an entry matches when its own leading bits equal
//! those of the query, so masking the query to each length in use, the longest first, and searching for the
//! result finds the longest match. What counts as a match, and the query's own length as the limit, is as in
//! `trie_lookup_elem` of the kernel's `kernel/bpf/lpm_trie.c`.

/// Bytes of a key before the address: the prefix length.
pub(super) const LENGTH_BYTES: usize = 4;

/// How many entries there are of each prefix length.
#[derive(Clone, Debug)]
pub(super) struct Lengths {
    counts: Vec<u32>,
}

impl Lengths {
    /// For keys of `key_size` bytes, the length's four included.
    pub(super) fn new(key_size: u32) -> Lengths {
        let bits = key_size.saturating_sub(LENGTH_BYTES as u32) as usize * 8;
        Lengths { counts: vec![0; bits + 1] }
    }

    /// The longest length there can be, in bits.
    pub(super) fn max(&self) -> u32 {
        self.counts.len() as u32 - 1
    }

    pub(super) fn add(&mut self, key: &[u8]) {
        self.counts[length(key) as usize] += 1;
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        self.counts[length(key) as usize] -= 1;
    }

    /// The lengths in use up to `limit`, the longest first.
    pub(super) fn in_use(&self, limit: u32) -> impl Iterator<Item = u32> {
        (0..=limit).rev().filter(|&length| self.counts[length as usize] != 0)
    }
}

/// The prefix length that a key begins with.
pub(super) fn length(key: &[u8]) -> u32 {
    key.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Cuts a key to a prefix of `length` bits, which is at most its own: writes the length, and zeros the bits
/// behind the prefix.
pub(super) fn cut(key: &mut [u8], length: u32) {
    let Some((head, address)) = key.split_first_chunk_mut::<LENGTH_BYTES>() else { return };
    *head = length.to_ne_bytes();
    let whole = length as usize / 8;
    if let Some(partial) = address.get_mut(whole) {
        *partial &= !(0xff_u8 >> (length % 8));
    }
    address.iter_mut().skip(whole + 1).for_each(|byte| *byte = 0);
}
