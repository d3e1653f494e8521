//! Columns: little-endian arrays without header, one per frame, named by the body key `columns`.

use crate::fault::{Fault, mismatch, undecodable};
use crate::sizes::MAX_COLUMNS;

/// A type a column may hold.
pub(crate) trait Column: Copy {
    const WIDTH: usize;
    fn read(bytes: &[u8]) -> Vec<Self>;
    fn write(values: &[Self], out: &mut Vec<u8>);
}

macro_rules! column_types {
    ($($number:ty),*) => {$(
        impl Column for $number {
            const WIDTH: usize = size_of::<$number>();

            fn read(bytes: &[u8]) -> Vec<Self> {
                let (chunks, _) = bytes.as_chunks();
                chunks.iter().map(|chunk| <$number>::from_le_bytes(*chunk)).collect()
            }

            fn write(values: &[Self], out: &mut Vec<u8>) {
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    )*};
}
column_types!(u8, u16, u32, u64, i32, i64, f32);

/// The values of a column; the division of its length by the width must be exact.
pub(crate) fn from_bytes<T: Column>(bytes: &[u8]) -> Result<Vec<T>, Fault> {
    if !bytes.len().is_multiple_of(T::WIDTH) {
        return mismatch("a column's length is no multiple of its width");
    }
    Ok(T::read(bytes))
}

/// The bytes of a column.
pub(crate) fn to_bytes<T: Column>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * T::WIDTH);
    T::write(values, &mut bytes);
    bytes
}

/// The column frames of a message being read, taken one by one under their names.
pub(crate) struct ColumnSet<'a, F> {
    names: &'a [String],
    frames: &'a [F],
    taken: u64,
}

impl<'a, F: AsRef<[u8]>> ColumnSet<'a, F> {
    /// `frames` without kind and body; `names` is the body key `columns`.
    pub(crate) fn new(names: &'a [String], frames: &'a [F]) -> Result<Self, Fault> {
        if names.len() > MAX_COLUMNS {
            return undecodable("too many columns");
        }
        if names.len() != frames.len() {
            return mismatch("the number of frames is not that of the columns");
        }
        let doubled = names
            .iter()
            .enumerate()
            .any(|(index, name)| names[..index].contains(name));
        if doubled {
            return mismatch("a column is doubled");
        }
        Ok(ColumnSet {
            names,
            frames,
            taken: 0,
        })
    }

    /// The column `name`; None if the message has none.
    pub(crate) fn take<T: Column>(&mut self, name: &str) -> Result<Option<Vec<T>>, Fault> {
        let Some(index) = self.names.iter().position(|other| other == name) else {
            return Ok(None);
        };
        self.taken |= 1 << index;
        from_bytes(self.frames[index].as_ref()).map(Some)
    }

    /// Ends the reading; columns nobody took are refused unless the sender has a higher minor version.
    pub(crate) fn finish(self, lenient: bool) -> Result<(), Fault> {
        if lenient || self.taken.count_ones() as usize == self.names.len() {
            return Ok(());
        }
        mismatch("unknown column")
    }
}

/// The column frames of a message being written.
#[derive(Default)]
pub(crate) struct ColumnWriter {
    pub(crate) names: Vec<&'static str>,
    pub(crate) frames: Vec<Vec<u8>>,
}

impl ColumnWriter {
    pub(crate) fn put<T: Column>(&mut self, name: &'static str, values: &[T]) {
        self.names.push(name);
        self.frames.push(to_bytes(values));
    }
}

/// Declares a group of columns: a struct of one `Vec` per column, all sent or none.
macro_rules! columns {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: Vec<$type>,)*
        }

        impl $name {
            pub(crate) fn take<F: AsRef<[u8]>>(
                set: &mut $crate::column::ColumnSet<'_, F>,
            ) -> Result<Option<Self>, $crate::fault::Fault> {
                $(let $field = set.take::<$type>(stringify!($field))?;)*
                if !(false $(|| $field.is_some())*) {
                    return Ok(None);
                }
                match ($($field,)*) {
                    ($(Some($field),)*) => Ok(Some($name { $($field,)* })),
                    _ => $crate::fault::mismatch("a column is missing"),
                }
            }

            pub(crate) fn put(&self, out: &mut $crate::column::ColumnWriter) {
                $(out.put(stringify!($field), &self.$field);)*
            }

            /// Whether every column of the group is empty; such a group is not sent.
            pub fn is_empty(&self) -> bool {
                true $(&& self.$field.is_empty())*
            }
        }
    };
}
pub(crate) use columns;

/// A fault unless every listed column has `len` values.
pub(crate) fn same_length(len: usize, others: &[usize]) -> Result<(), Fault> {
    match others.iter().all(|other| *other == len) {
        true => Ok(()),
        false => mismatch("columns of one group differ in length"),
    }
}

/// A fault unless `values` has exactly `sum` entries.
pub(crate) fn sum_is(sum: u128, values: usize) -> Result<(), Fault> {
    match sum == values as u128 {
        true => Ok(()),
        false => mismatch("a column's length is not the sum of its lengths"),
    }
}
