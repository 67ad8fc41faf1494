//! Endpoints for health and metrics.
