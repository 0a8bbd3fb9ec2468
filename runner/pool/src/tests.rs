//! The rules by value, one file per subject, and the histories of several pools.

mod adoption;
mod calls;
mod capacity;
mod collecting;
mod fuzz;
mod hearing;
mod histories;
mod keeping;
mod origin;
mod reclaim;
mod replacing;
mod rig;
mod scaling;
mod starting;
mod warming;
