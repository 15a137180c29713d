//! The configuration: one type, rendered by the operator and read by the worker.
