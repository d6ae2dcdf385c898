//! Transformations of IR programs that hold for every packet and every content of the tables.
//!
//! Each pass has one job and one file, is named for its effect, takes the program and says whether it changed it.
//! Passes know no plugin, but they leave alone what whoever re-checks the lowered program, such as the kernel's
//! verifier, needs to see: loads stay behind the branches that guard them, comparisons of packet pointers keep
//! their form, and no two kinds of pointer are merged in a block parameter. [`clean_up`] owns the order in which
//! passes run.
//!
//! What is deliberately absent: everything that holds only for some table contents or some traffic. That is the
//! specializer's, which makes assumptions; the passes here make none.

mod edit;
mod eliminate_dead_code;
mod eliminate_dead_stores;
mod fold_addresses;
mod fold_constants;
mod forward_loads;
mod lattice;
mod merge_loads;
mod merge_stores;
mod number_values;
mod pipeline;
mod simplify_algebra;
mod simplify_cfg;
mod ssa_repair;
mod thread_jumps;

pub use eliminate_dead_code::eliminate_dead_code;
pub use eliminate_dead_stores::eliminate_dead_stores;
pub use fold_addresses::fold_addresses;
pub use fold_constants::fold_constants;
pub use forward_loads::forward_loads;
pub use merge_loads::merge_loads;
pub use merge_stores::merge_stores;
pub use number_values::number_values;
pub use pipeline::{Fuel, PassError, clean_up, clean_up_checked, clean_up_with};
pub use simplify_algebra::simplify_algebra;
pub use simplify_cfg::simplify_cfg;
pub use thread_jumps::thread_jumps;
