//! `drain`: a process takes no more jobs, and is waited for until it holds none.
use std::time::{Duration, Instant};

use jobqueue::terminal::counted;
use serde_json::json;

use super::{Admin, AdminError, End, answer};
use crate::cli;

/// How long the word holds without us: should this command die, the process works again.
const TOLD: Duration = Duration::from_secs(15);
/// How long a process that holds nothing stays so: time enough to end it.
const KEPT: Duration = Duration::from_secs(300);
/// How often it is looked at.
const AGAIN: Duration = Duration::from_secs(1);

pub async fn run(admin: &mut Admin<'_>, args: &cli::Drain) -> Result<End, AdminError> {
    let word = format!("admin-{}", jiff::Timestamp::now().as_millisecond());
    let began = Instant::now();
    let mut told = None;
    loop {
        let (drained, held) = look(admin, &args.process, &word).await?;
        if drained {
            let said = || format!("{} holds no jobs and takes none\n", args.process);
            answer(args.common, said, || json!({ "process": args.process, "drained": true }))?;
            return Ok(End::Done);
        }
        if args.progress == cli::Progress::Json && told != Some(held) {
            eprintln!("{}", json!({ "progress": { "verb": "drain", "held": held } }));
            told = Some(held);
        }
        let left = args.timeout.map(|bound| bound.get().saturating_sub(began.elapsed()));
        let late = left.is_some_and(|left| left.is_zero());
        let stopped = late || admin.stop.within(left.map_or(AGAIN, |left| left.min(AGAIN))).await;
        if stopped {
            for session in &mut admin.shards {
                session.resume(&args.process).await?;
            }
        }
        if late {
            let bound = args.timeout.unwrap_or_default();
            return Err(AdminError::Failed(format!(
                "{} still runs {} after {bound}, and takes jobs again; give it longer with --timeout",
                args.process,
                counted(held, "job")
            )));
        }
        if stopped {
            answer(
                args.common,
                || "Interrupted: it takes jobs again\n".into(),
                || json!({ "process": args.process, "drained": false }),
            )?;
            return Ok(End::Interrupted);
        }
    }
}

/// Tells the process (again) to be quiet: whether it is and holds nothing in any shard, and how many jobs it holds.
async fn look(admin: &mut Admin<'_>, process: &str, word: &str) -> Result<(bool, u64), AdminError> {
    let side = admin.engine.protocol.consuming_side();
    let asked = [(process.to_owned(), word.to_owned())];
    let (mut drained, mut held) = (true, 0);
    for session in &mut admin.shards {
        session.quiet(process, word, TOLD).await?;
        drained &= session.drained(&asked, KEPT).await? == [true];
        let lanes = session.snapshot(side).await?.open_lanes;
        held += lanes.iter().filter(|lane| lane.pod_uid == process).map(|lane| lane.held).sum::<u64>();
    }
    Ok((drained, held))
}
