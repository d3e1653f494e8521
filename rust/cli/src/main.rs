//! The plain binary of `proa`; its engine runs in the Python of `--python`.

fn main() {
    let arguments: Option<Vec<String>> = std::env::args_os()
        .skip(1)
        .map(|a| a.into_string().ok())
        .collect();
    let code = match arguments {
        Some(arguments) => proa_cli::run(&arguments, None),
        None => {
            eprintln!("proa: an argument is not Unicode");
            proa_cli::EXIT_REFUSED
        }
    };
    std::process::exit(code);
}
