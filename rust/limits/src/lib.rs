//! The closed lists both languages share, as data: error kinds, finish codes, causes, limits.
//!
//! The TOML files beside `src` are the source; `tools/gen_tables.py` writes the tables of this crate and
//! of `python/proa/_tables.py`. Owns also the error value and the message texts that every route uses.
//! Imports nothing, and knows neither HTTP nor the wire.

mod api_error;
mod limit;
#[rustfmt::skip]
mod limit_table;
#[rustfmt::skip]
mod list_table;
mod lookup;
mod nearest;

pub use api_error::{ApiError, ErrorValue, Ranged, quote};
pub use limit::Limit;
pub use limit_table::*;
pub use list_table::*;
pub use nearest::nearest_name;
