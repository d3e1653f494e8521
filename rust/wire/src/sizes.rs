//! Sizes no message may pass (wire.md section 1), checked before anything is allocated.

/// All frames of a message together.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// The msgpack body.
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// Maps and lists inside each other, the body included.
pub const MAX_NESTING: usize = 16;
/// Entries of one map or list.
pub const MAX_ENTRIES: usize = 65_536;
/// Values of a whole body; keeps the decoded form of a body near its size.
pub const MAX_VALUES: usize = 1 << 20;
/// Column frames of a message.
pub const MAX_COLUMNS: usize = 64;
/// A string, unless its table says otherwise.
pub const MAX_STR_BYTES: usize = 64 << 10;
/// A grammar's text, and any bin.
pub const MAX_BIN_BYTES: usize = 2 << 20;
/// One `details` line and the cause of an EngineFailed.
pub const MAX_LINE_BYTES: usize = 512;
