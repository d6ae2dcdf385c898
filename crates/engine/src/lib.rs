//! What Runnel does with a program: specialize it for what its tables hold, and keep that right.
//!
//! [`specialize`] makes one specialized version from the contents of the tables; [`controller`] runs the loop around
//! it, over a [`controller::Target`] that a plugin provides. No plugin is named here, and no kernel is known.

pub mod controller;
pub mod specialize;
