//! Draws the simulated traces: `docs/images/autoscaling.svg` is its output.
//!
//! One panel a trace, each with two strips over the same time: workers above, waiting jobs below.
use std::fmt::Write as _;

use super::real;
use super::simulation::{Point, Scenario, run, traces};

const WIDTH: f64 = 960.0;
const PANEL: (f64, f64) = (480.0, 286.0);
const TOP: f64 = 46.0;
/// Where the strips begin within a panel, and how wide they are.
const LEFT: f64 = 54.0;
const ACROSS: f64 = 404.0;
/// Where each strip begins and how high it is.
const WORKERS: (f64, f64) = (56.0, 96.0);
const BACKLOG: (f64, f64) = (180.0, 66.0);

const STYLE: &str = "text{font-family:-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:11px;fill:#57606a}\
.title{font-size:14px;font-weight:600;fill:#1f2328}.end{text-anchor:end}.middle{text-anchor:middle}\
.grid{stroke:#d8dee4;stroke-width:1}.axis{stroke:#8c959f;stroke-width:1}\
.busy{fill:#b6d4fe}.workers{fill:none;stroke:#0b5cad;stroke-width:2;stroke-linejoin:round}\
.backlog{fill:#f4a259;stroke:#c9701a;stroke-width:1}.outage{fill:#eaeef2}";

/// The picture of all traces.
pub fn svg() -> String {
    let traces = traces();
    let rows = real(u64::try_from(traces.len().div_ceil(2)).unwrap_or(1));
    let height = TOP + rows * PANEL.1;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"Simulated workers and waiting jobs over time\">\n<style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"#fff\"/>\n"
    );
    legend(&mut text);
    for (place, scenario) in traces.iter().enumerate() {
        let (x, y) = (if place % 2 == 0 { 0.0 } else { PANEL.0 }, TOP + row(place) * PANEL.1);
        let _ = writeln!(text, "<g transform=\"translate({x} {y})\">");
        panel(&mut text, scenario, &run(scenario));
        text.push_str("</g>\n");
    }
    text.push_str("</svg>\n");
    text
}

fn row(place: usize) -> f64 {
    real(u64::try_from(place / 2).unwrap_or(0))
}

fn legend(text: &mut String) {
    text.push_str(
        "<path class=\"workers\" d=\"M54 26h22\"/><text x=\"82\" y=\"30\">worker pods</text>\n\
         <rect class=\"busy\" x=\"166\" y=\"20\" width=\"22\" height=\"12\"/>\
         <text x=\"194\" y=\"30\">busy slots, in workers</text>\n\
         <rect class=\"backlog\" x=\"328\" y=\"20\" width=\"22\" height=\"12\"/><text x=\"356\" y=\"30\">waiting jobs</text>\n",
    );
}

/// What a trace shows, in words.
fn caption(name: &str) -> &'static str {
    match name {
        "steady" => "Steady: 10 jobs a second",
        "burst" => "Burst: 600 jobs at once, later 1,500",
        "diurnal" => "Day and night: 0 to 30 jobs a second, twice",
        _ => "Outage: Redis cannot be read for a minute",
    }
}

fn panel(text: &mut String, scenario: &Scenario, points: &[Point]) {
    let across = |second: u64| LEFT + real(second) / real(scenario.seconds) * ACROSS;
    let _ = writeln!(text, "<text class=\"title\" x=\"{LEFT}\" y=\"26\">{}</text>", caption(scenario.name));
    let (from, to) = (across(scenario.unreadable.start), across(scenario.unreadable.end));
    if from < to {
        for (top, high) in [WORKERS, BACKLOG] {
            let width = to - from;
            let _ = writeln!(
                text,
                "<rect class=\"outage\" x=\"{from:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{high}\"/>"
            );
        }
    }
    let whole = |number: i32| u64::try_from(number).unwrap_or(0);
    let workers = Scale::new(WORKERS, points.iter().map(|point| whole(point.replicas)).max());
    let backlog = Scale::new(BACKLOG, points.iter().map(|point| point.backlog).max());
    workers.grid(text, "workers");
    backlog.grid(text, "waiting jobs");
    let slots = real(u64::from(scenario.concurrency));
    let busy = points.iter().map(|point| (across(point.second), real(point.in_flight) / slots));
    workers.area(text, "busy", thinned(busy, 3));
    let waiting = points.iter().map(|point| (across(point.second), real(point.backlog)));
    backlog.area(text, "backlog", thinned(waiting, 2));
    workers.steps(text, "workers", points.iter().map(|point| (across(point.second), whole(point.replicas))));
    for minute in (0..=scenario.seconds / 60).filter(|minute| minute % (scenario.seconds / 300) == 0) {
        let (x, y) = (across(minute * 60), BACKLOG.0 + BACKLOG.1 + 16.0);
        let unit = if minute == 0 { " min" } else { "" };
        let _ = writeln!(text, "<text class=\"middle\" x=\"{x:.1}\" y=\"{y}\">{minute}{unit}</text>");
    }
}

/// One of so many points, the highest of those that it stands for.
fn thinned(points: impl Iterator<Item = (f64, f64)>, of: usize) -> Vec<(f64, f64)> {
    let points: Vec<_> = points.collect();
    let highest = |chunk: &[(f64, f64)]| {
        let first = chunk.first().map_or(0.0, |(x, _)| *x);
        (first, chunk.iter().map(|(_, y)| *y).fold(0.0, f64::max))
    };
    points.chunks(of.max(1)).map(highest).collect()
}

/// From numbers to heights in one strip.
struct Scale {
    top: f64,
    high: f64,
    most: u64,
}

impl Scale {
    fn new((top, high): (f64, f64), most: Option<u64>) -> Self {
        let most = most.unwrap_or(0).max(1);
        // Round numbers whose half is round too.
        let power = 10u64.pow(most.ilog10());
        let steps = [1, 2, 4, 6, 8, 10].map(|step| step * power);
        Self { top, high, most: steps.into_iter().find(|step| *step >= most).unwrap_or(most).max(4) }
    }

    fn y(&self, value: f64) -> f64 {
        self.top + self.high * (1.0 - value / real(self.most))
    }

    fn grid(&self, text: &mut String, what: &str) {
        let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{}\">{what}</text>", self.top - 6.0);
        for value in [0, self.most / 2, self.most] {
            let (y, class) = (self.y(real(value)), if value == 0 { "axis" } else { "grid" });
            let _ = writeln!(
                text,
                "<path class=\"{class}\" d=\"M{LEFT} {y:.1}h{ACROSS}\"/>\
                 <text class=\"end\" x=\"{}\" y=\"{:.1}\">{value}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
    }

    fn area(&self, text: &mut String, class: &str, points: Vec<(f64, f64)>) {
        let floor = self.y(0.0);
        let _ = write!(text, "<path class=\"{class}\" d=\"");
        let (mut open, mut last) = (false, LEFT);
        for (x, value) in points {
            if value > 0.0 && !open {
                let _ = write!(text, "M{x:.1} {floor:.1}");
            } else if value == 0.0 && open {
                let _ = write!(text, "L{x:.1} {floor:.1}Z");
            }
            open = value > 0.0;
            if open {
                let _ = write!(text, "L{x:.1} {:.1}", self.y(value));
            }
            last = x;
        }
        if open {
            let _ = write!(text, "L{last:.1} {floor:.1}Z");
        }
        text.push_str("\"/>\n");
    }

    fn steps(&self, text: &mut String, class: &str, points: impl Iterator<Item = (f64, u64)>) {
        let _ = write!(text, "<path class=\"{class}\" d=\"");
        let mut last = None;
        for (x, value) in points {
            let y = self.y(real(value));
            match last {
                None => drop(write!(text, "M{x:.1} {y:.1}")),
                Some(before) if before != value => drop(write!(text, "H{x:.1}V{y:.1}")),
                Some(_) => {}
            }
            last = Some(value);
        }
        let _ = writeln!(text, "H{:.1}\"/>", LEFT + ACROSS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `scripts/generate` writes it.
    #[test]
    fn the_picture_in_the_documentation_is_that_of_these_rules() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images/autoscaling.svg");
        let drawn = std::fs::read_to_string(path).unwrap_or_default();
        assert!(drawn == svg(), "docs/images/autoscaling.svg is stale: run scripts/generate");
    }

    #[test]
    fn an_axis_ends_at_a_round_number_that_holds_everything() {
        let most = |most| Scale::new(WORKERS, Some(most)).most;
        assert_eq!([0, 3, 7, 13, 30, 600, 1500].map(most), [4, 4, 8, 20, 40, 600, 2000]);
    }
}
