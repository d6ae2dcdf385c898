//! A table as it was read, and what is known of the key at one lookup site.
//!
//! The lookup here is the definition that every representation has to agree with: a plain scan, slow on purpose.

use runnel_ir::{Key, Program, TableKind};
use thiserror::Error;

/// Bytes of a prefix key before the address: the length.
pub(crate) const PREFIX_HEAD: usize = 4;

/// One entry of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key, of the table's key size, as it lies in memory.
    pub key: Box<[u8]>,
    /// The value, of the table's value size, as it lies in memory.
    pub value: Box<[u8]>,
}

/// What a table held at one moment.
///
/// Of entries with equal keys the last counts, as if they had been written in this order; keys of a
/// [`TableKind::Prefix`] table are equal when their lengths and the address bits within that length are. Bits
/// beyond the length are ignored, as the kernel's trie ignores them (kernel/bpf/lpm_trie.c).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contents {
    /// How the table finds an entry.
    pub kind: TableKind,
    /// Key size in bytes.
    pub key_size: u32,
    /// Value size in bytes.
    pub value_size: u32,
    /// Capacity in entries.
    pub max_entries: u32,
    /// The entries, in any order.
    pub entries: Vec<Entry>,
}

/// Contents that no table of that kind can have: a mistake of whoever read the table.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ContentsError {
    /// A key that is too short or too long.
    #[error(
        "entry {entry} has a key of {found} bytes where the table's keys have {expected}: read the table again"
    )]
    KeySize {
        /// Position of the entry.
        entry: usize,
        /// The table's key size.
        expected: u32,
        /// The key's size.
        found: usize,
    },
    /// A value that is too short or too long.
    #[error(
        "entry {entry} has a value of {found} bytes where the table's values have {expected}: read the table \
         again, per-CPU tables one CPU at a time"
    )]
    ValueSize {
        /// Position of the entry.
        entry: usize,
        /// The table's value size.
        expected: u32,
        /// The value's size.
        found: usize,
    },
    /// A key size that does not go with the kind of table.
    #[error(
        "a table of kind `{kind}` cannot have keys of {key_size} bytes: its kind or key size was read wrongly"
    )]
    KindKeySize {
        /// The kind.
        kind: TableKind,
        /// The key size in bytes.
        key_size: u32,
    },
    /// A prefix that is longer than the address.
    #[error(
        "entry {entry} is a prefix of {length} bits where addresses have {address_bits}: read the table again"
    )]
    PrefixLength {
        /// Position of the entry.
        entry: usize,
        /// Length of the prefix in bits.
        length: u32,
        /// Length of an address in bits.
        address_bits: u32,
    },
    /// An index beyond the table's end.
    #[error("entry {entry} has index {index} where the table ends at {max_entries}: read the table again")]
    IndexRange {
        /// Position of the entry.
        entry: usize,
        /// The index.
        index: u32,
        /// Capacity of the table.
        max_entries: u32,
    },
    /// An index without an entry.
    #[error(
        "index {index} is missing, but every index of such a table has an entry: read the table again, whole"
    )]
    IndexMissing {
        /// The first index that is missing.
        index: u32,
    },
    /// More entries than row ids.
    #[error("{entries} entries are more than can be numbered: leave the table as it is")]
    TooManyEntries {
        /// Number of entries.
        entries: usize,
    },
}

impl Contents {
    /// Checks that a table of this kind can have these contents.
    ///
    /// # Errors
    /// The first entry that does not fit.
    pub fn check(&self) -> Result<(), ContentsError> {
        let (kind, key_size) = (self.kind, self.key_size);
        let fits = match kind {
            TableKind::Index => key_size == 4,
            TableKind::Prefix => key_size as usize > PREFIX_HEAD,
            TableKind::Exact | TableKind::Opaque => true,
        };
        if !fits {
            return Err(ContentsError::KindKeySize { kind, key_size });
        }
        if self.entries.len() >= i32::MAX as usize {
            return Err(ContentsError::TooManyEntries { entries: self.entries.len() });
        }
        self.entries.iter().enumerate().try_for_each(|(i, e)| self.check_entry(i, e))?;
        if kind == TableKind::Index { self.check_complete() } else { Ok(()) }
    }

    fn check_entry(&self, entry: usize, e: &Entry) -> Result<(), ContentsError> {
        if e.key.len() != self.key_size as usize {
            return Err(ContentsError::KeySize { entry, expected: self.key_size, found: e.key.len() });
        }
        if e.value.len() != self.value_size as usize {
            return Err(ContentsError::ValueSize { entry, expected: self.value_size, found: e.value.len() });
        }
        match self.kind {
            TableKind::Prefix if head(&e.key) > self.address_bits() => Err(ContentsError::PrefixLength {
                entry,
                length: head(&e.key),
                address_bits: self.address_bits(),
            }),
            TableKind::Index if head(&e.key) >= self.max_entries => {
                Err(ContentsError::IndexRange { entry, index: head(&e.key), max_entries: self.max_entries })
            }
            _ => Ok(()),
        }
    }

    fn check_complete(&self) -> Result<(), ContentsError> {
        // One flag an entry, not one an index: a huge capacity with few entries must not cost memory.
        let mut present = vec![false; self.entries.len()];
        for entry in &self.entries {
            if let Some(flag) = present.get_mut(head(&entry.key) as usize) {
                *flag = true;
            }
        }
        let first = present.iter().position(|p| !p).unwrap_or(present.len());
        if first < self.max_entries as usize {
            return Err(ContentsError::IndexMissing { index: first as u32 });
        }
        Ok(())
    }

    /// Length of an address in bits, of a prefix table.
    pub(crate) fn address_bits(&self) -> u32 {
        self.key_size.saturating_sub(PREFIX_HEAD as u32).saturating_mul(8)
    }

    /// The entry that a lookup of `key` finds, by looking at all of them.
    pub fn find(&self, key: &[u8]) -> Option<&Entry> {
        match self.kind {
            TableKind::Exact | TableKind::Index => self.entries.iter().rev().find(|e| *e.key == *key),
            TableKind::Prefix => self.find_prefix(key),
            TableKind::Opaque => None,
        }
    }

    fn find_prefix(&self, key: &[u8]) -> Option<&Entry> {
        let limit = head(key);
        if limit > self.address_bits() {
            return None;
        }
        self.entries
            .iter()
            .filter(|e| head(&e.key) <= limit)
            .filter(|e| agree(&e.key[PREFIX_HEAD..], &key[PREFIX_HEAD..], head(&e.key)))
            // Of equally long ones, which are equal then, the last.
            .max_by_key(|e| head(&e.key))
    }
}

/// The first four bytes of a key as a number: an index, or the length of a prefix.
pub(crate) fn head(key: &[u8]) -> u32 {
    key.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Whether two addresses agree in their first `bits` bits.
fn agree(a: &[u8], b: &[u8], bits: u32) -> bool {
    let (whole, rest) = (bits as usize / 8, bits % 8);
    let last = |x: &[u8]| x.get(whole).map(|byte| byte >> (8 - rest));
    a.get(..whole) == b.get(..whole) && (rest == 0 || last(a) == last(b))
}

/// What is known of one lookup and of what is done with its result.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SiteFacts {
    /// Bytes of the key that are the same in every lookup of the site, by position; what lies beyond the end of
    /// the list is not known.
    pub fixed: Vec<Option<u8>>,
    /// Whether anybody may write into the table's values. Rows are copies, so such a table keeps its lookup.
    pub values_written: bool,
}

impl SiteFacts {
    /// What the key's own constants say.
    pub fn of_key(program: &Program, key: &Key) -> SiteFacts {
        let mut facts = SiteFacts::default();
        for part in key {
            let Some(constant) = program.as_const(part.value) else { continue };
            let (start, len) = (usize::from(part.offset), part.size.bytes() as usize);
            facts.fixed.resize(facts.fixed.len().max(start + len), None);
            for (byte, known) in constant.to_le_bytes().into_iter().zip(&mut facts.fixed[start..start + len])
            {
                *known = Some(byte);
            }
        }
        facts
    }

    /// Byte `i` of the key, if it is known.
    pub fn byte(&self, i: usize) -> Option<u8> {
        self.fixed.get(i).copied().flatten()
    }

    /// Whether a key can occur at the site.
    pub fn admits(&self, key: &[u8]) -> bool {
        key.iter().zip(&self.fixed).all(|(byte, known)| known.is_none_or(|k| k == *byte))
    }

    /// The whole key of `size` bytes, if all of it is known.
    pub(crate) fn whole_key(&self, size: u32) -> Option<Vec<u8>> {
        (0..size as usize).map(|i| self.byte(i)).collect()
    }
}
