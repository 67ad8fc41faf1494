//! Workspace: certificate, Service, StatefulSet, pod, and the source in it.
