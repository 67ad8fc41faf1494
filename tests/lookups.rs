//! Checks that the index lookups for one push are not much slower if many Stacks are idle.
#![allow(clippy::expect_used, reason = "a missing prerequisite fails the test")]

#[path = "bench/lookups.rs"]
mod lookups;

use std::time::{Duration, Instant};

use lookups::AtRest;

const FEW: usize = 100;
const MANY: usize = 10_000;
/// Maximum slowdown of the lookups if the number of Stacks increases by a factor of a hundred. Larger tables cause more
/// cache misses of the CPU, while a scan would be a hundred times slower.
const RATIO: u32 = 10;

#[test]
fn lookup_time_per_push_does_not_grow_with_the_number_of_stacks() {
    let (mut few, mut many) = (AtRest::new(FEW), AtRest::new(MANY));
    // The measurements alternate, so other load on the machine affects both measurements.
    let rounds = (0..20).map(|_| (fastest(&mut few), fastest(&mut many)));
    let (few, many) = rounds.reduce(|best, round| (best.0.min(round.0), best.1.min(round.1))).expect("rounds");
    println!("{FEW} Stacks: {few:?} for each push, {MANY} Stacks: {many:?}");
    assert!(many < few * RATIO, "{FEW} Stacks: {few:?} for each push, {MANY} Stacks: {many:?}");
    assert!(many < Duration::from_millis(50), "the lookups must be negligible for a push: {many:?}");
}

fn fastest(at_rest: &mut AtRest) -> Duration {
    let times = (0..20).map(|_| {
        let begin = Instant::now();
        at_rest.push();
        begin.elapsed()
    });
    times.min().unwrap_or_default()
}
