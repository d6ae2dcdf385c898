//! What a table holds, as the data structure and the probe that answer its lookups fastest.
//!
//! Given the [`Contents`] of a match-action table and what is known at one lookup site, [`choose`] weighs the
//! ways to represent it (nothing at all, a constant, comparisons, an array, a perfect hash, a multi-level index)
//! by a cost model, and gives the best as a [`Representation`]: read-only data objects, a pure model of the
//! lookup, and a probe that appends itself to a program. A lookup gives a [`RowId`]; the caller turns it
//! into an address in the [`Rows`], which hold the distinct values.
//!
//! It relies on the contents not changing while the result is in use: whoever installs a representation guards
//! it. It relies on a little-endian target, and on a verifier that bounds addresses the way the Linux one does;
//! each index is therefore bounded by its own computation, never by a branch before it.
//!
//! What is deliberately absent: updates in place (a changed table is built anew), tables whose values are written
//! by programs or differ between CPUs, knowledge of traffic, and any kernel.

mod choose;
mod contents;
mod cost;
mod keyparts;
mod prepare;
mod representation;
mod rows;

pub use choose::{Budget, Candidate, Candidates, Choice, Considered, candidates, choose};
pub use contents::{Contents, ContentsError, Entry, SiteFacts};
pub use keyparts::Word;
pub use representation::{
    CompareTree, Constant, DirectIndex, LevelIndex, PerfectHash, Refusal, Representation,
};
pub use rows::{RowId, Rows};
