//! `list`: the queues, as `kubectl get` shows them and a little more.
use jiff::Timestamp;
use operator::api::v1alpha1::JobQueue;

use crate::cli::{Format, List};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::figures::{Figures, or_dash};
use crate::print;
use crate::table::{Cell, Paint, Table, since};

pub async fn run(cluster: &Cluster, args: &List) -> Result<(), Error> {
    let queues = cluster.list(args.all_namespaces, args.selector.as_deref()).await?.tell();
    match args.output {
        None | Some(Format::Wide) if queues.is_empty() => {
            let place = if args.all_namespaces { "any".into() } else { cluster.namespace.clone() };
            eprintln!("No jobqueues found in {place} namespace");
            Ok(())
        }
        None | Some(Format::Wide) => {
            let table = table(&queues, args.all_namespaces, args.output.is_some(), Timestamp::now());
            print::text(&table.render(Paint::detect()))
        }
        Some(format) => print::objects(format, &queues, false),
    }
}

/// A line a queue: pure.
fn table(queues: &[JobQueue], everywhere: bool, wide: bool, now: Timestamp) -> Table {
    let mut header = vec![];
    if everywhere {
        header.push("NAMESPACE");
    }
    header.extend(["NAME", "READY", "PROTOCOL", "WAITING", "RUNNING", "WORKERS", "DEAD", "AGE"]);
    if wide {
        header.extend(["REDIS", "MESSAGE"]);
    }
    let mut table = Table::new(header);
    for queue in queues {
        let one = Figures::of(queue, now);
        let mut row: Vec<Cell> = vec![];
        if everywhere {
            row.push(one.namespace.clone().into());
        }
        let age = queue.metadata.creation_timestamp.as_ref().map(|at| since(at.0, now));
        row.extend([
            one.name.clone().into(),
            one.readiness(),
            one.protocol.clone().into(),
            one.waiting.to_string().into(),
            one.in_flight.to_string().into(),
            one.workers(),
            one.dead(),
            or_dash(age).into(),
        ]);
        if wide {
            row.extend([redis(queue).into(), one.message.clone().into()]);
        }
        table.row(row);
    }
    table
}

/// Where the jobs are kept.
pub fn redis(queue: &JobQueue) -> String {
    let external = queue.spec.redis.as_ref().and_then(|redis| redis.external.as_ref());
    let Some(external) = external else { return "managed".into() };
    external.address.clone().unwrap_or_else(|| "sentinel".into())
}
