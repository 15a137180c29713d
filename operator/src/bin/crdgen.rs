//! Prints what is generated from the custom resource's types: the CRD itself, or with `--reference` its
//! documentation. `scripts/generate` writes both where they belong.
use std::process::ExitCode;

use clap::Parser;
use kube::CustomResourceExt;
use operator::api::{reference, v1alpha1::JobQueue};

#[derive(Parser)]
#[command(version, about = "Print the JobQueue CRD as YAML")]
struct Arguments {
    /// Print the reference of its fields as Markdown instead
    #[arg(long)]
    reference: bool,
}

fn main() -> ExitCode {
    if Arguments::parse().reference {
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
