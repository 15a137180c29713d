//! The operator on a real cluster. Every test has a namespace of its own, which enforces the level `restricted`.
mod deletion;
mod drain;
mod drift;
mod external;
mod handlers;
mod left_behind;
mod managed;
mod measured;
mod newcomer;
mod rescue;
mod rest;
mod rollout;
mod rotation;
mod scaling;
mod smallest;
mod template;
mod validation;
