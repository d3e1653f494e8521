//! A message as frames: `[kind][body][column]...`, in both directions.

use limits::FailureKind;

use crate::PROTOCOL_MINOR;
use crate::column::{ColumnSet, ColumnWriter};
use crate::engine::{EngineFailed, Ready, UtilityReply};
use crate::fault::{BadFrame, Fault, Reason, mismatch, undecodable};
use crate::field::{Field, record};
use crate::front::{Abort, AddRequests, Hello, Shutdown, Utility};
use crate::kind::{Direction, Kind};
use crate::msgpack::{Reader, Token, Writer, scan};
use crate::outputs::{Detail, Stats, StepOutputs};
use crate::rare::Rare;
use crate::sizes::{MAX_BODY_BYTES, MAX_MESSAGE_BYTES};

/// Any message of the wire.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Message {
    Hello(Hello),
    AddRequests(Box<AddRequests>),
    Abort(Abort),
    Utility(Utility),
    Shutdown(Shutdown),
    Ready(Ready),
    StepOutputs(Box<StepOutputs>),
    UtilityReply(UtilityReply),
    EngineFailed(EngineFailed),
}

impl Message {
    /// The message's first frame.
    pub const fn kind(&self) -> Kind {
        match self {
            Message::Hello(_) => Kind::Hello,
            Message::AddRequests(_) => Kind::AddRequests,
            Message::Abort(_) => Kind::Abort,
            Message::Utility(_) => Kind::Utility,
            Message::Shutdown(_) => Kind::Shutdown,
            Message::Ready(_) => Kind::Ready,
            Message::StepOutputs(_) => Kind::StepOutputs,
            Message::UtilityReply(_) => Kind::UtilityReply,
            Message::EngineFailed(_) => Kind::EngineFailed,
        }
    }
}

/// The frames of `message`, ready to be sent as one multipart message.
///
/// Nothing is checked: a message that breaks a rule is refused by the receiver.
pub fn encode(message: &Message) -> Vec<Vec<u8>> {
    let mut columns = ColumnWriter::default();
    let body = match message {
        Message::Hello(hello) => plain(hello),
        Message::Utility(utility) => plain(utility),
        Message::Shutdown(shutdown) => plain(shutdown),
        Message::Ready(ready) => plain(ready),
        Message::UtilityReply(reply) => plain(reply),
        Message::Abort(abort) => {
            if !abort.is_empty() {
                abort.put(&mut columns);
            }
            Body::default().finish(&columns)
        }
        Message::AddRequests(add) => {
            if !add.columns.is_empty() {
                add.columns.put(&mut columns);
            }
            let mut body = Body::default();
            body.list("rare", &add.rare);
            body.finish(&columns)
        }
        Message::StepOutputs(outputs) => {
            outputs.put(&mut columns);
            let mut body = Body::default();
            body.field("step_stamp_ns", &outputs.step_stamp_ns);
            if matches!(outputs.stats, Stats::Present(_)) {
                body.field("stats", &outputs.stats);
            }
            body.list("details", &outputs.details);
            body.finish(&columns)
        }
        Message::EngineFailed(failed) => {
            failed.put(&mut columns);
            let mut body = Body::default();
            body.field("cause", &failed.cause);
            body.field("kind", &failed.kind);
            body.field("traceback", &failed.traceback);
            body.finish(&columns)
        }
    };
    let mut frames = Vec::with_capacity(2 + columns.frames.len());
    frames.push(vec![message.kind() as u8]);
    frames.push(body);
    frames.append(&mut columns.frames);
    frames
}

fn plain(body: &impl Field) -> Vec<u8> {
    let mut out = Writer::default();
    body.write(&mut out);
    out.finish()
}

/// The body of a message with columns, written key by key.
#[derive(Default)]
struct Body {
    entries: Writer,
    num_entries: usize,
}

impl Body {
    fn field(&mut self, key: &str, value: &impl Field) {
        self.num_entries += 1;
        self.entries.str(key);
        value.write(&mut self.entries);
    }

    /// A list that is left out when it is empty.
    fn list(&mut self, key: &str, items: &[impl Field]) {
        if items.is_empty() {
            return;
        }
        self.num_entries += 1;
        self.entries.str(key);
        self.entries.list(items.len());
        items.iter().for_each(|item| item.write(&mut self.entries));
    }

    fn finish(mut self, columns: &ColumnWriter) -> Vec<u8> {
        if !columns.names.is_empty() {
            self.num_entries += 1;
            self.entries.str("columns");
            self.entries.list(columns.names.len());
            columns.names.iter().for_each(|name| self.entries.str(name));
        }
        let mut out = Writer::default();
        out.map(self.num_entries);
        out.append(self.entries);
        out.finish()
    }
}

/// The message in `frames`, which came from `direction`.
///
/// `peer_minor` is the minor version the sender named in Hello or Ready; these two are read by the one
/// they name themselves. Unknown keys and columns of a higher minor are skipped, else refused.
///
/// # Errors
/// [`BadFrame`] for anything that breaks a rule of the tables, whatever the bytes are. A faulty snapshot
/// in StepOutputs is no error ([`Stats::Faulty`]), nor are rules of single rows ([`crate::row_faults`]).
pub fn decode<F: AsRef<[u8]>>(
    direction: Direction,
    peer_minor: u16,
    frames: &[F],
) -> Result<Message, BadFrame> {
    let bad = |kind, fault: Fault| BadFrame {
        reason: fault.reason,
        kind,
        what: fault.what,
        request_keys: if fault.reason == Reason::Columns {
            readable_keys(kind, frames)
        } else {
            Vec::new()
        },
    };
    let kind = Kind::of_frame(frames.first().map(AsRef::as_ref), direction)
        .map_err(|fault| bad(None, fault))?;
    decode_kind(kind, peer_minor, frames).map_err(|fault| bad(Some(kind), fault))
}

fn decode_kind<F: AsRef<[u8]>>(
    kind: Kind,
    peer_minor: u16,
    frames: &[F],
) -> Result<Message, Fault> {
    let Some((body, columns)) = frames[1..].split_first() else {
        return undecodable("the body is missing");
    };
    let body = body.as_ref();
    if body.len() > MAX_BODY_BYTES {
        return undecodable("the body is too long");
    }
    if frames
        .iter()
        .map(|frame| frame.as_ref().len())
        .sum::<usize>()
        > MAX_MESSAGE_BYTES
    {
        return undecodable("the message is too long");
    }
    scan(body, kind == Kind::AddRequests)?;
    let minor = match kind {
        Kind::Hello | Kind::Ready => own_minor(body)?.unwrap_or(peer_minor),
        _ => peer_minor,
    };
    let mut reader = Reader::new(body, minor > PROTOCOL_MINOR);
    let reader = &mut reader;
    Ok(match kind {
        Kind::Hello => Message::Hello(without_columns(reader, columns)?),
        Kind::Utility => Message::Utility(without_columns(reader, columns)?),
        Kind::Shutdown => Message::Shutdown(without_columns(reader, columns)?),
        Kind::Ready => Message::Ready(without_columns(reader, columns)?),
        Kind::UtilityReply => Message::UtilityReply(without_columns(reader, columns)?),
        Kind::AddRequests => {
            let body = AddBody::read(reader)?;
            body.rare.iter().try_for_each(Rare::check)?;
            let rare = body.rare;
            let add = with_columns(reader, &body.columns, columns, |set| {
                AddRequests::take(rare, set)
            })?;
            Message::AddRequests(Box::new(add))
        }
        Kind::Abort => {
            let names = ColumnsBody::read(reader)?.columns;
            Message::Abort(with_columns(reader, &names, columns, Abort::take_checked)?)
        }
        Kind::StepOutputs => Message::StepOutputs(Box::new(decode_step(reader, columns)?)),
        Kind::EngineFailed => {
            let body = FailedBody::read(reader)?;
            let Some(kind) = body.kind else {
                return mismatch("a key is missing");
            };
            let head = (body.cause, kind, body.traceback);
            Message::EngineFailed(with_columns(reader, &body.columns, columns, |set| {
                EngineFailed::take(head, set)
            })?)
        }
    })
}

fn decode_step<F: AsRef<[u8]>>(
    reader: &mut Reader<'_>,
    frames: &[F],
) -> Result<StepOutputs, Fault> {
    let body = StepBody::read(reader)?;
    body.details.iter().try_for_each(Detail::check)?;
    let outputs = with_columns(reader, &body.columns, frames, StepOutputs::take)?;
    Ok(StepOutputs {
        step_stamp_ns: body.step_stamp_ns,
        stats: body.stats.unwrap_or_default(),
        details: body.details,
        ..outputs
    })
}

record! {
    struct AddBody {
        rare: Vec<Rare> => listed,
        columns: Vec<String> => listed,
    }
}

record! {
    struct ColumnsBody {
        columns: Vec<String> => listed,
    }
}

record! {
    struct StepBody {
        step_stamp_ns: u64 => required,
        stats: Option<Stats> => optional,
        details: Vec<Detail> => listed,
        columns: Vec<String> => listed,
    }
}

record! {
    struct FailedBody {
        cause: String => required,
        // Required in truth: records have defaults, and a failure has none to offer.
        kind: Option<FailureKind> => optional,
        traceback: String => required,
        columns: Vec<String> => listed,
    }
}

/// Reads a body that has no columns in this version; those of a higher minor are skipped.
fn without_columns<T: Field, F: AsRef<[u8]>>(
    reader: &mut Reader<'_>,
    frames: &[F],
) -> Result<T, Fault> {
    let mut body = reader.clone();
    let names = if reader.is_lenient() {
        ColumnsBody::read(reader)?.columns
    } else {
        Vec::new()
    };
    ColumnSet::new(&names, frames)?.finish(reader.is_lenient())?;
    T::read(&mut body)
}

fn with_columns<T, F: AsRef<[u8]>>(
    reader: &Reader<'_>,
    names: &[String],
    frames: &[F],
    take: impl FnOnce(&mut ColumnSet<'_, F>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut set = ColumnSet::new(names, frames)?;
    let message = take(&mut set)?;
    set.finish(reader.is_lenient())?;
    Ok(message)
}

/// The value of `protocol_minor` in a scanned body; None if it is missing or no u16.
fn own_minor(body: &[u8]) -> Result<Option<u16>, Fault> {
    let mut reader = Reader::new(body, true);
    for _ in 0..reader.map()? {
        if reader.str()? == "protocol_minor" {
            return Ok(match reader.token()? {
                Token::Int(minor) => u16::try_from(minor).ok(),
                _ => None,
            });
        }
        reader.skip()?;
    }
    Ok(None)
}

/// The request keys of a refused message, so that each can be answered; empty if they cannot be read.
fn readable_keys<F: AsRef<[u8]>>(kind: Option<Kind>, frames: &[F]) -> Vec<u64> {
    if !matches!(kind, Some(Kind::AddRequests | Kind::StepOutputs)) {
        return Vec::new();
    }
    let Some(body) = frames.get(1) else {
        return Vec::new();
    };
    let Ok(ColumnsBody { columns }) = ColumnsBody::read(&mut Reader::new(body.as_ref(), true))
    else {
        return Vec::new();
    };
    let index = columns.iter().position(|name| name == "request_key");
    let frame = index.and_then(|index| frames.get(2 + index));
    frame
        .and_then(|frame| crate::column::from_bytes(frame.as_ref()).ok())
        .unwrap_or_default()
}
