//! What is read of the kernels' declarations, and what is refused.

#[path = "../build/declarations.rs"]
#[allow(dead_code)]
mod declarations;

use declarations::{Field, Kernel, Sources};

const HEADER: &str = "
constexpr int MAX = 3;
struct Inner {  // a comment; with { both
  const u8* const* pages[MAX];
  int first, last;
};
#define SUM_KERNEL(NAME, REGISTERS, N) \\
  KERNEL(NAME, REGISTERS, SumArgs, 128) { sum<N>(a); }
";
const SOURCE: &str = "
#include \"header.cuh\"
struct alignas(16) SumArgs { u8 kind; const float *x, *y; Inner inner; int n; };
struct Unused { int f() { return 1; } };
SUM_KERNEL(sum_8, 40, 8)
KERNEL(plain, 255, Inner, 32, 2) {
}
";

fn sources() -> Sources {
    Sources::new([("header.cuh", HEADER), ("sum.cu", SOURCE)].into_iter())
}

#[test]
fn kernels_are_found_with_what_they_are_given() {
    let kernel = |name: &str, args: &str| Kernel {
        name: name.into(),
        file: "sum.cu".into(),
        args: args.into(),
    };
    assert_eq!(sources().kernels(), [kernel("plain", "Inner"), kernel("sum_8", "SumArgs")]);
}

#[test]
fn fields_lie_where_a_compiler_puts_them() {
    /// The same struct, laid out by a compiler.
    #[repr(C)]
    #[allow(dead_code)]
    struct Inner {
        pages: [u64; 3],
        first: i32,
        last: i32,
    }
    #[repr(C, align(16))]
    #[allow(dead_code)]
    struct SumArgs {
        kind: u8,
        x: u64,
        y: u64,
        inner: Inner,
        n: i32,
    }
    let mut found = Vec::new();
    let sum = sources().layout("SumArgs", &mut found);
    let expected =
        |name: &str, ty: &str, offset| Field { name: name.into(), ty: ty.into(), offset, count: 1 };
    assert_eq!(
        sum.fields,
        [
            expected("kind", "u8", std::mem::offset_of!(SumArgs, kind)),
            expected("x", "Address", std::mem::offset_of!(SumArgs, x)),
            expected("y", "Address", std::mem::offset_of!(SumArgs, y)),
            expected("inner", "Inner", std::mem::offset_of!(SumArgs, inner)),
            expected("n", "i32", std::mem::offset_of!(SumArgs, n)),
        ]
    );
    assert_eq!((sum.size, sum.align), (size_of::<SumArgs>(), align_of::<SumArgs>()));
    let inner = &found[0];
    assert_eq!((inner.size, inner.align), (size_of::<Inner>(), align_of::<Inner>()));
    assert_eq!(
        inner.fields[0],
        Field { name: "pages".into(), ty: "[Address; 3]".into(), offset: 0, count: 3 }
    );
    assert_eq!(inner.fields[2].offset, std::mem::offset_of!(Inner, last));
}

#[test]
#[should_panic(expected = "Unused has more than fields")]
fn a_struct_with_functions_is_refused() {
    sources().layout("Unused", &mut Vec::new());
}

#[test]
#[should_panic(expected = "declares a struct Missing")]
fn an_argument_that_nobody_declares_is_refused() {
    sources().layout("Missing", &mut Vec::new());
}
