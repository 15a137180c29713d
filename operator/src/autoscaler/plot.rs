//! Draws the simulated traces: `docs/images/autoscaling.svg` is its output.
