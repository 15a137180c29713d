//! A certificate authority of one test: what a TLS server and its clients need, as PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Paths of a CA and of a server and a client certificate it signed.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// For `localhost` and 127.0.0.1.
    pub server_cert: PathBuf,
    /// Its key.
    pub server_key: PathBuf,
    /// For client authentication, common name `client`.
    pub client_cert: PathBuf,
    /// Its key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes a new authority and both certificates in `dir`.
    pub fn generate(dir: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "jobqueue test authority");
        let key = KeyPair::generate().expect("make a key");
        let ca = write(dir, "ca.crt", &params.self_signed(&key).expect("sign the authority").pem());
        let issuer = Issuer::new(params, key);

        let (server_cert, server_key) =
            issue(dir, &issuer, "server", &["localhost", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth);
        let (client_cert, client_key) =
            issue(dir, &issuer, "client", &[], ExtendedKeyUsagePurpose::ClientAuth);
        Self { ca, server_cert, server_key, client_cert, client_key }
    }

    /// A rustls client that trusts this authority only and shows the client certificate.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.ca).expect("read the authority")).expect("trust it");
        let chain = vec![CertificateDer::from_pem_file(&self.client_cert).expect("read the certificate")];
        let key = PrivateKeyDer::from_pem_file(&self.client_key).expect("read the key");
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has the default versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .expect("use the client certificate");
        Arc::new(config)
    }
}

fn issue(
    dir: &Path,
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    alt_names: &[&str],
    usage: ExtendedKeyUsagePurpose,
) -> (PathBuf, PathBuf) {
    let alt_names: Vec<String> = alt_names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(alt_names).expect("valid names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate().expect("make a key");
    let certificate = params.signed_by(&key, issuer).expect("sign the certificate");
    (
        write(dir, &format!("{name}.crt"), &certificate.pem()),
        write(dir, &format!("{name}.key"), &key.serialize_pem()),
    )
}

fn write(dir: &Path, name: &str, pem: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, pem).expect("write a PEM file");
    path
}
