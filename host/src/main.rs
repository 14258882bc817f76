//! The command line of Backplane.

fn main() -> std::process::ExitCode {
    backplane::cli::main()
}
