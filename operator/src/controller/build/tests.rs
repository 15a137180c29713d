//! Tables of what is built; no client, no cluster.
