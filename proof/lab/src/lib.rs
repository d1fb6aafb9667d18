//! Tests on real replicas in network namespaces.
