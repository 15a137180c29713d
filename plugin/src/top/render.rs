//! The screen of `top`: a pure function of the model, so that tests can look at it. Right from 80x24 on.
use jiff::Timestamp;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Table, TableState};
use unicode_width::UnicodeWidthStr as _;

use super::model::{Model, Overlay, key};
use crate::figures::{Figures, or_dash};
use crate::live::{Letter, Process};
use crate::table::{self, Tone, age, shown, since, since_text, whole};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// From here on there is room for what can be missed.
const WIDE: u16 = 110;
/// Below this the lower parts would have no line.
const SMALLEST: (u16, u16) = (60, 16);

/// Draws everything.
pub fn render(frame: &mut Frame, model: &Model, now: Timestamp) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!("too small: {}x{} at least", SMALLEST.0, SMALLEST.1);
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    // Half for the queues (no more than they need), the rest for what the selected one does.
    let most = area.height / 2;
    let needed = u16::try_from(model.queues.len()).unwrap_or(u16::MAX).saturating_add(3);
    let [header, queues, workers, decisions, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(needed.clamp(5, most)),
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(headline(model, now, header.width), header);
    draw_queues(frame, model, queues, now);
    draw_workers(frame, model, workers, now);
    draw_decisions(frame, model, decisions, now);
    frame.render_widget(footline(model, footer.width), footer);
    draw_overlay(frame, model, area, now);
}

fn headline(model: &Model, now: Timestamp, width: u16) -> Line<'static> {
    let sum = |figure: fn(&Figures) -> i64| short(model.queues.iter().map(figure).sum::<i64>());
    let arrow = if model.reversed { "↑" } else { "↓" };
    let mut text = format!(
        " {}  {} queues  {} waiting  {} running  {} dead  by {}{arrow}",
        model.place,
        model.queues.len(),
        sum(|one| one.waiting),
        sum(|one| one.in_flight),
        sum(|one| one.dead_letters),
        model.sort.word(),
    );
    // The name of the program takes ten, the clock as many: it is what can be missed first.
    if text.width() + 20 <= usize::from(width) {
        text += &now.strftime("  %H:%M:%S").to_string();
    }
    Line::from(vec![Span::from(" jobqueue ").bold().reversed(), Span::from(text)])
}

fn footline(model: &Model, width: u16) -> Line<'static> {
    match model.remark() {
        Some(message) => Line::from(shown(message, usize::from(width).saturating_sub(2))).yellow(),
        None => {
            Line::from(" q quit  ? help  ↑↓ select  Enter workers  s sort  r reverse  p pause  d dead").dim()
        }
    }
}

fn draw_queues(frame: &mut Frame, model: &Model, area: Rect, now: Timestamp) {
    let everywhere = model.queues.iter().any(|one| one.namespace != model.place);
    let wide = area.width >= WIDE;
    let mut header = vec!["NAME", "WAITING", "RUNNING", "DELAYED", "DEAD", "OLDEST", "WORKERS"];
    let mut widths = vec![Constraint::Length(if wide { 32 } else { 17 })];
    widths.extend([7, 7, 7, 6, 6, if wide { 17 } else { 8 }].map(Constraint::Length));
    if wide {
        header.extend(["RATE", "STATE", "AS OF"]);
        widths.extend([9, 14, 5].map(Constraint::Length));
    }
    header.push("TREND");
    widths.push(Constraint::Fill(1));
    let fixed: u16 = if wide { 32 + 50 + 28 + 10 } else { 17 + 41 + 7 };
    let trend = usize::from(area.width.saturating_sub(fixed + 3));
    let rows = model.queues.iter().map(|one| {
        let name = if everywhere { format!("{}/{}", one.namespace, one.name) } else { one.name.clone() };
        let mut cells: Vec<Cell> = vec![
            Cell::from(shown(&name, if wide { 31 } else { 16 })),
            Cell::from(short(one.waiting)),
            Cell::from(short(one.in_flight)),
            Cell::from(short(one.delayed)),
            Cell::from(short(one.dead_letters)).style(style(one.dead().tone)),
            Cell::from(one.oldest()),
            Cell::from(if wide { one.workers().text } else { one.workers_in_short() })
                .style(style(one.workers().tone)),
        ];
        if wide {
            cells.push(Cell::from(one.rate()));
            cells.push(Cell::from(one.state().text).style(style(one.state().tone)));
            cells.push(Cell::from(one.age(now)).dim());
        }
        let history = model.history.get(&key(one));
        let line: String =
            history.map(|history| sparkline(history.iter().copied(), trend)).unwrap_or_default();
        cells.push(Cell::from(line).cyan());
        let row = Row::new(cells);
        if one.paused { row.style(Style::default().fg(Color::DarkGray)) } else { row }
    });
    let block = Block::default().borders(Borders::TOP).title(" Queues ".bold());
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Style::default().add_modifier(Modifier::DIM)))
        .column_spacing(1)
        .row_highlight_style(Style::default().add_modifier(Modifier::REVERSED))
        .block(block);
    let mut state = TableState::default().with_selected(model.position());
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_workers(frame: &mut Frame, model: &Model, area: Rect, now: Timestamp) {
    let name = model.selected.as_ref().map(|(_, name)| name.as_str()).unwrap_or_default();
    let title = match &model.live {
        _ if name.is_empty() => " Workers ".to_owned(),
        // Not all of them may have room here.
        Some(live) if !live.processes.is_empty() => {
            format!(" Workers of {name} ({}, Enter shows all) ", live.processes.len())
        }
        _ => format!(" Workers of {name} "),
    };
    let block = Block::default().borders(Borders::TOP).title(title.bold());
    let Some(live) = &model.live else {
        frame.render_widget(
            Paragraph::new(no_workers(model)).dim().wrap(ratatui::widgets::Wrap { trim: true }).block(block),
            area,
        );
        return;
    };
    let wide = area.width >= WIDE;
    let most = live.processes.iter().map(|one| one.in_flight).max().unwrap_or(0);
    let processes = by_load(&live.processes);
    // What tells one job or pod from another needs the room more than a picture of the load: a UUID has 36 characters.
    let pod = if wide { 33 } else { 20 };
    let widths: &[u16] = if wide { &[34, 9, 8, 6, 12] } else { &[20, 8, 7, 5] };
    let fixed: u16 = widths.iter().map(|width| width + 1).sum();
    let job = usize::from(area.width.saturating_sub(fixed));
    let rows = processes.into_iter().map(|one| {
        let mut cells = vec![
            Cell::from(end_of(&one.host, pod)),
            Cell::from(one.state.clone()).style(style(state_tone(one))),
            Cell::from(short(i64::try_from(one.in_flight).unwrap_or(i64::MAX))),
            Cell::from(since_text(one.started_at.as_deref(), now)),
        ];
        if wide {
            cells.push(Cell::from(bar(one.in_flight, most, 10)).cyan());
        }
        cells.push(Cell::from(or_dash(one.oldest_job.as_deref().map(|id| beginning_of(id, job)))));
        Row::new(cells)
    });
    let mut header = vec!["POD", "STATE", "RUNNING", "AGE"];
    if wide {
        header.push("LOAD");
    }
    header.push("OLDEST JOB");
    let widths = widths.iter().copied().map(Constraint::Length).chain([Constraint::Fill(1)]);
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Style::default().add_modifier(Modifier::DIM)))
        .column_spacing(1)
        .block(block);
    frame.render_widget(table, area);
}

/// Why there is nothing to say of the workers.
fn no_workers(model: &Model) -> String {
    match (&model.silent, model.current()) {
        (Some(why), _) => format!("not known: {why}"),
        (None, None) => "no queue is selected".into(),
        (None, Some(one)) if one.workers_ready == 0 => "no workers run; they start with the first job".into(),
        (None, Some(_)) => "asking Redis ...".into(),
    }
}

/// The busiest first.
fn by_load(processes: &[Process]) -> Vec<&Process> {
    let mut processes: Vec<&Process> = processes.iter().collect();
    processes.sort_by_key(|one| (std::cmp::Reverse(one.in_flight), one.host.clone()));
    processes
}

fn state_tone(process: &Process) -> Tone {
    match process.state.as_str() {
        "active" => Tone::Good,
        "quiet" | "drained" => Tone::Warn,
        _ => Tone::Bad,
    }
}

/// The beginning of a text, where all of it does not fit.
fn beginning_of(text: &str, room: usize) -> String {
    let safe = whole(text);
    if safe.chars().count() <= room { safe } else { shown(text, room.saturating_sub(1)) }
}

/// The end of a name, by which pods of one queue differ.
fn end_of(name: &str, widest: usize) -> String {
    let safe = whole(name);
    let length = safe.chars().count();
    if length <= widest {
        return safe;
    }
    std::iter::once('…').chain(safe.chars().skip(length + 1 - widest)).collect()
}

fn draw_decisions(frame: &mut Frame, model: &Model, area: Rect, now: Timestamp) {
    let block = Block::default().borders(Borders::TOP).title(" Scaling ".bold());
    let room = usize::from(area.height.saturating_sub(1));
    let width = usize::from(area.width);
    let lines: Vec<Line> = model
        .decisions
        .iter()
        .rev()
        .take(room)
        .map(|one| {
            let ago = one.at.map_or_else(|| "-".into(), |at| since(at, now));
            Line::from(vec![
                Span::from(format!("{ago:>6}  ")).dim(),
                Span::from(shown(&one.text, width.saturating_sub(9))),
            ])
        })
        .collect();
    let text = if lines.is_empty() { vec![Line::from("nothing was decided lately").dim()] } else { lines };
    frame.render_widget(Paragraph::new(text).block(block), area);
}

fn draw_overlay(frame: &mut Frame, model: &Model, area: Rect, now: Timestamp) {
    let tall = area.height.saturating_sub(4);
    let (title, lines, height) = match &model.overlay {
        Overlay::None => return,
        Overlay::Help => {
            let keys = [
                ("↑ ↓ j k", "select a queue"),
                ("Enter", "its workers, whole"),
                ("PgUp PgDn", "ten at once; Home End g G: the first, the last"),
                ("s", "sort by name, waiting, running, dead, oldest"),
                ("r", "the other way round"),
                ("p", "pause or resume the selected queue"),
                ("d", "its dead letters, the newest first; Enter shows one whole"),
                ("? h", "this help"),
                ("q Esc", "leave"),
            ];
            let lines = keys.map(|(key, what)| {
                Line::from(vec![Span::from(format!("  {key:<11}")).bold(), Span::from(what)])
            });
            (" Keys ".to_owned(), lines.to_vec(), 11)
        }
        Overlay::Confirm { queue: (_, name), pause } => {
            let what = if *pause {
                "No worker takes another job; those that run finish."
            } else {
                "Workers take jobs again."
            };
            let title = if *pause { format!(" Pause {name}? ") } else { format!(" Resume {name}? ") };
            (title, vec![Line::from(what), Line::from("y yes   any other key no").dim()], 4)
        }
        Overlay::Dead { queue, letters, at, whole } => {
            let keys = if *whole { "q back, ↑↓ others" } else { "q back, ↑↓ select, Enter whole" };
            let title = format!(" Dead letters of {} ({keys}) ", queue.1);
            let lines = match letters {
                None => vec![Line::from("reading ...").dim()],
                Some(Err(why)) => vec![Line::from(shown(why, 400)).red()],
                Some(Ok(letters)) if letters.is_empty() => vec![Line::from("none").dim()],
                Some(Ok(letters)) if *whole => letters.get(*at).map(letter_whole).unwrap_or_default(),
                Some(Ok(letters)) => {
                    letter_lines(letters, *at, area.width.saturating_sub(6), tall.saturating_sub(3))
                }
            };
            (title, lines, tall)
        }
        Overlay::Workers(from) => {
            let name = model.selected.as_ref().map(|(_, name)| name.as_str()).unwrap_or_default();
            let lines = match &model.live {
                Some(live) => by_load(&live.processes)
                    .into_iter()
                    .skip(*from)
                    .flat_map(|one| worker_whole(one, now))
                    .collect(),
                None => vec![Line::from(shown(&no_workers(model), 400)).dim()],
            };
            (format!(" Workers of {name} (q back, ↑↓ scroll) "), lines, tall)
        }
    };
    let is_large = matches!(model.overlay, Overlay::Dead { .. } | Overlay::Workers(_));
    let width = area.width.saturating_sub(4).min(if is_large { u16::MAX } else { 64 });
    let height = height.min(area.height);
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let block = Block::default().borders(Borders::ALL).title(title.bold());
    let text = Paragraph::new(lines).block(block);
    // Only what is shown whole goes on on the next line: a row of a list is a line.
    let is_whole = matches!(model.overlay, Overlay::Dead { whole: true, .. } | Overlay::Workers(_));
    let text = if is_whole { text.wrap(ratatui::widgets::Wrap { trim: false }) } else { text };
    frame.render_widget(text, place);
}

/// A line a letter, as many as there is room for, the selected one among them.
fn letter_lines(letters: &[Letter], at: usize, width: u16, room: u16) -> Vec<Line<'static>> {
    let wide = width >= WIDE - 6;
    let (id, queue) = if wide { (37, 11) } else { (21, 0) };
    let queue_of = |text: &str| if wide { format!("{text:<queue$}") } else { String::new() };
    let head = format!("{:<id$}{}{:<10} {:>6}  ERROR", "ID", queue_of("QUEUE"), "REASON", "AGE");
    let mut lines = vec![Line::from(head).dim()];
    let error = usize::from(width).saturating_sub(id + queue + 20);
    let text =
        |text: &Option<String>, widest: usize| or_dash(text.as_deref().map(|text| shown(text, widest)));
    let room = usize::from(room.max(1));
    let from = (at + 1).saturating_sub(room);
    for (number, letter) in letters.iter().enumerate().skip(from).take(room) {
        let line = Line::from(format!(
            "{:<id$}{}{:<10} {:>6}  {}",
            text(&letter.id, id - 2),
            queue_of(&text(&letter.queue, 9)),
            text(&letter.reason, 9),
            letter_age(letter),
            text(&letter.error, error)
        ));
        lines.push(if number == at { line.reversed() } else { line });
    }
    lines
}

fn letter_age(letter: &Letter) -> String {
    or_dash(letter.age_ms.map(|ms| age(i64::try_from(ms / 1000).unwrap_or(i64::MAX))))
}

/// One letter with all that is known of it.
fn letter_whole(letter: &Letter) -> Vec<Line<'static>> {
    let text = |text: &Option<String>| or_dash(text.as_deref().map(whole));
    let fields = [
        ("ID", text(&letter.id)),
        ("Queue", text(&letter.queue)),
        ("Class", text(&letter.class)),
        ("Reason", text(&letter.reason)),
        ("Retries", or_dash(letter.retries.map(|retries| retries.to_string()))),
        ("Age", letter_age(letter)),
        ("Error", text(&letter.error)),
    ];
    let line = |(name, value): (&str, String)| {
        Line::from(vec![Span::from(format!("{name:<9}")).bold(), Span::from(value)])
    };
    fields.into_iter().map(line).collect()
}

/// One worker with all that is known of it.
fn worker_whole(process: &Process, now: Timestamp) -> [Line<'static>; 2] {
    let figures =
        format!("  {} running, {} old", process.in_flight, since_text(process.started_at.as_deref(), now));
    let job = or_dash(process.oldest_job.as_deref().map(whole));
    [
        Line::from(vec![
            Span::from(whole(&process.host)).bold(),
            Span::from(format!("  {}", process.state)).style(style(state_tone(process))),
            Span::from(figures),
        ]),
        Line::from(vec![Span::from("  oldest job ").dim(), Span::from(job)]),
    ]
}

/// A line of bars, the last value at its end, the largest as high as can be.
fn sparkline(
    values: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + Clone,
    width: usize,
) -> String {
    let largest = values.clone().max().unwrap_or(0).max(1);
    let skipped = values.len().saturating_sub(width);
    let bar = |value: u64| BARS[usize::try_from(value * 7 / largest).unwrap_or(7).min(7)];
    values.skip(skipped).map(bar).collect()
}

/// A bar of at most `width`.
fn bar(value: u64, largest: u64, width: u64) -> String {
    let filled = (value * width).checked_div(largest).unwrap_or(0).max(u64::from(value > 0));
    "█".repeat(usize::try_from(filled).unwrap_or(0))
}

/// A figure in at most six characters.
fn short(number: i64) -> String {
    match number {
        ..100_000 => number.to_string(),
        100_000..10_000_000 => format!("{}k", number / 1000),
        _ => format!("{}M", number / 1_000_000),
    }
}

fn style(tone: table::Tone) -> Style {
    match tone {
        Tone::Good => Style::default().fg(Color::Green),
        Tone::Warn => Style::default().fg(Color::Yellow),
        Tone::Bad => Style::default().fg(Color::Red),
        Tone::Dim => Style::default().add_modifier(Modifier::DIM),
        Tone::Strong => Style::default().add_modifier(Modifier::BOLD),
        Tone::Plain => Style::default(),
    }
}

#[cfg(test)]
mod tests;
