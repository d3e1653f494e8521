//! The Rust side of the wire for the tests of the Python side.
//!
//!     wire_peer echo                    decodes each message of stdin and answers with it, encoded anew
//!     wire_peer generate SEED COUNT     writes random valid messages
//!     wire_peer mutate SEED COUNT       writes random messages that were damaged
//!
//! A message is: direction u8 (0 front end, 1 engine), number of frames u32, then each frame as in the
//! fixtures (u32 length, bytes); all little-endian. An answer is: verdict u8 (0 good, 1 good but for its
//! stats, 2 kind, 3 decode, 4 columns), then, if good, the message.

mod random;

use std::io::{self, BufReader, BufWriter, Read, Write};

use proa_wire::{Direction, Message, Reason, Stats, decode, encode};
use random::{Random, mutate};

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| {
        args.get(index)
            .and_then(|arg| arg.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match args.first().map(String::as_str) {
        Some("echo") => echo(&mut out)?,
        Some(mode @ ("generate" | "mutate")) => {
            let mut random = Random(number(1));
            for _ in 0..number(2) {
                let message = random.message();
                let mut frames = encode(&message);
                if mode == "mutate" {
                    mutate(&mut random, &mut frames);
                }
                write_message(&mut out, message.kind().direction(), &frames)?;
            }
        }
        _ => return Err(io::Error::other("expected echo, generate or mutate")),
    }
    out.flush()
}

fn echo(out: &mut impl Write) -> io::Result<()> {
    let mut input = BufReader::new(io::stdin().lock());
    let mut direction = [0];
    while input.read(&mut direction)? == 1 {
        let direction = if direction[0] == 0 {
            Direction::FromFrontEnd
        } else {
            Direction::FromEngine
        };
        let frames = (0..read_u32(&mut input)?)
            .map(|_| {
                let mut frame = vec![0; read_u32(&mut input)? as usize];
                input.read_exact(&mut frame)?;
                Ok(frame)
            })
            .collect::<io::Result<Vec<_>>>()?;
        match decode(direction, 0, &frames) {
            Ok(message) => {
                let faulty = matches!(&message, Message::StepOutputs(outputs) if outputs.stats == Stats::Faulty);
                out.write_all(&[u8::from(faulty)])?;
                write_message(out, direction, &encode(&message))?;
            }
            Err(bad) => out.write_all(&[match bad.reason {
                Reason::Kind => 2,
                Reason::Decode => 3,
                Reason::Columns => 4,
            }])?,
        }
    }
    Ok(())
}

fn read_u32(input: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn write_message(out: &mut impl Write, direction: Direction, frames: &[Vec<u8>]) -> io::Result<()> {
    out.write_all(&[u8::from(direction == Direction::FromEngine)])?;
    out.write_all(&(frames.len() as u32).to_le_bytes())?;
    for frame in frames {
        out.write_all(&(frame.len() as u32).to_le_bytes())?;
        out.write_all(frame)?;
    }
    Ok(())
}
