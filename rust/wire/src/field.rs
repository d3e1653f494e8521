//! Maps with fixed keys: how a field of each type is written and read, and the `record!` macro that
//! makes a struct of them. Field order in the struct is key order on the wire.

use crate::column::{self, Column};
use crate::fault::{Fault, mismatch};
use crate::msgpack::{Reader, Writer};

/// A type that stands as a value in a body.
pub(crate) trait Field: Sized {
    fn write(&self, out: &mut Writer);
    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault>;
}

/// A type that may be an item of a list. Separate from [`Field`] because bytes are `bin`, never a list.
pub(crate) trait Item: Field {}

macro_rules! integer_fields {
    ($($int:ty: $write:ident as $wide:ty),*) => {$(
        impl Field for $int {
            fn write(&self, out: &mut Writer) {
                out.$write(<$wide>::from(*self));
            }

            fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
                <$int>::try_from(reader.int()?).or(mismatch("an integer is out of range"))
            }
        }
    )*};
}
integer_fields!(u8: uint as u64, u16: uint as u64, u32: uint as u64, u64: uint as u64, i32: int as i64);

impl Field for f64 {
    fn write(&self, out: &mut Writer) {
        out.float(*self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        reader.float()
    }
}

impl Field for bool {
    fn write(&self, out: &mut Writer) {
        out.bool(*self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        reader.bool()
    }
}

impl Field for String {
    fn write(&self, out: &mut Writer) {
        out.str(self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        reader.str().map(str::to_owned)
    }
}

impl Field for Vec<u8> {
    fn write(&self, out: &mut Writer) {
        out.bin(self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        reader.bin().map(<[u8]>::to_vec)
    }
}

impl<const N: usize> Field for [u8; N] {
    fn write(&self, out: &mut Writer) {
        out.bin(self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        reader
            .bin()?
            .try_into()
            .or(mismatch("bytes of the wrong length"))
    }
}

impl Item for u32 {}
impl Item for u64 {}
impl Item for String {}
impl Item for [u64; 2] {}

impl<T: Item> Field for Vec<T> {
    fn write(&self, out: &mut Writer) {
        out.list(self.len());
        self.iter().for_each(|item| item.write(out));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        (0..reader.list()?).map(|_| T::read(reader)).collect()
    }
}

impl<T: Item + Copy + Default, const N: usize> Field for [T; N] {
    fn write(&self, out: &mut Writer) {
        out.list(N);
        self.iter().for_each(|item| item.write(out));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        if reader.list()? != N {
            return mismatch("a list of the wrong length");
        }
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::read(reader)?;
        }
        Ok(items)
    }
}

impl<T: Field> Field for Vec<(String, T)> {
    fn write(&self, out: &mut Writer) {
        out.map(self.len());
        for (key, value) in self {
            out.str(key);
            value.write(out);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        (0..reader.map()?)
            .map(|_| Ok((reader.str()?.to_owned(), T::read(reader)?)))
            .collect()
    }
}

/// The key is always there.
pub(crate) mod required {
    use super::*;

    pub(crate) fn is_present<T>(_: &T) -> bool {
        true
    }

    pub(crate) fn write<T: Field>(value: &T, out: &mut Writer) {
        value.write(out);
    }

    pub(crate) fn read<T: Field>(reader: &mut Reader<'_>) -> Result<T, Fault> {
        T::read(reader)
    }

    pub(crate) fn finish<T>(value: Option<T>) -> Result<T, Fault> {
        value.map_or(mismatch("a key is missing"), Ok)
    }
}

/// The key is always there and nil stands for None.
pub(crate) mod nullable {
    pub(crate) use super::required::{finish, is_present};
    use super::*;

    pub(crate) fn write<T: Field>(value: &Option<T>, out: &mut Writer) {
        match value {
            Some(value) => value.write(out),
            None => out.nil(),
        }
    }

    pub(crate) fn read<T: Field>(reader: &mut Reader<'_>) -> Result<Option<T>, Fault> {
        if reader.take_nil() {
            Ok(None)
        } else {
            T::read(reader).map(Some)
        }
    }
}

/// The key is left out for None.
pub(crate) mod optional {
    use super::*;

    pub(crate) fn is_present<T>(value: &Option<T>) -> bool {
        value.is_some()
    }

    pub(crate) fn write<T: Field>(value: &Option<T>, out: &mut Writer) {
        if let Some(value) = value {
            value.write(out);
        }
    }

    pub(crate) fn read<T: Field>(reader: &mut Reader<'_>) -> Result<Option<T>, Fault> {
        T::read(reader).map(Some)
    }

    pub(crate) fn finish<T>(value: Option<Option<T>>) -> Result<Option<T>, Fault> {
        Ok(value.flatten())
    }
}

/// The key is left out for an empty list.
pub(crate) mod listed {
    pub(crate) use super::required::{read, write};
    use super::*;

    pub(crate) fn is_present<T>(value: &[T]) -> bool {
        !value.is_empty()
    }

    pub(crate) fn finish<T>(value: Option<Vec<T>>) -> Result<Vec<T>, Fault> {
        Ok(value.unwrap_or_default())
    }
}

/// Numbers as one bin of little-endian values.
pub(crate) mod packed {
    pub(crate) use super::required::{finish, is_present};
    use super::*;

    pub(crate) fn write<T: Column>(values: &[T], out: &mut Writer) {
        out.bin(&column::to_bytes(values));
    }

    pub(crate) fn read<T: Column>(reader: &mut Reader<'_>) -> Result<Vec<T>, Fault> {
        column::from_bytes(reader.bin()?)
    }
}

/// As [`packed`], left out for None.
pub(crate) mod optional_packed {
    pub(crate) use super::optional::{finish, is_present};
    use super::*;

    pub(crate) fn write<T: Column>(values: &Option<Vec<T>>, out: &mut Writer) {
        if let Some(values) = values {
            packed::write(values, out);
        }
    }

    pub(crate) fn read<T: Column>(reader: &mut Reader<'_>) -> Result<Option<Vec<T>>, Fault> {
        packed::read(reader).map(Some)
    }
}

/// Declares a struct that is a map on the wire: `field: Type => mode`, the modes being the modules of
/// this file. `KEYS` lists the keys in wire order.
macro_rules! record {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty => $mode:ident,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        $vis struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        // Only the records that share a map with another use all of these.
        #[allow(dead_code)]
        impl $name {
            pub(crate) const KEYS: &'static [&'static str] = &[$(stringify!($field)),*];

            pub(crate) fn num_entries(&self) -> usize {
                0 $(+ usize::from($crate::field::$mode::is_present(&self.$field)))*
            }

            pub(crate) fn write_entries(&self, out: &mut $crate::msgpack::Writer) {
                $(if $crate::field::$mode::is_present(&self.$field) {
                    out.str(stringify!($field));
                    $crate::field::$mode::write(&self.$field, out);
                })*
            }

            /// Reads the record out of a map that also holds the keys `others`.
            pub(crate) fn read_among(
                reader: &mut $crate::msgpack::Reader<'_>,
                others: &[&str],
            ) -> Result<Self, $crate::fault::Fault> {
                $(let mut $field: Option<$type> = None;)*
                for _ in 0..reader.map()? {
                    match reader.str()? {
                        $(stringify!($field) => $field = Some($crate::field::$mode::read(reader)?),)*
                        other if others.contains(&other) => reader.skip()?,
                        _ => reader.unknown()?,
                    }
                }
                Ok($name { $($field: $crate::field::$mode::finish($field)?,)* })
            }
        }

        impl $crate::field::Field for $name {
            fn write(&self, out: &mut $crate::msgpack::Writer) {
                out.map(self.num_entries());
                self.write_entries(out);
            }

            fn read(reader: &mut $crate::msgpack::Reader<'_>) -> Result<Self, $crate::fault::Fault> {
                Self::read_among(reader, &[])
            }
        }
    };
}
pub(crate) use record;
