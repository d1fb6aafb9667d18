//! A lab of replicas in network namespaces on one machine.
