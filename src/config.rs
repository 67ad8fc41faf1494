//! Validated settings; every default and limit.
