//! Connections to the program that listens: made when one is needed, used again, closed when idle.
//!
//! hyper's own connections, without a general client around them: a thousand jobs in flight are a thousand
//! connections, and the layers for redirects, retries and many hosts cost each of them about 8 KB.
use super::{CONNECT, HttpError, HttpSettings, IDLE, SECRET_AGE};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls_platform_verifier::BuilderVerifierExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long a peer has to say that it has accepted us: a round trip and the check of a certificate.
const TICKETS: Duration = Duration::from_millis(250);

/// A request with a whole job as its body.
pub(super) type JobRequest = Request<Full<Bytes>>;
/// An answer whose body is still to come.
pub(super) type Answer = hyper::Response<hyper::body::Incoming>;

/// Why there is no answer: what matters is whether a byte of the job may have been read.
#[derive(Debug)]
pub(super) enum Lost {
    /// Nothing was sent.
    Unsent(String),
    /// It was sent, or a part of it.
    Sent(hyper::Error),
}

/// Makes connections, and keeps those that wait for their next job.
#[derive(Debug)]
pub(super) struct Connections {
    target: Target,
    tls: Option<Tls>,
    patience: Duration,
    most_idle: usize,
    /// [`IDLE`], but in tests.
    pub(super) keep_for: Duration,
    idle: Arc<Mutex<Idle>>,
}

#[cfg(test)]
impl Connections {
    /// What is known of certificates is too old at once.
    pub(super) fn read_certificates_always(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.max_age = Duration::ZERO;
        }
    }
}

#[derive(Debug)]
enum Target {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// Who we are and whom we trust, as their files say: they may be replaced at any time, and certificates expire.
struct Tls {
    settings: HttpSettings,
    name: ServerName<'static>,
    known: Mutex<Known>,
    /// [`SECRET_AGE`], but in tests.
    max_age: Duration,
}

/// What the files said when they were last read.
struct Known {
    at: Instant,
    files: Files,
    connector: TlsConnector,
}

/// The contents of the files that are named.
#[derive(PartialEq, Eq)]
struct Files {
    ca: Option<Vec<u8>>,
    cert: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A connection that can take a request.
pub(super) struct Connection(SendRequest<Full<Bytes>>);

/// The longest idle first.
#[derive(Debug, Default)]
struct Idle {
    waiting: Vec<(Instant, SendRequest<Full<Bytes>>)>,
    swept: bool,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connections {
    /// None yet. The files of TLS are read now.
    pub(super) fn new(settings: &HttpSettings, url: &Url) -> Result<Self, HttpError> {
        let host = url.host_str().unwrap_or("localhost").trim_start_matches('[').trim_end_matches(']');
        let target = match &settings.unix_socket {
            Some(path) => Target::Unix(path.clone()),
            None => Target::Tcp(host.to_owned(), url.port_or_known_default().unwrap_or(80)),
        };
        // Read and checked in any case: a mistake in them is found out now, not when the URL becomes https.
        let files = Files::read(settings)?;
        let (_, _) = (roots(settings, &files)?, identity(settings, &files)?);
        let tls = (url.scheme() == "https").then(|| {
            let name = ServerName::try_from(host.to_owned())
                .map_err(|error| HttpError::Client(format!("{host}: {error}")))?;
            let connector = connector(settings, &files)?;
            let known = Mutex::new(Known { at: Instant::now(), files, connector });
            Ok::<_, HttpError>(Tls { settings: settings.clone(), name, known, max_age: SECRET_AGE })
        });
        Ok(Self {
            target,
            tls: tls.transpose()?,
            patience: CONNECT.min(settings.timeout / 2),
            most_idle: settings.concurrency.max(1),
            keep_for: IDLE,
            idle: Arc::default(),
        })
    }

    /// Sends a request. The connection comes back with the answer: see [`Connections::keep`].
    pub(super) async fn send(&self, mut request: JobRequest) -> Result<(Answer, Connection), Lost> {
        loop {
            let (mut sender, used) = match self.take() {
                Some(sender) => (sender, true),
                // Boxed: it lives for a moment, the request it is part of for as long as the job.
                None => (Box::pin(self.connect()).await.map_err(Lost::Unsent)?, false),
            };
            if sender.ready().await.is_err() && used {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(answer) => return Ok((answer, Connection(sender))),
                Err(mut error) => match error.take_message() {
                    // The peer closed it while it was idle, and nothing was written.
                    Some(unsent) if used => request = unsent,
                    Some(_) => return Err(Lost::Unsent(error.into_error().to_string())),
                    // If the program died, the idle ones died with it, and may not have noticed yet: the next job must
                    // not be blamed for that.
                    None => {
                        self.idle.lock().unwrap_or_else(PoisonError::into_inner).waiting.clear();
                        return Err(Lost::Sent(error.into_error()));
                    }
                },
            }
        }
    }

    /// Keeps a connection for the next job. Its answer must have been read to the end.
    pub(super) fn keep(&self, Connection(sender): Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_closed() || idle.waiting.len() >= self.most_idle {
            return;
        }
        idle.waiting.push((Instant::now(), sender));
        if !std::mem::replace(&mut idle.swept, true) {
            tokio::spawn(sweep(Arc::clone(&self.idle), self.keep_for));
        }
    }

    /// The one that was used last: the others grow old and are closed.
    fn take(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((since, sender)) = idle.waiting.pop() {
            if since.elapsed() < self.keep_for && !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let connected = tokio::time::timeout(self.patience, self.dial()).await;
        let stream = connected.map_err(|_| format!("no connection within {:?}", self.patience))??;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // Ends when its sender is dropped or the peer closes it; what went wrong, the sender hears.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn dial(&self) -> Result<Box<dyn Stream>, String> {
        let text = |error: std::io::Error| error.to_string();
        let stream = match &self.target {
            Target::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await.map_err(text)?)),
            Target::Tcp(host, port) => self.dial_tcp(host, *port).await?,
        };
        stream.set_nodelay(true).map_err(text)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => {
                let connecting = tls.connector().connect(tls.name.clone(), stream);
                let mut stream = connecting.await.map_err(text)?;
                accepted(&mut stream).await.map_err(text)?;
                Ok(Box::new(stream))
            }
        }
    }

    /// Each address of a name gets its share of the time: one that swallows packets must not hide the others.
    async fn dial_tcp(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let found = tokio::net::lookup_host((host, port)).await.map_err(|error| error.to_string())?;
        let addresses: Vec<_> = found.collect();
        let share = self.patience / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        let mut said = format!("{host} has no address");
        for address in addresses {
            match tokio::time::timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => said = error.to_string(),
                Err(_) => said = format!("no connection within {share:?}"),
            }
        }
        Err(said)
    }
}

impl Tls {
    /// As the files say. One that is just being replaced, or makes no pair with the other yet, is no reason to stop: what
    /// was known may well be valid.
    fn connector(&self) -> TlsConnector {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.at.elapsed() >= self.max_age {
            known.at = Instant::now();
            if let Err(error) = known.refresh(&self.settings) {
                tracing::warn!(
                    key = error.key(),
                    error = error.reason(),
                    "Kept the certificates that were known"
                );
            }
        }
        known.connector.clone()
    }
}

impl Known {
    fn refresh(&mut self, settings: &HttpSettings) -> Result<(), HttpError> {
        let files = Files::read(settings)?;
        if files != self.files {
            self.connector = connector(settings, &files)?;
            self.files = files;
            tracing::info!("Read new certificates of the handler");
        }
        Ok(())
    }
}

impl Files {
    fn read(settings: &HttpSettings) -> Result<Self, HttpError> {
        let read = |key, path: &Option<PathBuf>| {
            let content = |path: &PathBuf| {
                std::fs::read(path).map_err(|source| HttpError::File { key, path: path.clone(), source })
            };
            path.as_ref().map(content).transpose()
        };
        Ok(Self {
            ca: read("ca_file", &settings.ca_file)?,
            cert: read("cert_file", &settings.cert_file)?,
            key: read("key_file", &settings.key_file)?,
        })
    }
}

/// Waits until the peer has accepted us. From TLS 1.3 on our part of the handshake ends before it has looked at our
/// certificate; a request that is on its way when it turns us away would pass for one that killed it. A peer that accepts
/// us says so by its session tickets; one that sends none is believed after a moment.
async fn accepted(stream: &mut TlsStream<TcpStream>) -> std::io::Result<()> {
    let (tcp, tls) = stream.get_ref();
    if tls.protocol_version() != Some(rustls::ProtocolVersion::TLSv1_3) {
        return Ok(());
    }
    if tokio::time::timeout(TICKETS, tcp.readable()).await.is_err() {
        return Ok(());
    }
    let mut nothing = [0; 1];
    let read = std::pin::pin!(stream.read(&mut nothing));
    match futures::poll!(read) {
        Poll::Ready(Ok(0)) => Err(std::io::ErrorKind::UnexpectedEof.into()),
        Poll::Ready(Err(error)) => Err(error),
        Poll::Ready(Ok(_)) | Poll::Pending => Ok(()),
    }
}

/// Closes what has been idle for too long; ends when nothing is left to close.
async fn sweep(idle: Arc<Mutex<Idle>>, keep_for: Duration) {
    loop {
        let next = {
            let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.waiting.retain(|(since, sender)| since.elapsed() < keep_for && !sender.is_closed());
            let Some((oldest, _)) = idle.waiting.first() else {
                idle.swept = false;
                idle.waiting.shrink_to_fit();
                return;
            };
            *oldest + keep_for
        };
        tokio::time::sleep_until(next).await;
    }
}

fn connector(settings: &HttpSettings, files: &Files) -> Result<TlsConnector, HttpError> {
    let client = |error: rustls::Error| HttpError::Client(error.to_string());
    let (roots, identity) = (roots(settings, files)?, identity(settings, files)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(client)?;
    let builder = match roots {
        Some(roots) => builder.with_root_certificates(roots),
        None => builder.with_platform_verifier().map_err(client)?,
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificates, key, path)) => builder
            .with_client_auth_cert(certificates, key)
            .map_err(|error| no_pair(&path, &error.to_string()))?,
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn roots(settings: &HttpSettings, files: &Files) -> Result<Option<rustls::RootCertStore>, HttpError> {
    let (Some(path), Some(pem)) = (&settings.ca_file, &files.ca) else { return Ok(None) };
    let bad = |rule: String| HttpError::Content { key: "ca_file", path: path.clone(), rule };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| bad(error.to_string()))?;
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("holds no PEM certificate".into()));
    }
    Ok(Some(roots))
}

type Identified = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, PathBuf);

fn identity(settings: &HttpSettings, files: &Files) -> Result<Option<Identified>, HttpError> {
    match (&settings.cert_file, &files.cert, &files.key) {
        (_, None, None) => Ok(None),
        (Some(path), Some(cert), Some(key)) => {
            let certificates = CertificateDer::pem_slice_iter(cert)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| no_pair(path, &error.to_string()))?;
            let key =
                PrivateKeyDer::from_pem_slice(key).map_err(|error| no_pair(path, &error.to_string()))?;
            Ok(Some((certificates, key, path.clone())))
        }
        _ => Err(HttpError::Client("cert_file and key_file must be set together".into())),
    }
}

fn no_pair(cert: &Path, why: &str) -> HttpError {
    let rule = format!("makes no pair with key_file: {why}");
    HttpError::Content { key: "cert_file", path: cert.to_owned(), rule }
}
