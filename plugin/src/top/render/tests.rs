//! What is on the screen, cell by cell.
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use serde_json::json;

use super::*;
use crate::live::Stats;
use crate::top::model::Decision;

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn model() -> Model {
    let queue = |name: &str, waiting: i64, dead: i64| Figures {
        namespace: "shop".into(),
        name: name.into(),
        waiting,
        in_flight: 16,
        dead_letters: dead,
        oldest_age_seconds: Some(90),
        workers_ready: 2,
        workers_desired: 3,
        ..Figures::default()
    };
    let mut model = Model { place: "shop".into(), ..Model::default() };
    for waiting in [0, 10, 250] {
        model.heard_queues(vec![
            queue("thumbnails", waiting, 2),
            queue("mail-that-has-a-very-long-name", 3, 0),
        ]);
    }
    model.press(KeyEvent::from(KeyCode::End));
    let live: Stats = serde_json::from_value(json!({ "processes": [
        { "host": "thumbnails-worker-7d9c5b8f6-abcde", "in_flight": 16, "oldest_job": "0190f2c4-7a1b-7c3d-8e4f-5a6b7c8d9e0f", "state": "active", "started_at": "2026-01-01T00:00:00Z" },
        { "host": "thumbnails-worker-7d9c5b8f6-fghij", "in_flight": 4, "oldest_job": null, "state": "quiet" },
    ] }))
    .unwrap();
    model.heard_live(&("shop".into(), "thumbnails".into()), Ok(Some(live)));
    let decision = Decision {
        at: "2026-01-01T00:09:48Z".parse().ok(),
        text: "Scaled workers from 0 to 3: 250 jobs, 100 a worker".into(),
    };
    model.heard_decisions(&("shop".into(), "thumbnails".into()), vec![decision]);
    model
}

fn screen(model: &Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| render(frame, model, now())).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y: u16| {
        (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

#[test]
fn everything_has_its_place_at_80x24() {
    let screen = screen(&model(), 80, 24);
    let text = screen.join("\n");
    assert_eq!(
        screen[..7].join("\n"),
        " jobqueue  shop  2 queues  253 waiting  32 running  2 dead  by name↓  00:10:00\n\
         \u{20}Queues ────────────────────────────────────────────────────────────────────────\n\
         NAME              WAITING RUNNING DELAYED DEAD   OLDEST WORKERS  TREND\n\
         mail-that-has-a-… 3       16      0       0      90s    2/3      ███\n\
         thumbnails        250     16      0       2      90s    2/3      ▁▁█\n\
         \n\
         \u{20}Workers of thumbnails (2, Enter shows all) ────────────────────────────────────",
        "\n{text}"
    );
    assert!(
        text.contains("…ker-7d9c5b8f6-abcde active   16      10m   0190f2c4-7a1b-7c3d-8e4f-5a6b7c8d9e0f"),
        "\n{text}"
    );
    assert!(text.contains("…ker-7d9c5b8f6-fghij quiet    4       -     -"), "\n{text}");
    assert!(text.contains("   12s  Scaled workers from 0 to 3: 250 jobs, 100 a worker"), "\n{text}");
    assert!(screen[23].starts_with(" q quit  ? help"), "\n{text}");
}

#[test]
fn workers_that_drain_stand_beside_those_that_are_wanted() {
    let mut model = model();
    for one in &mut model.queues {
        (one.workers_ready, one.workers_desired, one.workers_draining) = (5, 5, 3);
    }
    let text = screen(&model, 80, 24).join("\n");
    assert!(text.contains("90s    2/2 (-3) "), "\n{text}");
    let text = screen(&model, 200, 50).join("\n");
    assert!(text.contains("90s    2/2 (3 draining)  "), "\n{text}");
}

#[test]
fn a_large_screen_shows_more_of_each_queue() {
    let screen = screen(&model(), 200, 50);
    let text = screen.join("\n");
    assert!(
        screen[2].contains("RATE") && screen[2].contains("STATE") && screen[2].contains("AS OF"),
        "\n{text}"
    );
    assert!(text.contains("mail-that-has-a-very-long-name"), "\n{text}");
    assert!(
        text.contains(
            "thumbnails-worker-7d9c5b8f6-abcde  active    16       10m    ██████████   0190f2c4-7a1b"
        ),
        "\n{text}"
    );
    assert!(screen[49].starts_with(" q quit"), "\n{text}");
}

#[test]
fn help_question_and_dead_letters_lie_over_the_view() {
    let mut model = model();
    model.press(KeyEvent::from(KeyCode::Char('?')));
    assert!(screen(&model, 80, 24).join("\n").contains("pause or resume the selected queue"));
    model.press(KeyEvent::from(KeyCode::Esc));
    model.press(KeyEvent::from(KeyCode::Char('p')));
    assert!(screen(&model, 80, 24).join("\n").contains(" Pause thumbnails? "));
    model.press(KeyEvent::from(KeyCode::Char('n')));
    model.press(KeyEvent::from(KeyCode::Char('d')));
    assert!(screen(&model, 80, 24).join("\n").contains("reading ..."));
    let letter: Letter = serde_json::from_value(json!({ "id": "7", "queue": "high", "reason": "timeout", "error": "took \u{1b}[2J", "age_ms": 61_000 })).unwrap();
    model.heard_letters(&("shop".into(), "thumbnails".into()), Ok(vec![letter]));
    let text = screen(&model, 80, 24).join("\n");
    assert!(text.contains("7                    timeout       61s  took \\u{1b}[2J"), "\n{text}");
}

#[test]
fn a_letter_and_the_workers_are_shown_whole() {
    let mut model = model();
    model.press(KeyEvent::from(KeyCode::Enter));
    let text = screen(&model, 80, 24).join("\n");
    assert!(text.contains("thumbnails-worker-7d9c5b8f6-abcde  active  16 running, 10m old"), "\n{text}");
    assert!(text.contains("oldest job 0190f2c4-7a1b-7c3d-8e4f-5a6b7c8d9e0f"), "\n{text}");
    model.press(KeyEvent::from(KeyCode::Char('j')));
    let text = screen(&model, 80, 24).join("\n");
    assert!(!text.contains("16 running") && text.contains("4 running"), "scrolled\n{text}");
    model.press(KeyEvent::from(KeyCode::Esc));
    model.press(KeyEvent::from(KeyCode::Char('d')));
    let letter = |number: usize| -> Letter {
        let error = format!("{} the end of {number}", "word ".repeat(30));
        serde_json::from_value(json!({ "id": format!("0190f2c4-7a1b-7c3d-8e4f-00000000000{number:02}"), "queue": "high", "reason": "timeout", "error": error })).unwrap()
    };
    model.heard_letters(&("shop".into(), "thumbnails".into()), Ok((0..50).map(letter).collect()));
    assert!(screen(&model, 80, 24).join("\n").contains("word wor…"));
    model.press(KeyEvent::from(KeyCode::End));
    model.press(KeyEvent::from(KeyCode::Enter));
    let text = screen(&model, 80, 24).join("\n");
    assert!(text.contains("0190f2c4-7a1b-7c3d-8e4f-0000000000049") && text.contains("end of 49"), "\n{text}");
}

#[test]
fn a_window_that_is_too_small_says_so_and_no_size_panics() {
    assert_eq!(screen(&model(), 40, 10)[0], "too small: 60x16 at least");
    for (width, height) in [(1, 1), (60, 16), (61, 17), (79, 23), (110, 24), (300, 100)] {
        screen(&model(), width, height);
    }
}

#[test]
fn nothing_is_known_of_workers_that_cannot_be_asked() {
    let mut model = model();
    model.heard_live(
        &("shop".into(), "thumbnails".into()),
        Err("cannot run a command in pod x: forbidden".into()),
    );
    assert!(
        screen(&model, 80, 24).join("\n").contains("not known: cannot run a command in pod x: forbidden")
    );
}

#[test]
fn a_sparkline_ends_with_now_and_fits() {
    assert_eq!(sparkline([0, 1, 2, 7].into_iter(), 10), "▁▂▃█");
    assert_eq!(sparkline([7, 0, 7].into_iter(), 2), "▁█");
    assert_eq!(short(1_234_567), "1234k");
}
