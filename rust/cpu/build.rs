//! Compiles csrc/cpu, one translation unit an instruction set, and links `python/proa/_cpu.so`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Translation units and the instruction sets they may use; everything else must run on any x86-64 (or other) machine.
const UNITS: &[(&str, &[&str])] = &[
    ("arena", &[]),
    ("isa", &[]),
    ("op_abi", &[]),
    ("pack", &[]),
    ("pool", &[]),
    ("runner", &[]),
    ("runner_abi", &[]),
    ("sampler", &[]),
    ("kernels_portable", &[]),
];

/// Built on x86-64 only.
const X86_UNITS: &[(&str, &[&str])] = &[
    ("kernels_avx2", &["-mavx2", "-mfma", "-mf16c"]),
    (
        "kernels_avx512",
        &[
            "-mavx512f",
            "-mavx512bw",
            "-mavx512vl",
            "-mavx512dq",
            "-mavx512vnni",
            "-mfma",
            "-mf16c",
            "-mprefer-vector-width=512",
            // gcc 12 warns about its own intrinsics header.
            "-Wno-maybe-uninitialized",
            "-Wno-uninitialized",
        ],
    ),
];

fn compile(source: &Path, name: &str, flags: &[&str]) -> Vec<PathBuf> {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .cpp_link_stdlib(None)
        .std("c++17")
        .opt_level(3)
        .debug(false)
        .pic(true)
        .warnings(true)
        .extra_warnings(true);
    // Sums keep their written order and rounding: no contraction, no reassociation.
    for flag in [
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fvisibility=hidden",
    ]
    .iter()
    .chain(flags)
    {
        build.flag(flag);
    }
    build
        .file(source.join(format!("{name}.cpp")))
        .compile_intermediates()
}

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../..");
    let source = root.join("csrc/cpu");
    println!("cargo:rerun-if-changed={}", source.display());
    println!(
        "cargo:rerun-if-changed={}",
        root.join("csrc/include").display()
    );

    let x86 = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    let units = UNITS.iter().chain(if x86 { X86_UNITS } else { &[] });
    let objects: Vec<PathBuf> = units
        .flat_map(|(name, flags)| compile(&source, name, flags))
        .collect();

    let library = PathBuf::from(env::var("OUT_DIR").expect("set by cargo")).join("_cpu.so");
    let compiler = cc::Build::new().cpp(true).get_compiler();
    let status = Command::new(compiler.path())
        .args([
            "-shared",
            "-pthread",
            "-static-libstdc++",
            "-static-libgcc",
            "-s",
            "-o",
        ])
        .arg(&library)
        .args(&objects)
        .status()
        .expect("the C++ compiler starts");
    assert!(status.success(), "linking {} failed", library.display());

    // Replaced by a rename, so that a running engine keeps the library that it has mapped.
    let target = root.join("python/proa/_cpu.so");
    let fresh = target.with_extension("so.new");
    fs::copy(&library, &fresh)
        .and_then(|_| fs::rename(&fresh, &target))
        .expect("python/proa is writable");
}
