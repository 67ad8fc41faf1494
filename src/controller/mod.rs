//! Reconcilers. Each kind follows the steps observe → decide → act → status.

pub mod authority;
pub mod merge;
pub mod program;
pub mod pulumi_stack;
pub mod receiver;
pub mod references;
pub mod stack;
pub mod update;
pub mod workspace;

#[cfg(test)]
mod test_parts;
