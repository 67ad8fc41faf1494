//! The reconcilers. Each kind reads as observe → decide → act → status.

pub mod stack;
pub mod update;
pub mod workspace;
