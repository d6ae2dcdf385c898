//! Contents brought into one order, so that equal contents give equal results however they were read.
//!
//! Entries are sorted by key, of equal keys only the last stays, and values are numbered in that order.
//! What a representation is built from is either a [`Matching`] (exact) or a list of [`Prefix`]es.

use runnel_ir::TableKind;

use crate::contents::{Contents, Entry, PREFIX_HEAD, SiteFacts, head};
use crate::keyparts::{WordValues, Words, cover, values_of};
use crate::representation::Refusal;
use crate::rows::{RowId, Rows};

/// Longest address that prefix representations handle, in bytes: that of IPv6.
const MAX_ADDRESS: usize = 16;

/// A key and the row of its value.
#[derive(Clone, Copy)]
pub(crate) struct Keyed<'c> {
    pub(crate) key: &'c [u8],
    pub(crate) row: RowId,
}

/// A prefix and the row of its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prefix {
    /// The address, its first bit the highest; bits beyond the length are zero.
    pub(crate) address: u128,
    /// Length in bits.
    pub(crate) length: u32,
    /// The row of the value.
    pub(crate) row: RowId,
}

/// Find the item whose words are equal to the key's.
pub(crate) struct Matching {
    /// What of a key is compared.
    pub(crate) words: Words,
    /// What the words hold, no two alike, and the row.
    pub(crate) items: Vec<(WordValues, RowId)>,
    /// What other keys give.
    pub(crate) otherwise: RowId,
}

/// A table's entries in order, and its values numbered.
pub(crate) struct Prepared<'c> {
    pub(crate) contents: &'c Contents,
    pub(crate) rows: Rows,
    pub(crate) keyed: Vec<Keyed<'c>>,
}

/// A mask of the first `length` bits of an address.
fn prefix_mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// The first 16 bytes, the first the highest.
fn leading(bytes: &[u8]) -> u128 {
    let mut out = [0; 16];
    let len = bytes.len().min(16);
    out[..len].copy_from_slice(&bytes[..len]);
    u128::from_be_bytes(out)
}

/// What an entry is sorted by: these numbers, then what of its key they leave out.
struct Rank<'c> {
    major: u128,
    minor: u32,
    tail: &'c [u8],
    position: u32,
}

impl<'c> Rank<'c> {
    fn of(kind: TableKind, position: usize, entry: &'c Entry) -> Rank<'c> {
        let key = &entry.key;
        let (major, minor, tail) = match kind {
            TableKind::Index => (u128::from(head(key)), 0, &[][..]),
            TableKind::Prefix => (leading(&key[PREFIX_HEAD..]) & prefix_mask(head(key)), head(key), &[][..]),
            TableKind::Exact | TableKind::Opaque => (leading(key), 0, key.get(16..).unwrap_or_default()),
        };
        Rank { major, minor, tail, position: position as u32 }
    }

    fn key(&self) -> (u128, u32, &'c [u8]) {
        (self.major, self.minor, self.tail)
    }
}

impl<'c> Prepared<'c> {
    /// Sorts and numbers contents that [`Contents::check`] has passed.
    pub(crate) fn new(contents: &'c Contents) -> Result<Prepared<'c>, Refusal> {
        let address = (contents.key_size as usize).saturating_sub(PREFIX_HEAD);
        match contents.kind {
            TableKind::Opaque => return Err(Refusal::Opaque),
            TableKind::Prefix if address > MAX_ADDRESS => {
                return Err(Refusal::KeyTooLong { bytes: address, limit: MAX_ADDRESS });
            }
            _ => {}
        }
        let stride = Rows::stride_for(contents.value_size)
            .ok_or(Refusal::ValueTooLong { bytes: contents.value_size as usize })?;
        let mut ranks: Vec<Rank<'_>> =
            contents.entries.iter().enumerate().map(|(i, e)| Rank::of(contents.kind, i, e)).collect();
        ranks.sort_unstable_by(|a, b| a.key().cmp(&b.key()).then(b.position.cmp(&a.position)));
        // The last of equal ones stands first now.
        ranks.dedup_by(|later, first| later.key() == first.key());
        let entry = |rank: &Rank<'_>| &contents.entries[rank.position as usize];
        let values = ranks.iter().map(|r| &*entry(r).value);
        let consecutive = contents.kind == TableKind::Index;
        let (rows, ids) = Rows::number(stride, contents.value_size, values, consecutive);
        let keyed = ranks.iter().zip(ids).map(|(r, row)| Keyed { key: &entry(r).key, row }).collect();
        Ok(Prepared { contents, rows, keyed })
    }

    /// An exact-match or index table at a site: the entries that can be hit there, and the bytes that can differ.
    pub(crate) fn exact(&self, facts: &SiteFacts) -> Matching {
        let masks: Vec<u8> = (0..self.contents.key_size as usize)
            .map(|i| if facts.byte(i).is_some() { 0 } else { u8::MAX })
            .collect();
        let words = cover(&masks);
        let admitted = self.keyed.iter().filter(|k| facts.admits(k.key));
        let items = admitted.map(|k| (values_of(&words, k.key), k.row)).collect();
        Matching { words, items, otherwise: RowId::MISS }
    }

    /// A prefix table's entries, by address and then length: a prefix stands before all that lie within it.
    pub(crate) fn prefixes(&self) -> Vec<Prefix> {
        let prefix = |k: &Keyed<'_>| {
            let length = head(k.key);
            Prefix { address: leading(&k.key[PREFIX_HEAD..]) & prefix_mask(length), length, row: k.row }
        };
        self.keyed.iter().map(prefix).collect()
    }
}

/// Which bits of a key of `key_size` bytes a prefix of `length` bits compares, one mask for each byte.
pub(crate) fn prefix_key_masks(key_size: u32, length: u32) -> Vec<u8> {
    prefix_key(key_size, prefix_mask(length))
}

/// A key with this address in it and nothing before it.
pub(crate) fn prefix_key(key_size: u32, address: u128) -> Vec<u8> {
    let mut key = vec![0; PREFIX_HEAD];
    key.extend_from_slice(&address.to_be_bytes());
    key.truncate(key_size as usize);
    key
}

/// Prefixes all of one length, but for a default route, as exact matching of the masked address. Without a prefix
/// longer than zero there is nothing to match, and without exactly one length it is not exact.
pub(crate) fn single_length(key_size: u32, prefixes: &[Prefix]) -> Result<Matching, Refusal> {
    let (default, longer): (Vec<&Prefix>, Vec<&Prefix>) = prefixes.iter().partition(|p| p.length == 0);
    let mut lengths: Vec<u32> = longer.iter().map(|p| p.length).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let &[length] = lengths.as_slice() else { return Err(Refusal::SeveralLengths { count: lengths.len() }) };
    let words = cover(&prefix_key_masks(key_size, length));
    let items = longer.iter().map(|p| (values_of(&words, &prefix_key(key_size, p.address)), p.row)).collect();
    let otherwise = default.first().map_or(RowId::MISS, |p| p.row);
    Ok(Matching { words, items, otherwise })
}
