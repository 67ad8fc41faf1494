//! What kube-rs leaves out: backoff by object, panic guard, timeouts, gates, Flux's events.
