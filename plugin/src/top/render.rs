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
use crate::table::{self, Tone, age, shown, since, since_text};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
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
    draw_overlay(frame, model, area);
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
            Line::from(" q quit  ? help  ↑↓ select  s sort  r reverse  p pause/resume  d dead letters").dim()
        }
    }
}

fn draw_queues(frame: &mut Frame, model: &Model, area: Rect, now: Timestamp) {
    let everywhere = model.queues.iter().any(|one| one.namespace != model.place);
    let wide = area.width >= 110;
    let mut header = vec!["NAME", "WAITING", "RUNNING", "DELAYED", "DEAD", "OLDEST", "WORKERS"];
    let mut widths = vec![Constraint::Length(if wide { 32 } else { 17 })];
    widths.extend([7, 7, 7, 6, 6, 8].map(Constraint::Length));
    if wide {
        header.extend(["RATE", "STATE", "AS OF"]);
        widths.extend([9, 14, 5].map(Constraint::Length));
    }
    header.push("TREND");
    widths.push(Constraint::Fill(1));
    let fixed: u16 = if wide { 32 + 41 + 28 + 10 } else { 17 + 41 + 7 };
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
            Cell::from(one.workers().text).style(style(one.workers().tone)),
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
    let title = if name.is_empty() { " Workers ".to_owned() } else { format!(" Workers of {name} ") };
    let block = Block::default().borders(Borders::TOP).title(title.bold());
    let Some(live) = &model.live else {
        let text = match (&model.silent, model.current()) {
            (Some(why), _) => format!("not known: {why}"),
            (None, None) => "no queue is selected".into(),
            (None, Some(one)) if one.workers_ready == 0 => {
                "no workers run; they start with the first job".into()
            }
            (None, Some(_)) => "asking Redis ...".into(),
        };
        frame.render_widget(
            Paragraph::new(text).dim().wrap(ratatui::widgets::Wrap { trim: true }).block(block),
            area,
        );
        return;
    };
    let most = live.processes.iter().map(|one| one.in_flight).max().unwrap_or(0);
    let mut processes: Vec<&Process> = live.processes.iter().collect();
    processes.sort_by_key(|one| (std::cmp::Reverse(one.in_flight), one.host.clone()));
    let job = usize::from(area.width.saturating_sub(34 + 9 + 8 + 6 + 12 + 6));
    let rows = processes.into_iter().map(|one| {
        let tone = match one.state.as_str() {
            "active" => Tone::Good,
            "quiet" | "drained" => Tone::Warn,
            _ => Tone::Bad,
        };
        Row::new(vec![
            Cell::from(shown(&one.host, 33)),
            Cell::from(one.state.clone()).style(style(tone)),
            Cell::from(short(i64::try_from(one.in_flight).unwrap_or(i64::MAX))),
            Cell::from(since_text(one.started_at.as_deref(), now)),
            Cell::from(bar(one.in_flight, most, 10)).cyan(),
            Cell::from(or_dash(one.oldest_job.as_deref().map(|id| shown(id, job)))),
        ])
    });
    let widths = [34, 9, 8, 6, 12].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let table = Table::new(rows, widths)
        .header(
            Row::new(["POD", "STATE", "RUNNING", "AGE", "LOAD", "OLDEST JOB"])
                .style(Style::default().add_modifier(Modifier::DIM)),
        )
        .column_spacing(1)
        .block(block);
    frame.render_widget(table, area);
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

fn draw_overlay(frame: &mut Frame, model: &Model, area: Rect) {
    let (title, lines, height) = match &model.overlay {
        Overlay::None => return,
        Overlay::Help => {
            let keys = [
                ("↑ ↓ j k", "select a queue"),
                ("PgUp PgDn", "ten at once; Home End g G: the first, the last"),
                ("s", "sort by name, waiting, running, dead, oldest"),
                ("r", "the other way round"),
                ("p", "pause or resume the selected queue"),
                ("d", "its dead letters, the newest first"),
                ("? h", "this help"),
                ("q Esc", "leave"),
            ];
            let lines = keys.map(|(key, what)| {
                Line::from(vec![Span::from(format!("  {key:<11}")).bold(), Span::from(what)])
            });
            (" Keys ".to_owned(), lines.to_vec(), 10)
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
        Overlay::Dead { queue, letters, from } => {
            let title = format!(" Dead letters of {} (q back, ↑↓ scroll) ", queue.1);
            let lines = match letters {
                None => vec![Line::from("reading ...").dim()],
                Some(Err(why)) => vec![Line::from(shown(why, 400)).red()],
                Some(Ok(letters)) if letters.is_empty() => vec![Line::from("none").dim()],
                Some(Ok(letters)) => letter_lines(letters, *from, area.width.saturating_sub(6)),
            };
            (title, lines, area.height.saturating_sub(4))
        }
    };
    let width = area.width.saturating_sub(4).min(if matches!(model.overlay, Overlay::Dead { .. }) {
        u16::MAX
    } else {
        64
    });
    let height = height.min(area.height);
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let block = Block::default().borders(Borders::ALL).title(title.bold());
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

fn letter_lines(letters: &[Letter], from: usize, width: u16) -> Vec<Line<'static>> {
    let head = format!("{:<26} {:<10} {:<10} {:>6}  ERROR", "ID", "QUEUE", "REASON", "AGE");
    let mut lines = vec![Line::from(head).dim()];
    let text =
        |text: &Option<String>, widest: usize| or_dash(text.as_deref().map(|text| shown(text, widest)));
    for letter in letters.iter().skip(from) {
        let ago = or_dash(letter.age_ms.map(|ms| age(i64::try_from(ms / 1000).unwrap_or(i64::MAX))));
        lines.push(Line::from(format!(
            "{:<26} {:<10} {:<10} {ago:>6}  {}",
            text(&letter.id, 25),
            text(&letter.queue, 9),
            text(&letter.reason, 9),
            text(&letter.error, usize::from(width.saturating_sub(58)))
        )));
    }
    lines
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
