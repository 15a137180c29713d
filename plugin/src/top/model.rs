//! What `top` shows and what keys do to it: no terminal and no cluster in sight.
use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::figures::Figures;
use crate::live::{Letter, Stats};

/// So many figures are remembered of each queue: a minute at one a second, and what a wide screen shows.
const REMEMBERED: usize = 120;

/// A queue by namespace and name.
pub type Key = (String, String);

/// What the queues are sorted by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// Their names.
    #[default]
    Name,
    /// Jobs that wait, the most first.
    Waiting,
    /// Jobs that run, the most first.
    Running,
    /// Dead letters, the most first.
    Dead,
    /// The age of the oldest job, the oldest first.
    Oldest,
}

impl Sort {
    /// As the header says it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Dead => "dead",
            Self::Oldest => "oldest",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Name => Self::Waiting,
            Self::Waiting => Self::Running,
            Self::Running => Self::Dead,
            Self::Dead => Self::Oldest,
            Self::Oldest => Self::Name,
        }
    }
}

/// What lies over the view.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Overlay {
    /// Nothing.
    #[default]
    None,
    /// The keys.
    Help,
    /// Shall a queue be paused (or resumed)?
    Confirm {
        /// Which: the selected one when it was asked, whatever is selected when it is answered.
        queue: Key,
        /// Pause, else resume.
        pause: bool,
    },
    /// The dead letters of a queue.
    Dead {
        /// Whose.
        queue: Key,
        /// Nothing yet: they are being read.
        letters: Option<Result<Vec<Letter>, String>>,
        /// The one that is selected.
        at: usize,
        /// Whether that one is shown whole.
        whole: bool,
    },
    /// The workers of the selected queue, whole, from this one on.
    Workers(usize),
}

/// What a key asks for beyond the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// To leave.
    Quit,
    /// To pause or resume a queue.
    Pause(Key, bool),
    /// To read the dead letters of a queue.
    Dead(Key),
}

/// Something that was decided about the number of workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// When.
    pub at: Option<Timestamp>,
    /// What and why.
    pub text: String,
}

/// What came of a look at all queues.
#[derive(Debug)]
pub enum Looked {
    /// Their figures, and what there is to say of those that are missing.
    At(Vec<Figures>, Option<String>),
    /// Nothing, because.
    Not(String),
}

/// Everything that is shown.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// Whose queues: a namespace, or all.
    pub place: String,
    /// The queues, in the order in which they are shown.
    pub queues: Vec<Figures>,
    /// How many jobs of each waited, the last one now.
    pub history: HashMap<Key, VecDeque<u64>>,
    /// The queue that the lower half is about.
    pub selected: Option<Key>,
    /// What they are sorted by.
    pub sort: Sort,
    /// The other way round.
    pub reversed: bool,
    /// What Redis says of the selected queue.
    pub live: Option<Stats>,
    /// Why it does not.
    pub silent: Option<String>,
    /// What was decided about the selected queue, the last one last.
    pub decisions: Vec<Decision>,
    /// What lies over the view.
    pub overlay: Overlay,
    /// Why the queues, or some, could not be looked at the last time.
    pub outdated: Option<String>,
    /// What was done last.
    pub message: Option<String>,
}

impl Model {
    /// The place of the selected queue among those shown.
    pub fn position(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.queues.iter().position(|one| key(one) == *selected)
    }

    /// The selected queue.
    pub fn current(&self) -> Option<&Figures> {
        self.queues.get(self.position()?)
    }

    /// The line below all: what is wrong with what is shown comes before what was done.
    pub fn remark(&self) -> Option<&str> {
        self.outdated.as_deref().or(self.message.as_deref())
    }

    /// What came of a look at all queues.
    pub fn looked(&mut self, looked: Looked) {
        match looked {
            Looked::At(queues, missing) => {
                self.outdated = missing;
                self.heard_queues(queues);
            }
            Looked::Not(why) => self.outdated = Some(why),
        }
    }

    /// New figures of all queues.
    pub fn heard_queues(&mut self, mut queues: Vec<Figures>) {
        for one in &mut queues {
            if let (Some(live), true) = (&self.live, self.selected.as_ref() == Some(&key(one))) {
                *one = std::mem::take(one).with(live);
            }
            let history = self.history.entry(key(one)).or_default();
            history.push_back(u64::try_from(one.waiting).unwrap_or(0));
            if history.len() > REMEMBERED {
                history.pop_front();
            }
        }
        self.history.retain(|known, _| queues.iter().any(|one| key(one) == *known));
        self.queues = queues;
        self.order();
        if self.position().is_none() {
            self.select(self.queues.first().map(key));
        }
    }

    /// What Redis says of a queue now; of another than the selected one it is too late.
    pub fn heard_live(&mut self, of: &Key, live: Result<Option<Stats>, String>) {
        if self.selected.as_ref() != Some(of) {
            return;
        }
        match live {
            Ok(live) => (self.live, self.silent) = (live, None),
            Err(why) => (self.live, self.silent) = (None, Some(why)),
        }
    }

    /// What was decided about a queue.
    pub fn heard_decisions(&mut self, of: &Key, decisions: Vec<Decision>) {
        if self.selected.as_ref() == Some(of) {
            self.decisions = decisions;
        }
    }

    /// The dead letters that were asked for.
    pub fn heard_letters(&mut self, of: &Key, read: Result<Vec<Letter>, String>) {
        if let Overlay::Dead { queue, letters, .. } = &mut self.overlay
            && queue == of
        {
            *letters = Some(read);
        }
    }

    fn order(&mut self) {
        let figure = |one: &Figures| match self.sort {
            Sort::Name => 0,
            Sort::Waiting => -one.waiting,
            Sort::Running => -one.in_flight,
            Sort::Dead => -one.dead_letters,
            Sort::Oldest => -one.oldest_age_seconds.unwrap_or(-1),
        };
        self.queues.sort_by_key(|one| (figure(one), one.namespace.clone(), one.name.clone()));
        if self.reversed {
            self.queues.reverse();
        }
    }

    fn select(&mut self, queue: Option<Key>) {
        if self.selected != queue {
            (self.live, self.silent) = (None, None);
            self.decisions.clear();
            self.selected = queue;
        }
    }

    fn step(&mut self, by: isize) {
        let last = self.queues.len().saturating_sub(1);
        let at = self.position().unwrap_or(0).saturating_add_signed(by).min(last);
        self.select(self.queues.get(at).map(key));
    }

    /// What a key does.
    pub fn press(&mut self, pressed: KeyEvent) -> Option<Wish> {
        if pressed.code == KeyCode::Char('c') && pressed.modifiers.contains(KeyModifiers::CONTROL) {
            return Some(Wish::Quit);
        }
        match std::mem::take(&mut self.overlay) {
            Overlay::None => self.press_plain(pressed.code),
            Overlay::Help => None,
            Overlay::Confirm { queue, pause } => match pressed.code {
                KeyCode::Char('y') | KeyCode::Enter => Some(Wish::Pause(queue, pause)),
                _ => {
                    self.message = Some("Nothing was changed".into());
                    None
                }
            },
            Overlay::Dead { queue, letters, at, whole } => {
                let count = letters.as_ref().and_then(|read| read.as_ref().ok()).map_or(0, Vec::len);
                let (at, whole) = match (pressed.code, scrolled(pressed.code, at, count)) {
                    (KeyCode::Enter, _) => (at, !whole && count > 0),
                    (_, Some(at)) => (at, whole),
                    // Back to the list.
                    (_, None) if whole => (at, false),
                    (_, None) => return None,
                };
                self.overlay = Overlay::Dead { queue, letters, at, whole };
                None
            }
            Overlay::Workers(from) => {
                let count = self.live.as_ref().map_or(0, |live| live.processes.len());
                self.overlay = Overlay::Workers(scrolled(pressed.code, from, count)?);
                None
            }
        }
    }

    fn press_plain(&mut self, code: KeyCode) -> Option<Wish> {
        self.message = None;
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Wish::Quit),
            KeyCode::Char('?' | 'h') => self.overlay = Overlay::Help,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.order();
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.order();
            }
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(10),
            KeyCode::PageUp => self.step(-10),
            KeyCode::Home | KeyCode::Char('g') => self.select(self.queues.first().map(key)),
            KeyCode::End | KeyCode::Char('G') => self.select(self.queues.last().map(key)),
            KeyCode::Char('p') => {
                let current = self.current()?;
                self.overlay = Overlay::Confirm { queue: key(current), pause: !current.paused };
            }
            KeyCode::Char('d') => {
                let queue = self.selected.clone()?;
                self.overlay = Overlay::Dead { queue: queue.clone(), letters: None, at: 0, whole: false };
                return Some(Wish::Dead(queue));
            }
            KeyCode::Enter => self.overlay = Overlay::Workers(0),
            _ => {}
        }
        None
    }
}

/// Where a key goes in a list of so many; nothing if it goes nowhere.
fn scrolled(code: KeyCode, at: usize, count: usize) -> Option<usize> {
    let last = count.saturating_sub(1);
    Some(match code {
        KeyCode::Down | KeyCode::Char('j') => (at + 1).min(last),
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::PageDown => (at + 10).min(last),
        KeyCode::PageUp => at.saturating_sub(10),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => last,
        _ => return None,
    })
}

/// Namespace and name.
pub fn key(figures: &Figures) -> Key {
    (figures.namespace.clone(), figures.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, waiting: i64) -> Figures {
        Figures { namespace: "a".into(), name: name.into(), waiting, ..Figures::default() }
    }

    fn model() -> Model {
        let mut model = Model::default();
        model.heard_queues(vec![queue("x", 1), queue("y", 30), queue("z", 20)]);
        model
    }

    fn press(model: &mut Model, key: char) -> Option<Wish> {
        model.press(KeyEvent::from(KeyCode::Char(key)))
    }

    fn names(model: &Model) -> Vec<&str> {
        model.queues.iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn the_selection_stays_on_its_queue_when_the_order_changes() {
        let mut model = model();
        press(&mut model, 'j');
        assert_eq!(model.current().unwrap().name, "y");
        press(&mut model, 's');
        assert_eq!((names(&model), model.current().unwrap().name.as_str()), (vec!["y", "z", "x"], "y"));
        press(&mut model, 'r');
        assert_eq!(names(&model), ["x", "z", "y"]);
        model.heard_queues(vec![queue("x", 1)]);
        assert_eq!(model.current().unwrap().name, "x", "its queue is gone");
    }

    #[test]
    fn a_queue_is_paused_only_after_a_yes() {
        let mut model = model();
        assert_eq!(press(&mut model, 'p'), None);
        assert_eq!(press(&mut model, 'n'), None);
        assert_eq!(model.overlay, Overlay::None);
        press(&mut model, 'p');
        assert_eq!(press(&mut model, 'y'), Some(Wish::Pause(("a".into(), "x".into()), true)));
    }

    #[test]
    fn a_yes_is_about_the_queue_that_was_asked_about_though_it_is_gone_by_then() {
        let mut model = model();
        press(&mut model, 'j');
        press(&mut model, 'p');
        model.heard_queues(vec![queue("x", 1), queue("z", 20)]);
        assert_eq!(model.current().unwrap().name, "x");
        assert_eq!(press(&mut model, 'y'), Some(Wish::Pause(("a".into(), "y".into()), true)));
    }

    #[test]
    fn dead_letters_are_asked_for_and_scrolled() {
        let mut model = model();
        let queue: Key = ("a".into(), "x".into());
        assert_eq!(press(&mut model, 'd'), Some(Wish::Dead(queue.clone())));
        model.heard_letters(&queue, Ok(vec![Letter::default(); 3]));
        for _ in 0..9 {
            press(&mut model, 'j');
        }
        assert!(matches!(model.overlay, Overlay::Dead { at: 2, .. }), "{:?}", model.overlay);
        model.press(KeyEvent::from(KeyCode::Enter));
        press(&mut model, 'k');
        assert!(matches!(model.overlay, Overlay::Dead { at: 1, whole: true, .. }), "{:?}", model.overlay);
        assert_eq!(press(&mut model, 'q'), None, "it leaves the letter, not the list");
        assert!(matches!(model.overlay, Overlay::Dead { whole: false, .. }), "{:?}", model.overlay);
        assert_eq!(press(&mut model, 'q'), None, "it leaves the letters, not the program");
        assert_eq!(press(&mut model, 'q'), Some(Wish::Quit));
    }

    #[test]
    fn the_workers_are_shown_whole_and_scrolled() {
        let mut model = model();
        let processes = vec![crate::live::Process::default(); 30];
        model.heard_live(&("a".into(), "x".into()), Ok(Some(Stats { processes, ..Stats::default() })));
        model.press(KeyEvent::from(KeyCode::Enter));
        model.press(KeyEvent::from(KeyCode::PageDown));
        press(&mut model, 'j');
        assert_eq!(model.overlay, Overlay::Workers(11));
        press(&mut model, 'G');
        assert_eq!(model.overlay, Overlay::Workers(29));
        assert_eq!((press(&mut model, 'q'), &model.overlay), (None, &Overlay::None));
    }

    #[test]
    fn what_kept_the_queues_from_being_looked_at_is_said_until_they_are() {
        let mut model = model();
        model.message = Some("x paused".into());
        model.looked(Looked::Not("the cluster does not answer".into()));
        assert_eq!((model.remark(), model.queues.len()), (Some("the cluster does not answer"), 3));
        model.looked(Looked::At(vec![queue("x", 1)], Some("y cannot be read".into())));
        assert_eq!((model.remark(), model.queues.len()), (Some("y cannot be read"), 1));
        model.looked(Looked::At(vec![queue("x", 1)], None));
        assert_eq!((model.remark(), model.queues.len()), (Some("x paused"), 1));
    }

    #[test]
    fn what_comes_late_of_another_queue_is_not_shown() {
        let mut model = model();
        model.heard_live(&("a".into(), "z".into()), Ok(Some(Stats::default())));
        assert_eq!(model.live, None);
    }
}
