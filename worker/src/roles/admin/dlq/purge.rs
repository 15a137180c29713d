//! `dlq purge`: deletes dead letters, each when it is in the archive.
use std::path::PathBuf;

use jobqueue::keys::Keys;
use jobqueue::store::PAGE_COUNT;
use serde::Serialize;

use super::super::progress::Progress;
use super::super::table::json_line;
use super::super::{Admin, AdminError, End, answer};
use super::archive::Archive;
use super::letter::Letter;
use super::pile::{Fate, Sweep};
use super::requeue::warnings;
use super::selection::Selection;
use super::sweep::{Broom, Sweeper};
use crate::cli::{Format, Purge};

/// The answer; its field names are what scripts rely on.
#[derive(Debug, Default, Serialize)]
struct Purged {
    dry_run: bool,
    total: u64,
    looked_at: u64,
    matched: u64,
    deleted: u64,
    archived: u64,
    /// Lines of the archive that are no letters deleted here: to enqueue them may make jobs double.
    not_deleted: u64,
    archive: Option<PathBuf>,
    not_found: Vec<String>,
    interrupted: bool,
    contended: bool,
    elapsed_ms: u64,
}

struct Shredder {
    archive: Option<Archive>,
    archived: u64,
    deleted: u64,
}

impl Broom for Shredder {
    const VERB: &'static str = "purge";
    const STEP: usize = PAGE_COUNT;

    fn fate(&mut self, _: &Letter, _: &Keys, _: u64) -> Fate {
        Fate::Drop
    }

    async fn prepare(&mut self, fates: &[(Letter, Fate)]) -> Result<bool, AdminError> {
        let Some(archive) = &mut self.archive else { return Ok(true) };
        let meant = || fates.iter().filter(|(_, fate)| *fate == Fate::Drop).map(|(letter, _)| letter);
        let kept = archive.keep(meant()).await?;
        self.archived += if kept { meant().count() as u64 } else { 0 };
        Ok(kept)
    }

    fn count(&mut self, _: &Fate) {
        self.deleted += 1;
    }
}

pub async fn run(admin: &mut Admin<'_>, purge: &Purge) -> Result<End, AdminError> {
    let selectors = &purge.selectors;
    let mut selection = Selection::new(selectors, admin.is_sidekiq())?;
    if !purge.yes && !purge.dry_run {
        let mut letters = 0;
        for session in &mut admin.shards {
            letters += Sweep::begin(session).await?.total();
        }
        return Err(AdminError::Usage(format!(
            "purge would delete dead letters for ever (there are {letters}), nothing was deleted: add --yes to do it, \
             --dry-run to see how many it means, or look at them with: worker dlq list"
        )));
    }
    let to_stdout = !purge.no_archive && purge.archive.as_deref().is_none_or(|path| path.as_os_str() == "-");
    if purge.acknowledged && !to_stdout {
        return Err(AdminError::Usage(
            "--acknowledged: only with --archive -, whose reader can acknowledge; nothing was deleted".into(),
        ));
    }
    let archive = match &purge.archive {
        _ if purge.dry_run || purge.no_archive => None,
        Some(path) if !to_stdout => Some(Archive::create(path)?),
        _ => {
            let reader = admin.reader.take().filter(|_| purge.acknowledged);
            Some(Archive::stdout(reader, admin.stop.clone())?)
        }
    };
    let mut shredder = Shredder { archive, archived: 0, deleted: 0 };
    let mut sweeper = Sweeper {
        protocol: &*admin.engine.protocol,
        broom: &mut shredder,
        selection: &mut selection,
        rate: purge.rate,
        limit: selectors.limit,
        dry_run: purge.dry_run,
        progress: Progress::new(purge.progress),
        stop: admin.stop.clone(),
    };
    let swept = sweeper.run(&mut admin.shards).await?;
    let archive = if to_stdout { Some("-".into()) } else { purge.archive.clone() };
    let done = Purged {
        dry_run: purge.dry_run,
        total: swept.total,
        looked_at: swept.looked_at,
        matched: swept.matched,
        deleted: if purge.dry_run { 0 } else { shredder.deleted },
        archived: shredder.archived,
        not_deleted: shredder.archived.saturating_sub(shredder.deleted),
        archive: archive.filter(|_| !purge.no_archive && !purge.dry_run),
        not_found: if swept.interrupted { Vec::new() } else { selection.not_found(&selectors.id) },
        interrupted: swept.interrupted,
        contended: swept.contended,
        elapsed_ms: u64::try_from(swept.elapsed.as_millis()).unwrap_or(u64::MAX),
    };
    let value = || serde_json::to_value(&done).unwrap_or_default();
    if to_stdout && !purge.dry_run {
        // Stdout is the archive's.
        match purge.common.output {
            Format::Table => eprint!("{}", done.sentence()),
            Format::Json | Format::Yaml => {
                eprintln!("{}", json_line(&serde_json::json!({ "result": value() })));
            }
        }
    } else {
        answer(purge.common, || done.sentence(), value)?;
    }
    Ok(done.end())
}

impl Purged {
    /// Whoever has letters in the archive that somebody else took, or not all that were asked for, is told so by the exit
    /// code too.
    fn end(&self) -> End {
        match (self.interrupted, self.not_found.is_empty() && !self.contended) {
            (true, _) => End::Interrupted,
            (false, true) => End::Done,
            (false, false) => End::Incomplete,
        }
    }

    fn sentence(&self) -> String {
        let verb = if self.dry_run { "Would delete" } else { "Deleted" };
        let kept = match &self.archive {
            Some(path) if path.as_os_str() != "-" => format!(", kept in {}", path.display()),
            Some(_) => ", written to stdout before".to_owned(),
            None => String::new(),
        };
        let counts = format!("{} of {} dead letters", self.matched, self.total);
        let not_deleted = match self.not_deleted {
            0 => String::new(),
            more => format!(
                "{more} of {} lines of the archive were not deleted (moved by somebody else, or archived twice): enqueued \
                 from there, those jobs would be there twice\n",
                self.archived
            ),
        };
        format!(
            "{verb} {counts}, looked at {}{kept}\n{not_deleted}{}",
            self.looked_at,
            warnings(self.interrupted, self.contended, &self.not_found)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_deleted_is_told_by_the_end() {
        assert_eq!(Purged::default().end(), End::Done);
        for part in [
            Purged { not_found: vec!["a".into()], ..Purged::default() },
            Purged { contended: true, ..Purged::default() },
        ] {
            assert_eq!(part.end(), End::Incomplete, "{part:?}");
        }
        assert_eq!(
            Purged { interrupted: true, contended: true, ..Purged::default() }.end(),
            End::Interrupted
        );
    }
}
