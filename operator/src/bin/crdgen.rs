//! Prints what is generated from the operator's types and rules: the CRD itself, with `--reference` its documentation, with
//! `autoscaling` the picture of the simulated autoscaler. `scripts/generate` writes each where it belongs.
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kube::CustomResourceExt;
use operator::api::{reference, v1alpha1::JobQueue};
use operator::autoscaler::{plot, simulation};

#[derive(Parser)]
#[command(version, about = "Print the JobQueue CRD as YAML")]
struct Arguments {
    /// Print the reference of its fields as Markdown instead
    #[arg(long)]
    reference: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Simulate the autoscaler with four traces of arrivals, and print what happens as SVG
    Autoscaling {
        /// Print it as tables instead: replicas, backlog and jobs in flight every ten seconds
        #[arg(long)]
        text: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Autoscaling { text: false }) => {
            print!("{}", plot::svg());
            return ExitCode::SUCCESS;
        }
        Some(Command::Autoscaling { text: true }) => {
            for scenario in simulation::traces() {
                println!("{}\n{}", scenario.name, simulation::table(&simulation::run(&scenario)));
            }
            return ExitCode::SUCCESS;
        }
        None => {}
    }
    if arguments.reference {
        print!("{}", reference::markdown());
        return ExitCode::SUCCESS;
    }
    match operator::api::crd_yaml() {
        Ok(yaml) => {
            print!("{yaml}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("crdgen: {}: {error}", JobQueue::crd_name());
            ExitCode::FAILURE
        }
    }
}
