//! Logs and metrics, and what keeps secrets out of them.
