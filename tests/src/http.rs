//! An HTTP client for looking at what the worker serves.

use std::sync::OnceLock;
use std::time::Duration;

/// The client of this test binary; it speaks TLS with ring, as the worker does.
pub fn client() -> reqwest::Client {
    static PROVIDER: OnceLock<()> = OnceLock::new();
    PROVIDER.get_or_init(|| {
        // An error means that someone installed one already: as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder().timeout(Duration::from_secs(10)).build().expect("make an HTTP client")
}
