//! Where dead letters lie: a list, newest at the head, or a sorted set by the time of their death. Either is swept from the
//! oldest, each letter once.
use bytes::Bytes;
use jobqueue::effects::Effect;
use jobqueue::protocol::Protocol;
use jobqueue::store::{PAGE_COUNT, PageKind, Refusal, Session, Span, Status, StoreError, Turn};

use super::letter::Letter;

/// What becomes of a letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It stays dead.
    Keep,
    /// It is deleted.
    Drop,
    /// It goes back to a queue, by these effects.
    Revive {
        /// The queue's name.
        queue: String,
        effects: Vec<Effect>,
    },
}

/// What came of a step.
#[derive(Debug)]
pub struct Settled {
    /// Of each letter, whether its fate was carried out: somebody else may have been faster.
    pub carried_out: Vec<bool>,
    /// How many are behind us: of a list that somebody else turns too, the others are read again.
    pub passed: u64,
    /// A queue that refused a letter, which stays dead.
    pub refused: Option<StoreError>,
}

fn is_sorted(session: &Session) -> bool {
    session.keys.dead_letters_kind() == "zset"
}

/// A sweep through one shard's letters. What dies after it began is left alone.
pub struct Sweep {
    key: String,
    total: u64,
    place: Place,
}

enum Place {
    /// Each page is taken from the tail, what stays goes to the head: the length at the beginning bounds it.
    List { left: u64, skip: u64 },
    /// The highest score at the beginning bounds it.
    Set { span: Span },
}

impl Sweep {
    pub async fn begin(session: &mut Session) -> Result<Self, StoreError> {
        let key = session.keys.dead_letters();
        if is_sorted(session) {
            let newest = session.scored(&key, &Span::down(), 1).await?;
            let to = newest.entries.first().map_or_else(|| "-inf".to_owned(), |(_, score)| score.clone());
            return Ok(Self {
                key,
                total: newest.length,
                place: Place::Set { span: Span { to, ..Span::up() } },
            });
        }
        let total = session.page(&key, PageKind::Tail, 0).await?.length;
        Ok(Self { key, total, place: Place::List { left: total, skip: 0 } })
    }

    /// Letters when it began.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The next letters, with the jobs that they name where they only name them; none at the end.
    pub async fn page(
        &mut self,
        session: &mut Session,
        protocol: &dyn Protocol,
        most: usize,
    ) -> Result<Vec<Letter>, StoreError> {
        let mut letters = self.letters(session, most).await?;
        if let Some(records) = protocol.records() {
            let names: Vec<Bytes> = letters.iter().map(|letter| protocol.revive(&letter.raw).1).collect();
            let jobs = session.named(records, &names).await?;
            letters.truncate(jobs.len());
            letters.iter_mut().zip(jobs).for_each(|(letter, job)| letter.named = Some(job));
        }
        Ok(letters)
    }

    async fn letters(&mut self, session: &mut Session, most: usize) -> Result<Vec<Letter>, StoreError> {
        match &mut self.place {
            Place::List { left, skip } => {
                let count = most.min(usize::try_from(*left).unwrap_or(most));
                if count == 0 {
                    return Ok(Vec::new());
                }
                let page = session.page_after(&self.key, PageKind::Tail, *skip, count).await?;
                *left = (*left).min(page.length);
                Ok(page.entries.into_iter().map(|raw| Letter::of(raw, None)).collect())
            }
            Place::Set { span } => Ok(scored(session, &self.key, span, most).await?.1),
        }
    }

    /// Carries out what was decided about the next letters, in one step.
    pub async fn settle(
        &mut self,
        session: &mut Session,
        fates: &[(Letter, Fate)],
        dry_run: bool,
    ) -> Result<Settled, StoreError> {
        match &mut self.place {
            Place::List { left, skip } => {
                let mut carried_out = Vec::with_capacity(fates.len());
                if dry_run {
                    *skip += fates.len() as u64;
                    carried_out.resize(fates.len(), true);
                } else {
                    let turns: Vec<_> =
                        fates.iter().map(|(letter, fate)| (letter.raw.clone(), turn(fate))).collect();
                    let pages: Vec<_> = turns.chunks(PAGE_COUNT).collect();
                    for (page, turned) in pages.iter().zip(session.turn_pages(&self.key, &pages).await?) {
                        carried_out.extend((0..page.len()).map(|at| at < turned));
                    }
                }
                let passed = carried_out.iter().filter(|done| **done).count() as u64;
                *left -= passed.min(*left);
                Ok(Settled { carried_out, passed, refused: None })
            }
            Place::Set { span } => {
                let (statuses, refused) =
                    if dry_run { (Vec::new(), None) } else { take(session, &self.key, fates).await? };
                let (mut statuses, mut carried_out) = (statuses.into_iter(), Vec::with_capacity(fates.len()));
                for (letter, fate) in fates {
                    let stays = dry_run || *fate == Fate::Keep;
                    let status = if stays { Some(Status::Settled) } else { statuses.next() };
                    carried_out.push(status == Some(Status::Settled));
                    if let Some(score) =
                        letter.score.as_ref().filter(|_| stays || status == Some(Status::Refused))
                    {
                        span.pass(score);
                    }
                }
                let passed = fates.len() as u64;
                Ok(Settled { carried_out, passed, refused: refused.map(StoreError::from) })
            }
        }
    }
}

fn turn(fate: &Fate) -> Turn {
    match fate {
        Fate::Keep => Turn::Keep,
        Fate::Drop => Turn::Drop,
        Fate::Revive { effects, .. } => Turn::Place(effects.clone()),
    }
}

async fn take(
    session: &mut Session,
    key: &str,
    fates: &[(Letter, Fate)],
) -> Result<(Vec<Status>, Option<Refusal>), StoreError> {
    let moves: Vec<(Bytes, Vec<Effect>)> = (fates.iter())
        .filter_map(|(letter, fate)| match fate {
            Fate::Keep => None,
            Fate::Drop => Some((letter.raw.clone(), Vec::new())),
            Fate::Revive { effects, .. } => Some((letter.raw.clone(), effects.clone())),
        })
        .collect();
    if moves.is_empty() { Ok((Vec::new(), None)) } else { session.take(key, &moves).await }
}

async fn scored(
    session: &mut Session,
    key: &str,
    span: &Span,
    count: usize,
) -> Result<(u64, Vec<Letter>), StoreError> {
    let page = session.scored(key, span, count).await?;
    let letter = |(raw, score)| Letter::of(raw, Some(score));
    Ok((page.length, page.entries.into_iter().map(letter).collect()))
}
