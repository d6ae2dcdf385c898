//! Transformations of IR programs that hold for every packet and every content of the tables.
//!
//! Each pass has one job and one file, is named for its effect, takes the program and says whether it changed it.
//! Passes know no plugin, but they leave alone what whoever re-checks the lowered program, such as the kernel's
//! verifier, needs to see: loads stay behind the branches that guard them, comparisons of packet pointers keep
//! their form, and no two kinds of pointer are merged in a block parameter. [`clean_up`] owns the order in which
//! passes run.
//!
//! What is deliberately absent: everything that holds only for some table contents or some traffic. That is the
//! planner's, which makes assumptions; the passes here make none.

mod edit;
mod eliminate_dead_code;
mod lattice;
mod simplify_cfg;

pub use eliminate_dead_code::eliminate_dead_code;
pub use simplify_cfg::simplify_cfg;
