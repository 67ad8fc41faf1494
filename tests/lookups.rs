//! Checks that many idle Stacks do not slow down the index lookups for one push.
#![allow(clippy::expect_used, reason = "a missing prerequisite fails the test")]

#[path = "bench/lookups.rs"]
mod lookups;

use std::time::{Duration, Instant};

use lookups::AtRest;

const FEW: usize = 100;
const MANY: usize = 10_000;
/// Maximum slowdown of the lookups when the number of Stacks grows by a factor of one hundred. Larger tables cause more
/// CPU cache misses, but a scan would be a hundred times slower.
const RATIO: u32 = 10;

#[test]
fn lookup_time_per_push_does_not_grow_with_the_number_of_stacks() {
    let (mut few, mut many) = (AtRest::new(FEW), AtRest::new(MANY));
    // The test alternates between both measurements, so other load on the machine affects both.
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
