//! The operator's process: arguments, leadership, shutdown.
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use ipnet::IpNet;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use operator::controller::{self, Settings};
use operator::health::Health;
use operator::lease::Leadership;
use operator::metrics::Metrics;
use operator::{crd, server, telemetry, uninstall};
use tokio_util::sync::CancellationToken;

/// How long what is under way may take after the signal to stop. Nobody else leads meanwhile: with the 3 s that the release
/// of the lease may take and the 2 s after which others look, a handover takes 10 s at most. What is cut short is done
/// again by the next leader.
const STOPPING: Duration = Duration::from_secs(5);
/// How long `probe` asks: just after an installation nobody leads for a moment, and `helm test` has a minute.
const PROBING: Duration = Duration::from_secs(30);

/// The operator of jobqueue: makes what each `JobQueue` of the cluster asks for.
#[derive(Debug, Parser)]
#[command(name = "operator", version = jobqueue::VERSION)]
struct Cli {
    /// The image of workers that name none
    #[arg(long, env = "WORKER_IMAGE", default_value_t = format!("ghcr.io/jobqueue-dev/jobqueue-worker:{}", jobqueue::VERSION))]
    worker_image: String,
    /// The image of a managed Redis that names none
    #[arg(long, env = "REDIS_IMAGE", default_value = "docker.io/library/redis:8.2-alpine")]
    redis_image: String,
    /// The namespaces to look after, separated by commas; empty means all
    #[arg(long, env = "WATCH_NAMESPACES", value_delimiter = ',', default_value = "")]
    watch_namespaces: Vec<String>,
    /// The namespace that the operator runs in
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    namespace: String,
    /// What tells this process from its fellows; by default the name of the host
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// The name of the lease
    #[arg(long, env = "LEASE_NAME", default_value = "jobqueue-operator")]
    lease_name: String,
    /// The port of /livez, /readyz, /leader and /metrics
    #[arg(long, env = "PORT", default_value_t = 8080)]
    port: u16,
    /// The least severe log lines that are written: debug, info, warn or error
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    log_level: String,
    /// What the names of services end with
    #[arg(long, env = "CLUSTER_DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// The networks that a Redis may be in, such as 10.0.0.0/8, separated by commas; empty means all
    #[arg(long, env = "REDIS_NETWORKS", value_delimiter = ',', value_parser = network, default_value = "")]
    redis_networks: Vec<Option<IpNet>>,
    /// The OTLP collector (gRPC) that traces are sent to
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Ask a URL until it answers 200, half a minute at most: for helm test
    Probe {
        /// What to ask, such as `http://jobqueue-operator:8080/leader`
        url: String,
    },
    /// Take our finalizer off every `JobQueue`, so that they can be deleted without an operator
    Uninstall,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let telemetry = match telemetry::init(&cli.log_level, cli.otlp_endpoint.as_deref()) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("operator: {error}");
            return ExitCode::from(2);
        }
    };
    let ended = match &cli.command {
        None => run(cli).await,
        Some(Command::Probe { url }) => probe(url).await,
        Some(Command::Uninstall) => release(&cli).await,
    };
    let code = match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %error, "Ended");
            ExitCode::FAILURE
        }
    };
    drop(telemetry);
    code
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    // Destructured whole, so that no argument is taken and forgotten.
    let Cli {
        worker_image,
        redis_image,
        watch_namespaces,
        namespace,
        identity,
        lease_name,
        port,
        log_level: _,
        cluster_domain,
        redis_networks,
        otlp_endpoint: _,
        command: _,
    } = cli;
    let shutdown = CancellationToken::new();
    tokio::spawn(until_signal(shutdown.clone()));
    let client = Client::try_default().await?;
    let metrics = Metrics::new()?;
    let health = Arc::new(Health::default());
    let stop = shutdown.clone().cancelled_owned();
    let server = tokio::spawn(server::serve(port, Arc::clone(&metrics), Arc::clone(&health), stop));
    let host = || hostname::get().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    // A restarted container has its predecessor's name, and its predecessor is gone: it may go on with its lease.
    let identity = identity.unwrap_or_else(host);
    let watched = named(watch_namespaces);
    let mut leadership =
        Leadership::new(client.clone(), &namespace, &lease_name, &identity, Arc::clone(&health));
    let work = async {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = async {
                crd::wait(&client, &watched).await;
                health.found_crd();
                tracing::info!(identity, "Waiting to lead");
                leadership.acquire().await;
            } => {}
        }
        tracing::info!(identity, "Leading");
        metrics.lead();
        let settings = Settings {
            worker_image,
            redis_image,
            cluster_domain,
            namespace,
            lease: lease_name,
            watched,
            api_servers: api_servers(&client).await,
            redis_networks: redis_networks.into_iter().flatten().collect(),
        };
        let stop = shutdown.clone().cancelled_owned();
        let controlling =
            controller::run(client.clone(), settings, Arc::clone(&metrics), Arc::clone(&health), stop);
        // What is being done at the signal is done to its end, if that is near.
        let late = async {
            shutdown.cancelled().await;
            tokio::time::sleep(STOPPING).await;
        };
        tokio::select! {
            ended = controlling => ended,
            () = leadership.keep() => Err(anyhow::anyhow!("the lease was lost: another operator leads")),
            () = late => Ok(()),
        }
    };
    let listening = async {
        let closed = server.await;
        if shutdown.is_cancelled() {
            // It ends before the work does.
            std::future::pending::<()>().await;
        }
        closed?
    };
    let ended = tokio::select! {
        ended = work => ended,
        closed = listening => closed,
    };
    if ended.is_ok() {
        leadership.release().await;
    }
    ended
}

/// One of the networks; nothing is none.
fn network(text: &str) -> Result<Option<IpNet>, ipnet::AddrParseError> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

/// The addresses of the API server: the one that pods are told, and those behind it as far as we may know them.
async fn api_servers(client: &Client) -> Vec<IpAddr> {
    let mut found = Vec::new();
    if let Ok(host) = std::env::var("KUBERNETES_SERVICE_HOST") {
        found.extend(tokio::net::lookup_host((host, 443)).await.into_iter().flatten().map(|one| one.ip()));
    }
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    match slices.get_opt("kubernetes").await {
        Ok(slice) => {
            let addresses = slice.into_iter().flat_map(|slice| slice.endpoints);
            found
                .extend(addresses.flat_map(|one| one.addresses).filter_map(|one| one.parse::<IpAddr>().ok()));
        }
        Err(error) => {
            tracing::warn!(error = %error, "Only the service of the API server is known, not what is behind it");
        }
    }
    found
}

async fn until_signal(shutdown: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("Could not listen for signals");
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("Stopping");
    shutdown.cancel();
}

async fn probe(url: &str) -> anyhow::Result<()> {
    let rest =
        url.strip_prefix("http://").ok_or_else(|| anyhow::anyhow!("{url}: must begin with http://"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let until = tokio::time::Instant::now() + PROBING;
    loop {
        match ask(host, path).await {
            Ok(said) => {
                println!("{url}: {said}");
                return Ok(());
            }
            Err(error) if tokio::time::Instant::now() >= until => {
                anyhow::bail!("{url} did not answer 200 within {PROBING:?}: {error}");
            }
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

/// A plain HTTP/1.1 GET, since the image has no shell and no curl: what a 200 says in its last line.
async fn ask(host: &str, path: &str) -> anyhow::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(host).await?;
        stream
            .write_all(
                format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes(),
            )
            .await?;
        let mut answer = Vec::new();
        stream.take(65_536).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), asked).await??;
    let (first, last) =
        (answer.lines().next().unwrap_or_default(), answer.lines().last().unwrap_or_default());
    anyhow::ensure!(first.contains(" 200 "), "it answered {first:?}: {last}");
    Ok(last.to_owned())
}

/// The namespaces that were named; a variable that is set to nothing names none.
fn named(namespaces: Vec<String>) -> Vec<String> {
    namespaces.into_iter().filter(|name| !name.is_empty()).collect()
}

/// Whoever leads would put the finalizers back: first the leadership, then they.
async fn release(cli: &Cli) -> anyhow::Result<()> {
    let client = Client::try_default().await?;
    let me = format!("{}-uninstall", cli.identity.clone().unwrap_or_default());
    let mut leadership =
        Leadership::new(client.clone(), &cli.namespace, &cli.lease_name, &me, Arc::default());
    let watched = named(cli.watch_namespaces.clone());
    Ok(leadership.usurping(uninstall::release_all(&client, &watched)).await?)
}
