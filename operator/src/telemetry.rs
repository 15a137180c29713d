//! Logs as JSON on stderr, and traces when a collector is named.
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// Sends what is left of the traces when it is dropped.
pub struct Telemetry(Option<SdkTracerProvider>);

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(provider) = &self.0 {
            // Nothing is left to tell about it.
            let _ = provider.shutdown();
        }
    }
}

/// Starts logging at `level`, and tracing to the OTLP collector at `endpoint` (gRPC).
pub fn init(level: &str, endpoint: Option<&str>) -> anyhow::Result<Telemetry> {
    let filter =
        EnvFilter::try_new(format!("{level},kube=warn,hyper=warn,tower=warn,h2=warn,opentelemetry=warn"))
            .map_err(|_| anyhow::anyhow!("--log-level = {level}: must be one of debug, info, warn, error"))?;
    let logs = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_writer(std::io::stderr)
        .with_filter(filter);
    let provider = endpoint.filter(|endpoint| !endpoint.is_empty()).map(provider).transpose()?;
    let traces = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("jobqueue-operator"))
            .with_filter(EnvFilter::new("info,kube=off,hyper=off,tower=off,h2=off"))
    });
    tracing_subscriber::registry().with(logs).with(traces).try_init()?;
    Ok(Telemetry(provider))
}

fn provider(endpoint: &str) -> anyhow::Result<SdkTracerProvider> {
    let exporter =
        opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let resource = Resource::builder().with_service_name("jobqueue-operator").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
