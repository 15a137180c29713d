//! `drain`: a worker takes no more jobs, finishes those it has, however long that takes, and then its pod goes.
use jobqueue::terminal::counted;
use kube::ResourceExt;
use kube::api::DeleteParams;
use operator::drain::DRAINING;
use serde_json::Value;

use crate::cli::Drain;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::print;
use crate::remote::{self, Input};

pub async fn run(cluster: &Cluster, args: &Drain, interrupt: &Interrupt) -> Result<(), Error> {
    let queue = interrupt.or(cluster.queue(&args.name)).await?;
    let workers = interrupt.or(cluster.pods_of(&args.name, Some("worker"))).await?;
    let wanted = args.pod.strip_prefix("pod/").unwrap_or(&args.pod);
    let Some(pod) = workers.iter().find(|pod| pod.name_any() == wanted) else {
        let names: Vec<String> = workers.iter().map(ResourceExt::name_any).collect();
        let there =
            if names.is_empty() { "it has none".into() } else { format!("it has {}", names.join(", ")) };
        return Err(Error::NotFound(format!("jobqueue {} has no worker {wanted}: {there}", args.name)));
    };
    // Two that tell one process to be quiet would each undo the other's word.
    if pod.annotations().contains_key(DRAINING) {
        return Err(Error::Usage(format!(
            "{wanted} drains already: there are more workers than are wanted, and it goes when its jobs are done"
        )));
    }
    // Asked first: a worker that has drained and cannot be deleted would idle until its word lapses, for nothing.
    let pods = cluster.objects("v1", "Pod", "pods");
    let delete = async |how: DeleteParams| {
        cluster.ask(&format!("delete pod {wanted}"), pods.delete(wanted, &how)).await.map(drop)
    };
    interrupt.or(delete(DeleteParams::default().dry_run())).await?;
    let mut command = vec!["drain".to_owned(), pod.uid().unwrap_or_default(), "--progress=json".into()];
    if !args.timeout.is_zero() {
        command.push(format!("--timeout={}s", args.timeout.as_secs().max(1)));
    }
    remote::with(cluster, &queue, interrupt, async |remote| {
        eprintln!("{wanted} takes no more jobs; waiting for those that it runs");
        let mut aside = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            if let Some(held) = line.pointer("/progress/held").and_then(Value::as_u64) {
                eprintln!("{wanted} runs {}", counted(held, "job"));
            }
        };
        let (_, ended) = remote.json_of::<Value>(&command, Input::Held, &mut aside).await?;
        if ended.code == 0 { Ok(()) } else { Err(remote.failed(&ended)) }
    })
    .await?;
    match delete(DeleteParams::default()).await {
        // It has gone by itself, or somebody else deleted it: that is what was wanted.
        Ok(()) | Err(Error::NotFound(_)) => {}
        Err(error) => return Err(error),
    }
    print::text(&format!(
        "pod/{wanted} drained and deleted; if it is still wanted, another takes its place (kubectl jobqueue explain {})\n",
        args.name
    ))
}
