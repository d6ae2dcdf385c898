//! The checker on made-up logs: it finds every kind of violation, accepts every legal interleaving, and agrees
//! with a model that tries all of them.

mod exhaustive;
mod rules;
mod world;
