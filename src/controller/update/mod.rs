//! Update: one run, written ahead, attached to, recorded once.
