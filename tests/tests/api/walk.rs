//! The walk through docs/async.md: what it shows is what happens.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use e2e::{Worker, WorkerOptions, eventually};

use crate::scene::{SOON, Scene};

/// The first block of this language after a heading.
fn block<'a>(page: &'a str, heading: &str, language: &str) -> &'a str {
    let rest = &page[page.find(heading).expect(heading)..];
    let rest = rest.split_once(&format!("```{language}\n")).expect("a block").1;
    rest.split_once("```").expect("the end of the block").0
}

/// Commands, each with what it prints.
fn commands(block: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            (None, Some((_, output))) => {
                output.push_str(line);
                output.push('\n');
            }
            (None, None) => panic!("{line}: no command printed it"),
        }
    }
    commands
}

/// A text with each of its words changed.
fn mapped(text: &str, mut change: impl FnMut(&str) -> String) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || ".:-".contains(c);
    let mut changed = String::new();
    for part in text.split_inclusive(|c| !is_word(c)) {
        let word = part.trim_end_matches(|c| !is_word(c));
        changed.push_str(&change(word));
        changed.push_str(&part[word.len()..]);
    }
    changed
}

fn is_id(word: &str) -> bool {
    word.len() == 36
        && word.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

fn is_time(word: &str) -> bool {
    word.len() == 24 && word.ends_with('Z') && word.parse::<jiff::Timestamp>().is_ok()
}

fn ids(text: &str) -> Vec<String> {
    let mut ids = Vec::new();
    mapped(text, |word| {
        ids.extend(is_id(word).then(|| word.to_owned()));
        String::new()
    });
    ids
}

/// The same for every run: ids and times are those of another day.
fn timeless(text: &str) -> String {
    mapped(text.trim_end(), |word| {
        let known = if is_id(word) { "ID" } else { word };
        if is_time(word) { "TIME".to_owned() } else { known.to_owned() }
    })
}

async fn printed(command: &str) -> String {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", command]);
    let output = tokio::task::spawn_blocking(move || bash.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn every_command_of_the_walk_prints_what_the_page_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/async.md");
    let page = std::fs::read_to_string(path).unwrap();
    // Where Redis is and which ports are free is this machine's affair: the environment says so.
    let config = block(&page, "# Jobs over HTTP", "yaml");
    let scene = Scene::with(|options| options.config(config)).await;
    let _worker = Worker::spawn(&WorkerOptions::new("worker").redis(scene.server.addr()).config(config));
    let walk = commands(block(&page, "## A walk through", "console"));
    assert!(walk.len() >= 10, "{walk:?}");
    let mut known: HashMap<String, String> = HashMap::new();
    for (command, expected) in walk {
        let now = mapped(&command, |word| known.get(word).map_or(word, String::as_str).to_owned());
        let now = now.replace("localhost:8080", &scene.addr.to_string());
        let output = if command.contains(" -d ") {
            let output = printed(&now).await;
            assert_eq!(timeless(&output), timeless(&expected), "{command}");
            output
        } else {
            // Whoever reads the page has taken a moment to type it.
            eventually(SOON, &command, async || {
                let output = printed(&now).await;
                if timeless(&output) == timeless(&expected) { Ok(output) } else { Err(output) }
            })
            .await
        };
        for (theirs, ours) in ids(&expected).into_iter().zip(ids(&output)) {
            assert_eq!(known.entry(theirs).or_insert_with(|| ours.clone()), &ours, "{command}");
        }
    }
}
