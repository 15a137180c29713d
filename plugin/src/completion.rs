//! Completion: the words that may come next, names of queues from the cluster among them. One answer for all shells and for
//! kubectl, which asks through `kubectl_complete-jobqueue`.
use clap::{Arg, ArgAction, Command, CommandFactory as _};
use kube::ResourceExt;
use kube::api::ListParams;
use kube::config::Kubeconfig;
use kube::{Api, api::DynamicObject};

use crate::cli::{Cli, Shell, Target};
use crate::cluster::{Cluster, resource};

/// A cluster that does not answer must not hold up a person who presses Tab.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);

/// What may come next.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// One of these, with what they mean.
    Words(Vec<(String, String)>),
    /// The name of a queue.
    Queues,
    /// The name of a worker of this queue.
    Pods(String),
    Namespaces,
    Contexts,
    /// Something that only the shell or the person knows.
    Files,
    Nothing,
}

/// The answer to kubectl: a word a line, its meaning behind a tab, and a last line that says what else may be offered.
pub async fn run(words: &[String]) -> String {
    let target = target(words);
    let last = words.last().cloned().unwrap_or_default();
    let ask = tokio::time::timeout(PATIENCE, answers(&wanted(words), &target)).await;
    let (found, files) = ask.unwrap_or_default();
    let fitting = found.into_iter().filter(|(word, _)| word.starts_with(&last));
    let lines =
        fitting.map(
            |(word, meaning)| {
                if meaning.is_empty() { format!("{word}\n") } else { format!("{word}\t{meaning}\n") }
            },
        );
    // cobra's: 0 offers files too, 4 does not.
    lines.collect::<String>() + if files { ":0\n" } else { ":4\n" }
}

async fn answers(wanted: &Wanted, target: &Target) -> (Vec<(String, String)>, bool) {
    let plain = |names: Vec<String>| names.into_iter().map(|name| (name, String::new())).collect::<Vec<_>>();
    match wanted {
        Wanted::Words(words) => (words.clone(), false),
        Wanted::Files => (vec![], true),
        Wanted::Nothing => (vec![], false),
        Wanted::Contexts => {
            let file = match &target.kubeconfig {
                Some(path) => Kubeconfig::read_from(path),
                None => Kubeconfig::read(),
            };
            (
                plain(
                    file.map(|file| file.contexts.into_iter().map(|one| one.name).collect())
                        .unwrap_or_default(),
                ),
                false,
            )
        }
        Wanted::Queues | Wanted::Pods(_) | Wanted::Namespaces => {
            let Ok(cluster) = Cluster::connect(target).await else { return (vec![], false) };
            let names = match wanted {
                Wanted::Queues => cluster
                    .list(false, None)
                    .await
                    .map(|found| found.queues.iter().map(ResourceExt::name_any).collect()),
                Wanted::Pods(queue) => cluster
                    .pods_of(queue, Some("worker"))
                    .await
                    .map(|found| found.iter().map(ResourceExt::name_any).collect()),
                _ => {
                    let api: Api<DynamicObject> =
                        Api::all_with(cluster.client.clone(), &resource("v1", "Namespace", "namespaces"));
                    let found = cluster.ask("list namespaces", api.list(&ListParams::default())).await;
                    found.map(|found| found.items.iter().map(ResourceExt::name_any).collect())
                }
            };
            (plain(names.unwrap_or_default()), false)
        }
    }
}

/// Where to look: the flags that stand in the line already.
fn target(words: &[String]) -> Target {
    let mut target = Target { request_timeout: PATIENCE, ..Target::default() };
    for (at, word) in words.iter().enumerate() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word.as_str(), words.get(at + 1).cloned()),
        };
        match flag {
            "-n" | "--namespace" => target.namespace = value,
            "--context" => target.context = value,
            "--kubeconfig" => target.kubeconfig = value.map(Into::into),
            "--as" => target.impersonate = value,
            "--as-group" => target.groups.extend(value),
            _ => {}
        }
    }
    target
}

/// What may come next: pure.
fn wanted(words: &[String]) -> Wanted {
    let root = Cli::command();
    let (last, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let mut command = &root;
    let mut positional: Vec<&str> = vec![];
    let mut awaited: Option<&Arg> = None;
    for word in before {
        if let Some(flag) = awaited.take() {
            let _ = flag;
        } else if word.starts_with('-') {
            awaited = flag(command, &root, word).filter(|arg| takes_value(arg) && !word.contains('='));
        } else if let Some(below) = command.find_subcommand(word).filter(|_| positional.is_empty()) {
            command = below;
        } else {
            positional.push(word);
        }
    }
    if let Some(arg) = awaited {
        return value(arg);
    }
    if let Some((name, _)) = last.split_once('=').filter(|_| last.starts_with("--")) {
        let found = flag(command, &root, name).map(value);
        // The shell completes the whole word.
        return match found {
            Some(Wanted::Words(words)) => Wanted::Words(
                words.into_iter().map(|(word, help)| (format!("{name}={word}"), help)).collect(),
            ),
            _ => Wanted::Nothing,
        };
    }
    if last.starts_with('-') {
        let all = command.get_arguments().chain(root.get_arguments().filter(|arg| arg.is_global_set()));
        let visible = all.filter(|arg| !arg.is_positional() && !arg.is_hide_set());
        return Wanted::Words(
            visible.filter_map(|arg| Some((format!("--{}", arg.get_long()?), help(arg)))).collect(),
        );
    }
    let below = command.get_subcommands().filter(|one| !one.is_hide_set());
    let below: Vec<(String, String)> = below
        .map(|one| (one.get_name().to_owned(), one.get_about().map(ToString::to_string).unwrap_or_default()))
        .collect();
    if !below.is_empty() {
        return Wanted::Words(below);
    }
    let positionals: Vec<&Arg> = command.get_positionals().collect();
    let repeated = || positionals.last().filter(|last| matches!(last.get_action(), ArgAction::Append));
    let Some(arg) = positionals.get(positional.len()).or_else(repeated) else { return Wanted::Nothing };
    match arg.get_id().as_str() {
        "name" | "names" => Wanted::Queues,
        "pod" => Wanted::Pods(positional.first().copied().unwrap_or_default().to_owned()),
        _ => value(arg),
    }
}

fn flag<'a>(command: &'a Command, root: &'a Command, word: &str) -> Option<&'a Arg> {
    let word = word.split('=').next().unwrap_or(word);
    let is = |arg: &&Arg| {
        arg.get_long().is_some_and(|long| word == format!("--{long}"))
            || arg.get_short().is_some_and(|short| word == format!("-{short}"))
    };
    command.get_arguments().chain(root.get_arguments()).find(is)
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn value(arg: &Arg) -> Wanted {
    match arg.get_id().as_str() {
        "namespace" => Wanted::Namespaces,
        "context" => Wanted::Contexts,
        "kubeconfig" | "file" | "archive" => Wanted::Files,
        _ => {
            let values = arg.get_possible_values();
            if values.is_empty() {
                return if arg.get_value_names().is_some_and(|names| names.iter().any(|name| name == "FILE")) {
                    Wanted::Files
                } else {
                    Wanted::Nothing
                };
            }
            Wanted::Words(
                values
                    .iter()
                    .map(|one| {
                        (
                            one.get_name().to_owned(),
                            one.get_help().map(ToString::to_string).unwrap_or_default(),
                        )
                    })
                    .collect(),
            )
        }
    }
}

fn help(arg: &Arg) -> String {
    arg.get_help().map(ToString::to_string).unwrap_or_default()
}

/// The script for a shell: all of them ask the same question.
pub fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("completion/bash.sh"),
        Shell::Zsh => include_str!("completion/zsh.sh"),
        Shell::Fish => include_str!("completion/fish.fish"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(line: &str) -> Wanted {
        wanted(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    fn words(wanted: Wanted) -> Vec<String> {
        let Wanted::Words(words) = wanted else { panic!("{wanted:?}") };
        words.into_iter().map(|(word, _)| word).collect()
    }

    #[test]
    fn verbs_come_first_then_what_they_take() {
        assert!(words(after("")).contains(&"explain".to_owned()));
        assert!(!words(after("")).iter().any(|word| word.starts_with("__")), "nothing hidden");
        assert_eq!(words(after("dlq ")), ["list", "show", "requeue", "purge"]);
        assert_eq!(after("stats "), Wanted::Queues);
        assert_eq!(after("dlq requeue "), Wanted::Queues);
        assert_eq!(after("drain hello "), Wanted::Pods("hello".into()));
        assert_eq!(after("stats hello "), Wanted::Nothing);
        assert_eq!((after("pause "), after("pause hello ")), (Wanted::Queues, Wanted::Queues));
        assert_eq!(words(after("completion ")), ["bash", "zsh", "fish"]);
    }

    #[test]
    fn flags_and_their_values_are_known() {
        assert!(words(after("dlq purge -")).contains(&"--older-than".to_owned()));
        assert!(words(after("stats -")).contains(&"--namespace".to_owned()));
        assert!(words(after("dlq requeue hello --reason ")).contains(&"timeout".to_owned()));
        assert!(words(after("list --output=")).contains(&"--output=wide".to_owned()));
        assert_eq!(after("stats -n "), Wanted::Namespaces);
        assert_eq!(after("-n a stats "), Wanted::Queues);
        assert_eq!(after("--context "), Wanted::Contexts);
        assert_eq!(after("enqueue hello --file "), Wanted::Files);
        assert_eq!(after("report -o "), Wanted::Files);
    }

    #[test]
    fn the_cluster_that_is_asked_is_the_one_of_the_line() {
        let words: Vec<String> = ["-n", "a", "stats", "--context=b", ""].map(str::to_owned).to_vec();
        let target = target(&words);
        assert_eq!((target.namespace.as_deref(), target.context.as_deref()), (Some("a"), Some("b")));
    }
}
