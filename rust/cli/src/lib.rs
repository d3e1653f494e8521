//! The `proa` command: one flag table, the engine's configuration document, the model, supervision, wiring.
pub mod command_line;
pub mod environment;
pub mod flag;
pub mod flag_table;
pub mod foreign_table;
pub mod help;
pub mod settings;
pub mod value;
pub mod yaml;
