//! Tests for the events that reach the API and notification-controller.

mod kubernetes;
mod notifications;
