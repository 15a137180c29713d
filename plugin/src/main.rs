//! The process: arguments, and what to end with.
use std::process::ExitCode;

use clap::Parser as _;
use plugin::cli::Cli;
use plugin::error::Error;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("Error: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(plugin::verbs::run(cli));
    // A read of the standard input may hang: nobody waits for that thread.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match &error {
                Error::Interrupted => eprintln!("Interrupted"),
                Error::Abandoned(why) => eprintln!("Interrupted: {}", plugin::table::whole(why)),
                // It may repeat what somebody else said.
                other => eprintln!("Error: {}", plugin::table::whole(&other.to_string())),
            }
            ExitCode::from(&error)
        }
    }
}
