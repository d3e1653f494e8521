//! How the numbers of a tensor are stored: names, block sizes, bytes.
//!
//! Owns the table of types of GGUF and safetensors. Does not know how a block is decoded.

/// How a tensor's numbers are stored in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)] // The variants carry the formats' own names.
pub enum TensorType {
    F32,
    F16,
    BF16,
    F64,
    F8_E4M3,
    F8_E5M2,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
}

/// One row of the table: type, name, elements per block, bytes per block, number in GGUF, name in safetensors.
type Row = (
    TensorType,
    &'static str,
    u64,
    u64,
    Option<u32>,
    Option<&'static str>,
);

use TensorType::*;

const TABLE: &[Row] = &[
    (F32, "F32", 1, 4, Some(0), Some("F32")),
    (F16, "F16", 1, 2, Some(1), Some("F16")),
    (Q4_0, "Q4_0", 32, 18, Some(2), None),
    (Q4_1, "Q4_1", 32, 20, Some(3), None),
    (Q5_0, "Q5_0", 32, 22, Some(6), None),
    (Q5_1, "Q5_1", 32, 24, Some(7), None),
    (Q8_0, "Q8_0", 32, 34, Some(8), None),
    (Q2_K, "Q2_K", 256, 84, Some(10), None),
    (Q3_K, "Q3_K", 256, 110, Some(11), None),
    (Q4_K, "Q4_K", 256, 144, Some(12), None),
    (Q5_K, "Q5_K", 256, 176, Some(13), None),
    (Q6_K, "Q6_K", 256, 210, Some(14), None),
    (Q8_K, "Q8_K", 256, 292, Some(15), None),
    (I8, "I8", 1, 1, Some(24), Some("I8")),
    (I16, "I16", 1, 2, Some(25), Some("I16")),
    (I32, "I32", 1, 4, Some(26), Some("I32")),
    (I64, "I64", 1, 8, Some(27), Some("I64")),
    (F64, "F64", 1, 8, Some(28), Some("F64")),
    (BF16, "BF16", 1, 2, Some(30), Some("BF16")),
    (U8, "U8", 1, 1, None, Some("U8")),
    (U16, "U16", 1, 2, None, Some("U16")),
    (U32, "U32", 1, 4, None, Some("U32")),
    (U64, "U64", 1, 8, None, Some("U64")),
    (Bool, "BOOL", 1, 1, None, Some("BOOL")),
    (F8_E4M3, "F8_E4M3", 1, 1, None, Some("F8_E4M3")),
    (F8_E5M2, "F8_E5M2", 1, 1, None, Some("F8_E5M2")),
];

/// Types of GGUF that have a name but no reader here, so that an error can name them.
const NAMED_ONLY: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl TensorType {
    fn row(self) -> &'static Row {
        TABLE
            .iter()
            .find(|row| row.0 == self)
            .expect("every type has a row; a test walks them")
    }

    /// The type's name as GGUF and safetensors write it (`Q4_1`, `BF16`).
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements in one block; 1 for plain numbers.
    pub fn block_elements(self) -> u64 {
        self.row().2
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> u64 {
        self.row().3
    }

    /// Whether a block holds several elements under one scale.
    pub fn is_quantised(self) -> bool {
        self.block_elements() > 1
    }

    /// The type with this number in a GGUF header, or the name to put in an error.
    pub(crate) fn from_gguf(number: u32) -> Result<Self, String> {
        if let Some(row) = TABLE.iter().find(|row| row.4 == Some(number)) {
            return Ok(row.0);
        }
        match NAMED_ONLY.iter().find(|(n, _)| *n == number) {
            Some((_, name)) => Err((*name).to_owned()),
            None => Err(format!("type {number}")),
        }
    }

    /// The type with this name in a safetensors header.
    pub(crate) fn from_safetensors(name: &str) -> Option<Self> {
        TABLE
            .iter()
            .find(|row| row.5 == Some(name))
            .map(|row| row.0)
    }

    /// The type with this name (`TensorType::name`).
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    pub(crate) fn gguf_names() -> String {
        let names: Vec<_> = TABLE
            .iter()
            .filter(|row| row.4.is_some())
            .map(|row| row.1)
            .collect();
        names.join(", ")
    }

    pub(crate) fn safetensors_names() -> String {
        let names: Vec<_> = TABLE
            .iter()
            .filter(|row| row.5.is_some())
            .map(|row| row.1)
            .collect();
        names.join(", ")
    }

    /// Bytes of a tensor with `shape`, fastest dimension last; None when a row is no whole number of blocks or the
    /// size does not fit in 64 bits.
    pub fn num_bytes(self, shape: &[u64]) -> Option<u64> {
        let (block, bytes) = (self.block_elements(), self.block_bytes());
        let row = shape.last().copied().unwrap_or(1);
        if row % block != 0 {
            return None;
        }
        let elements = shape
            .iter()
            .try_fold(1u64, |product, &n| product.checked_mul(n))?;
        (elements / block).checked_mul(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_row_and_round_trips_by_name() {
        for row in TABLE {
            assert_eq!(row.0.name(), row.1);
            assert_eq!(TensorType::from_name(row.1), Some(row.0));
        }
    }

    #[test]
    fn sizes_count_blocks() {
        assert_eq!(Q4_1.num_bytes(&[576, 1536]), Some(576 * 1536 / 32 * 20));
        assert_eq!(Q6_K.num_bytes(&[2, 256]), Some(420));
        assert_eq!(Q8_0.num_bytes(&[33]), None);
        assert_eq!(F32.num_bytes(&[]), Some(4));
        assert_eq!(F32.num_bytes(&[u64::MAX, 2]), None);
        assert_eq!(F64.num_bytes(&[u64::MAX / 2]), None);
    }

    #[test]
    fn unread_types_keep_their_names() {
        assert_eq!(TensorType::from_gguf(16), Err("IQ2_XXS".to_owned()));
        assert_eq!(TensorType::from_gguf(9999), Err("type 9999".to_owned()));
    }
}
