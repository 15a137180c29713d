//! The operator's process: arguments, leadership, shutdown.
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use ipnet::IpNet;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use operator::api::v1alpha1::JobQueue;
use operator::controller::{self, FINALIZER, Settings};
use operator::lease::Leadership;
use operator::metrics::Metrics;
use operator::{server, telemetry};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// How long what is under way may take after the signal to stop. Nobody else leads meanwhile: with the 3 s that the release
/// of the lease may take and the 2 s after which others look, a handover takes 10 s at most. What is cut short is done
/// again by the next leader.
const STOPPING: Duration = Duration::from_secs(5);

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
    /// The port of /livez, /readyz and /metrics
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
    /// Ask a URL and exit with 0 when it answers 200: for helm test
    Probe {
        /// What to ask, such as `http://jobqueue-operator:8080/readyz`
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
        Some(Command::Uninstall) => uninstall(&cli).await,
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
    let server = tokio::spawn(server::serve(port, Arc::clone(&metrics), shutdown.clone().cancelled_owned()));
    let host = || hostname::get().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    // A restarted container has its predecessor's name, and its predecessor is gone: it may go on with its lease.
    let identity = identity.unwrap_or_else(host);
    let watched: Vec<String> = watch_namespaces.into_iter().filter(|name| !name.is_empty()).collect();
    let mut leadership = Leadership::new(client.clone(), &namespace, &lease_name, &identity);
    let work = async {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = async {
                wait_for_crd(&client, watched.first()).await;
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
        let controlling = controller::run(client.clone(), settings, Arc::clone(&metrics), stop);
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

/// The CRD may be installed after us: look for it until it is there.
async fn wait_for_crd(client: &Client, namespace: Option<&String>) {
    let api: Api<JobQueue> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let mut told = false;
    while let Err(error) = api.list_metadata(&ListParams::default().limit(1)).await {
        if !told {
            tracing::warn!(error = %error, "Waiting for the JobQueue CRD: is it installed?");
            told = true;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
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

/// A plain HTTP/1.1 GET: the image has no shell and no curl.
async fn probe(url: &str) -> anyhow::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let rest =
        url.strip_prefix("http://").ok_or_else(|| anyhow::anyhow!("{url}: must begin with http://"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
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
    let first = answer.lines().next().unwrap_or_default();
    anyhow::ensure!(first.contains(" 200 "), "{url} answered {first:?}");
    println!("{url}: {first}");
    Ok(())
}

/// Whoever leads would put the finalizers back: first the leadership, then they.
async fn uninstall(cli: &Cli) -> anyhow::Result<()> {
    let client = Client::try_default().await?;
    let me = format!("{}-uninstall", cli.identity.clone().unwrap_or_default());
    let mut leadership = Leadership::new(client.clone(), &cli.namespace, &cli.lease_name, &me);
    leadership.usurping(release_all(&client, &cli.watch_namespaces)).await
}

/// Takes our finalizer off every `JobQueue` of these namespaces; empty means all.
async fn release_all(client: &Client, namespaces: &[String]) -> anyhow::Result<()> {
    let spaces: Vec<Option<&String>> =
        match namespaces.iter().filter(|name| !name.is_empty()).collect::<Vec<_>>() {
            none if none.is_empty() => vec![None],
            some => some.into_iter().map(Some).collect(),
        };
    for space in spaces {
        let all: Api<JobQueue> =
            space.map_or_else(|| Api::all(client.clone()), |space| Api::namespaced(client.clone(), space));
        for queue in all.list_metadata(&ListParams::default()).await?.items {
            let kept: Vec<&String> = queue.finalizers().iter().filter(|name| *name != FINALIZER).collect();
            if kept.len() == queue.finalizers().len() {
                continue;
            }
            let api: Api<JobQueue> = Api::namespaced(client.clone(), &queue.namespace().unwrap_or_default());
            let patch = json!({ "metadata": { "finalizers": kept } });
            api.patch_metadata(&queue.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await?;
            println!("jobqueue {}/{}: released", queue.namespace().unwrap_or_default(), queue.name_any());
        }
    }
    Ok(())
}
