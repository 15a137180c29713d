//! One sweep through the dead letters of all shards: read a page, decide, carry it out, until the end, the limit or a stop.
use std::time::{Duration, Instant};

use jobqueue::keys::Keys;
use jobqueue::protocol::Protocol;
use jobqueue::store::{PAGE_COUNT, Session};

use super::super::progress::{Position, Progress};
use super::super::{AdminError, advice};
use super::letter::Letter;
use super::pile::{self, Fate};
use super::selection::Selection;
use crate::shutdown::Shutdown;

/// Steps in a row that found another tail than they had read before we give up: somebody else is faster.
const STALLED_MAX: u32 = 100;

/// What a sweep does with the letters that are meant.
pub trait Broom {
    const VERB: &'static str;
    /// So many letters are decided about at once: more of them, fewer round trips.
    const STEP: usize;

    /// What becomes of one.
    fn fate(&mut self, letter: &Letter, keys: &Keys, now_ms: u64) -> Fate;

    /// What has to be done before these fates are carried out; `false` stops the sweep before they are.
    async fn prepare(&mut self, fates: &[(Letter, Fate)]) -> Result<bool, AdminError>;

    /// A fate was carried out, or would have been.
    fn count(&mut self, fate: &Fate);
}

/// How far it got.
#[derive(Debug, Default)]
pub struct Swept {
    /// Dead letters when it began.
    pub total: u64,
    pub looked_at: u64,
    pub matched: u64,
    pub interrupted: bool,
    /// Somebody else moved dead letters at the same time: some may have been passed over.
    pub contended: bool,
    pub elapsed: Duration,
}

/// How fast: letters a second since the beginning.
#[derive(Debug, Clone, Copy)]
struct Pace {
    rate: Option<u32>,
    began: Instant,
}

impl Pace {
    /// At most this many letters in one step: a tenth of a second's worth.
    fn step(self) -> usize {
        self.rate.map_or(usize::MAX, |rate| (rate as usize / 10).clamp(1, PAGE_COUNT))
    }

    /// How long until the next step after so many letters.
    fn wait(self, moved: u64, now: Instant) -> Duration {
        let due = self.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_millis(moved.saturating_mul(1000) / u64::from(rate.max(1)))
        });
        (self.began + due).saturating_duration_since(now)
    }
}

/// What a sweep is told.
pub struct Sweeper<'a, B> {
    pub protocol: &'a dyn Protocol,
    pub broom: &'a mut B,
    pub selection: &'a mut Selection,
    pub rate: Option<u32>,
    pub limit: Option<u64>,
    pub dry_run: bool,
    pub progress: Progress,
    pub stop: Shutdown,
}

impl<B: Broom> Sweeper<'_, B> {
    /// Sweeps all shards. A failure says how far it got.
    pub async fn run(&mut self, shards: &mut [Session]) -> Result<Swept, AdminError> {
        let mut done = Swept::default();
        let pace = Pace { rate: self.rate, began: Instant::now() };
        let mut failure = None;
        for session in shards {
            if let Err(error) = self.shard(session, pace, &mut done).await {
                failure = Some(error);
                break;
            }
            if done.interrupted || self.room(&done) == 0 {
                break;
            }
        }
        done.elapsed = pace.began.elapsed();
        self.progress.end(&position::<B>(&done, pace));
        let Some(error) = failure else { return Ok(done) };
        let said = match &error {
            AdminError::Store(error) => advice(error),
            error => error.to_string(),
        };
        Err(AdminError::Failed(match done.looked_at {
            0 => said,
            _ => format!(
                "{said} ({} of {} dead letters were looked at, {} met the selection; none was lost or doubled, run it \
                 again to go on)",
                done.looked_at, done.total, done.matched
            ),
        }))
    }

    async fn shard(&mut self, session: &mut Session, pace: Pace, done: &mut Swept) -> Result<(), AdminError> {
        let keys = session.keys.clone();
        let mut sweep = pile::Sweep::begin(session).await?;
        done.total += sweep.total();
        let mut stalled = 0;
        while self.room(done) > 0 {
            let moved = if self.dry_run { 0 } else { done.matched };
            if self.stop.is_requested() || self.stop.within(pace.wait(moved, Instant::now())).await {
                done.interrupted = true;
                return Ok(());
            }
            let letters = sweep.page(session, self.protocol, B::STEP).await?;
            if letters.is_empty() {
                return Ok(());
            }
            let room = pace.step().min(usize::try_from(self.room(done)).unwrap_or(usize::MAX));
            let (fates, meant) = self.decide(letters, &keys, session.now_ms(), room);
            if !self.dry_run && !self.broom.prepare(&fates).await? {
                done.interrupted = true;
                return Ok(());
            }
            let settled = sweep.settle(session, &fates, self.dry_run).await?;
            if settled.passed < fates.len() as u64 {
                done.contended = true;
                stalled = if settled.passed == 0 { stalled + 1 } else { 0 };
                if stalled > STALLED_MAX {
                    return Err(AdminError::Failed(
                        "somebody else moves the dead letters at the same time".into(),
                    ));
                }
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..20))).await;
            } else {
                stalled = 0;
            }
            done.looked_at += settled.passed;
            for (((_, fate), meant), carried_out) in fates.iter().zip(meant).zip(settled.carried_out) {
                done.contended |= !carried_out;
                if meant && carried_out {
                    done.matched += 1;
                    self.broom.count(fate);
                }
            }
            if let Some(refused) = settled.refused {
                return Err(refused.into());
            }
            self.progress.show(&position::<B>(done, pace));
        }
        Ok(())
    }

    /// Decides about a page, as far as there is room; and says of which letters it was meant.
    fn decide(
        &mut self,
        letters: Vec<Letter>,
        keys: &Keys,
        now_ms: u64,
        mut room: usize,
    ) -> (Vec<(Letter, Fate)>, Vec<bool>) {
        let (mut fates, mut meant) = (Vec::with_capacity(letters.len()), Vec::with_capacity(letters.len()));
        for letter in letters {
            let is_meant = self.selection.matches(&letter, now_ms);
            if is_meant && room == 0 {
                break;
            }
            room -= usize::from(is_meant);
            let fate = if is_meant { self.broom.fate(&letter, keys, now_ms) } else { Fate::Keep };
            fates.push((letter, fate));
            meant.push(is_meant);
        }
        (fates, meant)
    }

    fn room(&self, done: &Swept) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(done.matched))
    }
}

fn position<B: Broom>(done: &Swept, pace: Pace) -> Position {
    Position {
        verb: B::VERB,
        looked_at: done.looked_at,
        matched: done.matched,
        total: done.total,
        elapsed_ms: u64::try_from(pace.began.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Selectors};
    use bytes::Bytes;
    use jobqueue::config::Config;
    use jobqueue::engine::Engine;

    struct Bin;
    impl Broom for Bin {
        const VERB: &'static str = "bin";
        const STEP: usize = PAGE_COUNT;

        fn fate(&mut self, _: &Letter, _: &Keys, _: u64) -> Fate {
            Fate::Drop
        }

        async fn prepare(&mut self, _: &[(Letter, Fate)]) -> Result<bool, AdminError> {
            Ok(true)
        }

        fn count(&mut self, _: &Fate) {}
    }

    #[test]
    fn the_pace_is_kept_from_the_beginning() {
        let began = Instant::now();
        let pace = |rate| Pace { rate, began };
        assert_eq!(pace(None).step(), usize::MAX);
        assert_eq!(pace(None).wait(1_000_000, began), Duration::ZERO);
        assert_eq!((pace(Some(1)).step(), pace(Some(50)).step(), pace(Some(9999)).step()), (1, 5, 100));
        assert_eq!(pace(Some(10)).wait(25, began), Duration::from_millis(2500));
        assert_eq!(pace(Some(10)).wait(25, began + Duration::from_secs(3)), Duration::ZERO);
    }

    #[test]
    fn a_step_ends_where_the_room_does() {
        let engine = Engine::new(&Config::default());
        let selectors = Selectors { reason: Some("oom".into()), ..Selectors::default() };
        let (_stopper, stop) = crate::shutdown::shutdown();
        let mut sweeper = Sweeper {
            protocol: &*engine.protocol,
            broom: &mut Bin,
            selection: &mut Selection::new(&selectors, false).unwrap(),
            rate: None,
            limit: None,
            dry_run: false,
            progress: Progress::new(cli::Progress::None),
            stop,
        };
        let letter =
            |reason: &str| Letter::of(Bytes::from(format!(r#"{{"id":"a","reason":"{reason}"}}"#)), None);
        let page = ["oom", "panic", "oom", "panic", "oom", "oom"].map(letter).to_vec();
        let (fates, meant) = sweeper.decide(page, &engine.shards[0], 0, 2);
        assert_eq!(meant, [true, false, true, false], "two a step, and what is kept between them");
        assert_eq!(fates[1].1, Fate::Keep);
    }
}
