//! The `worker` binary: arguments to role.
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use futures::FutureExt as _;
use jobqueue::config::{Config, Loaded, environment};
use worker::cli::{Cli, Command, ConfigCommand, Role};
use worker::health::{FIRST_LANE, Readiness};
use worker::metrics::Metrics;
use worker::roles;
use worker::server::{self, Observed};
use worker::shutdown::{Stopper, shutdown};
use worker::traces::Tracer;

/// The configuration is wrong, or the command line.
const EXIT_USAGE: u8 = 2;
/// Signals that arrive together are one.
const REPEATED: std::time::Duration = std::time::Duration::from_millis(100);
/// Something had to be left to a reaper.
const EXIT_UNCLEAN: u8 = 3;

fn main() -> ExitCode {
    let started = SystemTime::now();
    let cli = Cli::parse();
    if let Some(Command::Completion { shell }) = cli.command {
        clap_complete::generate(shell, &mut Cli::command(), "worker", &mut std::io::stdout());
        return ExitCode::SUCCESS;
    }
    if let Some(Command::Install { path }) = &cli.command {
        return match install(path) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("Could not copy this program to {}: {error}", path.display());
                ExitCode::FAILURE
            }
        };
    }
    if let Some(Command::Wait) = cli.command {
        return wait();
    }
    // What is checked is for those who do.
    let runs_jobs = matches!(cli.role, Some(Role::Worker | Role::All))
        || matches!(cli.command, Some(Command::Config(ConfigCommand::Check)));
    let loaded = if runs_jobs {
        Config::load(cli.config.as_deref(), environment())
    } else {
        Config::load_to_look(cli.config.as_deref(), environment())
    };
    let mut loaded = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    loaded.config.producer.once |= cli.once;
    if let Some(Command::Config(ConfigCommand::Check)) = cli.command {
        print!("{}", loaded.config.to_yaml_masked());
        loaded.notes.iter().for_each(|note| eprintln!("{note}"));
        return ExitCode::SUCCESS;
    }
    if let Some(Command::Health { ready }) = cli.command {
        let path = if ready { "/readyz" } else { "/healthz" };
        return match worker::health::ask(loaded.config.observability.metrics_port, path) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("Could not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(run(cli, loaded, started));
    // A walk through a directory may hang in the file system: nobody waits for that thread.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Waits for a signal, which as the first process of a container nobody else would act on.
fn wait() -> ExitCode {
    let waited = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
        runtime.block_on(async {
            let (stopper, stopping) = shutdown();
            on_signal(Arc::new(stopper))?;
            worker::wait::run(stopping).await;
            Ok(())
        })
    });
    match waited {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Could not wait: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Under another name first: whoever finds the program finds all of it.
fn install(path: &std::path::Path) -> std::io::Result<()> {
    let part = path.with_extension("part");
    std::fs::copy(std::env::current_exe()?, &part)?;
    std::fs::rename(part, path)
}

async fn run(cli: Cli, loaded: Loaded, started: SystemTime) -> anyhow::Result<ExitCode> {
    let Loaded { config, notes } = loaded;
    let role = match (cli.role, &cli.command) {
        (Some(role), _) => role,
        (None, Some(_)) => Role::Admin,
        (None, None) => {
            eprintln!("--role is missing: producer, worker, all, api or admin (see --help)");
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    if role == Role::Admin {
        let Some(command) = cli.command else {
            eprintln!(
                "--role=admin needs a command: stats, peek, job, enqueue, dlq, pause, resume or doctor (see --help)"
            );
            return Ok(ExitCode::from(EXIT_USAGE));
        };
        return roles::admin::run(&config, command).await;
    }
    if matches!(role, Role::Producer | Role::All) && config.protocol != jobqueue::config::Protocol::Files {
        eprintln!(
            "protocol = {}: its clients enqueue their own jobs, there is no producer; use --role=worker",
            config.protocol
        );
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    if role == Role::Api && config.protocol != jobqueue::config::Protocol::Async {
        eprintln!("protocol = {}: --role=api serves protocol async; set protocol: async", config.protocol);
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    // Boxed: it lives as long as the process, its caller's stack need not hold it.
    Box::pin(serve(role, &config, &notes, started)).await
}

async fn serve(
    role: Role,
    config: &Config,
    notes: &[jobqueue::config::Note],
    started: SystemTime,
) -> anyhow::Result<ExitCode> {
    let namespace = (!config.worker.namespace.is_empty()).then_some(config.worker.namespace.as_str());
    worker::logs::init(config.observability.log_level.as_str(), namespace)?;
    for note in notes {
        tracing::warn!(key = note.key, reason = note.text, "Ignored a setting");
    }
    let metrics = Arc::new(Metrics::new(&config.worker.priorities)?);
    let runs_jobs = matches!(role, Role::Worker | Role::All);
    let readiness = Readiness::waiting_for(match role {
        Role::Worker | Role::All => &[FIRST_LANE],
        Role::Api => &[roles::api::REDIS],
        Role::Producer | Role::Admin => &[],
    });
    let tracing_config = &config.observability.tracing;
    let tracer = if tracing_config.enabled {
        Tracer::start(&collector(&tracing_config.endpoint))?
    } else {
        Tracer::off()
    };
    let listener = server::bind(config.observability.metrics_port).await?;
    tracing::info!(value = %listener.local_addr()?, "Serving metrics");
    let observed = Observed { metrics: Arc::clone(&metrics), readiness: readiness.clone() };
    let (stop_server, mut server_stopped) = shutdown();
    let server = tokio::spawn(async move {
        server::serve(listener, observed, async move { server_stopped.requested().await }).await
    });

    let (stopper, stopping) = shutdown();
    let stopper = Arc::new(stopper);
    on_signal(Arc::clone(&stopper)).context("cannot listen for signals")?;
    // Whichever fails first ends the other too, but in order: running jobs are drained.
    let ending = |outcome: anyhow::Result<bool>| outcome.inspect_err(|_| stopper.stop());
    let producing = async {
        if !matches!(role, Role::Producer | Role::All) {
            return Ok(true);
        }
        let producer = roles::producer::run(config, Arc::clone(&metrics), tracer.clone(), stopping.clone());
        ending(producer.await)
    };
    let serving = async {
        if role != Role::Api {
            return Ok(true);
        }
        ending(roles::api::run(config, Arc::clone(&metrics), readiness.clone(), stopping.clone()).await)
    };
    let working = async {
        if !runs_jobs {
            return Ok(true);
        }
        let around = roles::worker::Surroundings {
            metrics: Arc::clone(&metrics),
            readiness: readiness.clone(),
            tracer: tracer.clone(),
            started_ms: started
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0)),
        };
        ending(roles::worker::run(config, around, stopping.clone()).await)
    };
    let (scanned, answered, clean) = tokio::join!(producing, serving, working);
    tracer.shutdown().await;
    stop_server.stop();
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), server).await;
    let (scanned, answered, clean) = (scanned?, answered?, clean?);
    tracing::info!("Stopped");
    Ok(match (scanned, answered && clean) {
        (_, false) => ExitCode::from(EXIT_UNCLEAN),
        (false, true) if role == Role::Producer => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// Where traces go: as configured, else as OpenTelemetry's own variable says, else where a collector listens by default.
fn collector(configured: &jobqueue::config::Url) -> String {
    let given = |endpoint: &String| !endpoint.is_empty();
    Some(configured.expose().to_owned())
        .filter(given)
        .or_else(|| std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok().filter(given))
        .unwrap_or_else(|| "http://localhost:4317".to_owned())
}

/// SIGINT and SIGTERM ask to stop; a second one ends the process at once.
fn on_signal(stopper: Arc<Stopper>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        let mut signalled = async || {
            tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
            }
        };
        signalled().await;
        stopper.stop();
        // One Ctrl-C may arrive twice: at the process, and at its group. What came meanwhile, of either kind, is dropped.
        tokio::time::sleep(REPEATED).await;
        let _ = (signalled().now_or_never(), signalled().now_or_never());
        tracing::info!("Stopping: no new jobs, what runs may finish; signal again to stop at once");
        let code = signalled().await;
        tracing::warn!("Stopped at once");
        std::process::exit(code);
    });
    Ok(())
}
